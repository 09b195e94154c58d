// Addresses: #/page/argument/argument?name=value. A page is its name, what follows are its arguments.
import { useEffect, useState } from "view/html.js";

/** The address of a page. Values that are empty are left out. */
export function href(name, args = [], query = {}) {
  const kept = Object.entries(query).filter(([, value]) => value !== "" && value != null);
  const where = [name, ...args.map(encodeURIComponent)].join("/");
  return `#/${where}${kept.length ? `?${new URLSearchParams(kept)}` : ""}`;
}

/** Where the page is: {name, args, query}. */
export function here() {
  const [where, query] = location.hash.replace(/^#\/?/, "").split(/\?(.*)/s);
  const [name, ...args] = where.split("/").map(decoded);
  return { name, args, query: Object.fromEntries(new URLSearchParams(query)) };
}

/** Go to an address; with `replace` the way back skips where one was. */
export function go(address, replace = false) {
  if (!replace) location.hash = address;
  else {
    history.replaceState(null, "", address);
    dispatchEvent(new HashChangeEvent("hashchange"));
  }
}

/** Change some values of the query and stay on the page. */
export function change(values, replace = true) {
  const { name, args, query } = here();
  go(href(name, args, { ...query, ...values }), replace);
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
