// One episode: score and cause of failure, conversation, tokens and group.
import { html, useEffect, useMemo, useRef, useState } from "view/html.js";
import { path, useAnswer } from "view/data.js";
import { number, plural, seconds, whole } from "view/format.js";
import { useKeys } from "view/keys.js";
import { useNeighbours } from "view/neighbours.js";
import { Notes } from "view/notes.js";
import { Answered, Copy, Reward, Tag } from "view/parts.js";
import { change, go, href } from "view/router.js";
import { Long, Text, Value, brief } from "view/text.js";
import { Changes } from "view/pages/changes.js";
import { Group } from "view/pages/group.js";
import { ReplyParse } from "view/pages/reply_parse.js";
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
  const sequence = episode.branches[query.sequence - 2] ? query.sequence - 1 : 0; // counted from 1 in the address
  const list = useNeighbours(key, query);
  const listed = list.previous || list.next; // otherwise the episodes of the step
  const beside = (number_) => number_ && href("episode", [key, step, String(number_)]);
  const [before, after] = listed ? [list.previous, list.next] : [beside(episode.before), beside(episode.after)];
  const trained = /^\d+$/.test(step); // otherwise an episode of an evaluation
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
        <span class="small soft">${listed ? `${whole(list.place + 1)} of ${whole(list.total)}` : `${args[2]} of ${whole(episode.total)}`}</span>
        <button type="button" disabled=${!after} onClick=${() => move(after)} title="j">next ›</button>
      </div>
      <div class="row">
        <h1><${Text}>${episode.task}</${Text}></h1>
        <${Reward} value=${episode.reward} />
        ${episode.stop && html`<${Tag} kind=${episode.stop === "done" ? "" : "warn"}>${episode.stop}</${Tag}>`}
      </div>
      <${Verdict} episode=${episode} />
      <${Notes} annotation=${episode.annotation} where=${args} />
    </header>
    <div class="tabs" role="tablist" aria-label="views of this episode">
      ${Object.entries(TABS).map(([name, says]) => html`<button type="button" role="tab" id=${`tab-${name}`} aria-selected=${name === tab}
        aria-controls="view" tabindex=${name === tab ? 0 : -1} onClick=${() => change({ tab: name === "talk" ? "" : name })}
        onKeyDown=${(event) => arrows(event, name)}>${says}${counted(name, episode)}</button>`)}
    </div>
    <div id="view" role="tabpanel" aria-labelledby=${`tab-${tab}`}>
      ${tab !== "group" && html`<${Sequences} episode=${episode} sequence=${sequence} />`}
      ${tab === "talk" && html`<${Talk} key=${sequence} ...${{ episode, args, query, sequence }} />`}
      ${tab === "tokens" && html`<${Tokens} ...${{ args, sequence }} />`}
      ${tab === "group" && html`<${Group} ...${{ args }} />`}
    </div>
  </article>`;
}

/** Buttons for the token sequences of an episode that has several. */
function Sequences({ episode, sequence }) {
  if (!episode.branches.length) return null;
  return html`<div class="row small" role="group" aria-label="token sequences">sequence ${[episode.messages, ...episode.branches].map((_, i) => html`<button
    type="button" aria-pressed=${i === sequence} onClick=${() => change({ sequence: i ? String(i + 1) : "" })}>${i + 1}</button>`)}</div>`;
}

const counted = (name, episode) => {
  const count = { tokens: episode.num_tokens, group: episode.group_size }[name];
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

/** The score and the cause of a failure, in a few lines. */
function Verdict({ episode }) {
  const [cause, ...also] = episode.causes;
  if (episode.training.is_preference) {
    return html`<section class="why none" aria-label="result"><p><b>A ${episode.family} conversation of the preference data.</b></p></section>`;
  }
  if (episode.reward == null && !cause) {
    return html`<p class="why none"><b>No score.</b> ${episode.fault ? `The ${episode.fault}` : "A component"} failed: <${Text}>${episode.error}</${Text}></p>`;
  }
  return html`<section class="why ${cause ? "failed" : "fine"}" aria-label="result">
    ${!cause && html`<p><b>${episode.reward >= 1 ? "Succeeded." : `Reward ${number(episode.reward)}.`}</b></p>`}
    ${cause && html`<p class="cause"><b>${component(cause)} ${cause.meaning}</b> <${Where} cause=${cause} episode=${episode} /></p>
      ${cause.evidence && html`<p class="evidence"><${Text}>${cause.evidence}</${Text}></p>`}`}
    ${episode.parts.length > 0 && html`<ul class="parts">${ordered(episode.parts.filter(says_more)).map((part) => html`<li class=${part.value >= 1 ? "good" : part.required ? "bad" : "soft"}>
      <b>${part.name}</b> ${number(part.value)} <span class="soft">${part.reason}${part.required ? "" : " (not part of the reward)"}</span></li>`)}</ul>`}
    ${also.length > 0 && html`<details><summary>${plural(also.length, "other cause")}</summary><ul>
      ${also.map((found) => html`<li>${component(found)} ${found.meaning} <${Where} cause=${found} episode=${episode} /><br />
        <span class="soft"><${Text}>${found.evidence}</${Text}></span></li>`)}</ul></details>`}
  </section>`;
}

/** Whether a part is worth a line. The reward with and without the policy's conditions is only if the two differ. */
const says_more = ({ name, value, required }, _, parts) =>
  required || !name.startsWith("reward_with") || parts.some((part) => part.name.startsWith("reward_with") && part.value !== value);

/** Parts of the reward come first, those below 1 before the others. */
const ordered = (parts) => parts.toSorted((a, b) => b.required - a.required || (a.value >= 1) - (b.value >= 1));

const component = (cause) => (cause.component === "unknown" ? "Unknown cause:" : `The ${cause.component}`);

/** The shown message that contains the message `index`: tool results are shown in their reply. */
const holder = (messages, index) => messages.findLast((message) => message.index <= index) ?? messages[0];

function Where({ cause, episode }) {
  const message = holder(episode.messages, cause.message_index);
  if (!message) return null;
  const says = message.turn ? `turn ${message.turn}` : `message ${message.index + 1}`;
  return html`<button type="button" class="link" onClick=${() => (episode.branches.length ? change({ tab: "", sequence: "", message: message.index }) : show(message.index))}>${says}</button>`;
}

function show(index) {
  const found = document.getElementById(`message-${index}`);
  if (!found) {
    change({ tab: "", message: index });
    return;
  }
  found.scrollIntoView({ block: "center" });
  found.focus({ preventScroll: true });
}

function Talk({ episode, args, query, sequence }) {
  const box = useRef();
  const [raw, setRaw] = useState(false);
  const cause = sequence === 0 ? episode.causes[0] && holder(episode.messages, episode.causes[0].message_index)?.index : null;
  const step = (by) => {
    const turns = [...box.current.querySelectorAll("[data-turn]")];
    const at = turns.indexOf(document.activeElement.closest("[data-turn]"));
    const next = turns[Math.max(0, Math.min(turns.length - 1, at + by))];
    if (next) show(Number(next.dataset.index));
  };
  useKeys({
    n: ["next turn of the agent", () => step(1)],
    p: ["previous turn of the agent", () => step(-1)],
    x: ["cause of the failure", () => cause != null && show(cause)],
    o: ["open or close all calls", () => fold(box.current)],
    ...(episode.num_tokens ? { r: ["sampled text of replies", () => setRaw(!raw)] } : {}),
  });
  useEffect(() => {
    if (query.message) show(Number(query.message));
  }, [query.message]);
  return html`<div class="talk-and-goal">
    <div class="talk" ref=${box}>
      ${episode.num_tokens > 0 && html`<div class="row small">
        <button type="button" aria-pressed=${raw} onClick=${() => setRaw(!raw)}>show sampled replies</button></div>`}
      ${!episode.training.is_preference && episode.notes.map((note) => html`<p class="note"><${Text}>${note}</${Text}></p>`)}
      <${Messages} ...${{ episode, args, raw, cause, sequence }} />
      ${!episode.training.is_preference && html`<p class="end soft">${ending(episode)}</p>`}
    </div>
    <aside class="stack">${!episode.training.is_preference && html`<${Goal} episode=${episode} />`}<${Facts} episode=${episode} /></aside>
  </div>`;
}

function Messages({ episode, args, raw, cause, sequence }) {
  const wanted = raw || Object.keys(episode.counts).some((event) => /^(repaired|malformed|hallucinated_turn)/.test(event));
  const answer = useAnswer(wanted && episode.num_tokens ? path("episode", ...args, "parses") : "");
  const found = answer.data?.parses[sequence] ?? {};
  const messages = sequence ? episode.branches[sequence - 1] : episode.messages;
  const fork = episode.training.is_preference || episode.branches.length ? "" : episode.fork;
  const note = answer.data?.note || answer.error;
  return html`${raw && note && html`<p class="note"><${Text}>${note}</${Text}></p>`}
    <ol class="messages">${messages.map((message) => html`<${Message} key=${message.index} ...${{
      message, raw, parse: found[message.index], cause: message.index === cause ? episode.causes[0] : null, fork }} />`)}</ol>`;
}

function fold(box) {
  const all = [...box.querySelectorAll("details.call")];
  const open = all.some((each) => !each.open);
  for (const each of all) each.open = open;
}

const ending = (episode) => {
  if (episode.fault) return `The ${episode.fault} failed: ${brief(episode.error, 300)}`;
  if (episode.stop === "done") return "The user ended the conversation.";
  return `Cut off: ${episode.stop ?? "no stop reason is stored"}.`;
};

function Message({ message, raw, parse, cause, fork }) {
  const { role, index, turn, content, calls, edits } = message;
  const name = { assistant: turn ? `agent, turn ${turn}` : "agent", system: "system prompt", tool: "tool result" }[role] ?? role;
  const repaired = parse && (parse.status === "repaired" || parse.status === "malformed" || parse.spoke_for_user);
  const body = html`<${Long}>${content}</${Long}>`;
  return html`<li id=${`message-${index}`} tabindex="-1" data-index=${index} data-turn=${turn} class="message ${role} ${cause ? "cause" : ""}">
    <div class="who"><span>${name}</span>${turn && fork && html`<${Fork} command=${fork.replace(/TURN(?='?$)/, turn)} />`}</div>
    ${cause && html`<p class="mark">${component(cause)} ${cause.meaning}</p>`}
    ${role === "system" ? html`<details><summary>${brief(content, 90)}</summary>${body}</details>` : content || calls.length === 0 ? (content ? body : html`<p class="faint">(empty message)</p>`) : null}
    ${calls.map((call) => html`<${Call} call=${call} />`)}
    ${edits.length > 0 && html`<${Changes} edits=${edits} says=${calls.length ? "database changes" : "database changes by the user"} />`}
    ${parse && (raw || repaired) && html`<${ReplyParse} parse=${parse} />`}
  </li>`;
}

function Call({ call }) {
  const kind = call.error ? "refused" : call.result == null ? "open" : "ran";
  const given = Object.entries(call.arguments).map(([name, value]) => `${name}=${JSON.stringify(value)}`).join(", ");
  const state = call.error || (call.result == null ? "no result" : "");
  return html`<details class="call ${kind}">
    <summary><span class="name"><${Text}>${brief(call.name || "(no name)", 80)}</${Text}></span><span class="given"><${Text}>(${brief(given, 160)})</${Text}></span>
      ${state && html`<${Tag} kind=${call.error ? "bad" : "warn"}>${state.replaceAll("_", " ")}</${Tag}>`}
      ${call.result != null && html`<span class="came"><${Text}>${brief(call.result.replace(/\s+/g, " "), 140)}</${Text}></span>`}</summary>
    ${call.malformed && html`<p class="problem"><${Text}>${call.malformed}</${Text}></p>`}
    <dl><dt>arguments</dt><dd><${Value} value=${call.arguments} /></dd>
    ${call.result != null && html`<dt>result</dt><dd><${Value} value=${call.result} /></dd>`}</dl>
  </details>`;
}

function Fork({ command }) {
  const [open, setOpen] = useState(false);
  return html`<span class="fork"><button type="button" class="quiet" aria-expanded=${open} onClick=${() => setOpen(!open)} title="continue from here">fork</button>
    ${open && html`<span class="command"><code>${command}</code> <${Copy} text=${command} />
      <span class="faint">You play the agent from this turn. With --watch --agent model, a model plays it.</span></span>`}</span>`;
}

/** The goal of the task, and what the episode did not reach. */
function Goal({ episode }) {
  const { goal } = episode;
  if (!goal) return html`<section class="card"><h2>Goal</h2><p class="soft">The task is not stored.</p></section>`;
  return html`<section class="card goal"><h2>Goal</h2>
    <${Long}>${goal.instructions}</${Long}>
    ${goal.outputs.length > 0 && html`<h3>Facts to tell the user</h3><ul class="outputs">${goal.outputs.map(([fact, told]) => html`<li class=${told ? "good" : "bad"}>
      ${told ? "✓ told" : "✗ not told"}: <${Text}>${fact}</${Text}></li>`)}</ul>`}
    ${goal.edits.length > 0 && html`<h3>Gold changes</h3><${Changes} edits=${goal.edits} />`}
    <h3>Difference from gold at the end</h3>
    ${goal.missing_edits.length > 0
      ? html`<${Changes} edits=${goal.missing_edits} was="actual" now="gold" />`
      : html`<p class="soft">${episode.notes.length ? "not known" : "none"}</p>`}
    <details><summary>${plural(goal.messages.length, "gold turn")}</summary><ol class="gold">${goal.messages.map((message) => html`<li>
      ${message.role === "user" && html`<span class="faint">the user: </span>`}<${Text}>${message.content || message.tool_calls.map((call) => `${call.name}(${Object.entries(call.arguments).map(([name, value]) => `${name}=${JSON.stringify(value)}`).join(", ")})`).join("; ")}</${Text}></li>`)}</ol></details>
  </section>`;
}

/** One number if all values are equal, otherwise every value. */
const alike = (values) => (new Set(values).size === 1 ? values.slice(0, 1) : values).map((value) => (value == null ? "not finite" : number(value))).join(", ");

function Facts({ episode }) {
  const { training } = episode;
  const worth = training.is_preference ? "weight in the loss" : "advantage";
  const facts = {
    [training.is_preference ? "label, 1 is wanted" : "training reward"]: training.reward == null ? null : number(training.reward),
    [training.advantages.length > 1 ? `${worth} of each reply` : worth]: training.advantages.length ? alike(training.advantages) : null,
    "log-probability difference, largest": training.max_logprob_diff == null ? null : `${number(training.max_logprob_diff)} nats`,
    "log-probability difference, mean": training.mean_logprob_diff == null ? null : `${number(training.mean_logprob_diff)} nats`,
    "optimizer steps before this episode's update": training.optimizer_steps || null,
    training: training.note || null,
    progress: episode.progress == null ? null : number(episode.progress),
    "shaping bonus": episode.shaping_bonus ? number(episode.shaping_bonus) : null,
    penalty: episode.penalty ? number(episode.penalty) : null,
    "weights version": episode.version || null,
    tokens: episode.num_tokens ? whole(episode.num_tokens) : null,
    sequences: episode.branches.length ? whole(episode.branches.length + 1) : null,
    ...Object.fromEntries(Object.entries(episode.seconds).map(([name, time]) => [`time, ${name}`, seconds(time)])),
    ...Object.fromEntries(Object.entries(episode.counts).map(([event, count]) => [event.replaceAll("_", " "), whole(count)])),
    seed: episode.seed,
  };
  const rows = Object.entries(facts).filter(([, value]) => value != null);
  return html`<section class="card"><h2>Details</h2><dl class="facts">${rows.map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl></section>`;
}
