// An episode's tokens: sampled or masked, log-probabilities and advantages.
import { html, useMemo, useState } from "view/html.js";
import { path, useAnswer } from "view/data.js";
import { number, plural } from "view/format.js";
import { useKeys } from "view/keys.js";
import { Answered } from "view/parts.js";
import { Text } from "view/text.js";

const BY = {
  chance: "probability at sampling",
  advantage: "advantage",
  apart: "trainer minus sampler log-probability",
};
const FOLDED = 60;

export function Tokens({ args, sequence }) {
  const answer = useAnswer(path("episode", ...args, "tokens"));
  return html`<${Answered} answer=${answer}>${(tokens) => html`<${Shown} key=${sequence} tokens=${part(tokens, sequence)} />`}</${Answered}>`;
}

/** The tokens of one sequence of the episode. */
function part(tokens, sequence) {
  const [start, end] = tokens.sequences[sequence];
  const slice = (values) => values && values.slice(start, end);
  const turns = tokens.turns.filter(([first]) => start <= first && first < end).map((turn) => turn.map((at) => at - start));
  const { ids, texts, sampled, logprobs, advantages, trainer_logprobs } = tokens;
  return { ...tokens, turns, ids: slice(ids), texts: slice(texts), sampled: slice(sampled), logprobs: slice(logprobs),
    advantages: slice(advantages), trainer_logprobs: slice(trainer_logprobs) };
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
  useKeys(last < 0 ? {} : { ".": ["next token, starting at the first sampled one", () => step(1)], ",": ["previous token", () => step(-1)] });
  if (last < 0) return html`<p class="empty">${tokens.note}</p>`;
  const offered = Object.entries(BY).filter(([kind]) => kind === "chance" || (kind === "advantage" ? tokens.advantages : tokens.trainer_logprobs));
  const pick = (event) => {
    const place = event.target.closest?.("[data-t]")?.dataset.t;
    if (place != null) setAt(Number(place));
  };
  return html`<div class="tokens">
    ${tokens.note && html`<p class="note"><${Text}>${tokens.note}</${Text}></p>`}
    <div class="row small bar">
      <label>colour by <select value=${by} onChange=${(event) => setBy(event.target.value)}>${offered.map(([kind, says]) => html`<option value=${kind}>${says}</option>`)}</select></label>
      <${Legend} by=${by} />
      <span class="faint">underlined: sampled; others are masked in training</span>
    </div>
    <p class="picked mono" aria-live="polite">${at == null ? "Point at a token, or press . and , to see its id, log-probability and advantage." : told(tokens, at)}</p>
    <div onMouseOver=${pick} onClick=${pick}>${segments.map((segment) => html`<${Segment} ...${{ segment, tokens, by, at }} />`)}</div>
  </div>`;
}

function Segment({ segment, tokens, by, at }) {
  const { start, end, turn } = segment;
  const [open, setOpen] = useState(turn != null || end - start <= FOLDED);
  const head = turn != null ? `turn ${turn + 1}: ${plural(end - start, "sampled token")}${mean(tokens, start, end)}` : `${plural(end - start, "masked token")}`;
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

/** The colour class of a token: c0 (most likely) to c4, or g and b with 1 to 4 for positive and negative values. */
function shade(tokens, at, by) {
  if (by === "advantage") {
    const advantage = tokens.advantages[at] ?? 0;
    const size = Math.min(4, Math.ceil(Math.abs(advantage) * 3));
    return advantage === 0 ? "" : `${advantage > 0 ? "g" : "b"}${size}`;
  }
  if (tokens.logprobs[at] == null) return "";
  if (by === "apart") {
    const gap = (tokens.trainer_logprobs[at] ?? tokens.logprobs[at]) - tokens.logprobs[at];
    const size = [1e-4, 1e-3, 1e-2, 1e-1].filter((most) => Math.abs(gap) > most).length;
    return size ? `${gap > 0 ? "g" : "b"}${size}` : "";
  }
  const chance = Math.exp(tokens.logprobs[at]);
  return `c${[0.9, 0.5, 0.2, 0.05].filter((most) => chance < most).length}`;
}

function Legend({ by }) {
  const steps = {
    chance: [["c0", "≥ 90%"], ["c1", "≥ 50%"], ["c2", "≥ 20%"], ["c3", "≥ 5%"], ["c4", "< 5%"]],
    advantage: [["b3", "negative"], ["g3", "positive"]],
    apart: [["b1", "> 0.0001"], ["b2", "> 0.001"], ["b3", "> 0.01"], ["b4", "> 0.1 nats"]],
  }[by];
  return html`<span class="legend">${steps.map(([kind, says]) => html`<span class="t s ${kind}">${says}</span> `)}</span>`;
}

function told(tokens, at) {
  const text = tokens.texts ? ` ${JSON.stringify(tokens.texts[at])}` : "";
  const head = `position ${at}, id ${tokens.ids[at]}${text}`;
  if (!tokens.sampled[at]) return `${head}, masked`;
  const logprob = tokens.logprobs[at];
  if (logprob == null) return `${head}, sampled`;
  const trainer = tokens.trainer_logprobs?.[at];
  const gap = trainer == null ? "" : `, trainer's log-probability ${trainer.toFixed(5)} (difference ${(trainer - logprob).toExponential(1)})`;
  const advantage = tokens.advantages?.[at] == null ? "" : `, advantage ${number(tokens.advantages[at])}`;
  return `${head}, sampled, log-probability ${logprob.toFixed(5)} (${(100 * Math.exp(logprob)).toFixed(2)}%)${gap}${advantage}`;
}

function mean(tokens, start, end) {
  const known = tokens.logprobs.slice(start, end).filter((value) => value != null);
  if (!known.length) return "";
  const least = Math.exp(Math.min(...known));
  return `, mean log-probability ${number(known.reduce((a, b) => a + b, 0) / known.length)}, lowest probability ${(100 * least).toFixed(1)}%`;
}

/** The segments of an episode: each reply, and the masked tokens between replies. */
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
