"""The cells of a report's tables, and the sentences below them."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from understudy.evaluation.failures.causes import EpisodeFailure
from understudy.evaluation.noise import NO_VARIATION
from understudy.evaluation.reports.groups import filter_group, table_groups
from understudy.evaluation.reports.report import NO_SCORE, EvalReport, count_causes, format_rate
from understudy.evaluation.result import ResultRow
from understudy.evaluation.statistics import MeanEstimate

MAX_EXAMPLE_CHARS = 160
"""Maximum length of a failure's evidence in a table, in characters."""
POLICY_REWARDS: Mapping[str, str] = {
    "reward_with_policy": "reward with policy",
    "reward_without_policy": "without",
}
"""Parts of a score that are the reward if violations of the policy count, and if not -> their columns, which are shown
if they differ."""
NO_GOLD = "none"
"""The rate of gold if no task has a gold solution."""
_BOTH: tuple[Literal["hat", "at"], ...] = ("hat", "at")
TableCells = list[list[str]]
"""Lines of a table. The first line is its head."""


def success_cells(report: EvalReport) -> TableCells:
    """Return the table of success, gains and faults: a line for each row."""
    trials = max((row.result.trials for row in report.rows), default=1)
    has_faults = any(row.result.fault_counts for row in report.rows)
    head = ["", "success [95%]", *(f"pass^{k}" for k in range(2, trials + 1)), "gain over the row above", "tasks"]
    policy = list(POLICY_REWARDS) if any(map(_policy_matters, report.rows)) else []
    cells = [head + [POLICY_REWARDS[name] for name in policy] + ["faults"] * has_faults]
    for place, row in enumerate(report.table_rows):
        result, gain = row.result, report.gain_over_previous(place)
        passes = [
            format_number(result.pass_k_mean("hat", k), 3) if k <= result.trials else "" for k in range(2, trials + 1)
        ]
        rate = NO_GOLD if result.kind == "gold" and not result.task_results else format_rate(result.success_rate)
        line = [row.name, rate, *passes, _format_gain(gain, result.success_rate.tasks)]
        faults = [str(sum(result.fault_counts.values()))] * has_faults
        rewards = [format_number(result.mean_parts.get(name, math.nan), 3) for name in policy]
        cells.append([*line, str(result.success_rate.tasks), *rewards, *faults])
    return cells


def group_cells(report: EvalReport) -> TableCells:
    """Return the table of success rates: a line for each group of tasks, a column for each row, for repeats one."""
    rows = [row for row in report.table_rows if not report.pooled_row or row not in report.agent_rows]
    cells = [["", "tasks", *(row.name for row in rows)]]
    for name, fields in table_groups([result for row in report.rows for result in row.result.task_results]):
        rates = [filter_group(row.result, fields).success_rate for row in rows]
        cells.append([name, str(max(rate.tasks for rate in rates)), *(format_number(rate.mean, 2) for rate in rates)])
    return cells


def detail_tables(report: EvalReport) -> dict[str, TableCells]:
    """Return the tables that follow the verdict, except that of the hardest tasks: title -> cells."""
    trials = max((row.result.trials for row in report.agent_rows), default=1)
    tables = {"pass^k and pass@k [95%]": _pass_k_cells(report, trials)} if trials > 1 else {}
    if report.failures:
        tables["Why episodes failed"] = cause_cells(report.failures)
    return tables


def hardest_tables(report: EvalReport) -> dict[str, TableCells]:
    """Return the table of the hardest tasks, if there are failures: title -> cells."""
    hardest = [[task, str(failures), str(episodes)] for task, failures, episodes in report.hardest_tasks]
    if not hardest:
        return {}
    title = f"Hardest tasks of {(report.pooled_row or report.agent_rows[-1]).name}"
    return {title: [["", "failures", "episodes"], *hardest]}


def _pass_k_cells(report: EvalReport, trials: int) -> TableCells:
    agents = [row for row in report.table_rows if row.result.kind == "agent"]
    cells = [["k", *(f"{row.name} {sign}" for row in agents for sign in ("pass^k", "pass@k"))]]
    for k in range(1, trials + 1):
        rates = (row.result.pass_k(kind, k) for row in agents for kind in _BOTH)
        cells.append([str(k), *(format_rate(rate) for rate in rates)])
    return cells


def cause_cells(failures: Sequence[EpisodeFailure]) -> TableCells:
    """Return the table of causes, with an example of each."""
    cells = [["component", "cause", "failures", "share", "example"]]
    for component, kind, count in count_causes(failures):
        example = next(failure for failure in failures if failure.cause.kind == kind)
        cells.append(
            [component, kind, str(count), f"{count / len(failures):.0%}", example.cause.evidence[:MAX_EXAMPLE_CHARS]]
        )
    return cells


def report_notes(report: EvalReport) -> list[str]:
    """Return the sentences at the end."""
    notes = list(_note_missing_gold(report))
    judged = [failure for failure in report.failures if failure.judge_cause]
    same = sum(f.judge_cause is not None and f.judge_cause.kind == f.cause.kind for f in judged)
    agreed = [f"The judge names the same cause for {same} of {len(judged)} failures."] if judged else []
    if report.prompts:
        agreed.append(str(report.prompts))
    if report.noise:
        return [*notes, *agreed, str(report.noise)]
    agent = report.pooled_row or (report.agent_rows[0] if len(report.agent_rows) == 1 else None)
    return [*notes, *agreed, *([NO_VARIATION] if agent and agent.result.trials > 1 else [])]


def _note_missing_gold(report: EvalReport) -> Iterator[str]:
    """Yield a sentence if tasks have no gold solution."""
    played = {result.task for row in report.rows for result in row.result.task_results}
    for row in report.rows:
        lacking = len(played) - len(row.result.task_results)
        if row.result.kind == "gold" and lacking:
            yield f"{lacking} of {len(played)} tasks have no gold solution."


def _policy_matters(row: ResultRow) -> bool:
    """Return whether violations of the policy changed the mean reward of a row, or would have."""
    first, second = (row.result.mean_parts.get(name) for name in POLICY_REWARDS)
    return first != second


def _format_gain(gain: MeanEstimate | None, tasks: int) -> str:
    """Return a gain as text. It says on how many tasks both agents have scores, if those are not all of the row's."""
    if gain is None:
        return ""
    common = f" on the {gain.tasks} common tasks" if 0 < gain.tasks != tasks else ""
    return format_rate(gain, signed=True) + common


def format_number(value: float, digits: int) -> str:
    """Return a number as text, or a dash for NaN."""
    return NO_SCORE if math.isnan(value) else f"{value:.{digits}f}"
