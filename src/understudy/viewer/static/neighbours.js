// The previous and the next episode in the list from which one was opened. Its address holds the filters and position.
import { path, useAnswer } from "view/data.js";
import { href } from "view/router.js";

/** Addresses {list, previous, next}, position and length of the list. Without a position, previous and next are null. */
export function useNeighbours(run, query) {
  const { at, ...values } = query;
  const place = Number(at ?? NaN);
  const from = Math.max(0, place - 1);
  const answer = useAnswer(Number.isInteger(place) ? path("runs", run, "episodes") : null, { ...values, offset: from, limit: 3 });
  const found = (i) => {
    const row = answer.data?.rows[i - from];
    return row && i >= 0 ? href("episode", [run, String(row.step), String(row.number)], { ...values, at: i }) : null;
  };
  return { list: href("episodes", [run], values), previous: found(place - 1), next: found(place + 1), place, total: answer.data?.total };
}
