// The episodes of a task side by side, turn by turn, and where each parts from the one that is looked at.
import { html } from "view/html.js";
import { path, useAnswer } from "view/data.js";
import { number } from "view/format.js";
import { Answered, Reward } from "view/parts.js";
import { href } from "view/router.js";
import { Text } from "view/text.js";

export function Group({ args }) {
  const answer = useAnswer(path("episode", ...args, "group"));
  return html`<${Answered} answer=${answer}>${(members) => html`<${Table} ...${{ members, args }} />`}</${Answered}>`;
}

function Table({ members, args }) {
  const [key, step, own] = args;
  const turns = Math.max(...members.map((member) => member.replies.length));
  const earned = members.filter((member) => member.reward != null);
  const wins = earned.filter((member) => member.reward >= 1).length;
  return html`<p class="soft small">${wins} of ${earned.length} succeeded. What is as in episode ${own} is faint; each parts from it at its marked turn.</p>
    <div class="scroll" tabindex="0" role="region" aria-label="episodes of the group">
    <table class="group"><thead><tr><th scope="col">turn</th>${members.map((member) => html`<th scope="col" aria-current=${String(member.number) === own ? "true" : null}>
      <a href=${href("episode", [key, step, String(member.number)], { tab: "group" })}>episode ${member.number}</a> <${Reward} value=${member.reward} />
      <div class="faint small">${member.stop}${member.advantage == null ? "" : ` · advantage ${number(member.advantage)}`}${member.tokens ? ` · ${member.tokens} tokens` : ""}</div></th>`)}</tr></thead>
    <tbody>${Array.from({ length: turns }, (_, turn) => html`<tr><th scope="row">${turn + 1}</th>${members.map((member) => html`<${Cell} ...${{ member, turn, key, step }} />`)}</tr>`)}</tbody></table></div>`;
}

function Cell({ member, turn }) {
  const reply = member.replies[turn];
  if (!reply) return html`<td class="gone ${member.apart === turn ? "parts" : ""}">${member.apart === turn ? "ended" : ""}</td>`;
  const same = member.apart == null || turn < member.apart;
  return html`<td class="${same ? "same" : ""} ${member.apart === turn ? "parts" : ""}">
    <div class=${reply.calls ? "mono" : ""}><${Text}>${reply.text || "(says nothing)"}</${Text}></div>
    ${reply.answer && html`<div class="back ${reply.bad ? "bad" : "soft"}"><${Text}>${reply.answer}</${Text}></div>`}</td>`;
}
