"""Compare settings over seeds: groups of runs, or of evaluations, that differ only in their seeds."""

from collections.abc import Iterator, Sequence
from itertools import combinations

from understudy.core.errors import ConfigError
from understudy.core.records import Record
from understudy.core.settings import config_differences
from understudy.evaluation.comparison import validate_same_tasks
from understudy.evaluation.result import EvalResult, ResultRow, gain_p_value, merge_results, success_gain
from understudy.evaluation.statistics import MIN_SEEDS, MeanEstimate, describe_difference, student_interval
from understudy.runs.config import TrainConfig

_SEEDS = ("seed: ", "eval.seed: ")


class GroupedRun(Record):
    """A run or an evaluation of a group."""

    path: str
    config: TrainConfig | None
    """None if it is unknown: a JSON file has no config."""
    stages: tuple[ResultRow, ...]
    """The agent at each stage of a run, such as `base`, `sft` and `rl`. The last one is compared."""

    @property
    def result(self) -> EvalResult:
        """Result of the last stage."""
        return self.stages[-1].result

    @property
    def stage(self) -> str:
        """Name of the last stage, or of an evaluation's agent."""
        return self.stages[-1].name

    @property
    def seed(self) -> int | None:
        """The seed of training."""
        return self.config.seed if self.config else None

    @property
    def seeds(self) -> tuple[int | None, int]:
        """The seeds of training and of the evaluation. Runs of two groups with the same seeds are paired."""
        return self.seed, self.result.seed


class RunGroup(Record):
    """Runs of one setting. Each has other seeds. `make_group` validates them."""

    name: str
    runs: tuple[GroupedRun, ...]

    @property
    def row(self) -> ResultRow:
        """The last stage of all runs as one row: the seeds are trials of each task."""
        return ResultRow(
            name=f"{self.name} ({self.runs[0].stage})", result=merge_results([run.result for run in self.runs])
        )

    @property
    def seed_interval(self) -> tuple[float, float] | None:
        """95% interval of the success rate over seeds. See `student_interval`."""
        return student_interval([run.result.success_rate.mean for run in self.runs], low=0.0)

    def stage_result(self, stage: str) -> EvalResult | None:
        """Return the result of a stage over all runs; None if not all have it."""
        found = [row.result for run in self.runs for row in run.stages if row.name == stage]
        return merge_results(found) if len(found) == len(self.runs) else None


class GroupDifference(Record):
    """The difference in success between two groups, on the tasks that both played."""

    old: str
    new: str
    gain: MeanEstimate
    """Difference over the common seeds, or over all runs if there are none, with its interval over tasks."""
    p_value: float
    """P-value of `gain` over tasks. See `gain_p_value`."""
    gains_by_seed: tuple[float, ...]
    """Difference of each seed that both groups have."""

    @property
    def seed_interval(self) -> tuple[float, float] | None:
        """95% interval of the difference over seeds. See `student_interval`."""
        return student_interval(self.gains_by_seed)

    @property
    def verdict(self) -> str:
        """The difference over tasks, and that over seeds."""
        over_tasks = describe_difference(self.gain, self.p_value, self.new, self.old)
        if not self.gains_by_seed:
            return f"{over_tasks} No seed is in both groups, so all runs of each are pooled."
        seeds = f"Differences of common seeds: {', '.join(f'{gain:+.3f}' for gain in self.gains_by_seed)}"
        if self.seed_interval is None:
            why = "that differ" if len(self.gains_by_seed) >= MIN_SEEDS else f"of at least {MIN_SEEDS} common seeds"
            return f"{over_tasks} {seeds}; an interval over seeds needs differences {why}."
        low, high = self.seed_interval
        warning = "; other seeds may reverse it" if low <= 0 <= high else ""
        return f"{over_tasks} {seeds}; 95% interval over seeds {low:+.3f} to {high:+.3f} (Student's t){warning}."


class GroupReport(Record):
    """Groups, and the difference of each from the first."""

    groups: tuple[RunGroup, ...]
    differences: tuple[GroupDifference, ...]

    @property
    def setting_notes(self) -> list[str]:
        """Sentences on the settings that differ between groups, and on others than seeds that differ within one."""
        return [*describe_settings(self.groups)]


def make_group(name: str, runs: Sequence[GroupedRun]) -> RunGroup:
    """Return runs of one setting as a group, ordered by their seeds.

    Raise ConfigError if two have the same seeds, if they end with different stages, or if their tasks differ.
    """
    runs = sorted(runs, key=lambda run: tuple(-1 if seed is None else seed for seed in run.seeds))
    for one, other in combinations(runs, 2):
        if one.seeds == other.seeds:
            raise ConfigError(
                f"{one.path} and {other.path} have the same seeds (seed = {one.seed}, eval.seed = {one.result.seed}); "
                f"the runs of the group {name} must differ in one of them: give another pattern"
            )
        if one.stage != other.stage:
            raise ConfigError(
                f"{one.path} ends with the evaluation of {one.stage}, and {other.path} with that of {other.stage}; "
                "finish the runs, or leave one of them out"
            )
        validate_same_tasks(one.result, other.result)
    return RunGroup(name=name, runs=tuple(runs))


def compare_groups(groups: Sequence[RunGroup]) -> GroupReport:
    """Compare each group with the first one: over all runs with seeds that both have, else over all runs.

    Raise ConfigError if a run is in two groups, if two groups share no task, or if tasks with the same id differ.
    """
    for one, other in combinations(groups, 2):
        if shared := {run.path for run in one.runs} & {run.path for run in other.runs}:
            raise ConfigError(f"{min(shared)} is in {one.name} and in {other.name}; give patterns without common runs")
        validate_same_tasks(one.runs[0].result, other.runs[0].result)
    return GroupReport(groups=tuple(groups), differences=tuple(_difference(each, groups[0]) for each in groups[1:]))


def pair_runs(new: RunGroup, old: RunGroup) -> list[tuple[GroupedRun, GroupedRun]]:
    """Return the runs of two groups that have the same seeds."""
    before = {run.seeds: run for run in old.runs}
    return [(run, before[run.seeds]) for run in new.runs if run.seeds in before]


def describe_settings(groups: Sequence[RunGroup]) -> Iterator[str]:
    """Yield sentences on the settings that differ: within a group, besides seeds, and from the first group."""
    for group in groups:
        known = [run.config for run in group.runs if run.config]
        each = (line for config in known[1:] for line in config_differences(known[0], config))
        if within := dict.fromkeys(line for line in each if not line.startswith(_SEEDS)):
            yield f"Runs of {group.name} differ in more than their seeds: {'; '.join(within)}."
    for group in groups[1:]:
        old, new = groups[0].runs[0].config, group.runs[0].config
        if old and new:
            between = "; ".join(config_differences(old, new))
            yield f"Settings of {groups[0].name} and {group.name} that differ: {between or 'none'}."


def _difference(new: RunGroup, old: RunGroup) -> GroupDifference:
    pairs = pair_runs(new, old)
    runs = zip(*pairs, strict=True) if pairs else (new.runs, old.runs)
    after, before = (merge_results([run.result for run in each]) for each in runs)
    return GroupDifference(
        old=old.row.name,
        new=new.row.name,
        gain=success_gain(after, before),
        p_value=gain_p_value(after, before),
        gains_by_seed=tuple(success_gain(one.result, other.result).mean for one, other in pairs),
    )
