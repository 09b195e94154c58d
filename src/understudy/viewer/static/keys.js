// Keyboard shortcuts. Each page registers its keys with their effects; ? lists the active ones.
import { useLayoutEffect } from "view/html.js";

const active = new Set();

/** Register keys while a component is shown: {j: ["next episode", function]}. In text fields, only Escape is active. */
export function useKeys(keys) {
  useLayoutEffect(() => {
    active.add(keys);
    return () => active.delete(keys);
  });
}

/** Each active key with its effect. */
export const listed = () => [...active].flatMap((keys) => Object.entries(keys).map(([key, [does]]) => [key, does]));

addEventListener("keydown", (event) => {
  const typing = event.target.closest?.("input, textarea, select, [contenteditable]");
  const pressed = event.key === "Enter" && event.target.closest?.("a, button, summary");
  if (pressed || document.querySelector("dialog[open]")) return; // these elements handle their keys
  if (event.ctrlKey || event.metaKey || event.altKey || (typing && event.key !== "Escape")) return;
  for (const keys of [...active].reverse()) {
    if (!keys[event.key]) continue;
    event.preventDefault();
    keys[event.key][1](event);
    return;
  }
});
