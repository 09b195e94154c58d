// Filters, searches, sorts, pages and counts the episodes of an exported file, as the server's index does.
const COLUMNS = ["domain", "family", "difficulty", "outcome", "cause", "stop", "fault"];
const MARKS = ["tool", "event", "tag"];
const words = new Map();

/** The answer of a path that depends on its query; undefined if the file has no data for the path. */
export function select(stored, where, values) {
  const [, , asked, run, what] = where.split("/").map(decodeURIComponent);
  const rows = stored.rows[run];
  if (asked !== "runs" || !rows) return undefined;
  const wanted = (without) => rows.filter((row) => keeps(row, values, without) && matches(stored, run, row, values.text ?? ""));
  if (what === "episodes") {
    const selected = sorted(wanted(), values.sort || "-step");
    const [from, most] = [Number(values.offset ?? 0), Number(values.limit ?? 100)];
    return { total: selected.length, offset: from, rows: selected.slice(from, from + most), done_bytes: 1, total_bytes: 1, damaged: [] };
  }
  return what === "facets" ? facets(wanted) : undefined;
}

function keeps(row, values, without) {
  const listed = (name) => (values[name] ?? "").split(",").filter(Boolean);
  return (
    COLUMNS.every((name) => name === without || !values[name] || listed(name).includes(row[name])) &&
    MARKS.every((name) => listed(name).every((mark) => row[name].includes(mark))) &&
    (values.noted !== "yes" || row.note) &&
    (!values.task || row.task === values.task) &&
    (!values.min_step || row.step >= Number(values.min_step)) &&
    (!values.max_step || row.step <= Number(values.max_step)) &&
    (!values.min_reward || (row.reward != null && row.reward >= Number(values.min_reward))) &&
    (!values.max_reward || (row.reward != null && row.reward <= Number(values.max_reward)))
  );
}

/** Whether a conversation has all words (as prefixes) and "phrases" of a search, and none that follows a minus. */
function matches(stored, run, row, search) {
  return [...search.matchAll(/(-?)(?:"([^"]*)"?|(\S+))/g)].every(([, minus, phrase, word]) => {
    const sought = plain(phrase ?? word);
    if (!sought.trim()) return true;
    const text = conversation(stored, run, row);
    return Boolean(minus) !== (phrase == null ? text.includes(sought.trimEnd()) : text.includes(`${sought.trimEnd()} `));
  });
}

/** The words of a text, each after a space, split like by SQLite's tokenizer unicode61. */
const plain = (text) => ` ${text.normalize("NFD").replace(/\p{M}/gu, "").toLowerCase().replace(/[^\p{L}\p{N}\p{Co}]+/gu, " ").trim()} `;

function conversation(stored, run, row) {
  const where = ["/api/episode", encodeURIComponent(run), row.step, row.number].join("/");
  if (!words.has(where)) {
    const { task, error, messages } = { messages: [], ...stored.answers[where] };
    const lines = messages.filter(({ role }) => role !== "system").flatMap(({ content, calls }) => [content, ...calls.map((call) => JSON.stringify(call))]);
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
  const noted = all.filter((row) => row.note).length;
  const steps = all.map((row) => row.step).sort((a, b) => a - b);
  return {
    total: all.length,
    successes: all.filter((row) => row.outcome === "success").length,
    steps: [steps[0], steps.at(-1)],
    fields: Object.fromEntries([...fields, ...marks, ["noted", noted ? [["yes", noted]] : []]]),
  };
}
