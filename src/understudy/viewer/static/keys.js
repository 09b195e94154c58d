// Keyboard: each page says its keys and what they do; ? lists those that work now.
import { useLayoutEffect } from "view/html.js";

const active = new Set();

/** Keys while a component is there: {j: ["next episode", function]}. They rest while one types, but for Escape. */
export function useKeys(keys) {
  useLayoutEffect(() => {
    active.add(keys);
    return () => active.delete(keys);
  });
}

/** Each key that works now, with what it does. */
export const listed = () => [...active].flatMap((keys) => Object.entries(keys).map(([key, [does]]) => [key, does]));

addEventListener("keydown", (event) => {
  const typing = event.target.closest?.("input, textarea, select, [contenteditable]");
  const pressed = event.key === "Enter" && event.target.closest?.("a, button, summary");
  if (pressed || document.querySelector("dialog[open]")) return; // they have keys of their own
  if (event.ctrlKey || event.metaKey || event.altKey || (typing && event.key !== "Escape")) return;
  for (const keys of [...active].reverse()) {
    if (!keys[event.key]) continue;
    event.preventDefault();
    keys[event.key][1](event);
    return;
  }
});
