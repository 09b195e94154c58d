// Changes of a database, by path.
import { html } from "view/html.js";
import { plural } from "view/format.js";
import { Text, Value, brief } from "view/text.js";

const SHOWN = 12;

/** Edits as lines: path, old value and new value. */
export function Changes({ edits, says = "", was = "", now = "" }) {
  const tables = edits.filter((edit) => edit.path.length > 1);
  const session = edits.filter((edit) => edit.path.length === 1);
  const line = (edit) => html`<${Line} ...${{ edit, was, now }} />`;
  return html`<div class="changes" role="group" aria-label="database changes">
    ${says && tables.length > 0 && html`<span class="says">${says}</span>`}
    <ul>${tables.slice(0, SHOWN).map(line)}</ul>
    ${tables.length > SHOWN && html`<details><summary>${plural(tables.length - SHOWN, "more change")}</summary><ul>${tables.slice(SHOWN).map(line)}</ul></details>`}
    ${session.map((edit) => html`<p class="session small">outside the database: <span class="path">${edit.path[0]}</span> ${was || "from"} <${Text}>${shown(edit.before)}</${Text}>, ${now || "to"} <${Text}>${shown(edit.after)}</${Text}></p>`)}
  </div>`;
}

function Line({ edit, was, now }) {
  const where = html`<span class="path">${edit.path.map((part, place) => html`${place ? html`<i>/</i>` : ""}<${Text}>${part}</${Text}>`)}</span>`;
  if (edit.kind !== "set") {
    const added = edit.kind === "added";
    const value = added ? edit.after : edit.before;
    const head = html`${where} <b class=${added ? "good" : "bad"}>${added ? (now ? `missing, only in ${now}` : "added") : now ? `extra, not in ${now}` : "removed"}</b>`;
    if (typeof value !== "object" || value === null) return html`<li>${head} <${Text}>${brief(value)}</${Text}></li>`;
    return html`<li><details><summary>${head}</summary><${Value} value=${value} /></details></li>`;
  }
  return html`<li>${where} <del>${was && `${was} `}<${Text}>${shown(edit.before)}</${Text}></del> <span aria-hidden="true">→</span> <ins>${now && `${now} `}<${Text}>${shown(edit.after)}</${Text}></ins></li>`;
}

const shown = (value) => (value === "" ? "(empty)" : value === null ? "(none)" : brief(value, 120));
