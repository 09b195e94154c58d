// An episode's tokens: who wrote them, how likely they were, and what they are worth.
import { html, useMemo, useState } from "view/html.js";
import { exported, path, useAnswer } from "view/data.js";
import { number, plural } from "view/format.js";
import { useKeys } from "view/keys.js";
import { Answered } from "view/parts.js";
import { Text } from "view/text.js";

const BY = {
  chance: "probability when it was sampled",
  advantage: "advantage",
  apart: "trainer less sampler",
};
const FOLDED = 60;

export function Tokens({ args }) {
  const answer = useAnswer(path("episode", ...args, "tokens"));
  return html`<${Answered} answer=${answer}>${(tokens) => html`<${Beside} ...${{ tokens, args }} />`}</${Answered}>`;
}

/** The tokens, and when asked for what the trainer holds of them: that loads the model, which takes seconds. */
function Beside({ tokens, args: [key, step, number_] }) {
  const [asked, setAsked] = useState(false);
  const answer = useAnswer(asked ? path("runs", key, "steps", step, "episodes", number_, "trainer") : null);
  const can = !exported && /^\d+$/.test(step) && tokens.ids.length > 0;
  useKeys(can ? { c: ["compare with the trainer", () => setAsked(true)] } : {});
  return html`${can && !asked && html`<button type="button" class="small" onClick=${() => setAsked(true)}>compare with the trainer (loads the weights)</button>`}
    ${asked && html`<${Answered} answer=${answer}>${(second) => html`<p class="small">The trainer, with the weights of <code>${second.checkpoint}</code>, is at most
      ${number(second.largest)} nats from the sampler, ${number(second.mean)} on average; rounding alone may come to ${number(second.tolerance)}.</p>`}</${Answered}>`}
    <${Shown} tokens=${answer.data ? { ...tokens, trainer: answer.data.logprobs } : tokens} />`;
}

function Shown({ tokens }) {
  const [by, setBy] = useState("chance");
  const [at, setAt] = useState(null);
  const segments = useMemo(() => cut(tokens), [tokens]);
  const last = tokens.ids.length - 1;
  const first = Math.max(0, tokens.sampled.indexOf(true));
  const step = (far) => {
    const next = at == null ? first : Math.min(last, Math.max(0, at + far));
    setAt(next);
    document.querySelector(`.tokens [data-t="${next}"]`)?.scrollIntoView({ block: "nearest" });
  };
  useKeys(last < 0 ? {} : { ".": ["next token, from the first that was sampled", () => step(1)], ",": ["previous token", () => step(-1)] });
  if (last < 0) return html`<p class="empty">${tokens.why}</p>`;
  const offered = Object.entries(BY).filter(([kind]) => kind === "chance" || (kind === "advantage" ? tokens.advantage != null : tokens.trainer));
  const pick = (event) => {
    const place = event.target.closest?.("[data-t]")?.dataset.t;
    if (place != null) setAt(Number(place));
  };
  return html`<div class="tokens">
    ${tokens.why && html`<p class="note"><${Text}>${tokens.why}</${Text}></p>`}
    <div class="row small bar">
      <label>colour by <select value=${by} onChange=${(event) => setBy(event.target.value)}>${offered.map(([kind, says]) => html`<option value=${kind}>${says}</option>`)}</select></label>
      <${Legend} by=${by} />
      ${tokens.advantage != null && html`<span>advantage of all sampled tokens: <b>${number(tokens.advantage)}</b></span>`}
      <span class="faint">underlined: sampled by the model</span>
    </div>
    <p class="picked mono" aria-live="polite">${at == null ? "Point at a token, or press . and , to see its id and its probability." : told(tokens, at)}</p>
    <div onMouseOver=${pick} onClick=${pick}>${segments.map((segment) => html`<${Segment} ...${{ segment, tokens, by, at }} />`)}</div>
  </div>`;
}

function Segment({ segment, tokens, by, at }) {
  const { start, end, turn } = segment;
  const [open, setOpen] = useState(turn != null || end - start <= FOLDED);
  const head = turn != null ? `turn ${turn + 1}: ${plural(end - start, "token")} sampled${mean(tokens, start, end)}` : `${plural(end - start, "token")} shown to the model`;
  return html`<section class=${turn != null ? "sampled" : "given"}>
    <h2><button type="button" class="quiet" aria-expanded=${open} onClick=${() => setOpen(!open)}>${open ? "▾" : "▸"} ${head}</button></h2>
    ${open && html`<p class="ids">${Array.from({ length: end - start }, (_, i) => html`<${Token} ...${{ tokens, at: start + i, by, picked: start + i === at }} />`)}</p>`}
  </section>`;
}

function Token({ tokens, at, by, picked }) {
  const text = tokens.texts ? tokens.texts[at] : String(tokens.ids[at]);
  const level = tokens.sampled[at] ? shade(tokens, at, by) : "";
  const lines = text.split("\n");
  return html`<span class="t ${tokens.sampled[at] ? "s" : ""} ${level} ${picked ? "at" : ""}" data-t=${at}>${lines.map((line, i) => html`${i ? html`<i class="faint">↵</i><br />` : ""}<${Text}>${line || (text ? "" : "·")}</${Text}>`)}</span>${tokens.texts ? "" : " "}`;
}

/** The class of a token's colour, from c0, the best, to c4; g and b for advantages. */
function shade(tokens, at, by) {
  if (by === "advantage") {
    const size = Math.min(4, Math.ceil(Math.abs(tokens.advantage) * 3));
    return tokens.advantage === 0 ? "" : `${tokens.advantage > 0 ? "g" : "b"}${size}`;
  }
  if (tokens.logprobs[at] == null) return "";
  if (by === "apart") {
    const gap = (tokens.trainer[at] ?? tokens.logprobs[at]) - tokens.logprobs[at];
    const size = [1e-4, 1e-3, 1e-2, 1e-1].filter((most) => Math.abs(gap) > most).length;
    return size ? `${gap > 0 ? "g" : "b"}${size}` : "";
  }
  const chance = Math.exp(tokens.logprobs[at]);
  return `c${[0.9, 0.5, 0.2, 0.05].filter((most) => chance < most).length}`;
}

function Legend({ by }) {
  const steps = {
    chance: [["c0", "90% and more"], ["c1", "50%"], ["c2", "20%"], ["c3", "5%"], ["c4", "less"]],
    advantage: [["b3", "less of it"], ["g3", "more of it"]],
    apart: [["b1", "0.0001"], ["b2", "0.001"], ["b3", "0.01"], ["b4", "0.1 nats and more"]],
  }[by];
  return html`<span class="legend">${steps.map(([kind, says]) => html`<span class="t s ${kind}">${says}</span> `)}</span>`;
}

function told(tokens, at) {
  const text = tokens.texts ? ` ${JSON.stringify(tokens.texts[at])}` : "";
  const head = `place ${at}, id ${tokens.ids[at]}${text}`;
  if (!tokens.sampled[at]) return `${head}, shown to the model`;
  const logprob = tokens.logprobs[at];
  if (logprob == null) return `${head}, sampled`;
  const trainer = tokens.trainer?.[at];
  const gap = trainer == null ? "" : `, by the trainer ${trainer.toFixed(5)} (${(trainer - logprob).toExponential(1)} apart)`;
  return `${head}, sampled, log-probability ${logprob.toFixed(5)} (${(100 * Math.exp(logprob)).toFixed(2)}%)${gap}`;
}

function mean(tokens, start, end) {
  const known = tokens.logprobs.slice(start, end).filter((value) => value != null);
  if (!known.length) return "";
  const least = Math.exp(Math.min(...known));
  return `, mean log-probability ${number(known.reduce((a, b) => a + b, 0) / known.length)}, the least likely ${(100 * least).toFixed(1)}%`;
}

/** Stretches of tokens that one side wrote. */
function cut(tokens) {
  const found = [];
  let done = 0;
  tokens.turns.forEach(([start, end], turn) => {
    if (done < start) found.push({ start: done, end: start });
    found.push({ start, end, turn });
    done = end;
  });
  if (done < tokens.ids.length) found.push({ start: done, end: tokens.ids.length });
  return found;
}
