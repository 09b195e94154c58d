// Runs: their curves over each other, and of each what it is, how well it is, and what it came to.
import { html } from "view/html.js";

export const title = "Runs";

export function Page({ overview }) {
  return html`<h1>Runs</h1><ul>${overview.runs.map((run) => html`<li>${run.key}: step ${run.step} of ${run.steps}</li>`)}</ul>`;
}
