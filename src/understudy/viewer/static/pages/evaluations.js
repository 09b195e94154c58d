// Evaluations: success with intervals, causes of failure, and comparisons of agents.
import { html, useState } from "view/html.js";
import { path, useAnswer } from "view/data.js";
import { ago, number, percent, plural, whole } from "view/format.js";
import { useKeys } from "view/keys.js";
import { Answered, Empty, Reward, Tag } from "view/parts.js";
import { change, href } from "view/router.js";
import { Text } from "view/text.js";
import { Compare } from "view/pages/compare.js";
import { Interval, signless } from "view/pages/interval.js";

export const title = "Evaluations";
const SHOWN = 40;

export function Page({ overview, args, query }) {
  const stamps = Object.fromEntries([...overview.evaluations, ...overview.runs].map((each) => [each.key, each.evaluations_stamp]));
  const all = useAnswer(path("evaluations"), {}, JSON.stringify(stamps));
  return html`<${Answered} answer=${all}>${(found) => (args[0] ? html`<${One} ...${{ key: args[0], name: args[0], all: found, query, stamps }} />` : html`<${List} found=${found} />`)}</${Answered}>`;
}

function List({ found }) {
  if (!found.length) return html`<${Empty}>No evaluations found. To create one: <code>understudy eval retail --out evals/first</code></${Empty}>`;
  return html`<div class="stack"><h1>Evaluations</h1>${found.map((each) => html`<section class="card"><h2><a href=${href("evaluations", [each.key])}><${Text}>${each.key}</${Text}></a></h2>
    ${each.about && html`<p class="soft small"><${Text}>${about(each)}</${Text}></p>`}
    ${each.problem ? html`<p class="problem">${each.problem}</p>` : html`<${Successes} rows=${each.rows} />`}</section>`)}</div>`;
}

/** Model, user, split, number of tasks and date of an evaluation. */
const about = ({ about: { model, user, split, tasks, written } }) =>
  [model, user && `user ${user}`, split && `${split} split`, plural(tasks, "task"), ago(written)].filter(Boolean).join(" · ");

function One({ name, all, query, stamps }) {
  const answer = useAnswer(path("evaluations", name), {}, stamps[name]);
  return html`<${Answered} answer=${answer}>${(found) => html`<div class="stack evaluation">
    <div class="row"><h1><${Text}>${name}</${Text}></h1><span class="faint small"><${Text}>${found.path}</${Text}></span></div>
    ${found.conversations.length > 0 ? html`<${Conversations} ...${{ name, conversations: found.conversations }} />` : html`<p class="card says"><${Text}>${found.verdict}</${Text}></p>`}
    ${found.noise && html`<p class="soft">Two identical evaluations differ by up to ${number(found.noise.noise_floor)} in 95% of cases${found.noise.rates.length > 1 ? `; ${found.noise.rates.length} repeats had success rates of ${found.noise.rates.map((rate) => percent(rate)).join(", ")}` : ""}.</p>`}
    ${found.prompts && html`<p class="soft">Success under each wording of the system message: ${Object.entries(found.prompts.rates).map(([name, rate]) => `${name} ${percent(rate)}`).join(", ")}.</p>`}
    ${found.rows.length > 0 && html`<section class="card"><h2>Success on ${plural(found.tasks, "task")}</h2>
      <${Successes} rows=${rowsOf(found).map((row) => ({ name: row.name, kind: row.result.kind, success: row.success, row }))} /></section>`}
    <${Groups} rows=${rowsOf(found)} query=${query} />
    ${found.failures.length > 0 && html`<${Failures} ...${{ found, name, step: "eval", query }} />`}
    ${found.stored.length > 0 && html`<${Why} ...${{ stored: found.stored, name, query, stamp: stamps[name] }} />`}
    ${found.hardest.length > 0 && html`<${Hardest} ...${{ name, tasks: found.hardest }} />`}
    <${Compare} ...${{ name, all, query, stamps }} />
  </div>`}</${Answered}>`;
}

/** The conversations of a server's log, each with a link. */
function Conversations({ name, conversations }) {
  return html`<section class="card"><h2>${plural(conversations.length, "conversation")}</h2><table class="hardest"><thead><tr><th scope="col">conversation</th><th scope="col" class="number">replies</th><th scope="col">reward</th></tr></thead>
    <tbody>${conversations.map(({ number: episode, task, replies, reward }) => html`<tr><th scope="row"><a href=${href("episode", [name, "eval", String(episode)])}><${Text}>${task}</${Text}></a></th><td class="number">${replies}</td><td><${Reward} value=${reward} /></td></tr>`)}</tbody></table></section>`;
}

/** The rows of a report, and all repeats of an agent as one more row. */
const rowsOf = ({ rows, all_repeats: pooled }) => (pooled ? [...rows, pooled] : rows);

/** One line per row: success with its interval, turns, tokens, stop reasons, cost and faults. */
function Successes({ rows }) {
  const full = rows.some((row) => row.row);
  const faults = !full && rows.some((row) => row.faults);
  return html`<div class="scroll" tabindex="0" role="region" aria-label="success"><table class="successes"><thead><tr><th scope="col">agent</th><th scope="col" class="number">success</th><th scope="col">95% interval</th>
    ${full && html`<th scope="col" class="number">turns</th><th scope="col" class="number">tokens</th><th scope="col">stop reasons</th><th scope="col">cost</th><th scope="col">faults</th>`}${faults && html`<th scope="col">faults</th>`}</tr></thead>
    <tbody>${rows.map(({ name, kind, success, row, faults: failed }) => html`<tr class=${kind === "agent" ? "" : "soft"}><th scope="row"><${Text}>${name}</${Text}></th>
      <td class="number">${percent(success.mean)}</td><td><${Interval} rate=${success} /></td>
      ${row && html`<${Took} result=${row.result} />`}${faults && html`<td><${Faults} counts=${failed ?? {}} /></td>`}</tr>`)}</tbody></table></div>`;
}

function Took({ result }) {
  const { mean_turns: turns, mean_tokens: tokens, stop_counts: stops, usage, fault_counts: faults } = result;
  const spent = Object.entries(usage).map(([role, used]) => `${role} ${used.cost} for ${plural(used.requests, "request")}`);
  return html`<td class="number">${number(turns)}</td><td class="number">${tokens ? number(tokens) : "–"}</td>
    <td>${Object.entries(stops).map(([stop, count]) => `${stop} ${count}`).join(", ")}</td>
    <td>${spent.join("; ") || "–"}</td><td><${Faults} counts=${faults} /></td>`;
}

/** The number of episodes that each component at fault ended. */
function Faults({ counts }) {
  const failed = Object.entries(counts).map(([fault, count]) => `${fault} ${count}`);
  return failed.length ? html`<${Tag} kind="warn">${failed.join(", ")}</${Tag}>` : "none";
}

/** Success of each agent by domain, family and difficulty, as pass^k or pass@k. */
function Groups({ rows, query }) {
  const agents = rows.filter((row) => row.result.kind === "agent");
  const trials = Math.max(1, ...agents.map((row) => row.result.trials));
  const k = Math.min(trials, Number(query.k) || 1);
  const kind = query.pass === "at" ? "at" : "hat";
  if (!agents.length) return null;
  const groups = agents.toReversed().flatMap((row) => row.groups); // agents may have played other tasks
  const keys = [...new Map(groups.map(({ domain, family, difficulty }) => [JSON.stringify([domain, family, difficulty]), { domain, family, difficulty }])).values()];
  const found = (row, key) => row.groups.find((each) => ["domain", "family", "difficulty"].every((name) => each[name] === key[name]));
  const several = new Set(keys.map((key) => key.domain).filter(Boolean)).size > 1;
  return html`<section class="card"><div class="row"><h2>By domain, family and difficulty</h2><span class="space" />
      ${trials > 1 && html`<label class="small">k <select aria-label="k" value=${k} onChange=${(event) => change({ k: event.target.value })}>${Array.from({ length: trials }, (_, i) => html`<option>${i + 1}</option>`)}</select></label>
      <label class="small"><select aria-label="all or any of k trials" value=${kind} onChange=${(event) => change({ pass: event.target.value })}><option value="hat">pass^k: all of k trials</option><option value="at">pass@k: any of k trials</option></select></label>`}</div>
    <div class="scroll" tabindex="0" role="region" aria-label="success by group"><table class="groups"><thead><tr><th scope="col">group</th><th scope="col" class="number">tasks</th>${agents.map((row) => html`<th scope="col"><${Text}>${row.name}</${Text}></th>`)}</tr></thead>
    <tbody>${keys.filter((key) => several || key.domain == null || key.family || key.difficulty).map((key) => html`<tr class=${key.family || key.difficulty ? "" : "whole"}><th scope="row"><${Text}>${named(key, several)}</${Text}></th><td class="number">${whole(found(agents.at(-1), key)?.tasks)}</td>
      ${agents.map((row) => html`<td><${Rated} rate=${found(row, key)?.[`pass_${kind}_k`][k - 1]} /></td>`)}</tr>`)}</tbody></table></div></section>`;
}

const named = ({ domain, family, difficulty }, several) => {
  const part = family ?? difficulty;
  if (part) return several ? `${domain}, ${part}` : part;
  return domain ?? "all";
};

const Rated = ({ rate }) => (rate ? html`<span class="rated"><b>${percent(rate.mean)}</b> <${Interval} rate=${rate} /></span>` : "–");

/** Why episodes of a run failed: those of one evaluation or one training step. */
function Why({ stored, name, query, stamp }) {
  const of = stored.includes(query.of) ? query.of : stored[0];
  const answer = useAnswer(path("failures", name, of), {}, stamp);
  return html`<section class="stack" aria-label="why episodes failed">
    <label class="row">Episodes of <select value=${of} onChange=${(event) => change({ of: event.target.value, cause: "" })}>
      ${stored.map((each) => html`<option value=${each}>${/^\d+$/.test(each) ? `training, step ${each}` : staged(each)}</option>`)}</select></label>
    <${Answered} answer=${answer}>${(found) => (found.failures.length
      ? html`<${Failures} ...${{ found, name, step: of, query }} />`
      : html`<p class="soft">No failure was found in ${plural(found.episodes, "episode")}.</p>`)}</${Answered}></section>`;
}

const staged = (name) => name.replace(/^0*(\d+) (.*)$/, "$2, step $1").replace(/^(step \d+), \1$/, "$1");

/** The causes of failure, and the failed episodes. */
function Failures({ found, name, step, query }) {
  const [all, setAll] = useState(false);
  const most = Math.max(...found.causes.map((cause) => cause.failures));
  const chosen = by_task(found.failures.filter((failure) => !query.cause || failure.cause.kind === query.cause));
  const choose = (kind) => change({ cause: kind === query.cause ? "" : kind });
  useKeys({ Escape: ["all causes", () => change({ cause: "" })] });
  return html`<section class="card"><h2>Why ${plural(found.failures.length, "episode")} failed</h2>
    <ul class="causes">${found.causes.map(({ component, kind, failures }) => html`<li><button type="button" aria-pressed=${kind === query.cause} onClick=${() => choose(kind)}>
      <span class="number">${failures}</span><span class="size"><i style=${{ width: `${(100 * failures) / most}%` }} /></span>
      <span><b>${component}</b> ${found.meanings[kind]?.meaning ?? kind}</span></button></li>`)}</ul>
    <ol class="failures">${chosen.slice(0, all ? undefined : SHOWN).map(([failure, ...others]) => html`<li><span class="row">${failure.episode
      ? html`<a href=${href("episode", [name, step, String(failure.episode)])}><${Text}>${failure.task}</${Text}></a>`
      : html`<${Text}>${failure.task}</${Text}>`} ${!query.cause && html`<${Tag}>${failure.cause.kind.replaceAll("_", " ")}</${Tag}>`}
      ${failure.judge_cause && failure.judge_cause.kind !== failure.cause.kind && html`<${Tag} kind="warn">judge: ${failure.judge_cause.kind.replaceAll("_", " ")}</${Tag}>`}
      ${others.length > 0 && html`<span class="faint small">${plural(others.length + 1, "episode")}</span>`}
      ${others.map(({ episode }) => episode && html`<a class="small" href=${href("episode", [name, step, String(episode)])} aria-label=${`episode ${episode} of ${failure.task}`}>${episode}</a>`)}</span>
      <span class="soft"><${Text}>${failure.cause.evidence}</${Text}></span></li>`)}</ol>
    ${chosen.length > SHOWN && html`<button type="button" onClick=${() => setAll(!all)}>${all ? "show less" : `show all ${chosen.length}`}</button>`}</section>`;
}

/** The failures of one task with the same cause and evidence as one list. */
function by_task(failures) {
  const found = new Map();
  for (const failure of failures) {
    const key = JSON.stringify([failure.task, failure.cause.kind, failure.cause.evidence, failure.judge_cause?.kind]);
    found.set(key, [...(found.get(key) ?? []), failure]);
  }
  return [...found.values()];
}

/** The tasks that failed most often, each with links to its episodes. Those of a run are of its last evaluation. */
function Hardest({ name, tasks }) {
  const of = tasks.flatMap((each) => each.played)[0]?.step;
  return html`<section class="card"><h2>Hardest tasks</h2><table class="hardest"><thead><tr><th scope="col">task</th><th scope="col" class="number">failed</th><th scope="col" class="number">episodes</th>
    ${of && html`<th scope="col">${of === "eval" ? "open" : `open those of ${staged(of)}`}</th>`}</tr></thead>
    <tbody>${tasks.map((each) => html`<tr><th scope="row"><${Text}>${each.task}</${Text}></th><td class="number">${each.failures}</td><td class="number">${each.episodes}</td>
    ${of && html`<td><span class="row">${each.played.map(({ step, number: episode, reward }) => html`<a href=${href("episode", [name, step, String(episode)])} aria-label=${`episode ${episode} of ${each.task}`}><span class="faint">${episode}</span> <${Reward} value=${reward} /></a>`)}</span></td>`}</tr>`)}</tbody></table></section>`;
}
