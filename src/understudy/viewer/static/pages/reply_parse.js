// The sampled text of a reply, with the repairs of the parser.
import { html } from "view/html.js";
import { Tag } from "view/parts.js";
import { Long, Text } from "view/text.js";

export function ReplyParse({ parse }) {
  const { text, status, repairs, faults, spoke_for_user, pieces } = parse;
  return html`<div class="parse">
    <div class="row small"><span class="faint">sampled text</span>
      ${status === "malformed" && html`<${Tag} kind="bad">not parsed</${Tag}>`}
      ${Object.entries(repairs).map(([kind, count]) => html`<${Tag} kind="warn">repaired: ${kind}${count > 1 ? ` × ${count}` : ""}</${Tag}>`)}
      ${Object.entries(faults).map(([kind, count]) => html`<${Tag} kind="bad">parse error: ${kind}${count > 1 ? ` × ${count}` : ""}</${Tag}>`)}
      ${spoke_for_user && html`<${Tag} kind="bad">spoke for another role, cut off there</${Tag}>`}
    </div>
    ${pieces.length
      ? html`<pre class="long">${pieces.map(({ kind, text }) => kind === "same" ? html`<${Text}>${text}</${Text}>` : kind === "removed" ? html`<del title="only in the sampled text"><${Text}>${text}</${Text}></del>` : html`<ins title="only in the parsed reply"><${Text}>${text}</${Text}></ins>`)}</pre>`
      : html`<${Long} tag="pre">${text}</${Long}>`}
  </div>`;
}
