// The charts of runs: first the main metrics, then all metrics by prefix.

const MOST_NAMED = 4; // lines whose names stand before their values

/** The runs of a group of seeds, as made by `grouped`, or the run itself. */
const seeds = (run) => run.seeds ?? [run];

/** One line per run or group for one metric. It is interrupted between the phases of the run. */
const lines = (runs, values) =>
  runs.flatMap((run) => {
    const each = seeds(run).flatMap((one) => {
      const found = values(one.curves.series, one);
      return found ? [{ steps: one.curves.steps, values: found }] : [];
    });
    return each.length ? [{ name: run.key, colour: run.colour, breaks: breaks(run), ...(run.seeds ? band(each) : each[0]) }] : [];
  });

/** The mean of several lines at each step, and their lowest and highest values. */
function band(each) {
  const found = new Map(each.flatMap(({ steps }) => steps.map((step) => [step, []])));
  for (const { steps, values } of each) steps.forEach((step, i) => values[i] != null && found.get(step).push(values[i]));
  const steps = [...found.keys()].sort((a, b) => a - b);
  const of = (summary) => steps.map((step) => (found.get(step).length ? summary(found.get(step)) : null));
  return { steps, values: of(mean), low: of((values) => Math.min(...values)), high: of((values) => Math.max(...values)) };
}

export const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

/** Each group of at least two of the runs as one, with its runs as `seeds`; the other runs as they are. */
export function grouped(runs, groups) {
  return groups.flatMap((group) => {
    const own = runs.filter((run) => group.runs.includes(run.key));
    if (own.length < 2) return own;
    const curves = { phases: shared_phases(own), steps_per_point: Math.max(...own.map((run) => run.curves?.steps_per_point ?? 1)) };
    return [{ key: `${group.name}, ${own.length} seeds`, colour: own[0].colour, seeds: own, curves }];
  });
}

/** The last step of each phase with the first step of the next one. */
const breaks = ({ curves: { phases } }) => phases.slice(1).map(([, first], i) => [phases[i][2], first]);

/** A metric in the steps of one phase; undefined if it has no value there. */
const within = (phase, name) => (series, { curves: { phases, steps } }) => {
  const span = phases.find(([title]) => title === phase);
  const values = span && series[name]?.map((value, i) => (steps[i] >= span[1] && steps[i] <= span[2] ? value : null));
  return values?.some((value) => value != null) ? values : undefined;
};

/** The phases of the runs if they are equal in all of them. */
function shared_phases(runs) {
  const [first, ...others] = runs.map((run) => JSON.stringify(run.curves?.phases));
  return first && others.every((other) => other === first) ? runs[0].curves.phases : [];
}

const metric = (...names) => (series) => series[names.find((name) => series[name])];

/** A value computed from two metrics at each step; null if one of them is unknown. */
const both = (one, other, of) => (series) =>
  series[one] && series[other] && series[one].map((value, i) => (value == null || series[other][i] == null ? null : of(value, series[other][i])));

/** All metrics with the prefix `start`: for one run a line each, for several runs their sum. */
function kinds(runs, start, but = () => false) {
  const named = (series) => Object.keys(series).filter((name) => name.startsWith(start) && !name.slice(start.length).includes("/") && !but(name.slice(start.length)));
  if (runs.length > 1 || runs[0]?.seeds)
    return lines(runs, (series) => {
      const found = named(series).map((name) => series[name]);
      return found.length && found[0].map((_, i) => (found.every((values) => values[i] == null) ? null : found.reduce((sum, values) => sum + (values[i] ?? 0), 0)));
    });
  return runs.flatMap(({ curves }) =>
    named(curves.series).map((name, i) => ({ name: name.slice(start.length), colour: `--s${(i % 8) + 1}`, steps: curves.steps, values: curves.series[name], breaks: breaks({ curves }) })),
  );
}

const FIRST = [
  { title: "Success", note: "Share of a step's episodes with reward 1. The dashed line is the noop baseline.", of: metric("rollout/success_rate"), range: [0, 1], measured: true },
  { title: "Reward", note: "Mean reward of a step's episodes. The dashed line is the noop baseline.", of: metric("rollout/reward"), noop: true },
  { title: "Entropy", note: "Entropy of the policy, in nats per token", of: metric("train/entropy") },
  { title: "KL from the reference", note: "KL divergence of the policy from the reference policy, estimated on the sampled tokens, in nats per token", of: metric("train/kl") },
  { title: "KL of the update", note: "Approximate KL divergence between the policy that sampled and the updated one, in nats per token", of: metric("train/approx_kl") },
  { title: "SFT loss", note: "Negative log-likelihood of the demonstrations, in nats per token", of: within("SFT", "train/loss") },
  { title: "Preference loss", of: within("preferences", "train/loss") },
  { title: "RL loss", note: "Policy loss. Its size says little: judge a run by success and reward", of: within("RL", "train/loss") },
  { title: "Gradient norm", of: metric("train/grad_norm") },
  { title: "Turns per episode", of: metric("rollout/turns") },
  { title: "Tokens per episode", of: metric("rollout/episode_tokens") },
  { title: "Zero-variance groups", note: "Share of groups whose episodes all have the same reward", of: both("rollout/zero_variance_groups", "rollout/groups", (equal, all) => (all ? equal / all : null)), range: [0, 1] },
  { title: "Reply errors", note: "Share of replies with an error, by kind. For several runs: the sum of all kinds", kinds: "rollout/replies/", but: (kind) => ["tool_calls", "text"].includes(kind) },
  { title: "Faults", note: "Share of episodes that ended in a fault, by the component that failed. For several runs: the sum of all components", kinds: "rollout/fault/" },
  { title: "Sampled tokens per second", of: (series) => both("rollout/response_tokens", "time/rollout_seconds", (tokens, seconds) => tokens / seconds)(series) ?? series["time/tokens_per_second"] },
  { title: "Seconds per step", of: metric("time/step_seconds") },
];

/** The charts of the main metrics, without those that no run has data for. */
export function charts(runs) {
  const made = FIRST.map(({ title, note, of, kinds: start, but, range, measured, noop }) => ({
    title,
    note,
    range,
    named: start && runs.length === 1 ? !runs[0]?.seeds : runs.length > 1 && runs.length <= MOST_NAMED,
    lines: start ? kinds(runs, start, but) : lines(runs, of),
    points: measured ? runs.flatMap(evaluated) : [],
    legend: `dots: evaluations on held-out tasks, with 95% intervals${runs.some((run) => run.seeds) ? "; of several seeds: mean, lowest and highest" : ""}`,
    phases: shared_phases(runs),
    levels: measured || noop ? noop_level(runs) : [],
  }));
  return made.filter((chart) => chart.lines.length || chart.points.length);
}

const evaluated = (run) => {
  const found = new Map();
  for (const one of seeds(run))
    for (const { step, name, success } of one.evaluations ?? [])
      if (success?.tasks) found.set(`${step} ${name}`, [...(found.get(`${step} ${name}`) ?? []), { step, name, success }]);
  return [...found.values()].map((each) => {
    const rates = each.map(({ success }) => success.mean);
    const shown = run.seeds ? { mean: mean(rates), low: Math.min(...rates), high: Math.max(...rates) } : each[0].success;
    return { name: `${run.key}, ${each[0].name}`, colour: run.colour, step: each[0].step, ...shown };
  });
};

/** The reward of the noop baseline, if it is equal in all runs. */
function noop_level(runs) {
  const rewards = new Set(runs.flatMap(seeds).map((run) => run.curves.series["rollout/noop_reward"]?.findLast((value) => value != null)).filter((value) => value != null));
  return rewards.size === 1 ? [{ name: "noop baseline", value: [...rewards][0] }] : [];
}

/** A run with only the steps and evaluations of one phase. */
export function in_phase(run, name) {
  const phases = run.curves.phases.filter(([title]) => title === name);
  const inside = (step) => phases.some(([, first, last]) => first <= step && step <= last);
  const kept = (values) => values.filter((_, i) => inside(run.curves.steps[i]));
  const series = Object.fromEntries(Object.entries(run.curves.series).map(([metric, values]) => [metric, kept(values)]));
  const evaluations = (run.evaluations ?? []).filter(({ step }) => inside(step));
  return { ...run, evaluations, curves: { ...run.curves, phases, steps: kept(run.curves.steps), series } };
}

/** A chart of every metric, by name. */
export function everything(runs) {
  const names = [...new Set(runs.flatMap(seeds).flatMap((run) => Object.keys(run.curves.series)))].filter((name) => !name.startsWith("health/")).sort();
  const phases = shared_phases(runs);
  return names.flatMap((name) => (name === "train/loss" ? losses(runs, phases) : [{ title: name, lines: lines(runs, metric(name)), phases }]));
}

/** The loss of each phase: different losses do not share an axis. */
function losses(runs, phases) {
  const names = [...new Set(runs.flatMap(seeds).flatMap((run) => run.curves.phases.map(([name]) => name)))];
  const made = names.map((name) => ({ title: `train/loss, ${name}`, lines: lines(runs, within(name, "train/loss")), phases }));
  return made.filter((chart) => chart.lines.length);
}
