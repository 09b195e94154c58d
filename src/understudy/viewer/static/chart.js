// A chart of curves over steps, drawn by uPlot, with a text description and a table of its numbers.
import uPlot from "uplot";

import { number } from "view/format.js";
import { html, useEffect, useMemo, useRef, useState } from "view/html.js";
import { Copy, Dialog } from "view/parts.js";
import { colour } from "view/theme.js";

const HEIGHT = 160;
const FONT = "11px system-ui, sans-serif";
const NONE = [];
const together = uPlot.sync("steps"); // all charts share one cursor

/**
 * @param lines  [{name, colour, steps, values, low, high, dash, breaks}]; colour is a custom property such as --s1; a
 *               line is interrupted between the two steps of each break; `low` and `high` are a band around it
 * @param points [{name, colour, step, mean, low, high}]: values with an interval
 * @param legend what the points are
 * @param levels [{name, value}]: dashed horizontal lines
 * @param phases [[name, first step, last step]], marked on the axis
 * @param named  whether the readout shows the names of the lines, because their colours do not stand for runs
 * @param smooth weight of the previous point in the moving average, from 0 (no smoothing) to below 1
 */
export function Chart({ title, note, lines, points = NONE, legend, levels = NONE, phases = NONE, range, named = false, smooth = 0 }) {
  const [table, setTable] = useState(false);
  const data = useMemo(() => joined(lines, smooth), [lines, smooth]);
  const readout = useRef();
  const told = sentence(title, lines, points, phases);
  return html`<figure class="chart card">
    <figcaption>
      <h3 title=${note}>${title}</h3>
      <button type="button" class="quiet small" onClick=${() => setTable(true)} aria-label=${`numbers of ${title}`}>▤</button>
    </figcaption>
    <p class=${named ? "readout named" : "readout"} ref=${readout} aria-hidden="true" />
    <${Drawing} ...${{ told, data, lines, points, levels, phases, range, smooth, readout }} />
    ${points.length > 0 && html`<p class="small faint">${legend}</p>`}
    ${table && html`<${Numbers} ...${{ title, lines, points, onClose: () => setTable(false) }} />`}
  </figure>`;
}

function Drawing({ told, data, lines, points, levels, phases, range, smooth, readout }) {
  const box = useRef();
  const plot = useRef();
  const drawn = useRef(); // what the current plot draws
  const [theme, setTheme] = useState(0);
  useEffect(() => {
    const changed = () => setTheme((n) => n + 1);
    addEventListener("theme", changed);
    return () => removeEventListener("theme", changed);
  }, []);
  const shape = JSON.stringify([theme, smooth > 0, range, phases, lines.map((line) => [line.name, line.colour, line.dash])]);
  useEffect(() => {
    drawn.current = { lines, points, levels, phases, smooth };
    const made = new uPlot(options(box.current.clientWidth, drawn, range, readout), data, box.current);
    plot.current = made;
    show_last(made, drawn, readout);
    const sized = new ResizeObserver(([{ contentRect }]) => made.setSize({ width: contentRect.width, height: HEIGHT }));
    sized.observe(box.current);
    return () => {
      sized.disconnect();
      made.destroy();
    };
  }, [shape]);
  useEffect(() => {
    drawn.current = { lines, points, levels, phases, smooth };
    const { x } = plot.current.scales;
    const [steps] = plot.current.data;
    const closer = x.min != null && (x.min > steps[0] || x.max < steps.at(-1)); // keep the user's zoom
    plot.current.setData(data, !closer);
    if (closer) plot.current.redraw();
    show_last(plot.current, drawn, readout);
  }, [data, points, levels, phases]);
  return html`<div class="drawing" ref=${box} role="img" aria-label=${told} />`;
}

function options(width, drawn, range, readout) {
  const ink = { stroke: colour("--faint"), font: FONT, grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
  const { lines, smooth } = drawn.current;
  const series = lines.flatMap((line) => {
    const stroke = colour(line.colour);
    const raw = { stroke: `${stroke}59`, width: 1, show: smooth > 0, gaps: interrupted(line), points: { show: false } };
    const points = { size: 5, fill: stroke, show: sparse, filter: (plot, i, shown) => (shown ? null : lonely(plot, i, line)) };
    return [raw, { stroke, width: 1.75, dash: line.dash, gaps: interrupted(line), points }];
  });
  return {
    width: width || 300,
    height: HEIGHT,
    padding: [6, 10, 0, 0],
    legend: { show: false },
    scales: { x: { time: false }, y: { range: (plot, low, high) => spread(low, high, range, drawn.current) } },
    axes: [
      { ...ink, size: 22, gap: 3, values: (_, ticks) => ticks.map((tick) => (Number.isInteger(tick) ? number(tick) : "")) },
      { ...ink, size: 52, gap: 4, space: 26, values: (_, ticks) => labels(ticks) },
    ],
    cursor: { sync: { key: together.key, setSeries: false }, points: { size: 6 }, drag: { x: true, y: false } },
    series: [{}, ...series],
    hooks: {
      drawAxes: [(plot) => draw_phases(plot, drawn.current), (plot) => draw_bands(plot, drawn.current)],
      draw: [(plot) => draw_levels(plot, drawn.current), (plot) => draw_points(plot, drawn.current)],
      setCursor: [(plot) => show_at(plot, drawn, readout)],
    },
  };
}

/** The labels of an axis, with as many digits as its ticks need to differ. */
function labels(ticks) {
  const short = ticks.map(number);
  if (new Set(short).size === short.length) return short;
  const near = Math.abs(ticks[1] - ticks[0]) / 100;
  let digits = 0;
  while (digits < 15 && ticks.some((tick) => Math.abs(tick.toFixed(digits) - tick) > near)) digits++;
  return ticks.map((tick) => tick.toFixed(digits));
}

/** The interruptions of a line in pixels, for uPlot. Steps without a value do not interrupt it. */
const interrupted = ({ breaks = NONE }) => (plot) =>
  breaks.map(([end, start]) => [plot.valToPos(end, "x", true), plot.valToPos(start, "x", true)]);

const DOT = 8; // pixels between points that are all drawn as dots

function sparse(plot, series, from, to) {
  let known = 0;
  for (let i = from; i <= to; i++) known += plot.data[series][i] != null;
  return known * DOT <= plot.bbox.width / devicePixelRatio;
}

/** The places of values that no line connects with another value: they are drawn as dots. */
function lonely(plot, series, { breaks = NONE }) {
  const [steps, values] = [plot.data[0], plot.data[series]];
  const known = values.flatMap((value, i) => (value == null ? [] : [i]));
  const apart = (one, other) => one == null || other == null || breaks.some(([end, start]) => steps[one] <= end && start <= steps[other]);
  return known.filter((at, i) => apart(known[i - 1], at) && apart(at, known[i + 1]));
}

/** The range of the y axis: `range` if it is given, otherwise all drawn values with a margin. */
function spread(low, high, range, { lines, points, levels }) {
  if (range) return range;
  const values = [low, high, ...lines.flatMap((line) => (line.low ? [...line.low, ...line.high] : [])), ...points.flatMap((p) => [p.low, p.high]), ...levels.map((level) => level.value)];
  const known = values.filter(Number.isFinite);
  if (!known.length) return [0, 1];
  const [least, most] = [Math.min(...known), Math.max(...known)];
  const room = most > least ? 0.06 * (most - least) : Math.abs(most) * 0.1 || 1;
  return [least >= 0 && least < 0.4 * most ? 0 : least - room, most + room];
}

/** The first step of each phase as a line with the phase's name. A run of one phase has no marks. */
function draw_phases(plot, { phases }) {
  const { ctx, bbox } = plot;
  const shown = phases.filter(([, first, last]) => first <= plot.scales.x.max && last >= plot.scales.x.min);
  if (phases.length < 2) return;
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  ctx.fillStyle = colour("--faint");
  ctx.textAlign = "left";
  ctx.textBaseline = "alphabetic";
  ctx.strokeStyle = colour("--line-strong");
  ctx.lineWidth = devicePixelRatio;
  ctx.setLineDash([2 * devicePixelRatio, 2 * devicePixelRatio]);
  ctx.font = `${10 * devicePixelRatio}px system-ui, sans-serif`;
  for (const [name, first] of shown) {
    const x = plot.valToPos(first - 0.5, "x", true);
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    ctx.fillText(name, Math.max(x, bbox.left) + 3 * devicePixelRatio, bbox.top + 9 * devicePixelRatio);
  }
  ctx.restore();
}

/** The band of each line, interrupted where the line is. */
function draw_bands(plot, { lines, smooth }) {
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  for (const { colour: name, steps, low, high, breaks = NONE } of lines.filter((line) => line.low)) {
    const [least, most] = [low, high].map((values) => (smooth ? smoothed(values, smooth) : values));
    const at = (values) => (i) => [plot.valToPos(steps[i], "x", true), plot.valToPos(values[i], "y", true)];
    const parts = [];
    steps.forEach((step, i) => {
      const before = parts.at(-1)?.at(-1);
      if (low[i] == null) return;
      if (before == null || breaks.some(([end, start]) => steps[before] <= end && start <= step)) parts.push([i]);
      else parts.at(-1).push(i);
    });
    ctx.fillStyle = `${colour(name)}2b`;
    for (const part of parts) {
      ctx.beginPath();
      for (const [x, y] of [...part.map(at(most)), ...part.toReversed().map(at(least))]) ctx.lineTo(x, y);
      ctx.fill();
    }
  }
  ctx.restore();
}

function draw_levels(plot, { levels }) {
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.strokeStyle = ctx.fillStyle = colour("--faint");
  ctx.lineWidth = devicePixelRatio;
  ctx.font = `${10 * devicePixelRatio}px system-ui, sans-serif`;
  ctx.textAlign = "right";
  for (const { name, value } of levels) {
    const y = plot.valToPos(value, "y", true);
    ctx.setLineDash([4 * devicePixelRatio, 4 * devicePixelRatio]);
    ctx.beginPath();
    ctx.moveTo(bbox.left, y);
    ctx.lineTo(bbox.left + bbox.width, y);
    ctx.stroke();
    ctx.fillText(name, bbox.left + bbox.width, y - 4 * devicePixelRatio);
  }
  ctx.restore();
}

function draw_points(plot, { points }) {
  const { ctx } = plot;
  ctx.save();
  for (const point of points) {
    const x = plot.valToPos(point.step, "x", true);
    const [mean, low, high] = [point.mean, point.low, point.high].map((value) => plot.valToPos(value, "y", true));
    ctx.strokeStyle = ctx.fillStyle = colour(point.colour);
    ctx.lineWidth = 1.5 * devicePixelRatio;
    ctx.beginPath();
    ctx.moveTo(x, low);
    ctx.lineTo(x, high);
    ctx.stroke();
    ctx.beginPath();
    ctx.arc(x, mean, 3.5 * devicePixelRatio, 0, 2 * Math.PI);
    ctx.fill();
  }
  ctx.restore();
}

/** Show the values under the cursor, or the last values if there is no cursor. */
function show_at(plot, drawn, readout) {
  const at = plot.cursor.idx;
  if (at == null) show_last(plot, drawn, readout);
  else write(readout, `step ${number(plot.data[0][at])}`, drawn.current.lines, (place) => plot.data[2 * place + 2][at]);
}

function show_last(plot, drawn, readout) {
  write(readout, "", drawn.current.lines, (place) => plot.data[2 * place + 2].findLast((value) => value != null));
}

function write(readout, head, lines, value) {
  if (!readout.current) return;
  const marks = lines.flatMap((line, place) => {
    const found = value(place);
    if (found == null) return [];
    const mark = document.createElement("b");
    mark.style.color = `var(${line.colour})`;
    mark.textContent = number(found);
    mark.title = line.name;
    mark.dataset.name = line.name;
    return [mark];
  });
  readout.current.replaceChildren(...marks, head);
}

/** All lines over one axis: the steps, then the values and the smoothed values of each line. */
export function joined(lines, smooth) {
  const steps = [...new Set(lines.flatMap((line) => line.steps))].sort((a, b) => a - b);
  const place = new Map(steps.map((step, i) => [step, i]));
  const columns = lines.flatMap((line) => {
    const raw = new Array(steps.length).fill(null);
    line.steps.forEach((step, i) => (raw[place.get(step)] = line.values[i]));
    return [raw, smooth ? smoothed(raw, smooth) : raw];
  });
  return [steps, ...columns];
}

/** An exponential moving average, corrected for its bias towards zero at the start. */
function smoothed(values, keep) {
  let [sum, weight] = [0, 0];
  return values.map((value) => {
    if (value == null) return null;
    sum = keep * sum + (1 - keep) * value;
    weight = keep * weight + (1 - keep);
    return sum / weight;
  });
}

function sentence(title, lines, points, phases) {
  const said = lines.map((line) => {
    const known = line.values.filter((value) => value != null);
    if (!known.length) return `${line.name}: no values yet`;
    const [least, most] = [Math.min(...known), Math.max(...known)];
    return `${line.name}: first ${number(known[0])}, last ${number(known.at(-1))}, minimum ${number(least)}, maximum ${number(most)}`;
  });
  const measured = points.map((point) => `${point.name} at step ${point.step}: ${number(point.mean)}`);
  const marked = phases.length > 1 ? phases.map(([name, first, last]) => `${name}: steps ${first} to ${last}`) : [];
  return [`${title}.`, ...said, ...measured, ...marked].join("; ");
}

function Numbers({ title, lines, points, onClose }) {
  const [steps, ...columns] = joined(lines, 0);
  const values = columns.filter((_, i) => i % 2 === 0);
  const csv = [["step", ...lines.map((line) => line.name)], ...steps.map((step, i) => [step, ...values.map((v) => v[i] ?? "")])];
  const most = 500;
  return html`<${Dialog} title=${title} onClose=${onClose}>
    <p class="row"><${Copy} text=${csv.map((row) => row.join("\t")).join("\n")}>copy as a table</${Copy}></p>
    <div class="scroll tall" tabindex="0">
      <table>
        <thead><tr><th class="number">step</th>${lines.map((line) => html`<th class="number">${line.name}</th>`)}</tr></thead>
        <tbody>
          ${steps.slice(-most).map((step, i) => {
            const at = Math.max(0, steps.length - most) + i;
            return html`<tr><td class="number">${step}</td>${values.map((v) => html`<td class="number">${number(v[at])}</td>`)}</tr>`;
          })}
        </tbody>
      </table>
      ${points.map((p) => html`<p class="small">${p.name}, step ${p.step}: ${number(p.mean)} [${number(p.low)}, ${number(p.high)}]</p>`)}
    </div>
  </${Dialog}>`;
}
