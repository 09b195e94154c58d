// The episodes before and after one in the list that it was opened from: its filters and its place are in the address.
import { path, useAnswer } from "view/data.js";
import { href } from "view/router.js";

/** Addresses {list, previous, next, place, total}; without a place in a list there is neither previous nor next. */
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
