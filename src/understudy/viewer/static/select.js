// What the server's index does, for the episodes that an exported file holds: filter, search, sort, page.

/** The answer for a path that depends on its query; undefined where the file holds nothing of that path. */
export function select(answers, where, values) {
  return undefined;
}
