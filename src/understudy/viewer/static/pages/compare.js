// The comparison of two agents on the same tasks: the paired difference, and both success rates on each task.
import { html } from "view/html.js";
import { path, useAnswer } from "view/data.js";
import { percent, plural } from "view/format.js";
import { Answered } from "view/parts.js";
import { change } from "view/router.js";
import { Text } from "view/text.js";
import { Interval } from "view/pages/interval.js";

const SHOWN = 60;

export function Compare({ name, all, query, stamps }) {
  const choices = all.flatMap((each) => each.rows.map((row, place) => ({ key: each.key, place, row }))).filter(({ row }) => row.kind === "agent");
  const own = choices.filter((choice) => choice.key === name);
  const value = ({ key, place }) => `${place}@${key}`;
  const fresh = query.new || (own.length ? value(own.at(-1)) : "");
  const old = query.old || (own.length > 1 && !own.at(-1).row.pooled ? value(own.at(-2)) : "");
  if (choices.length < 2) return null;
  const pick = (which, chosen) => html`<select aria-label=${which} value=${chosen} onChange=${(event) => change({ [which]: event.target.value })}>
    <option value="">choose…</option>${choices.map((choice) => html`<option value=${value(choice)}>${choice.key}: ${choice.row.name}</option>`)}</select>`;
  return html`<section class="card compare"><h2>Compare</h2>
    <div class="row"><span>Is</span>${pick("new", fresh)}<span>better than</span>${pick("old", old)}<span>?</span></div>
    ${fresh && old && fresh !== old && html`<${Compared} ...${{ fresh, old, stamps }} />`}</section>`;
}

function Compared({ fresh, old, stamps }) {
  const [one, other] = [fresh, old].map((value) => [value.replace(/^\d+@/, ""), value.match(/^\d+/)[0]]);
  const answer = useAnswer(path("comparison", ...one, ...other), {}, `${stamps[one[0]]} ${stamps[other[0]]}`);
  return html`<${Answered} answer=${answer}>${(found) => html`<div class="stack">
    <p><${Interval} rate=${found.gain} signed=${true} /></p>
    ${found.verdict.split("\n").map((line) => html`<p class="soft"><${Text}>${line}</${Text}></p>`)}
    <${Tasks} tasks=${found.tasks} /></div>`}</${Answered}>`;
}

function Tasks({ tasks }) {
  const differ = tasks.filter((task) => task.gain !== 0);
  const won = differ.filter((task) => task.gain > 0).length;
  const listed = [...differ].sort((a, b) => Math.abs(b.gain) - Math.abs(a.gain)).slice(0, SHOWN);
  return html`<details><summary>better on ${plural(won, "task")}, worse on ${differ.length - won}, equal on ${tasks.length - differ.length}</summary>
    <table><thead><tr><th scope="col">task</th><th scope="col" class="number">old</th><th scope="col" class="number">new</th></tr></thead>
    <tbody>${listed.map((task) => html`<tr class=${task.gain > 0 ? "good" : "bad"}><th scope="row"><${Text}>${task.task}</${Text}></th><td class="number">${percent(task.old)}</td><td class="number">${percent(task.new)}</td></tr>`)}</tbody></table></details>`;
}
