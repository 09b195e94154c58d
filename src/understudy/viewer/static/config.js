// Configs of runs: for one run the values that differ from the defaults, for several those that differ between them.
import { toml } from "view/format.js";
import { html, useState } from "view/html.js";

export function Config({ runs }) {
  const [all, setAll] = useState(false);
  const known = runs.filter((run) => run.config && Object.keys(run.config).length);
  if (!known.length) return null;
  const keys = [...new Set(known.flatMap((run) => Object.keys(run.config)))];
  const [first, ...others] = known;
  const differs = (key) =>
    others.length ? others.some((run) => toml(run.config[key]) !== toml(first.config[key])) : toml(first.config[key]) !== toml(first.defaults[key]);
  const shown = keys.filter((key) => all || differs(key));
  return html`<details class="config card" open=${others.length > 0}>
    <summary><h2>Config</h2> <span class="faint">${keys.filter(differs).length} of ${keys.length} keys differ ${others.length ? "between the runs" : "from the default"}</span></summary>
    <label class="row small"><input type="checkbox" checked=${all} onChange=${() => setAll(!all)} /> show all keys</label>
    ${shown.length > 0 &&
    html`<div class="scroll" tabindex="0" role="group" aria-label="config">
      <table class="mono">
        <thead>
          <tr>
            <th>key</th>
            ${known.map((run) => html`<th><i class="dot" style=${{ background: `var(${run.colour})` }} /> ${run.key}</th>`)}
            ${!others.length && html`<th>default</th>`}
          </tr>
        </thead>
        <tbody>
          ${shown.map(
            (key) => html`<tr key=${key} class=${all && differs(key) ? "differs" : ""}>
              <th scope="row">${key}</th>
              ${known.map((run) => html`<td>${toml(run.config[key])}</td>`)}
              ${!others.length && html`<td class="faint">${toml(first.defaults[key])}</td>`}
            </tr>`,
          )}
        </tbody>
      </table>
    </div>`}
  </details>`;
}
