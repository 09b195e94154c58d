// A value with its interval, drawn as a line from low to high with a dot at the value.
import { html } from "view/html.js";
import { percent } from "view/format.js";

const WIDTH = 160;

/** A rate in [0, 1], or with `signed` a difference in [-1, 1] with a mark at 0. */
export function Interval({ rate, signed = false }) {
  if (!rate || rate.mean == null) return html`<span class="faint">–</span>`;
  const at = (value) => 4 + ((signed ? (value + 1) / 2 : value) * (WIDTH - 8));
  const kind = signed ? (rate.low > 0 ? "good" : rate.high < 0 ? "bad" : "") : "";
  const says = signed ? signless(rate) : `${percent(rate.low)} to ${percent(rate.high)}`;
  return html`<span class="interval ${kind}"><svg width=${WIDTH} height="14" viewBox=${`0 0 ${WIDTH} 14`} aria-hidden="true">
    <line x1="4" x2=${WIDTH - 4} y1="7" y2="7" class="rail" />
    ${signed && html`<line x1=${at(0)} x2=${at(0)} y1="1" y2="13" class="zero" />`}
    <line x1=${at(rate.low)} x2=${at(rate.high)} y1="7" y2="7" class="span" /><circle cx=${at(rate.mean)} cy="7" r="3.5" /></svg>
    <span class="small soft">${says}</span></span>`;
}

const points = (value) => `${value >= 0 ? "+" : "−"}${Math.abs(100 * value).toFixed(1)}`;

/** A difference with its interval, in percentage points. */
export const signless = ({ mean, low, high }) => `${points(mean)} points [${points(low)}, ${points(high)}]`;
