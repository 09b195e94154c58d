// Text of models, tools and users: shown in full, never as markup.
import { html, useMemo, useState } from "view/html.js";

// Control characters, direction marks, characters without width, lone surrogates.
const ODD = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;
const LONGEST = 3000;
const LINES = 40;
const WORD = 500;

/** A text with its own writing direction. Invisible characters are shown as their code points. */
export function Text({ children }) {
  const text = joined(children);
  return html`<bdi>${useMemo(() => pieces(text), [text])}</bdi>`;
}

/** A text that may be long: its beginning, with a button that shows all of it. */
export function Long({ children, tag = "p" }) {
  const text = joined(children);
  const [all, setAll] = useState(false);
  const cut = useMemo(() => beginning(text), [text]);
  const more = cut.length < text.length;
  return html`<${tag} class="long"><${Text}>${all ? text : cut}</${Text}>${more && !all && "…"}</${tag}>
    ${more && html`<button type="button" class="more" onClick=${() => setAll(!all)}>
      ${all ? "show less" : `show all ${text.length.toLocaleString("en-US")} characters`}
    </button>`}`;
}

/** A JSON value with indentation. A string that contains JSON is shown as its value. */
export function Value({ value }) {
  return html`<${Long} tag="pre">${useMemo(() => laid_out(value), [value])}</${Long}>`;
}

/** A value in one short line. */
export function brief(value, most = 60) {
  const text = typeof value === "string" ? value : JSON.stringify(value) ?? String(value);
  return text.length > most ? `${[...text.slice(0, most)].join("")}…` : text;
}

const joined = (children) => [children ?? ""].flat(Infinity).join("");

function beginning(text) {
  let end = Math.min(text.length, LONGEST);
  for (let at = -1, line = 0; (at = text.indexOf("\n", at + 1)) >= 0 && at < end; ) {
    if (++line === LINES) end = at;
  }
  return text.length <= end * 1.2 ? text : text.slice(0, end);
}

function laid_out(value) {
  if (typeof value !== "string") return JSON.stringify(value, null, 1) ?? String(value);
  try {
    const held = /^\s*[[{]/.test(value) && JSON.parse(value);
    return held && typeof held === "object" ? JSON.stringify(held, null, 1) : value;
  } catch {
    return value;
  }
}

function pieces(text) {
  const found = [];
  let done = 0;
  for (const match of text.matchAll(ODD)) {
    if (match[0] === "\r" && text[match.index + 1] === "\n") continue;
    const code = match[0].charCodeAt(0).toString(16).toUpperCase().padStart(4, "0");
    found.push(breakable(text.slice(done, match.index)), html`<span class="odd">U+${code}</span>`);
    done = match.index + 1;
  }
  found.push(breakable(text.slice(done)));
  return found;
}

/** A text with possible line breaks, because a browser needs many seconds to lay out one word of 100,000 letters. */
function breakable(text) {
  if (text.length <= WORD) return text;
  const found = [];
  for (let start = 0, end; start < text.length; start = end) {
    end = start + WORD;
    if (/[\ud800-\udbff]/.test(text[end - 1])) end += 1; // keep surrogate pairs together
    found.push(text.slice(start, end), html`<wbr />`);
  }
  return found;
}
