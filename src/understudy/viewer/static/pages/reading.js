// A reply as it was sampled, with what the parser changed to read it.
import { html } from "view/html.js";
import { Tag } from "view/parts.js";
import { Long, Text } from "view/text.js";

export function Reading({ reading }) {
  const { text, status, repairs, faults, other_side, pieces } = reading;
  return html`<div class="reading">
    <div class="row small"><span class="faint">as it was sampled</span>
      ${status === "malformed" && html`<${Tag} kind="bad">could not be read</${Tag}>`}
      ${Object.entries(repairs).map(([kind, count]) => html`<${Tag} kind="warn">repaired: ${kind}${count > 1 ? ` × ${count}` : ""}</${Tag}>`)}
      ${Object.entries(faults).map(([kind, count]) => html`<${Tag} kind="bad">broken: ${kind}${count > 1 ? ` × ${count}` : ""}</${Tag}>`)}
      ${other_side && html`<${Tag} kind="bad">spoke for somebody else, and was cut there</${Tag}>`}
    </div>
    ${pieces.length
      ? html`<pre class="long">${pieces.map(({ kind, text }) => kind === "same" ? html`<${Text}>${text}</${Text}>` : kind === "written" ? html`<del title="only written"><${Text}>${text}</${Text}></del>` : html`<ins title="only read"><${Text}>${text}</${Text}></ins>`)}</pre>`
      : html`<${Long} tag="pre">${text}</${Long}>`}
  </div>`;
}
