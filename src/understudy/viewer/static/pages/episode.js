// One episode: why it earned what it did, what was said and done, its tokens, and the others of its group.
import { html, useEffect, useMemo, useRef, useState } from "view/html.js";
import { path, useAnswer } from "view/data.js";
import { number, plural, seconds, whole } from "view/format.js";
import { useKeys } from "view/keys.js";
import { useNeighbours } from "view/neighbours.js";
import { Answered, Copy, Reward, Tag } from "view/parts.js";
import { change, go, href } from "view/router.js";
import { Long, Text, Value, brief } from "view/text.js";
import { Changes } from "view/pages/changes.js";
import { Group } from "view/pages/group.js";
import { Reading } from "view/pages/reading.js";
import { Tokens } from "view/pages/tokens.js";

export const title = "Episode";
const TABS = { talk: "Conversation", tokens: "Tokens", group: "Group" };

export function Page({ args, query }) {
  const [key, step, number_] = args;
  const answer = useAnswer(path("episode", key, step, number_));
  return html`<${Answered} answer=${answer}>${(episode) => html`<${Episode} ...${{ episode, args, query }} />`}</${Answered}>`;
}

function Episode({ episode, args, query }) {
  const [key, step] = args;
  const tab = query.tab in TABS ? query.tab : "talk";
  const list = useNeighbours(key, query);
  const listed = list.previous || list.next; // else those of the step
  const beside = (number_) => number_ && href("episode", [key, step, String(number_)]);
  const [before, after] = listed ? [list.previous, list.next] : [beside(episode.before), beside(episode.after)];
  const trained = /^\d+$/.test(step); // else of an evaluation
  const back = trained ? list.list : href("evaluations", [key], step === "eval" ? {} : { of: step });
  const move = (to) => to && go(query.tab ? `${to}${to.includes("?") ? "&" : "?"}tab=${query.tab}` : to);
  useKeys({
    j: ["next episode", () => move(after)],
    k: ["previous episode", () => move(before)],
    u: ["back to the list", () => go(back)],
    1: ["conversation", () => change({ tab: "" })],
    2: ["tokens", () => change({ tab: "tokens" })],
    3: ["group", () => change({ tab: "group" })],
  });
  return html`<article class="episode">
    <header class="stack">
      <div class="row">
        <span class="small"><a href=${back}><${Text}>${key}</${Text}></a>
          <span class="soft"> · ${step === "eval" ? "" : `${trained ? "step " : ""}${step}, `}episode ${args[2]}</span></span>
        <span class="space" />
        <button type="button" disabled=${!before} onClick=${() => move(before)} title="k">‹ previous</button>
        <span class="small soft">${listed ? `${whole(list.place + 1)} of ${whole(list.total)}` : `${args[2]} of ${whole(episode.of)}`}</span>
        <button type="button" disabled=${!after} onClick=${() => move(after)} title="j">next ›</button>
      </div>
      <div class="row">
        <h1><${Text}>${episode.task}</${Text}></h1>
        <${Reward} value=${episode.reward} />
        ${episode.stop && html`<${Tag} kind=${episode.stop === "done" ? "" : "warn"}>${episode.stop}</${Tag}>`}
      </div>
      <${Verdict} episode=${episode} />
    </header>
    <div class="tabs" role="tablist" aria-label="views of this episode">
      ${Object.entries(TABS).map(([name, says]) => html`<button type="button" role="tab" id=${`tab-${name}`} aria-selected=${name === tab}
        aria-controls="view" tabindex=${name === tab ? 0 : -1} onClick=${() => change({ tab: name === "talk" ? "" : name })}
        onKeyDown=${(event) => arrows(event, name)}>${says}${counted(name, episode)}</button>`)}
    </div>
    <div id="view" role="tabpanel" aria-labelledby=${`tab-${tab}`}>
      ${tab === "talk" && html`<${Talk} ...${{ episode, args, query }} />`}
      ${tab === "tokens" && html`<${Tokens} ...${{ args, episode }} />`}
      ${tab === "group" && html`<${Group} ...${{ args }} />`}
    </div>
  </article>`;
}

const counted = (name, episode) => {
  const count = { tokens: episode.tokens, group: episode.group }[name];
  return count == null ? "" : html` <span class="faint">${whole(count)}</span>`;
};

function arrows(event, name) {
  const names = Object.keys(TABS);
  const to = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!to) return;
  const next = names[(names.indexOf(name) + to + names.length) % names.length];
  change({ tab: next === "talk" ? "" : next });
  document.getElementById(`tab-${next}`).focus();
}

/** Why it earned what it did, in a few lines. */
function Verdict({ episode }) {
  const [cause, ...also] = episode.causes;
  if (episode.reward == null && !cause) {
    return html`<p class="why none"><b>No score.</b> ${episode.fault || "the machinery"} failed: <${Text}>${episode.error}</${Text}></p>`;
  }
  return html`<section class="why ${cause ? "failed" : "fine"}" aria-label="why">
    ${!cause && html`<p><b>${episode.reward >= 1 ? "Succeeded." : `Earned ${number(episode.reward)}.`}</b></p>`}
    ${cause && html`<p class="cause"><b>${who(cause)} ${cause.meaning}</b> <${Where} cause=${cause} episode=${episode} /></p>
      ${cause.evidence && html`<p class="evidence"><${Text}>${cause.evidence}</${Text}></p>`}`}
    ${episode.parts.length > 0 && html`<ul class="parts">${ordered(episode.parts).map((part) => html`<li class=${part.value >= 1 ? "good" : part.strict ? "bad" : "soft"}>
      <b>${part.name}</b> ${number(part.value)} <span class="soft">${part.why}${part.strict ? "" : " (beside the reward)"}</span></li>`)}</ul>`}
    ${also.length > 0 && html`<details><summary>${plural(also.length, "further finding")}</summary><ul>
      ${also.map((found) => html`<li>${who(found)} ${found.meaning} <${Where} cause=${found} episode=${episode} /><br />
        <span class="soft"><${Text}>${found.evidence}</${Text}></span></li>`)}</ul></details>`}
  </section>`;
}

/** What the reward lacks comes first, what stands beside it last. */
const ordered = (parts) => parts.toSorted((a, b) => b.strict - a.strict || (a.value >= 1) - (b.value >= 1));

const who = (cause) => (cause.who === "nobody" ? "Nobody knows:" : `The ${cause.who}`);

/** The message that shows something: those with results are found by their reply. */
const holder = (said, place) => said.findLast((message) => message.place <= place) ?? said[0];

function Where({ cause, episode }) {
  const message = holder(episode.said, cause.place);
  if (!message) return null;
  const says = message.turn ? `turn ${message.turn}` : `message ${message.place + 1}`;
  return html`<button type="button" class="link" onClick=${() => show(message.place)}>${says}</button>`;
}

function show(place) {
  const found = document.getElementById(`message-${place}`);
  if (!found) {
    change({ tab: "", message: place });
    return;
  }
  found.scrollIntoView({ block: "center" });
  found.focus({ preventScroll: true });
}

function Talk({ episode, args, query }) {
  const box = useRef();
  const [raw, setRaw] = useState(false);
  const cause = episode.causes[0] && holder(episode.said, episode.causes[0].place)?.place;
  const step = (by) => {
    const turns = [...box.current.querySelectorAll("[data-turn]")];
    const at = turns.indexOf(document.activeElement.closest("[data-turn]"));
    const next = turns[Math.max(0, Math.min(turns.length - 1, at + by))];
    if (next) show(Number(next.dataset.place));
  };
  useKeys({
    n: ["next turn of the agent", () => step(1)],
    p: ["previous turn of the agent", () => step(-1)],
    x: ["what went wrong", () => cause != null && show(cause)],
    o: ["open or close all calls", () => fold(box.current)],
    ...(episode.tokens ? { r: ["replies as they were sampled", () => setRaw(!raw)] } : {}),
  });
  useEffect(() => {
    if (query.message) show(Number(query.message));
  }, [query.message]);
  return html`<div class="talk-and-goal">
    <div class="talk" ref=${box}>
      ${episode.tokens > 0 && html`<div class="row small">
        <button type="button" aria-pressed=${raw} onClick=${() => setRaw(!raw)}>replies as they were sampled</button></div>`}
      ${episode.notes.map((note) => html`<p class="note"><${Text}>${note}</${Text}></p>`)}
      <${Messages} ...${{ episode, args, raw, cause }} />
      <p class="end soft">${ending(episode)}</p>
    </div>
    <aside class="stack"><${Goal} episode=${episode} /><${Facts} episode=${episode} /></aside>
  </div>`;
}

function Messages({ episode, args, raw, cause }) {
  const wanted = raw || Object.keys(episode.counts).some((event) => /^(repaired|malformed|other_side)/.test(event));
  const answer = useAnswer(wanted && episode.tokens ? path("episode", ...args, "readings") : "");
  const found = answer.data?.readings ?? {};
  const why = answer.data?.why || answer.error;
  return html`${raw && why && html`<p class="note"><${Text}>${why}</${Text}></p>`}
    <ol class="messages">${episode.said.map((message) => html`<${Message} key=${message.place} ...${{
      message, raw, reading: found[message.place], cause: message.place === cause ? episode.causes[0] : null, fork: episode.fork }} />`)}</ol>`;
}

function fold(box) {
  const all = [...box.querySelectorAll("details.call")];
  const open = all.some((each) => !each.open);
  for (const each of all) each.open = open;
}

const ending = (episode) => {
  if (episode.fault) return `The ${episode.fault} failed: ${brief(episode.error, 300)}`;
  if (episode.stop === "done") return "The user ended the conversation.";
  return `Cut off: ${episode.stop ?? "it has no end"}.`;
};

function Message({ message, raw, reading, cause, fork }) {
  const { role, place, turn, content, calls, edits } = message;
  const name = { assistant: turn ? `agent, turn ${turn}` : "agent", system: "policy", tool: "result" }[role] ?? role;
  const repaired = reading && (reading.status === "repaired" || reading.status === "malformed" || reading.other_side);
  const body = html`<${Long}>${content}</${Long}>`;
  return html`<li id=${`message-${place}`} tabindex="-1" data-place=${place} data-turn=${turn} class="message ${role} ${cause ? "cause" : ""}">
    <div class="who"><span>${name}</span>${turn && fork && html`<${Fork} command=${fork.replace(/TURN(?='?$)/, turn)} />`}</div>
    ${cause && html`<p class="mark">${who(cause)} ${cause.meaning}</p>`}
    ${role === "system" ? html`<details><summary>${brief(content, 90)}</summary>${body}</details>` : content || calls.length === 0 ? (content ? body : html`<p class="faint">(says nothing)</p>`) : null}
    ${calls.map((call) => html`<${Call} call=${call} />`)}
    ${edits.length > 0 && html`<${Changes} edits=${edits} says=${calls.length ? "changed" : "the user changed"} />`}
    ${reading && (raw || repaired) && html`<${Reading} reading=${reading} />`}
  </li>`;
}

function Call({ call }) {
  const kind = call.error ? "refused" : call.result == null ? "open" : "ran";
  const given = Object.entries(call.arguments).map(([name, value]) => `${name}=${JSON.stringify(value)}`).join(", ");
  const state = call.error || (call.result == null ? "no result" : "");
  return html`<details class="call ${kind}">
    <summary><span class="name"><${Text}>${brief(call.name || "(no name)", 80)}</${Text}></span><span class="given"><${Text}>(${brief(given, 160)})</${Text}></span>
      ${state && html`<${Tag} kind=${call.error ? "bad" : "warn"}>${state.replace("_", " ")}</${Tag}>`}
      ${call.result != null && html`<span class="came"><${Text}>${brief(call.result.replace(/\s+/g, " "), 140)}</${Text}></span>`}</summary>
    ${call.malformed && html`<p class="problem"><${Text}>${call.malformed}</${Text}></p>`}
    <dl><dt>arguments</dt><dd><${Value} value=${call.arguments} /></dd>
    ${call.result != null && html`<dt>result</dt><dd><${Value} value=${call.result} /></dd>`}</dl>
  </details>`;
}

function Fork({ command }) {
  const [open, setOpen] = useState(false);
  return html`<span class="fork"><button type="button" class="quiet" aria-expanded=${open} onClick=${() => setOpen(!open)} title="play on from here">fork</button>
    ${open && html`<span class="command"><code>${command}</code> <${Copy} text=${command} />
      <span class="faint">you are the agent from here; --as nobody --agent model lets a model go on</span></span>`}</span>`;
}

/** What the task asks for, and what is lacking. */
function Goal({ episode }) {
  const { goal } = episode;
  if (!goal) return html`<section class="card"><h2>What was wanted</h2><p class="soft">the task is not found any more</p></section>`;
  return html`<section class="card goal"><h2>What was wanted</h2>
    <${Long}>${goal.instructions}</${Long}>
    ${goal.outputs.length > 0 && html`<h3>To be told</h3><ul class="outputs">${goal.outputs.map(([fact, told]) => html`<li class=${told ? "good" : "bad"}>
      ${told ? "✓ told" : "✗ never told"}: <${Text}>${fact}</${Text}></li>`)}</ul>`}
    ${goal.edits.length > 0 && html`<h3>Gold changes</h3><${Changes} edits=${goal.edits} />`}
    <h3>Left at the end</h3>
    ${goal.lacking.length > 0
      ? html`<${Changes} edits=${goal.lacking} was="is" now="gold" />`
      : html`<p class="soft">${episode.notes.length ? "not known" : "the database is as gold leaves it"}</p>`}
    <details><summary>${plural(goal.messages.length, "gold turn")}</summary><ol class="gold">${goal.messages.map((message) => html`<li>
      ${message.role === "user" && html`<span class="faint">the user: </span>`}<${Text}>${message.content || message.tool_calls.map((call) => `${call.name}(${Object.entries(call.arguments).map(([name, value]) => `${name}=${JSON.stringify(value)}`).join(", ")})`).join("; ")}</${Text}></li>`)}</ol></details>
  </section>`;
}

function Facts({ episode }) {
  const facts = {
    advantage: episode.advantage == null ? null : number(episode.advantage),
    progress: episode.progress == null ? null : number(episode.progress),
    credit: episode.credit ? number(episode.credit) : null,
    penalty: episode.penalty ? number(episode.penalty) : null,
    "weights of step": episode.version || null,
    tokens: episode.tokens ? whole(episode.tokens) : null,
    ...Object.fromEntries(Object.entries(episode.seconds).map(([name, time]) => [`time, ${name}`, seconds(time)])),
    ...Object.fromEntries(Object.entries(episode.counts).map(([event, count]) => [event.replace("_", " "), whole(count)])),
    seed: episode.seed,
  };
  const rows = Object.entries(facts).filter(([, value]) => value != null);
  return html`<section class="card"><h2>Facts</h2><dl class="facts">${rows.map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl></section>`;
}
