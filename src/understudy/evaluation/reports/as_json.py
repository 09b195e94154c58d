"""A report as JSON-compatible values."""

import math
from collections.abc import Sequence
from typing import Any

from understudy.evaluation.failures.causes import EpisodeFailure
from understudy.evaluation.reports.groups import TaskFields, filter_group, json_groups
from understudy.evaluation.reports.report import EvalReport, RunReport, count_causes
from understudy.evaluation.result import EvalResult, ResultRow
from understudy.evaluation.statistics import MeanEstimate
from understudy.runs.resumption import OOD_SET


def report_to_dict(report: EvalReport) -> dict[str, Any]:
    """Return the report as JSON-compatible values. NaN becomes None."""
    plain: dict[str, Any] = nan_to_none(
        {
            "verdict": report.verdict,
            "rows": [_row_to_dict(row, report.gain_over_previous(place)) for place, row in enumerate(report.rows)],
            "all_repeats": _row_to_dict(report.pooled_row, None) if report.pooled_row else None,
            "failures": [failure.model_dump(mode="json") for failure in report.failures],
            "causes": causes_to_dicts(report.failures),
            "hardest": [
                {"task": task, "failures": failures, "episodes": episodes}
                for task, failures, episodes in report.hardest_tasks
            ],
            "noise": report.noise.model_dump(mode="json") if report.noise else None,
            "prompts": report.prompts.model_dump(mode="json") if report.prompts else None,
        }
    )
    return plain


def run_report_to_dict(report: RunReport) -> dict[str, Any]:
    """Return the results as JSON-compatible values."""
    others = {name: report_to_dict(other) for name, other in report.others.items()}
    ood = {OOD_SET: others.pop(OOD_SET)} if OOD_SET in others else {}
    return report_to_dict(report.held_out) | ood | ({"tests": others} if others else {})


def causes_to_dicts(failures: Sequence[EpisodeFailure]) -> list[dict[str, Any]]:
    """Return `count_causes` as JSON-compatible values."""
    return [
        {"component": component, "kind": kind, "failures": count} for component, kind, count in count_causes(failures)
    ]


def nan_to_none(value: Any) -> Any:
    """Return JSON-compatible values with None for each NaN, which JSON does not have."""
    if isinstance(value, dict):
        return {key: nan_to_none(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [nan_to_none(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _row_to_dict(row: ResultRow, gain: MeanEstimate | None) -> dict[str, Any]:
    result = row.result
    return {
        "name": row.name,
        "success": result.success_rate.model_dump(),
        "pass_hat_k": [result.pass_k_mean("hat", k + 1) for k in range(result.trials)],
        "pass_at_k": [result.pass_k_mean("at", k + 1) for k in range(result.trials)],
        "gain": gain.model_dump() if gain else None,
        "groups": [_group_to_dict(result, fields) for fields in json_groups(result.task_results)],
        "result": result.model_dump(mode="json"),
    }


def _group_to_dict(result: EvalResult, fields: TaskFields) -> dict[str, Any]:
    part, ks = filter_group(result, fields), range(1, result.trials + 1)
    return {
        **fields,
        "tasks": len(part.task_results),
        "pass_hat_k": [part.pass_k("hat", k).model_dump() for k in ks],
        "pass_at_k": [part.pass_k("at", k).model_dump() for k in ks],
    }
