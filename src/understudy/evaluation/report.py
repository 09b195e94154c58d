"""Reports: the rows of an evaluation (noop, gold, agents), printed as text, as Markdown and as JSON.

A report of `eval` also has pass^k and pass@k for each k, why episodes failed, the tasks that failed most often, the
noise between repeats, and the cost. A report of a run has a row for each stage of training.
"""

import io
import json
import math
import os
import shutil
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError
from pydantic_core import from_json
from rich.console import Console
from rich.table import Table
from rich.text import Text

from understudy.core.errors import ConfigError
from understudy.core.files import read_bytes
from understudy.core.records import Record
from understudy.core.tasks import DIFFICULTIES
from understudy.evaluation.failures.causes import FAILURE_KINDS, EpisodeFailure
from understudy.evaluation.noise import NO_VARIATION, NoiseEstimate
from understudy.evaluation.result import (
    EvalResult,
    ResultRow,
    TaskResult,
    gain_p_value,
    merge_results,
    repeat_name,
    success_gain,
)
from understudy.evaluation.statistics import MeanEstimate, describe_difference
from understudy.runs.eval_spec import is_eval_folder
from understudy.runs.resumption import OOD_SET
from understudy.runs.run import Run, RunEvaluation, find_run, is_run_folder, list_run_evaluations
from understudy.runs.storage.episode_store import EPISODES_FILE, REPORT_FILE

OOD_TITLE = "Domains that were not trained on"
TEST_TITLE = "Test set"
"""Title of the results of a test set of `data.tests`, before its name."""
MAX_HARDEST_TASKS = 10
"""Number of tasks in the table of the hardest ones."""
MAX_EXAMPLE_CHARS = 160
"""Maximum length of a failure's evidence in a table, in characters."""
NO_SCORE = "-"
"""The cell of a table for a rate of no episodes."""
POLICY_REWARDS: Mapping[str, str] = {
    "reward_with_policy": "reward with policy",
    "reward_without_policy": "without",
}
"""Parts of a score that are the reward if violations of the policy count, and if not -> their columns, which are shown
if they differ."""
_BOTH: tuple[Literal["hat", "at"], ...] = ("hat", "at")
TableCells = list[list[str]]
"""Lines of a table. The first line is its head."""
TaskFields = Mapping[str, str]
"""Fields of a `TaskResult` and the values that select a group of tasks."""


class EvalReport(Record):
    """The rows of an evaluation, with its failures and its noise."""

    rows: tuple[ResultRow, ...]
    """Noop, gold, and the agents. Repeats and the stages of a run are agents with a row each."""
    failures: tuple[EpisodeFailure, ...] = ()
    """Failed episodes of the agents."""
    noise: NoiseEstimate | None = None

    @property
    def results(self) -> dict[str, EvalResult]:
        """Result of each row by name."""
        return {row.name: row.result for row in self.rows}

    @property
    def agent_rows(self) -> list[ResultRow]:
        """Rows that are neither noop nor gold."""
        return [row for row in self.rows if row.result.kind == "agent"]

    @property
    def pooled_row(self) -> ResultRow | None:
        """All repeats of one agent as one row. None if the agents are not repeats of one."""
        agents = self.agent_rows
        names = [repeat_name(agents[0].name, number) for number in range(len(agents))] if agents else []
        seeds = {row.result.seed for row in agents}
        if len(agents) < 2 or len(seeds) < len(agents) or names != [row.name for row in agents]:
            return None
        return ResultRow(name=f"{names[0]}, all repeats", result=merge_results([row.result for row in agents]))

    @property
    def table_rows(self) -> tuple[ResultRow, ...]:
        """The rows of tables: `rows`, and for repeats the pooled row."""
        return (*self.rows, self.pooled_row) if self.pooled_row else self.rows

    @property
    def has_scores(self) -> bool:
        """True if at least one episode of the agent has a score."""
        results = (result for row in self.agent_rows for result in row.result.task_results)
        return any(reward is not None for result in results for reward in result.rewards)

    @property
    def fault_count(self) -> int:
        """Number of the agents' episodes without a score."""
        return sum(sum(row.result.fault_counts.values()) for row in self.agent_rows)

    @property
    def fault_rate(self) -> float:
        """Share of the agents' episodes without a score."""
        played = sum(len(result.rewards) for row in self.agent_rows for result in row.result.task_results)
        return self.fault_count / played if played else 0.0

    @property
    def title(self) -> str:
        """The title of the table of success rates. It names the split."""
        splits = {row.result.split for row in self.rows}
        return f"Success on {splits.pop()} tasks" if len(splits) == 1 and "" not in splits else "Success"

    @property
    def verdict(self) -> str:
        """One sentence: the difference between the last agent and the one before it, and whether it is significant.

        For one agent, or repeats of one, the sentence is on its success rate.
        """
        if not self.agent_rows:
            return "No agent was evaluated."
        last = self.pooled_row or self.agent_rows[-1]
        if len(self.agent_rows) == 1 or self.pooled_row:
            rate = last.result.success_rate
            if not rate.tasks:
                return f"No episode of {last.name} has a score."
            return f"{last.name} succeeds on {format_rate(rate)} of {rate.tasks} tasks."
        previous = self.agent_rows[-2]
        new, old = last.result, previous.result
        return describe_difference(success_gain(new, old), gain_p_value(new, old), last.name, previous.name)

    @property
    def hardest_tasks(self) -> list[tuple[str, int, int]]:
        """The tasks of the last agent, over all of its repeats, with the highest share of failures: id, failures,
        episodes.
        """
        tried = defaultdict[str, list[bool]](list)
        for row in [self.pooled_row] if self.pooled_row else self.agent_rows[-1:]:
            for result in row.result.task_results:
                tried[result.task] += [success for success in result.successes if success is not None]
        failed = [(task, each.count(False), len(each)) for task, each in tried.items() if not all(each)]
        return sorted(failed, key=lambda task: (-task[1] / task[2], -task[1], task[0]))[:MAX_HARDEST_TASKS]

    def format_table(self) -> str:
        """Return the report as text for a terminal."""
        results = {self.title: self._success_cells(), "By family and difficulty": self._group_cells()}
        usage = [f"{row.name}, {role}: {used}" for row in self.rows for role, used in row.result.usage.items()]
        lines = [_render_tables(results), "", *usage, self.verdict]
        return "\n".join([*lines, *filter(None, [_render_tables(self._detail_cells())]), *self._notes()])

    def format_markdown(self) -> str:
        """Return the report as Markdown."""
        lines = [f"**{self.title}**", "", *render_markdown_table(self._success_cells()), "", self.verdict, ""]
        lines += [*render_markdown_table(self._group_cells()), ""]
        for title, cells in self._detail_cells().items():
            lines += [f"**{title}**", "", *render_markdown_table(cells), ""]
        return "\n".join([*lines, *self._notes()]).rstrip() + "\n"

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON-compatible values. NaN becomes None."""
        plain: dict[str, Any] = nan_to_none(
            {
                "verdict": self.verdict,
                "rows": [_row_to_dict(row, self._gain_over_previous(place)) for place, row in enumerate(self.rows)],
                "all_repeats": _row_to_dict(self.pooled_row, None) if self.pooled_row else None,
                "failures": [failure.model_dump(mode="json") for failure in self.failures],
                "causes": causes_to_dicts(self.failures),
                "hardest": [
                    {"task": task, "failures": failures, "episodes": episodes}
                    for task, failures, episodes in self.hardest_tasks
                ],
                "noise": self.noise.model_dump(mode="json") if self.noise else None,
            }
        )
        return plain

    def _gain_over_previous(self, place: int) -> MeanEstimate | None:
        """Return an agent's gain over the row before it. None if either row is noop or gold, and for repeats."""
        kinds = {row.result.kind for row in self.rows[max(0, place - 1) : place + 1]}
        if place == 0 or self.pooled_row or kinds != {"agent"}:
            return None
        return success_gain(self.rows[place].result, self.rows[place - 1].result)

    def _success_cells(self) -> TableCells:
        trials = max((row.result.trials for row in self.rows), default=1)
        has_faults = any(row.result.fault_counts for row in self.rows)
        head = ["", "success [95%]", *(f"pass^{k}" for k in range(2, trials + 1)), "gain over the row above", "tasks"]
        policy = list(POLICY_REWARDS) if any(map(_policy_matters, self.rows)) else []
        cells = [head + [POLICY_REWARDS[name] for name in policy] + ["faults"] * has_faults]
        for place, row in enumerate(self.table_rows):
            result, gain = row.result, self._gain_over_previous(place)
            passes = [
                _number(result.pass_k_mean("hat", k), 3) if k <= result.trials else "" for k in range(2, trials + 1)
            ]
            line = [row.name, format_rate(result.success_rate), *passes, format_rate(gain, signed=True) if gain else ""]
            faults = [str(sum(result.fault_counts.values()))] * has_faults
            rewards = [_number(result.mean_parts.get(name, math.nan), 3) for name in policy]
            cells.append([*line, str(result.success_rate.tasks), *rewards, *faults])
        return cells

    def _group_cells(self) -> TableCells:
        """Return the table of success rates: a line for each group of tasks, a column for each row."""
        cells = [["", "tasks", *(row.name for row in self.table_rows)]]
        for name, fields in _table_groups(self.rows[0].result.task_results if self.rows else ()):
            rates = [_filter_group(row.result, fields).success_rate for row in self.table_rows]
            cells.append([name, str(rates[0].tasks), *(_number(rate.mean, 2) for rate in rates)])
        return cells

    def _detail_cells(self) -> dict[str, TableCells]:
        """Return the tables that follow the verdict: title -> cells."""
        trials = max((row.result.trials for row in self.agent_rows), default=1)
        tables = {"pass^k and pass@k [95%]": self._pass_k_cells(trials)} if trials > 1 else {}
        if self.failures:
            tables["Why episodes failed"] = _cause_cells(self.failures)
        if hardest := [[task, str(failures), str(episodes)] for task, failures, episodes in self.hardest_tasks]:
            tables[f"Hardest tasks of {(self.pooled_row or self.agent_rows[-1]).name}"] = [
                ["", "failures", "episodes"],
                *hardest,
            ]
        return tables

    def _pass_k_cells(self, trials: int) -> TableCells:
        agents = [row for row in self.table_rows if row.result.kind == "agent"]
        cells = [["k", *(f"{row.name} {sign}" for row in agents for sign in ("pass^k", "pass@k"))]]
        for k in range(1, trials + 1):
            rates = (row.result.pass_k(kind, k) for row in agents for kind in _BOTH)
            cells.append([str(k), *(format_rate(rate) for rate in rates)])
        return cells

    def _notes(self) -> list[str]:
        """Return the sentences at the end."""
        judged = [failure for failure in self.failures if failure.judge_cause]
        same = sum(f.judge_cause is not None and f.judge_cause.kind == f.cause.kind for f in judged)
        agreed = [f"The judge names the same cause for {same} of {len(judged)} failures."] if judged else []
        if self.noise:
            return [*agreed, str(self.noise)]
        agent = self.pooled_row or (self.agent_rows[0] if len(self.agent_rows) == 1 else None)
        return [*agreed, NO_VARIATION] if agent and agent.result.trials > 1 else agreed


class RunReport(Record):
    """The results of a training run: noop, gold, and the model at each stage."""

    held_out: EvalReport
    others: dict[str, EvalReport] = {}
    """Results on other eval sets: `ood` for `eval.ood_domains`, and the test sets of `data.tests`."""

    def format_table(self) -> str:
        """Return the results as text for a terminal."""
        others = (f"{title_eval_set(name)}\n{report.format_table()}" for name, report in self.others.items())
        return "\n\n".join([self.held_out.format_table(), *others])

    def format_markdown(self) -> str:
        """Return the results as Markdown."""
        others = (f"## {title_eval_set(name)}\n\n{report.format_markdown()}" for name, report in self.others.items())
        return "\n".join([self.held_out.format_markdown(), *others])

    def to_dict(self) -> dict[str, Any]:
        """Return the results as JSON-compatible values."""
        others = {name: report.to_dict() for name, report in self.others.items()}
        ood = {OOD_SET: others.pop(OOD_SET)} if OOD_SET in others else {}
        return self.held_out.to_dict() | ood | ({"tests": others} if others else {})

    def write(self, run: Run) -> None:
        """Write result.json and result.md into the run's folder."""
        run.write_file("result.json", json.dumps(self.to_dict(), indent=1) + "\n")
        run.write_file("result.md", self.format_markdown())


def read_report(path: Path) -> EvalReport:
    """Read the report of an evaluation's folder, of a JSON file that `eval` or `train` wrote, or of a run.

    The report of a run is that of its last evaluation on held-out tasks. Its agent is named after the run and the
    stage, such as `runs/a (rl)`.
    """
    if not is_run_folder(path):
        return _read_report_file(path)
    last = _last_evaluation(path)
    return _rename_agent(_read_report_file(last.folder), f"{path} ({last.stage})")


def format_unfinished(folder: Path) -> str:
    """Return how far an unfinished evaluation is, and the command that resumes it; empty if it is finished or none."""
    if (folder / REPORT_FILE).is_file() or not is_eval_folder(folder):
        return ""
    file, run = folder / EPISODES_FILE, find_run(folder)
    count = read_bytes(file).count(b"\n") if file.is_file() else 0
    command = f"train --resume {run}" if run else f"eval --resume {folder}"
    return f"not finished, {count} episodes are stored; resume it by: understudy {command}"


def are_same_report(one: Path, other: Path) -> bool:
    """Return whether `read_report` reads the same file for both paths."""
    files = [_report_file(_last_evaluation(path).folder if is_run_folder(path) else path) for path in (one, other)]
    return os.path.realpath(files[0]) == os.path.realpath(files[1])


def _last_evaluation(run: Path) -> RunEvaluation:
    held_out = [evaluation for evaluation in list_run_evaluations(run) if not evaluation.eval_set]
    if not held_out:
        raise ConfigError(f"{run} is a run without an evaluation yet; resume it by: understudy train --resume {run}")
    return held_out[-1]


def read_run_report(run: Path) -> RunReport:
    """Read the results of a run from its evaluations: noop, gold, and the model at each stage."""
    evaluations = list_run_evaluations(run)
    names = sorted({each.eval_set for each in evaluations if each.eval_set}, key=lambda name: (name != OOD_SET, name))
    reports = {name: _join_stages([each for each in evaluations if each.eval_set == name]) for name in ("", *names)}
    return RunReport(held_out=reports.pop(""), others=reports)


def title_eval_set(name: str) -> str:
    """Return the title of the results of an eval set; empty for held-out tasks."""
    return OOD_TITLE if name == OOD_SET else f"{TEST_TITLE} {name}" if name else ""


def _read_report_file(path: Path) -> EvalReport:
    file = _report_file(path)
    try:
        found = from_json(file.read_bytes())
    except FileNotFoundError as e:
        raise ConfigError(f"there is no evaluation at {path}: {_missing_reason(path)}") from e
    except OSError as e:
        raise ConfigError(f"{file} cannot be read ({e.strerror or e}); {_repair_hint(file)}") from e
    except ValueError as e:
        raise ConfigError(f"{file} is not JSON ({e}); {_repair_hint(file)}") from e
    try:
        return _parse_report(found)
    except (ValidationError, KeyError, TypeError) as e:
        raise ConfigError(f"{file} holds no evaluation ({type(e).__name__}); {_repair_hint(file)}") from e


def _report_file(path: Path) -> Path:
    return path / REPORT_FILE if path.is_dir() else path


def _join_stages(evaluations: Sequence[RunEvaluation]) -> EvalReport:
    """Return one report with a row for the model at each stage, under noop and gold."""
    reports = [_rename_agent(_read_report_file(each.folder), each.stage) for each in evaluations]
    baselines = [row for row in reports[-1].rows if row.result.kind != "agent"] if reports else []
    return EvalReport(rows=(*baselines, *(row for report in reports for row in report.agent_rows)))


def _rename_agent(report: EvalReport, name: str) -> EvalReport:
    rows = (row.replace(name=name) if row.result.kind == "agent" else row for row in report.rows)
    return report.replace(rows=tuple(rows))


def format_causes(failures: Sequence[EpisodeFailure], title: str) -> str:
    """Return a table of why episodes failed, as text for a terminal."""
    return _render_tables({title: _cause_cells(failures)})


def count_causes(failures: Sequence[EpisodeFailure]) -> list[tuple[str, str, int]]:
    """Count failures by cause: component, kind, failures; the most frequent first."""
    counted = Counter(failure.cause.kind for failure in failures)
    return [
        (FAILURE_KINDS[kind][0], kind, count)
        for kind, count in sorted(counted.items(), key=lambda item: (-item[1], item[0]))
    ]


def causes_to_dicts(failures: Sequence[EpisodeFailure]) -> list[dict[str, Any]]:
    """Return `count_causes` as JSON-compatible values."""
    return [
        {"component": component, "kind": kind, "failures": count} for component, kind, count in count_causes(failures)
    ]


def format_rate(rate: MeanEstimate, signed: bool = False) -> str:
    """Return a rate with its interval as text, or a dash if no task has a score."""
    if not rate.tasks:
        return NO_SCORE
    sign = "+" if signed else ""
    return f"{rate.mean:{sign}.3f} [{rate.low:{sign}.3f}, {rate.high:{sign}.3f}]"


def _policy_matters(row: ResultRow) -> bool:
    """Return whether violations of the policy changed the mean reward of a row, or would have."""
    first, second = (row.result.mean_parts.get(name) for name in POLICY_REWARDS)
    return first != second


def _number(value: float, digits: int) -> str:
    return NO_SCORE if math.isnan(value) else f"{value:.{digits}f}"


def nan_to_none(value: Any) -> Any:
    """Return JSON-compatible values with None for each NaN, which JSON does not have."""
    if isinstance(value, dict):
        return {key: nan_to_none(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [nan_to_none(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def render_markdown_table(cells: TableCells) -> list[str]:
    """Return a table as lines of Markdown."""
    rule = ["---", *["---:"] * (len(cells[0]) - 1)]
    safe = [[cell.replace("|", "\\|").replace("<", "&lt;") for cell in line] for line in cells]
    return [f"| {' | '.join(line)} |" for line in (safe[0], rule, *safe[1:])]


def _render_tables(tables: Mapping[str, TableCells]) -> str:
    console = Console(width=max(100, shutil.get_terminal_size().columns), file=io.StringIO())
    with console.capture() as capture:
        for title, cells in tables.items():
            console.print(_render_table(title, cells))
    return capture.get().rstrip()


def _render_table(title: str, cells: TableCells) -> Table:
    table = Table(title=title, title_justify="left")
    for place, name in enumerate(cells[0]):
        table.add_column(Text(name), justify="right" if place else "left")
    for line in cells[1:]:
        table.add_row(*map(Text, line))
    return table


def _table_groups(results: Sequence[TaskResult]) -> list[tuple[str, TaskFields]]:
    """Return the groups of the table by name: each family, then each difficulty.

    With several domains, each domain comes before its families. A family that is the only one of its domain is left
    out.
    """
    found: list[tuple[str, TaskFields]] = []
    domains = sorted({result.domain for result in results})
    for domain in domains:
        families = sorted({result.family for result in results if result.domain == domain})
        indent = ""
        if len(domains) > 1:
            found.append((domain, {"domain": domain}))
            families, indent = families if len(families) > 1 else [], "  "
        found += [(f"{indent}{family}", {"domain": domain, "family": family}) for family in families]
    return found + [(level, {"difficulty": level}) for level in _difficulties(results)]


def _json_groups(results: Sequence[TaskResult]) -> list[TaskFields]:
    """Return the groups of the JSON: all tasks, then those of each domain, each family and each difficulty."""
    found: list[TaskFields] = [{}]
    for domain in sorted({result.domain for result in results}):
        own = [result for result in results if result.domain == domain]
        found.append({"domain": domain})
        found += [{"domain": domain, "family": family} for family in sorted({result.family for result in own})]
        found += [{"domain": domain, "difficulty": level} for level in _difficulties(own)]
    return found


def _difficulties(results: Sequence[TaskResult]) -> list[str]:
    return [level for level in DIFFICULTIES if any(result.difficulty == level for result in results)]


def _filter_group(result: EvalResult, fields: TaskFields) -> EvalResult:
    def matches(task: TaskResult) -> bool:
        return all(getattr(task, field) == value for field, value in fields.items())

    return result.replace(task_results=tuple(filter(matches, result.task_results)))


def _row_to_dict(row: ResultRow, gain: MeanEstimate | None) -> dict[str, Any]:
    result = row.result
    return {
        "name": row.name,
        "success": result.success_rate.model_dump(),
        "pass_hat_k": [result.pass_k_mean("hat", k + 1) for k in range(result.trials)],
        "pass_at_k": [result.pass_k_mean("at", k + 1) for k in range(result.trials)],
        "gain": gain.model_dump() if gain else None,
        "groups": [_group_to_dict(result, fields) for fields in _json_groups(result.task_results)],
        "result": result.model_dump(mode="json"),
    }


def _group_to_dict(result: EvalResult, fields: TaskFields) -> dict[str, Any]:
    part, ks = _filter_group(result, fields), range(1, result.trials + 1)
    return {
        **fields,
        "tasks": len(part.task_results),
        "pass_hat_k": [part.pass_k("hat", k).model_dump() for k in ks],
        "pass_at_k": [part.pass_k("at", k).model_dump() for k in ks],
    }


def _cause_cells(failures: Sequence[EpisodeFailure]) -> TableCells:
    cells = [["component", "cause", "failures", "share", "example"]]
    for component, kind, count in count_causes(failures):
        example = next(failure for failure in failures if failure.cause.kind == kind)
        cells.append(
            [component, kind, str(count), f"{count / len(failures):.0%}", example.cause.evidence[:MAX_EXAMPLE_CHARS]]
        )
    return cells


def _parse_report(found: Any) -> EvalReport:
    rows = tuple(ResultRow.model_validate({"name": row["name"], "result": row["result"]}) for row in found["rows"])
    failures = tuple(EpisodeFailure.model_validate(failure) for failure in found["failures"])
    noise = NoiseEstimate.model_validate(found["noise"]) if found["noise"] else None
    return EvalReport(rows=rows, failures=failures, noise=noise)


def _repair_hint(file: Path) -> str:
    """Return what to do about a damaged report."""
    if file.name == REPORT_FILE and find_run(file.parent):
        return f'remove the folder "{file.parent}"; the run then goes on without this evaluation'
    if file.name == REPORT_FILE and is_eval_folder(file.parent):
        return f'write it again from its stored episodes: understudy eval --resume "{file.parent}"'
    return "give a folder of eval --out, or output of eval --json"


def _missing_reason(path: Path) -> str:
    wanted = "give the folder of an evaluation or of a run, or output of eval --json"
    if not path.exists():
        return f"no such file or folder; {wanted}"
    if unfinished := format_unfinished(path):
        return f"it is {unfinished}"
    return f"it has no {REPORT_FILE}; {wanted}"
