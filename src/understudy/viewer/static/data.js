// Answers of the API, from the server or from the data in an exported file.
import { useEffect, useState } from "view/html.js";
import { select } from "view/select.js";

const block = document.getElementById("page-data");
const stored = block && (await unpacked(block.textContent));

/** Whether this page is an exported file. It never changes and may be incomplete. */
export const exported = Boolean(stored);
/** What an exported file excludes, as sentences. */
export const left_out = stored ? stored.left_out : [];

async function unpacked(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
}

/** The path of an answer, for example path("runs", key, "curves"). */
export const path = (...parts) => ["/api", ...parts.map((part) => encodeURIComponent(part))].join("/");

/** Request an answer of the API. Throw an Error with the reason if there is none. */
export async function ask(where, values = {}, signal = undefined) {
  if (stored) {
    const found = stored.answers[where] ?? select(stored, where, values);
    if (!found || is_error(found)) throw new Error(found?.error ?? "This file does not contain this data. Run understudy view on the folder to see it.");
    return found;
  }
  const query = new URLSearchParams(Object.entries(values).filter(([, value]) => value !== "" && value != null));
  const response = await fetch(`${where}?${query}`, { signal });
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error);
  return answer;
}

/** Send a value to the server, and return its answer. Throw an Error with the reason if it refuses. */
export async function send(where, value) {
  const response = await fetch(where, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(value) });
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error.message ?? answer.error);
  return answer;
}

/** Whether an answer consists of an error only. An episode also has an `error`, beside other values. */
const is_error = (answer) => Object.keys(answer).join() === "error";

/** The state of an answer: {data, error}. It is requested again when the path, a value or `stamp` changes. */
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

/** Several answers, in order. An answer stays until its next version arrives. */
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

/** An answer that is requested again `seconds` after it arrived, while the page is visible. An error leaves the last
 * data in place. */
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
