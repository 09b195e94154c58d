// Addresses: #/page/argument/argument?name=value.
import { useEffect, useState } from "view/html.js";

/** The address of a page, without the empty values. */
export function href(name, args = [], query = {}) {
  const kept = Object.entries(query).filter(([, value]) => value !== "" && value != null);
  const where = [name, ...args.map(encodeURIComponent)].join("/");
  return `#/${where}${kept.length ? `?${new URLSearchParams(kept)}` : ""}`;
}

/** The current address: {name, args, query}. */
export function here() {
  const [where, query] = location.hash.replace(/^#\/?/, "").split(/\?(.*)/s);
  const [name, ...args] = where.split("/").map(decoded);
  return { name, args, query: Object.fromEntries(new URLSearchParams(query)) };
}

/** Go to an address. With `replace`, the address replaces the current one in the browser's history. */
export function go(address, replace = false) {
  if (!replace) location.hash = address;
  else {
    history.replaceState(null, "", address);
    dispatchEvent(new HashChangeEvent("hashchange"));
  }
}

/** Change some values of the query and stay on the page. The browser's back button undoes it, unless `replace`, which
 * is for text while it is typed. */
export function change(values, replace = false) {
  const { name, args, query } = here();
  go(href(name, args, { ...query, ...values }), replace);
}

/** A value of the query that is typed or dragged: [value, set]. The address follows after a pause, because browsers
 * limit how often it may change. */
export function useTyped(name, value) {
  const [typed, setTyped] = useState(value);
  useEffect(() => setTyped(value), [value]);
  useEffect(() => {
    const timer = typed !== value && setTimeout(() => change({ [name]: typed }, true), 180);
    return () => clearTimeout(timer);
  }, [typed]);
  return [typed, setTyped];
}

export function useRoute() {
  const [route, setRoute] = useState(here);
  useEffect(() => {
    const moved = () => setRoute(here());
    addEventListener("hashchange", moved);
    return () => removeEventListener("hashchange", moved);
  }, []);
  return route;
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}
