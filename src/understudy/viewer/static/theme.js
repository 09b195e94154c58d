// The theme: light, dark or the system's. The event "theme" tells charts to draw themselves again.
const THEMES = ["system", "light", "dark"];
const dark = matchMedia("(prefers-color-scheme: dark)");
let chosen = stored();

function stored() {
  try {
    return THEMES.find((name) => name === localStorage.getItem("understudy.theme")) ?? "system";
  } catch {
    return "system"; // some browsers deny storage to files
  }
}

export const theme = () => chosen;
export const next_theme = () => THEMES[(THEMES.indexOf(chosen) + 1) % THEMES.length];

export function set_theme(name) {
  chosen = name;
  try {
    localStorage.setItem("understudy.theme", name);
  } catch {
    // the choice lasts until the page is closed
  }
  show();
}

function show() {
  const shown = chosen === "system" ? (dark.matches ? "dark" : "light") : chosen;
  document.documentElement.dataset.theme = shown;
  dispatchEvent(new Event("theme"));
}

dark.addEventListener("change", show);
show();

/** The value of a custom property of the theme, for example colour("--good"). */
export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
