// The episodes of a group side by side, turn by turn, and the turn at which each diverges from the current one.
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
  return html`<p class="soft small">${wins} of ${earned.length} episodes succeeded. Turns equal to those of episode ${own} are grey. The marked turn is the first that differs.</p>
    <div class="scroll" tabindex="0" role="region" aria-label="episodes of the group">
    <table class="group"><thead><tr><th scope="col">turn</th>${members.map((member) => html`<th scope="col" aria-current=${String(member.number) === own ? "true" : null}>
      <a href=${href("episode", [key, step, String(member.number)], { tab: "group" })}>episode ${member.number}</a> <${Reward} value=${member.reward} />
      <div class="faint small">${member.stop}${member.tokens ? ` · ${member.tokens} sampled tokens` : ""}</div></th>`)}</tr></thead>
    <tbody>${Array.from({ length: turns }, (_, turn) => html`<tr><th scope="row">${turn + 1}</th>${members.map((member) => html`<${Cell} ...${{ member, turn, key, step }} />`)}</tr>`)}</tbody></table></div>`;
}

function Cell({ member, turn }) {
  const reply = member.replies[turn];
  if (!reply) return html`<td class="gone ${member.diverges_at === turn ? "parts" : ""}">${member.diverges_at === turn ? "ended" : ""}</td>`;
  const same = member.diverges_at == null || turn < member.diverges_at;
  return html`<td class="${same ? "same" : ""} ${member.diverges_at === turn ? "parts" : ""}">
    <div class=${reply.calls ? "mono" : ""}><${Text}>${reply.text || "(empty message)"}</${Text}></div>
    ${reply.advantage != null && html`<div class="faint small">advantage ${number(reply.advantage)}</div>`}
    ${reply.response && html`<div class="back ${reply.has_error ? "bad" : "soft"}"><${Text}>${reply.response}</${Text}></div>`}</td>`;
}
