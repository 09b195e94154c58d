"""Compare two evaluations: the paired difference, its p-value, and the noise floor."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from understudy.core.errors import ConfigError
from understudy.core.records import Record
from understudy.core.tasks import Task, task_fingerprint
from understudy.evaluation.noise import NO_VARIATION, noise_between
from understudy.evaluation.prompt_variants import AS_WRITTEN
from understudy.evaluation.reports.as_json import nan_to_none
from understudy.evaluation.reports.report import EvalReport, format_rate
from understudy.evaluation.result import EvalResult, ResultRow, gain_p_value, merge_results, success_gain
from understudy.evaluation.statistics import MeanEstimate, describe_difference

_Repeats = dict[tuple[int, str], ResultRow]
"""Rows of one agent by seed and wording of the system message."""


class Comparison(Record):
    """The difference in success between two agents, on the tasks that both played."""

    old: ResultRow
    new: ResultRow
    gain: MeanEstimate
    p_value: float
    """Probability of a difference at least as large if neither agent is better (Fisher's randomization test over
    tasks)."""
    noise_floor: float | None
    """Noise floor: 95% of the differences between two agents that are equally good at each task are smaller than
    this. None if either evaluation has one episode per task, or if in both all episodes of each task have the same
    result.
    """
    gain_by_domain: dict[str, MeanEstimate] = {}
    """Difference on each domain. Empty for one domain."""

    @property
    def verdict(self) -> str:
        """One sentence: the difference, and whether its p-value is at most 0.05."""
        return describe_difference(self.gain, self.p_value, self.new.name, self.old.name)

    @property
    def details(self) -> str:
        """The p-value, the noise floor and the difference on each domain, as text."""
        if not self.gain.tasks:
            return ""
        lines = [f"If neither were better, a difference at least as large would have probability {self.p_value:.2g}."]
        if self.noise_floor is not None:
            side = "above" if abs(self.gain.mean) > self.noise_floor else "within"
            lines.append(
                f"The difference is {side} the noise floor of {self.noise_floor:.3f}: other seeds alone give smaller "
                "differences in 95% of cases."
            )
        elif min(self.old.result.trials, self.new.result.trials) > 1:
            lines.append(NO_VARIATION)
        by_domain = [f"  {domain}: {format_rate(rate, signed=True)}" for domain, rate in self.gain_by_domain.items()]
        return "\n".join([*lines, *by_domain])

    def to_report(self, noop_and_gold: Sequence[ResultRow] = ()) -> EvalReport:
        """Return both agents as the rows of one report, under noop and gold."""
        return EvalReport(rows=(*noop_and_gold, self.old, self.new))

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as JSON-compatible values, without the evaluations themselves."""
        names = {"old": self.old.name, "new": self.new.name, "verdict": str(self)}
        plain: dict[str, Any] = nan_to_none(self.model_dump(mode="json", exclude={"old", "new"}))
        return names | plain

    def __str__(self) -> str:
        return f"{self.verdict}\n{self.details}".rstrip()


def compare(new: EvalReport, old: EvalReport, names: tuple[str, str] = ("new", "old")) -> Comparison:
    """Compare an agent of each report, over all repeats with a seed that both reports have, else over all repeats.

    `names` tells the new agent from the old one if they have the same name, or that of a baseline. Only tasks
    in both are compared. Raise ConfigError if they share no task, or if tasks with the same id differ.
    """
    after, before = _matched(new, old)
    last, first = _merge([*after.values()]), _merge([*before.values()])
    baselines = {row.name for report in (new, old) for row in report.rows if row not in report.agent_rows}
    if first.name == last.name or {first.name, last.name} & baselines:
        last, first = (row.replace(name=f"{name} ({row.name})") for row, name in zip((last, first), names, strict=True))
    one, other = last.result, first.result
    validate_same_tasks(one, other)
    by_domain = sorted({result.domain for result in one.task_results})
    domains = {name: success_gain(one.filter_domain(name), other.filter_domain(name)) for name in by_domain}
    shared = {result.task for result in one.task_results} & {result.task for result in other.task_results}
    return Comparison(
        old=first,
        new=last,
        gain=success_gain(one, other),
        p_value=gain_p_value(one, other),
        noise_floor=noise_between(_as_written(after, shared), _as_written(before, shared)),
        gain_by_domain={name: rate for name, rate in domains.items() if rate.tasks} if len(domains) > 1 else {},
    )


def validate_comparable(tasks: Sequence[Task], domain: str, old: EvalReport) -> None:
    """Raise ConfigError if an evaluation on these tasks could not be compared with `old`."""
    _validate_same_tasks({task.id: task_fingerprint(task) for task in tasks}, domain, _agents(old)[-1].result)


def validate_same_tasks(new: EvalResult, old: EvalResult) -> None:
    """Raise ConfigError if tasks with the same id differ, or if the evaluations share no task."""
    _validate_same_tasks({result.task: result.fingerprint for result in new.task_results}, new.domain, old)


def _validate_same_tasks(new: Mapping[str, str], domain: str, old: EvalResult) -> None:
    prints = {result.task: result.fingerprint for result in old.task_results}
    shared = [name for name in new if name in prints]
    other = [name for name in shared if new[name] != prints[name]]
    if other:
        raise ConfigError(
            f"{len(other)} of {len(shared)} tasks with the same id differ between the evaluations, such as {other[0]}; "
            "evaluate both with the same version of the tasks"
        )
    if not shared:
        of = f"evaluations of {domain} and {old.domain}" if domain != old.domain else f"two evaluations of {domain}"
        raise ConfigError(f"the {of} share no task; evaluate both on the same domain, split and slice")


def _matched(new: EvalReport, old: EvalReport) -> tuple[_Repeats, _Repeats]:
    """Return rows of each report: its repeats with a seed and a wording that both have; else all of its repeats.

    With the same seed, the episodes have the same users.
    """
    after, before = _repeats(new), _repeats(old)
    shared = after.keys() & before.keys()
    if not shared:
        return after, before
    return {key: after[key] for key in after if key in shared}, {key: before[key] for key in after if key in shared}


def _merge(rows: Sequence[ResultRow]) -> ResultRow:
    return ResultRow(name=rows[0].name, result=merge_results([row.result for row in rows]))


def _repeats(report: EvalReport) -> _Repeats:
    """Return the repeats of one agent.

    Rows with the same seed are different agents: the stages of a run. Of those, only the last is returned.
    """
    rows = _agents(report)
    wordings = report.prompts.rates if report.prompts else [AS_WRITTEN] * len(rows)
    return {(row.result.seed, wording): row for row, wording in zip(rows, wordings, strict=True)}


def _as_written(repeats: _Repeats, tasks: Collection[str]) -> list[EvalResult]:
    """Return the results on some tasks under the system message as written. Other wordings are no noise."""
    rows = [row for (_, wording), row in repeats.items() if wording == AS_WRITTEN]
    return [_on_tasks(_merge(rows).result, tasks)] if rows else []


def _on_tasks(result: EvalResult, tasks: Collection[str]) -> EvalResult:
    return result.replace(task_results=tuple(each for each in result.task_results if each.task in tasks))


def _agents(report: EvalReport) -> list[ResultRow]:
    if not report.agent_rows:
        raise ConfigError("an evaluation without an agent cannot be compared; give one with an agent")
    return report.agent_rows
