"""A comparison of groups of runs as tables, text, Markdown and JSON-compatible values."""

import math
from collections.abc import Mapping
from typing import Any

from understudy.evaluation.reports.as_json import nan_to_none
from understudy.evaluation.reports.markdown import render_markdown_table
from understudy.evaluation.reports.report import NO_SCORE, EvalReport, format_rate
from understudy.evaluation.reports.tables import TableCells, format_number, group_cells, hardest_tables
from understudy.evaluation.reports.text import render_tables
from understudy.evaluation.result import EvalResult, success_gain
from understudy.evaluation.run_groups import GroupedRun, GroupReport, RunGroup, pair_runs


def group_report_to_text(report: GroupReport) -> str:
    """Return the comparison as text for a terminal."""
    return "\n".join([render_tables(group_tables(report)), *_sentences(report)])


def group_report_to_markdown(report: GroupReport) -> str:
    """Return the comparison as Markdown."""
    tables = ([f"**{title}**", "", *render_markdown_table(cells), ""] for title, cells in group_tables(report).items())
    return "\n".join([*(line for table in tables for line in table), *_sentences(report)]) + "\n"


def group_report_to_dict(report: GroupReport) -> dict[str, Any]:
    """Return the comparison as JSON-compatible values. NaN becomes None."""
    differences = [
        {**each.model_dump(mode="json"), "seed_interval": each.seed_interval, "verdict": each.verdict}
        for each in report.differences
    ]
    groups = [
        {
            "name": group.name,
            "stage": group.runs[0].stage,
            "success": group.row.result.success_rate.model_dump(),
            "seed_interval": group.seed_interval,
            "runs": [_run_to_dict(run) for run in group.runs],
        }
        for group in report.groups
    ]
    plain: dict[str, Any] = nan_to_none(
        {"groups": groups, "differences": differences, "settings": report.setting_notes}
    )
    return plain


def group_tables(report: GroupReport) -> Mapping[str, TableCells]:
    """Return the tables: title -> cells."""
    rows = EvalReport(rows=tuple(group.row for group in report.groups))
    over = [["", "runs", "success [95% over tasks]", "95% over seeds", "tasks"]]
    for group, row in zip(report.groups, rows.rows, strict=True):
        rate = row.result.success_rate
        over.append(
            [row.name, str(len(group.runs)), format_rate(rate), _format_interval(group.seed_interval), str(rate.tasks)]
        )
    tables = {rows.title: over, "Each seed": _seed_cells(report), "By family and difficulty": group_cells(rows)}
    return tables | (hardest_tables(rows) if len(report.groups) == 1 else {})


def _seed_cells(report: GroupReport) -> TableCells:
    """Return the table of runs: their earlier stages, their result and gain, and the difference from the first group.

    Evaluations at steps between the stages are left out. A group's last row is over all of its runs.
    """
    earlier = [*dict.fromkeys(name for group in report.groups for name in _earlier_stages(group))]
    first = report.groups[0]
    head = ["", "seed", *earlier, "success [95% over tasks]", *(["gain over the stage before"] if earlier else [])]
    cells = [[*head, *([f"difference from {first.name}, same seed"] if report.differences else [])]]
    for group in report.groups:
        paired = {run.path: old for run, old in pair_runs(group, first)} if group is not first else {}
        for run in group.runs:
            line = [run.path, NO_SCORE if run.seed is None else str(run.seed)]
            line += _result_cells({row.name: row.result for row in run.stages}, earlier)
            if report.differences:
                old = paired.get(run.path)
                line.append(format_rate(success_gain(run.result, old.result), signed=True) if old else "")
            cells.append(line)
        if len(group.runs) > 1:
            found = {name: group.stage_result(name) for name in (*_earlier_stages(group), group.runs[0].stage)}
            line = [group.name, "all", *_result_cells({name: each for name, each in found.items() if each}, earlier)]
            difference = next((each.gain for each in report.differences if each.new == group.row.name), None)
            mean = [format_rate(difference, signed=True) if difference else ""] if report.differences else []
            cells.append([*line, *mean])
    return cells


def _result_cells(stages: Mapping[str, EvalResult], earlier: list[str]) -> list[str]:
    """Return the cells of the earlier stages, of the last one, and of its gain over the one before."""
    last = list(stages)[-1]
    before = [name for name in earlier if name in stages and name != last]
    rates = [format_number(stages[name].success_rate.mean, 3) if name in before else "" for name in earlier]
    gain = format_rate(success_gain(stages[last], stages[before[-1]]), signed=True) if before else ""
    return [*rates, format_rate(stages[last].success_rate), *([gain] if earlier else [])]


def _earlier_stages(group: RunGroup) -> list[str]:
    """Return the names of the stages before the last one that all runs have."""
    names = (row.name for run in group.runs for row in run.stages[:-1] if not row.name.startswith("step "))
    return [name for name in dict.fromkeys(names) if group.stage_result(name)]


def _run_to_dict(run: GroupedRun) -> dict[str, Any]:
    stages = {row.name: row.result.success_rate.model_dump() for row in run.stages}
    return {"path": run.path, "seed": run.seed, "eval_seed": run.result.seed, "stages": stages}


def _sentences(report: GroupReport) -> list[str]:
    return [*(each.verdict for each in report.differences), *report.setting_notes]


def _format_interval(interval: tuple[float, float] | None) -> str:
    return NO_SCORE if interval is None or math.isnan(interval[0]) else f"[{interval[0]:.3f}, {interval[1]:.3f}]"
