// The episodes of a run. The server's index filters, searches and sorts them; only visible rows are drawn.
import { path, ask, useAnswer } from "view/data.js";
import { percent, plural, seconds, whole } from "view/format.js";
import { html, useEffect, useLayoutEffect, useRef, useState } from "view/html.js";
import { useKeys } from "view/keys.js";
import { Tags } from "view/notes.js";
import { Empty, Outline, Reward, Tag } from "view/parts.js";
import { change, go, href } from "view/router.js";

export const title = "Episodes";
const HEIGHT = 32; // of a row in pixels, as in the style sheet
const BLOCK = 100; // rows of one request
const EVENTS = 2; // events of an episode that are shown; the others are counted
const AGAIN = 1000; // milliseconds between two requests while causes are found
const COUNTED = 5; // requests after which the filters are counted again meanwhile
const FIELDS = ["outcome", "cause", "family", "difficulty", "domain", "stop", "fault", "tool", "event", "tag", "noted"];
const ASKED = [...FIELDS, "text", "task", "min_step", "max_step", "min_reward", "max_reward", "sort"];
const SORTED = { step: "step", task: "task", reward: "reward", turns: "turns", tokens: "tokens", seconds: "time" };
const HIGH_FIRST = ["step", "turns", "tokens", "seconds", "reward"];

export function Page({ overview, args: [key], query }) {
  const run = overview.runs.find((one) => one.key === key) ?? (key ? null : overview.runs[0]);
  if (!run) return html`<${Empty}>${key ? `There is no run ${key}.` : "No runs found."}</${Empty}>`;
  const values = Object.fromEntries(ASKED.filter((name) => query[name]).map((name) => [name, query[name]]));
  return html`<${Episodes} key=${run.key} ...${{ run, values, runs: overview.runs }} />`;
}

function Episodes({ run, runs, values }) {
  const list = useBlocks(path("runs", run.key, "episodes"), values, run.stamp);
  const facets = useAnswer(path("runs", run.key, "facets"), values, `${run.stamp} ${Math.ceil(20 * list.share)} ${list.explained}`);
  return html`<div class="episodes">
    <${Filters} ...${{ values, facets: facets.data }} />
    <section class="found" aria-label="episodes">
      <div class="row">
        <h1 class=${runs.length > 1 ? "unseen" : ""}>${run.key}</h1>
        ${runs.length > 1
          ? html`<select aria-label="run" value=${run.key} onChange=${(e) => go(href("episodes", [e.target.value], values))}>
              ${runs.map((one) => html`<option value=${one.key}>${one.key}</option>`)}
            </select>`
          : null}
        <${Search} text=${values.text ?? ""} />
        <span class="space" />
        <${Total} ...${{ list, facets: facets.data }} />
      </div>
      <${Chosen} values=${values} />
      ${list.total != null && list.share < 1 && html`<p class="small faint row">indexing episodes <progress value=${list.share} aria-label="indexed episodes" /></p>`}
      ${list.damaged.map((problem) => html`<p class="problem small">${problem}</p>`)}
      ${list.error && html`<p class="problem" role="alert">${list.error}</p>`}
      ${list.total == null && !list.error ? html`<${Outline} />` : html`<${Table} ...${{ run, list, values }} />`}
    </section>
  </div>`;
}

function Total({ list, facets }) {
  if (list.total == null) return html`<span class="faint" aria-busy="true">loading…</span>`;
  const rate = facets?.total ? `, ${percent(facets.successes / facets.total)} successful` : "";
  return html`<span class="soft" role="status">${plural(list.total, "episode")}${rate}</span>`;
}

function Search({ text }) {
  const [typed, setTyped] = useState(text);
  const field = useRef();
  useEffect(() => {
    if (document.activeElement !== field.current) setTyped(text);
  }, [text]);
  useEffect(() => {
    const timer = typed !== text && setTimeout(() => change({ text: typed }, true), 180);
    return () => clearTimeout(timer);
  }, [typed]);
  useKeys({ "/": ["search", () => field.current.focus()], Escape: ["leave the search", () => field.current.blur()] });
  const hint = 'words, "a phrase", -without';
  return html`<input class="search" type="search" ref=${field} value=${typed} placeholder=${hint} aria-label="search conversations" onInput=${(e) => setTyped(e.target.value)} />`;
}

/** The active filters, each with a button that removes it. */
function Chosen({ values }) {
  const on = Object.entries(values).filter(([name]) => name !== "sort" && name !== "text");
  if (!on.length) return null;
  const says = { min_step: "from step", max_step: "to step", min_reward: "reward from", max_reward: "reward to" };
  return html`<div class="row">
    ${on.map(([name, value]) => html`<button type="button" class="chip" onClick=${() => change({ [name]: "" })} aria-label=${`remove filter ${name} ${value}`}>
      <span class="faint">${says[name] ?? name}</span> ${value.replaceAll(",", ", ")} <span aria-hidden="true">✕</span>
    </button>`)}
    <button type="button" class="quiet small" onClick=${() => change(Object.fromEntries(ASKED.map((name) => [name, ""])))}>clear all</button>
  </div>`;
}

function Filters({ values, facets }) {
  const narrow = matchMedia("(max-width: 900px)").matches;
  return html`<details class="filters" open=${!narrow}>
    <summary>Filters</summary>
    <div class="bounds">
      <${Bounds} names=${["min_step", "max_step"]} says="step" values=${values} hints=${facets?.steps} />
      <${Bounds} names=${["min_reward", "max_reward"]} says="reward" values=${values} hints=${[0, 1]} />
    </div>
    ${facets && FIELDS.map((name) => html`<${Facet} key=${name} ...${{ name, values, counts: facets.fields[name] }} />`)}
  </details>`;
}

function Bounds({ names, says, values, hints }) {
  return html`<fieldset>
    <legend>${says}</legend>
    ${names.map((name, i) => html`<input type="number" step="any" aria-label=${`${says} ${i ? "to" : "from"}`} placeholder=${hints?.[i] ?? ""}
      value=${values[name] ?? ""} onChange=${(e) => change({ [name]: e.target.value })} />`)}
  </fieldset>`;
}

const AT_FIRST = 8; // values of a field that are shown until the user asks for more

function Facet({ name, values, counts }) {
  const [all, setAll] = useState(false);
  const chosen = (values[name] ?? "").split(",").filter(Boolean);
  const known = [...counts, ...chosen.filter((value) => !counts.some(([other]) => other === value)).map((value) => [value, 0])];
  if (!known.length || (known.length < 2 && !chosen.length && !["tag", "noted"].includes(name))) return null;
  const toggle = (value) => change({ [name]: chosen.includes(value) ? chosen.filter((c) => c !== value).join(",") : [...chosen, value].join(",") });
  const most = Math.max(1, ...counts.map(([, count]) => count));
  const shown = all ? known : known.filter(([value], i) => i < AT_FIRST || chosen.includes(value));
  return html`<fieldset>
    <legend>${{ cause: "cause of failure", stop: "stop reason", tool: "called tools", event: "events", tag: "tags", noted: "with a note" }[name] ?? name}</legend>
    ${shown.map(([value, count]) => html`<button type="button" class="facet" aria-pressed=${chosen.includes(value)} onClick=${() => toggle(value)}>
      <i style=${{ width: `${(100 * count) / most}%` }} /><span class="name">${value}</span><span class="number faint">${whole(count)}</span>
    </button>`)}
    ${known.length > AT_FIRST && html`<button type="button" class="quiet small" onClick=${() => setAll(!all)}>${all ? "fewer" : `${known.length - AT_FIRST} more`}</button>`}
  </fieldset>`;
}

function Table({ run, list, values }) {
  const box = useRef();
  const [view, setView] = useState([0, 40]);
  const [at, setAt] = useState(0);
  const look = () => {
    const from = Math.floor(box.current.scrollTop / HEIGHT);
    setView([Math.max(0, from - 10), from + Math.ceil(box.current.clientHeight / HEIGHT) + 10]);
  };
  useLayoutEffect(look, [list.total]);
  useEffect(() => {
    box.current.scrollTop = 0;
    setAt(0);
  }, [list.key]);
  useEffect(() => list.want(...view), [...view, list.stamp]);
  const move = (by) => {
    const next = Math.max(0, Math.min((list.total ?? 1) - 1, at + by));
    setAt(next);
    const top = next * HEIGHT;
    const { scrollTop, clientHeight } = box.current;
    if (top < scrollTop) box.current.scrollTop = top;
    if (top + 2 * HEIGHT > scrollTop + clientHeight) box.current.scrollTop = top + 2 * HEIGHT - clientHeight;
  };
  const open = () => list.row(at) && go(address(run, list.row(at), values, at));
  useKeys({
    j: ["next episode", () => move(1)], ArrowDown: ["next episode", () => move(1)],
    k: ["previous episode", () => move(-1)], ArrowUp: ["previous episode", () => move(-1)],
    Enter: ["open the episode", open],
  });
  const [from, to] = [view[0], Math.min(view[1], list.total ?? 0)];
  const rows = Array.from({ length: Math.max(0, to - from) }, (_, i) => from + i);
  return html`<div class="table card" role="table" aria-label="episodes" aria-rowcount=${(list.total ?? 0) + 1} aria-busy=${String(list.busy)} ref=${box} onScroll=${look} tabindex="0">
    <${Heads} sort=${values.sort || "-step"} />
    <div class="rows" role="rowgroup" style=${{ height: `${(list.total ?? 0) * HEIGHT}px` }}>
      ${rows.map((i) => html`<${Row} key=${i} ...${{ i, run, values, row: list.row(i), chosen: i === at }} />`)}
    </div>
    ${list.total === 0 && list.share >= 1 && html`<${Empty}>No episodes match the filters.</${Empty}>`}
  </div>`;
}

function Heads({ sort }) {
  const [by, down] = [sort.replace("-", ""), sort.startsWith("-")];
  const head = (name, says, kind = "") => {
    const sorts = SORTED[name];
    const next = by === name ? (down ? name : `-${name}`) : HIGH_FIRST.includes(name) ? `-${name}` : name;
    return html`<span role="columnheader" class="c-${kind || name}" aria-sort=${by === name ? (down ? "descending" : "ascending") : sorts ? "none" : null}>
      ${sorts ? html`<button type="button" class="quiet" onClick=${() => change({ sort: next })}>${says} ${by === name ? (down ? "↓" : "↑") : ""}</button>` : says}
    </span>`;
  };
  return html`<div role="rowgroup" class="heads"><div role="row" class="tr" aria-rowindex="1">
    ${head("step", "step")}${head("number", "#")}${head("task", "task")}${head("reward", "reward")}${head("cause", "cause")}${head("turns", "turns")}
    ${head("tokens", "tokens")}${head("seconds", "time")}${head("events", "events")}
  </div></div>`;
}

const address = (run, { step, number }, values, at) => href("episode", [run.key, step, number].map(String), { ...values, at });

function Row({ i, run, values, row, chosen }) {
  const place = { top: `${i * HEIGHT}px` };
  if (!row) return html`<div role="row" class="tr waiting" style=${place} aria-rowindex=${i + 2}><span role="cell" class="c-task faint">…</span></div>`;
  const { step, number, task, reward, cause, stop, fault, turns, tokens, seconds: time, event: events, tag: tags, note: says } = row;
  const before = task.split("/", 2).join("/").length + 1; // domain and split, which most rows share
  return html`<div role="row" class=${`tr ${chosen ? "chosen" : ""}`} style=${place} aria-rowindex=${i + 2}>
    <span role="cell" class="c-step">${step}</span>
    <span role="cell" class="c-number faint">${number}</span>
    <span role="cell" class="c-task"><a href=${address(run, row, values, i)} title=${task}><i>${task.slice(0, before)}</i>${task.slice(before)}</a></span>
    <span role="cell" class="c-reward"><${Reward} value=${reward} /></span>
    <span role="cell" class="c-cause" title=${cause}>${cause ?? html`<span class="faint">…</span>`}</span>
    <span role="cell" class="c-turns">${turns}</span>
    <span role="cell" class="c-tokens">${whole(tokens)}</span>
    <span role="cell" class="c-seconds faint">${seconds(time)}</span>
    <span role="cell" class="c-events">
      ${fault && html`<${Tag} kind="bad" title=${`fault: ${fault}`}>fault: ${fault}</${Tag}>`}${stop && stop !== "done" && stop !== "fault" && html`<${Tag} kind="warn" title=${stop}>${stop}</${Tag}>`}${says && html`<span class="pencil" role="img" aria-label="note" title=${says}>✎</span>`}<${Tags} tags=${tags} />${events.slice(0, EVENTS).map((name) => html`<${Tag} title=${name}>${name}</${Tag}>`)}${events.length > EVENTS && html`<${Tag} kind="more" title=${events.slice(EVENTS).join(", ")}>+${events.length - EVENTS}</${Tag}>`}
    </span>
  </div>`;
}

/** Rows in blocks, loaded when they become visible. Old rows stay until the answer to new filters arrives. */
function useBlocks(where, values, stamp) {
  const key = JSON.stringify([where, values]);
  const shown = useRef({ key: "", answered: "", stamp: "", blocks: new Map(), total: null, share: 0, damaged: [] });
  const [tick, again] = useState(0);
  const [more, setMore] = useState(0); // counts the requests that repeat while the index grows
  useEffect(() => {
    const over = new AbortController();
    let timer;
    ask(where, { ...values, offset: 0, limit: BLOCK }, over.signal).then(
      ({ total, rows, done_bytes, total_bytes, damaged, explaining }) => {
        if (over.signal.aborted) return;
        const kept = explaining && shown.current.key === key ? shown.current.blocks : []; // rows stay in view meanwhile
        shown.current = { key, answered: key, stamp: `${stamp} ${more}`, blocks: new Map([...kept, [0, rows]]), total, share: total_bytes ? done_bytes / total_bytes : 1, damaged, explained: explaining ? Math.floor(more / COUNTED) : "all" };
        again((n) => n + 1);
        if (done_bytes < total_bytes) setMore((n) => n + 1);
        else if (explaining) timer = setTimeout(() => setMore((n) => n + 1), AGAIN);
      },
      (error) => {
        if (over.signal.aborted) return;
        shown.current = { ...shown.current, answered: key, error: error.message };
        again((n) => n + 1);
      },
    );
    return () => {
      over.abort();
      clearTimeout(timer);
    };
  }, [key, stamp, more]);
  const { blocks } = shown.current;
  const want = (from, to) => {
    const now = shown.current;
    const timer = setTimeout(() => {
      for (let block = Math.floor(from / BLOCK); block <= Math.floor(to / BLOCK); block++) {
        if (block * BLOCK >= (now.total ?? 0) || now.blocks.has(block)) continue;
        now.blocks.set(block, []);
        const [place, asked] = JSON.parse(now.key);
        const put = (rows) => (rows ? now.blocks.set(block, rows) : now.blocks.delete(block)) && again((n) => n + 1);
        ask(place, { ...asked, offset: block * BLOCK, limit: BLOCK }).then((answer) => put(answer.rows), () => put(null));
      }
    }, 40); // blocks that are only scrolled past are not requested
    return () => clearTimeout(timer);
  };
  const row = (i) => blocks.get(Math.floor(i / BLOCK))?.[i % BLOCK];
  return { ...shown.current, busy: shown.current.answered !== key, tick, row, want };
}
