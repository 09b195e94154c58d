// Numbers and times as text.

/** A number in few characters: 0.123, 12.3, 1,234, 1.2e-5; a dash for null and NaN. */
export function number(value) {
  if (value == null || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size < 0.001 || size >= 1e9) return value.toExponential(1).replace("e+", "e");
  if (size >= 1000) return Math.round(value).toLocaleString("en-US");
  return String(Number(value.toPrecision(3)));
}

export const whole = (value) => (value == null ? "–" : Math.round(value).toLocaleString("en-US"));

/** A share in percent. Only 1 is shown as 100%. */
export function percent(value) {
  if (value == null) return "–";
  const isExtreme = (value > 0 && value < 0.1) || (value > 0.9 && value < 1);
  return `${(100 * (value < 1 ? Math.min(value, 0.999) : value)).toFixed(isExtreme ? 1 : 0)}%`;
}

export function seconds(value) {
  if (value == null) return "–";
  if (value < 0.001) return "<1 ms";
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  if (value < 100) return `${Number(value.toPrecision(3))} s`;
  if (value < 6000) return `${Math.round(value / 60)} min`;
  return `${number(value / 3600)} h`;
}

/** A time left in rough numbers. */
export function left(value) {
  if (value < 90) return `about ${Math.max(1, Math.round(value))} s left`;
  if (value < 5400) return `about ${Math.round(value / 60)} min left`;
  return `about ${Number((value / 3600).toPrecision(2))} h left`;
}

/** How long ago a time was, which is given in seconds since 1970. */
export function ago(moment) {
  const passed = Date.now() / 1000 - moment;
  if (passed < 5) return "just now";
  if (passed < 90) return `${Math.round(passed)} s ago`;
  if (passed < 5400) return `${Math.round(passed / 60)} min ago`;
  if (passed < 129600) return `${Math.round(passed / 3600)} h ago`;
  return new Date(moment * 1000).toISOString().slice(0, 10);
}

export const plural = (count, noun) => `${whole(count)} ${noun}${count === 1 ? "" : "s"}`;

/** A config value in TOML syntax. */
export const toml = (value) => (value === undefined ? "–" : JSON.stringify(value));
