// Runs: overlaid curves, and the state, health, results and config of each run.
import { Chart } from "view/chart.js";
import { Config } from "view/config.js";
import { path, useAnswers } from "view/data.js";
import { ago, left, percent, plural, whole } from "view/format.js";
import { html, useEffect, useMemo, useState } from "view/html.js";
import { useKeys } from "view/keys.js";
import { charts, everything, grouped, in_phase, mean } from "view/metrics.js";
import { Notes, Tags } from "view/notes.js";
import { Empty, Outline, Tag, rate } from "view/parts.js";
import { change, go, href, useTyped } from "view/router.js";
import { Text, brief } from "view/text.js";

export const title = "Runs";
const AT_FIRST = 6; // runs that are shown until the user chooses some, besides the other seeds of their groups
const COLOURS = 8;

export function Page({ overview, query }) {
  const { groups } = overview;
  const apart = query.seeds === "apart"; // each seed has a colour and a line of its own
  const group_of = (key) => groups.findIndex((group) => group.runs.includes(key));
  const runs = overview.runs.map((run, i) => ({ ...run, colour: `--s${((apart ? i : group_of(run.key)) % COLOURS) + 1}` }));
  const named = query.runs?.split(",").map(decodeURIComponent);
  const first = new Set(runs.slice(0, AT_FIRST).map((run) => group_of(run.key)));
  const shown = runs.filter((run) => (named ? named.includes(run.key) : first.has(group_of(run.key))));
  const stamps = shown.map((run) => run.stamp).join();
  const curves = useAnswers(shown.map((run) => path("runs", run.key, "curves")), stamps);
  const pages = useAnswers(shown.map((run) => path("runs", run.key)), stamps);
  const loaded = shown.map((run, i) => ({ ...pages[i]?.data, ...run, curves: curves[i]?.data }));
  const no_runs = !runs.length && overview.evaluations.length > 0;
  useEffect(() => {
    if (no_runs) go(href("evaluations"), true);
  }, [no_runs]);
  if (!runs.length) return html`<${Empty}>No runs found.</${Empty}>`;
  return html`<div class=${runs.length > 1 ? "runs beside" : "runs"}>
    ${runs.length > 1 && html`<${List} ...${{ runs, groups, shown, query }} />`}
    <div class="stack">
      ${loaded.length === 1 ? html`<${Head} run=${loaded[0]} />` : html`<h1>${plural(loaded.length, "run")}</h1>`}
      ${loaded.map((run) => run.problems.map((problem) => html`<p class="problem">${problem}</p>`))}
      <${Health} runs=${loaded} />
      <${Results} runs=${apart ? loaded : grouped(loaded, groups)} />
      <${Curves} ...${{ runs: loaded, groups, apart, query }} />
      <${Config} runs=${loaded} />
    </div>
  </div>`;
}

/** All runs, with check boxes that choose those to show, and a search over their names, states, tags and notes. The
 * seeds of one setting follow its name. */
function List({ runs, groups, shown, query }) {
  const [find, setFind] = useTyped("find", query.find ?? "");
  const words = find.toLowerCase().split(/\s+/).filter(Boolean);
  const said = (run) => [run.key, run.state, run.domain, run.model, ...run.annotation.tags, run.annotation.note].join(" ").toLowerCase();
  const listed = runs.filter((run) => words.every((word) => said(run).includes(word)));
  const choose = (keys) => change({ runs: keys.map(encodeURIComponent).join(",") });
  const is_shown = (key) => shown.some((run) => run.key === key);
  const toggle = (keys, on) => choose(runs.map((run) => run.key).filter((key) => (keys.includes(key) ? on : is_shown(key))));
  return html`<aside class="card list" aria-label="runs">
    <input type="search" placeholder="name, state, tag, note" aria-label="find runs" value=${find} onInput=${(e) => setFind(e.target.value)} />
    <p class="row small">
      <button type="button" class="quiet" onClick=${() => choose(listed.map((run) => run.key))}>${words.length ? "show these" : "all"}</button>
      <span class="faint" role="status">${shown.length} of ${plural(runs.length, "run")} shown${words.length ? `, ${listed.length} found` : ""}</span>
    </p>
    <ul>
      ${groups.map((group) => {
        const found = listed.filter((run) => group.runs.includes(run.key));
        const each = found.map((run) => html`<${Listed} key=${run.key} ...${{ run, choose, checked: is_shown(run.key), toggle }} />`);
        return group.runs.length > 1 && found.length ? html`<${Seeds} key=${group.runs[0]} ...${{ group, found, choose, toggle, is_shown }}>${each}</${Seeds}>` : each;
      })}
    </ul>
  </aside>`;
}

/** A group of seeds in the list: its name, its settings that differ from other groups, and its runs. */
function Seeds({ group, found, choose, toggle, is_shown, children }) {
  const keys = found.map((run) => run.key);
  const count = keys.filter(is_shown).length;
  return html`<li>
    <label>
      <input type="checkbox" checked=${count === keys.length} indeterminate=${count > 0 && count < keys.length} onChange=${() => toggle(keys, count < keys.length)} />
      <i class="dot" style=${{ background: `var(${found[0].colour})` }} />
      <b class="name">${group.name}</b>
    </label>
    <button type="button" class="quiet small" onClick=${() => choose(keys)} aria-label=${`only the seeds of ${group.name}`}>only</button>
    <span class="small faint wide-cell">seeds ${group.seeds.join(", ")}</span>
    ${group.settings.map((setting) => html`<span class="small mono wide-cell setting">${setting}</span>`)}
    <ul class="seeds wide-cell">${children}</ul>
  </li>`;
}

function Listed({ run, choose, checked, toggle }) {
  return html`<li>
    <label>
      <input type="checkbox" checked=${checked} onChange=${() => toggle([run.key], !checked)} />
      <i class="dot" style=${{ background: `var(${run.colour})` }} />
      <span class="name" title=${run.folder}>${run.key}</span>
    </label>
    <button type="button" class="quiet small" onClick=${() => choose([run.key])} aria-label=${`only ${run.key}`}>only</button>
    <span class="small faint"><b class=${KINDS[run.state]} >${run.state}</b>, ${where(run)}</span>
    <span class="small faint wide-cell">training success ${percent(run.success_rate)}, held-out ${percent(run.held_out)}</span>
    ${run.reason && html`<span class="small soft name wide-cell" title=${run.reason}><${Text}>${run.reason}</${Text}></span>`}
    ${run.annotation.tags.length > 0 && html`<span class="row tags"><${Tags} tags=${run.annotation.tags} /></span>`}
    ${run.annotation.note && html`<span class="small soft name wide-cell" title=${run.annotation.note}><${Text}>${brief(run.annotation.note, 60)}</${Text}></span>`}
  </li>`;
}

const KINDS = { running: "accent", stopped: "warn", crashed: "bad", finished: "good" };

const where = (run) => (run.state === "finished" && run.step >= run.steps ? plural(run.steps, "step") : `step ${run.step} of ${run.steps || "?"}`);

function Head({ run }) {
  const verdict = run.result?.verdict;
  return html`<div class="head">
    <div class="row">
      <h1>${run.key}</h1>
      <${Tag} kind=${KINDS[run.state]}>${run.state}</${Tag}>
      <span class="soft small">${where(run)}</span>
      <span class="faint small">updated ${ago(run.written)}</span>
      <span class="space" />
      <a class="button" href=${href("episodes", [run.key])}>episodes</a>
      <a class="button" href=${href("evaluations", [run.key])}>evaluations</a>
    </div>
    <p class="soft">
      ${[run.domain, run.model, run.config?.["engine.finetune"], run.config && `seed ${run.config.seed}`].filter(Boolean).join(" · ")}
      <span class="faint mono"> ${run.folder}</span>
    </p>
    ${run.reason && html`<p class=${run.state === "crashed" ? "problem" : "warned"}><${Text}>${run.reason}</${Text}></p>`}
    ${run.progress && html`<${Progress} ...${{ progress: run.progress, steps: run.steps }} />`}
    ${run.state !== "finished" && html`<progress max=${run.steps || 1} value=${run.step} aria-label="completed steps" />`}
    ${verdict && html`<p class="verdict">${verdict}</p>`}
    <${Notes} annotation=${run.annotation} where=${[run.key]} />
  </div>`;
}

const DOING = { start: "starting", sample: "playing episodes", update: "updating the weights" };

/** What a running run does now, and the time left. */
function Progress({ progress, steps }) {
  const { phase, step, activity, done, total, step_seconds_left: soon, phase_seconds_left: later } = progress;
  const doing = DOING[activity] ?? activity.replace(/^evaluate/, "evaluating");
  const evaluates = activity.startsWith("evaluate");
  return html`<p class="row progress" role="group" aria-label="progress">
    <b>${phase && !evaluates ? `${phase}, step ${step} of ${steps}` : `after step ${step} of ${steps}`}</b>
    <span>${doing}${total ? `: ${whole(done)} of ${whole(total)}` : ""}</span>
    ${total > 0 && html`<progress max=${total} value=${done} aria-label=${doing} />`}
    ${soon != null && html`<span class="soft">${left(soon)} of this ${evaluates ? "evaluation" : "step"}</span>`}
    ${later != null && html`<span class="soft">${left(later)} of ${phase}</span>`}
  </p>`;
}

/** Health warnings with their remedies, the latest first. */
function Health({ runs }) {
  const found = runs.flatMap((run) => (run.health ?? []).map((finding) => ({ run, ...finding })));
  if (!found.length) return null;
  return html`<section class="card health" aria-label="health">
    ${found.map(
      ({ run, check, text, remedy, steps }) => html`<details>
        <summary>
          ${runs.length > 1 && html`<i class="dot" style=${{ background: `var(${run.colour})` }} title=${run.key} />`}
          <${Tag} kind="warn">${check}</${Tag}> ${text}
          <span class="faint small"> step ${steps.at(-1)}${steps.length > 1 ? ` and ${plural(steps.length - 1, "earlier step")}` : ""}</span>
        </summary>
        <p class="soft">${remedy}</p>
      </details>`,
    )}
  </section>`;
}

/** The result tables of finished runs. A group of seeds has the mean, lowest and highest value of those that are
 * finished. */
function Results({ runs }) {
  const rows = runs.flatMap((run) => (run.seeds ? rows_of_seeds(run) : (run.result?.rows ?? []).map((row) => ({ run, ...row }))));
  if (!rows.length) return null;
  const several = runs.length > 1 || runs[0]?.seeds;
  return html`<section class="card scroll" aria-label="results" tabindex="0">
    <table>
      <thead>
        <tr>
          ${several && html`<th>run</th>`}
          <th>stage, on held-out tasks</th><th class="number">success [95% interval${runs.some((run) => run.seeds) ? "; of seeds: lowest, highest" : ""}]</th><th class="number">gain over the row above</th><th class="number">tasks</th>
        </tr>
      </thead>
      <tbody>
        ${rows.map(
          ({ run, name, success, gain }) => html`<tr>
            ${several && html`<td><i class="dot" style=${{ background: `var(${run.colour})` }} /> ${run.key}</td>`}
            <td>${name}</td>
            <td class="number">${rate(success)}</td>
            <td class="number ${gain && (gain.low > 0 ? "good" : gain.high < 0 ? "bad" : "faint")}">
              ${gain ? `${signed(gain.mean)} [${signed(gain.low)}, ${signed(gain.high)}]${gain.tasks && gain.tasks !== success.tasks ? ` on the ${gain.tasks} common tasks` : ""}` : ""}
            </td>
            <td class="number">${success.tasks}</td>
          </tr>`,
        )}
      </tbody>
    </table>
  </section>`;
}

function rows_of_seeds(run) {
  const results = run.seeds.flatMap((seed) => (seed.result ? [seed.result.rows] : []));
  const [first = [], ...others] = results;
  const names = first.map((row) => row.name).filter((name) => others.every((rows) => rows.some((row) => row.name === name)));
  const over = (values) => ({ mean: mean(values), low: Math.min(...values), high: Math.max(...values) });
  return names.map((name) => {
    const rows = results.map((each) => each.find((row) => row.name === name));
    const gains = rows.flatMap(({ gain }) => (gain ? [gain.mean] : []));
    const tasks = Math.max(...rows.map(({ success }) => success.tasks));
    return { run, name, success: { ...over(rows.map(({ success }) => success.mean)), tasks }, gain: gains.length === rows.length ? over(gains) : null };
  });
}

const signed = (value) => `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(3)}`;

function Curves({ runs, groups, apart, query }) {
  const [dragged, setSmooth] = useTyped("smooth", query.smooth ?? "");
  const [wanted, setWanted] = useTyped("metric", query.metric ?? "");
  const smooth = Math.min(0.98, Math.max(0, Number(dragged) || 0));
  const complete = runs.filter((run) => run.curves);
  const phases = [...new Set(complete.flatMap((run) => run.curves.phases.map(([name]) => name)))];
  const phase = phases.includes(query.phase) ? query.phase : "";
  const chosen = phase ? complete.map((run) => in_phase(run, phase)) : complete;
  const together = grouped(chosen, groups);
  const loaded = apart ? chosen : together;
  const changes = [phase, apart, ...runs.flatMap((run) => [run.key, run.curves, run.evaluations])];
  const first = useMemo(() => charts(loaded), changes);
  const rest = useMemo(() => everything(loaded), changes);
  const found = rest.filter((chart) => wanted && chart.title.includes(wanted.trim().toLowerCase()));
  useKeys({ m: ["find a metric", () => document.getElementById("metric").focus()] });
  if (!loaded.length) return html`<${Outline} cards=${4} />`;
  if (!first.length) return html`<${Empty}>No step is complete yet.</${Empty}>`;
  const has_seeds = together.length < chosen.length;
  const each = Math.max(...loaded.map((run) => run.curves.steps_per_point));
  return html`<section aria-label="curves" class="stack">
    <h2 class="unseen">Curves</h2>
    <div class="row tools">
      <label class="row">smoothing
        <input type="range" min="0" max="0.98" step="0.02" value=${smooth} onInput=${(e) => setSmooth(Number(e.target.value) ? e.target.value : "")} />
      </label>
      <input id="metric" type="search" placeholder="find a metric" aria-label="find a metric" value=${wanted} onInput=${(e) => setWanted(e.target.value)} />
      ${has_seeds && html`<label class="row"><input type="checkbox" checked=${!apart} onChange=${() => change({ seeds: apart ? "" : "apart" })} /> mean of seeds, with a band from the lowest to the highest</label>`}
      ${phases.length > 1 && html`<label class="row">steps of
        <select aria-label="phase" value=${phase} onChange=${(e) => change({ phase: e.target.value })}>
          <option value="">all phases</option>${phases.map((name) => html`<option value=${name}>${name}</option>`)}
        </select>
      </label>`}
      ${each > 1 && html`<span class="faint small">each point is the mean of ${each} steps</span>`}
      <span class="faint small wide">drag over a chart to zoom, double-click to reset</span>
    </div>
    <div class="charts">${(wanted ? found : first).map((chart) => html`<${Chart} key=${chart.title} ...${chart} smooth=${smooth} />`)}</div>
    ${!wanted && spaces(rest).map(([space, of]) => html`<${Space} key=${space} ...${{ space, of, smooth }} />`)}
  </section>`;
}

function Space({ space, of, smooth }) {
  const [open, setOpen] = useState(false);
  return html`<details class="space-of" onToggle=${(e) => setOpen(e.target.open)}>
    <summary><h2>${space}</h2> <span class="faint">${plural(of.length, "metric")}</span></summary>
    ${open && html`<div class="charts">${of.map((chart) => html`<${Chart} key=${chart.title} ...${chart} smooth=${smooth} />`)}</div>`}
  </details>`;
}

function spaces(of) {
  const found = new Map();
  for (const chart of of) {
    const [space] = chart.title.split("/");
    found.set(space, [...(found.get(space) ?? []), chart]);
  }
  return [...found];
}
