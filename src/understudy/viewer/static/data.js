// What the page is told: by the server, or in an exported file by what the file holds.
import { useEffect, useState } from "view/html.js";
import { select } from "view/select.js";

const block = document.getElementById("told");
const told = block && (await unpacked(block.textContent));

/** Whether this page is a file of its own: nothing changes in it, and it may not hold all. */
export const exported = Boolean(told);
/** What an exported file leaves out, in sentences. */
export const left_out = told ? told.left_out : [];

async function unpacked(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
}

/** The path of an answer, such as path("runs", key, "curves"). */
export const path = (...parts) => ["/api", ...parts.map((part) => encodeURIComponent(part))].join("/");

/** An answer of the API; an Error says why there is none. */
export async function ask(where, values = {}, signal = undefined) {
  if (told) {
    const found = told.answers[where] ?? select(told, where, values);
    if (!found || found.not_told) throw new Error(found?.not_told ?? "this file does not hold that; understudy view on the folder itself shows it");
    return found;
  }
  const query = new URLSearchParams(Object.entries(values).filter(([, value]) => value !== "" && value != null));
  const response = await fetch(`${where}?${query}`, { signal });
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error);
  return answer;
}

/** An answer as it stands: {data, error}. It is asked for anew when the path, a value or `stamp` changes. */
export function useAnswer(where, values = {}, stamp = "") {
  const key = JSON.stringify([where, values]);
  const [state, setState] = useState({});
  useEffect(() => {
    if (!where) return undefined;
    const over = new AbortController();
    ask(where, values, over.signal).then(
      (data) => over.signal.aborted || setState({ key, data }),
      (error) => over.signal.aborted || setState({ key, error: error.message }),
    );
    return () => over.abort();
  }, [key, stamp]);
  return state.key === key ? state : {};
}

/** Several answers at once, in order: what is there stays until its next is. */
export function useAnswers(paths, stamp = "") {
  const [found, setFound] = useState({});
  useEffect(() => {
    const over = new AbortController();
    const keep = (where, answer) => over.signal.aborted || setFound((before) => ({ ...before, [where]: answer }));
    for (const where of paths)
      ask(where, {}, over.signal).then(
        (data) => keep(where, { data }),
        (error) => keep(where, { error: error.message }),
      );
    return () => over.abort();
  }, [paths.join("\n"), stamp]);
  return paths.map((where) => found[where]);
}

/** An answer that is asked for again and again, while anybody looks. A slow one is waited for, and then asked for anew;
 * beside an error there is still the last data. */
export function usePolled(where, seconds) {
  const [state, setState] = useState({});
  useEffect(() => {
    const over = new AbortController();
    let timer;
    const look = async (first) => {
      if (first || !document.hidden) {
        const answer = await ask(where, {}, over.signal).then((data) => ({ data }), (error) => ({ error: error.message }));
        if (over.signal.aborted) return;
        setState((before) => (answer.error ? { ...before, ...answer } : answer));
      }
      if (!exported) timer = setTimeout(look, seconds * 1000);
    };
    look(true);
    return () => {
      over.abort();
      clearTimeout(timer);
    };
  }, [where, seconds]);
  return state;
}
