// Which charts there are of runs: first what one looks at first, then every metric by its space.

/** A line of each run for one metric. */
const lines = (runs, values) =>
  runs.flatMap((run) => {
    const found = values(run.curves.series, run);
    return found ? [{ name: run.key, colour: run.colour, steps: run.curves.steps, values: found }] : [];
  });

const metric = (...names) => (series) => series[names.find((name) => series[name])];

/** Per step, what two metrics come to together; null where one is not known. */
const both = (one, other, of) => (series) =>
  series[one] && series[other] && series[one].map((value, i) => (value == null || series[other][i] == null ? null : of(value, series[other][i])));

/** All metrics that begin alike: of one run a line each, of several their sum. */
function kinds(runs, start, but = () => false) {
  const named = (series) => Object.keys(series).filter((name) => name.startsWith(start) && !name.slice(start.length).includes("/") && !but(name.slice(start.length)));
  if (runs.length > 1)
    return lines(runs, (series) => {
      const found = named(series).map((name) => series[name]);
      return found.length && found[0].map((_, i) => (found.every((values) => values[i] == null) ? null : found.reduce((sum, values) => sum + (values[i] ?? 0), 0)));
    });
  return runs.flatMap(({ curves: { series, steps } }) =>
    named(series).map((name, i) => ({ name: name.slice(start.length), colour: `--s${(i % 8) + 1}`, steps, values: series[name] })),
  );
}

const FIRST = [
  { title: "Success", note: "Episodes of a step that earn the whole reward; dots are evaluations on held-out tasks, with 95% intervals", of: metric("reward/success_rate"), range: [0, 1], measured: true },
  { title: "Reward", note: "Mean of a step's episodes", of: metric("reward/average_reward"), floor: true },
  { title: "Entropy", note: "Of the policy, in nats a token", of: metric("train/entropy") },
  { title: "KL from the reference", note: "In nats a token, as sampled", of: metric("train/reference_kl") },
  { title: "KL of a step", note: "How far an update moves the policy, in nats a token", of: metric("train/approx_kl") },
  { title: "Loss", of: metric("loss/total") },
  { title: "Gradient norm", of: metric("train/grad_norm") },
  { title: "Turns of an episode", of: metric("generation/turns") },
  { title: "Tokens of an episode", of: metric("generation/episode_tokens") },
  { title: "Groups that teach nothing", note: "Share of groups with nothing to learn from, such as equal rewards", of: both("generation/equal_groups", "generation/groups", (equal, all) => (all ? equal / all : null)), range: [0, 1] },
  { title: "Replies that go wrong", note: "Share of replies, by what the agent got wrong; of several runs their sum", kinds: "generation/replies/", but: (kind) => ["calls", "text"].includes(kind) },
  { title: "Faults", note: "Share of episodes that the machinery failed, by whose fault it was; of several runs their sum", kinds: "fault/" },
  { title: "Tokens sampled a second", of: (series) => both("generation/sampled_tokens", "timing/sampling_seconds", (tokens, seconds) => tokens / seconds)(series) ?? series["timing/tokens_per_second"] },
  { title: "Seconds of a step", of: metric("timing/step_seconds") },
];

/** The charts that come first; one that no run has a line for is left out. */
export function charts(runs) {
  const made = FIRST.map(({ title, note, of, kinds: start, but, range, measured, floor }) => ({
    title,
    note,
    range,
    named: Boolean(start) && runs.length === 1,
    lines: start ? kinds(runs, start, but) : lines(runs, of),
    points: measured ? runs.flatMap(evaluated) : [],
    levels: measured || floor ? nothing(runs) : [],
  }));
  return made.filter((chart) => chart.lines.length || chart.points.length);
}

const evaluated = (run) =>
  (run.evaluations ?? []).filter((evaluation) => evaluation.success?.tasks).map(({ step, name, success }) => ({ name: `${run.key}, ${name}`, colour: run.colour, step, ...success }));

/** What doing nothing earns, where all runs agree on it. */
function nothing(runs) {
  const floors = new Set(runs.map((run) => run.curves.series["reward/floor"]?.findLast((value) => value != null)).filter((value) => value != null));
  return floors.size === 1 ? [{ name: "doing nothing", value: [...floors][0] }] : [];
}

/** A chart of every metric, by name. */
export function everything(runs) {
  const names = [...new Set(runs.flatMap((run) => Object.keys(run.curves.series)))].filter((name) => !name.startsWith("health/")).sort();
  return names.map((name) => ({ title: name, lines: lines(runs, metric(name)) }));
}
