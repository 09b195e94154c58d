// Small components that the pages share.
import { html, useEffect, useLayoutEffect, useRef, useState } from "view/html.js";
import { percent } from "view/format.js";

const WIDTHS = [38, 92, 84, 64, 88, 71]; // of the lines of an outline in percent

/** The outline of content that is being loaded: lines of text, or `cards`. */
export const Outline = ({ cards = 0 }) => html`<div class="outline" role="status" aria-busy="true">
  <span class="unseen">loading…</span>
  ${cards
    ? html`<div class="charts">${Array.from({ length: cards }, () => html`<div class="card"><i style=${{ width: "30%" }} /><i class="tall-block" /></div>`)}</div>`
    : WIDTHS.map((width) => html`<i style=${{ width: `${width}%` }} />`)}
</div>`;

/** The content of an answer, its error, or an outline while it is loaded. */
export function Answered({ answer, children }) {
  if (answer.error) return html`<p class="problem" role="alert">${answer.error}</p>`;
  return answer.data ? children(answer.data) : html`<${Outline} />`;
}

export const Empty = ({ children }) => html`<p class="empty">${children}</p>`;

/** A short label in a colour: good, bad, warn, accent or none. */
export const Tag = ({ kind = "", children, title }) => html`<span class="tag ${kind}" title=${title}>${children}</span>`;

/** A reward as a bar and a number; a dash if the episode has no score. */
export function Reward({ value }) {
  if (value == null) return html`<span class="reward none" title="no score">–</span>`;
  const kind = value >= 1 ? "good" : value > 0 ? "warn" : "bad";
  return html`<span class="reward ${kind}"><i style=${{ width: `${100 * Math.min(1, value)}%` }} />${Number(value.toFixed(2))}</span>`;
}

/** A rate with its interval as text. */
export const rate = ({ mean, low, high }) => `${percent(mean)} [${percent(low)}, ${percent(high)}]`;

/** A button that copies a text to the clipboard. */
export function Copy({ text, children = "copy" }) {
  const [done, setDone] = useState(false);
  const copy = () => navigator.clipboard.writeText(text).then(() => setDone(true));
  useEffect(() => {
    const timer = done && setTimeout(() => setDone(false), 1500);
    return () => clearTimeout(timer);
  }, [done]);
  return html`<button type="button" class="quiet" onClick=${copy}>${done ? "copied" : children}</button>`;
}

/** A modal dialog. It is open while it is rendered. */
export function Dialog({ title, onClose, children }) {
  const box = useRef();
  useLayoutEffect(() => box.current.showModal(), []);
  const outside = (event) => event.target === box.current && onClose();
  return html`<dialog ref=${box} onClose=${onClose} onClick=${outside} aria-label=${title}>
    <header><h2>${title}</h2><button type="button" class="quiet" aria-label="close" onClick=${onClose}>✕</button></header>
    ${children}
  </dialog>`;
}
