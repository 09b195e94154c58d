// What the server's index does, for the episodes that an exported file holds: filter, search, sort, page, count.
const COLUMNS = ["domain", "family", "difficulty", "outcome", "stop", "fault"];
const MARKS = ["tool", "event"];
const words = new Map();

/** The answer for a path that depends on its query; undefined where the file holds nothing of that path. */
export function select(told, where, values) {
  const [, , asked, run, what] = where.split("/").map(decodeURIComponent);
  const rows = told.rows[run];
  if (asked !== "runs" || !rows) return undefined;
  const wanted = (without) => rows.filter((row) => keeps(row, values, without) && found(told, run, row, values.text ?? ""));
  if (what === "episodes") {
    const kept = sorted(wanted(), values.sort || "-step");
    const [from, most] = [Number(values.offset ?? 0), Number(values.limit ?? 100)];
    return { total: kept.length, offset: from, rows: kept.slice(from, from + most), done: 1, of: 1, damaged: [] };
  }
  return what === "facets" ? facets(wanted) : undefined;
}

function keeps(row, values, without) {
  const listed = (name) => (values[name] ?? "").split(",").filter(Boolean);
  return (
    COLUMNS.every((name) => name === without || !values[name] || listed(name).includes(row[name])) &&
    MARKS.every((name) => listed(name).every((mark) => row[name].includes(mark))) &&
    (!values.task || row.task === values.task) &&
    (!values.first || row.step >= Number(values.first)) &&
    (!values.last || row.step <= Number(values.last)) &&
    (!values.least || (row.reward != null && row.reward >= Number(values.least))) &&
    (!values.most || (row.reward != null && row.reward <= Number(values.most)))
  );
}

/** Whether a conversation has all words, which may go on, and "phrases" of a search, and none that a minus is before. */
function found(told, run, row, search) {
  return [...search.matchAll(/(-?)(?:"([^"]*)"?|(\S+))/g)].every(([, minus, phrase, word]) => {
    const sought = plain(phrase ?? word);
    if (!sought.trim()) return true;
    const text = conversation(told, run, row);
    return Boolean(minus) !== (phrase == null ? text.includes(sought.trimEnd()) : text.includes(`${sought.trimEnd()} `));
  });
}

/** A text as words with a space before each, as SQLite's unicode61 tells them apart. */
const plain = (text) => ` ${text.normalize("NFD").replace(/\p{M}/gu, "").toLowerCase().replace(/[^\p{L}\p{N}\p{Co}]+/gu, " ").trim()} `;

function conversation(told, run, row) {
  const where = ["/api/episode", encodeURIComponent(run), row.step, row.number].join("/");
  if (!words.has(where)) {
    const { task, error, said } = { said: [], ...told.answers[where] };
    const lines = said.filter(({ role }) => role !== "system").flatMap(({ content, calls }) => [content, ...calls.map((call) => JSON.stringify(call))]);
    words.set(where, plain([task, error, ...lines].join("\n")));
  }
  return words.get(where);
}

function sorted(rows, sort) {
  const [name, way] = [sort.replace("-", ""), sort.startsWith("-") ? -1 : 1];
  const compare = (a, b) => (a === b ? 0 : a == null ? -1 : b == null ? 1 : a < b ? -1 : 1);
  return rows.toSorted((a, b) => way * compare(a[name], b[name]) || b.step - a.step || a.number - b.number);
}

function facets(wanted) {
  const all = wanted();
  const counted = (names) => {
    const counts = new Map();
    for (const name of names) if (name) counts.set(name, (counts.get(name) ?? 0) + 1);
    return [...counts].sort((a, b) => b[1] - a[1]);
  };
  const fields = COLUMNS.map((name) => [name, counted(wanted(name).map((row) => row[name]))]);
  const marks = MARKS.map((name) => [name, counted(all.flatMap((row) => row[name]))]);
  const steps = all.map((row) => row.step).sort((a, b) => a - b);
  return {
    total: all.length,
    successes: all.filter((row) => row.outcome === "success").length,
    steps: [steps[0], steps.at(-1)],
    fields: Object.fromEntries([...fields, ...marks]),
  };
}
