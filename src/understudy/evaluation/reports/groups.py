"""The groups of tasks whose success a report shows: domains, families and difficulties."""

from collections.abc import Mapping, Sequence

from understudy.core.tasks import DIFFICULTIES
from understudy.evaluation.result import EvalResult, TaskResult

TaskFields = Mapping[str, str]
"""Fields of a `TaskResult` and the values that select a group of tasks."""


def table_groups(results: Sequence[TaskResult]) -> list[tuple[str, TaskFields]]:
    """Return the groups of the table by name: each family, then each difficulty.

    With several domains, each domain comes before its families. A family that is the only one of its domain is left
    out.
    """
    groups: list[tuple[str, TaskFields]] = []
    domains = sorted({result.domain for result in results})
    for domain in domains:
        families = sorted({result.family for result in results if result.domain == domain})
        indent = ""
        if len(domains) > 1:
            groups.append((domain, {"domain": domain}))
            families, indent = families if len(families) > 1 else [], "  "
        groups += [(f"{indent}{family}", {"domain": domain, "family": family}) for family in families]
    return groups + [(level, {"difficulty": level}) for level in _difficulties(results)]


def json_groups(results: Sequence[TaskResult]) -> list[TaskFields]:
    """Return the groups of the JSON: all tasks, then those of each domain, each family and each difficulty."""
    groups: list[TaskFields] = [{}]
    for domain in sorted({result.domain for result in results}):
        of_domain = [result for result in results if result.domain == domain]
        groups.append({"domain": domain})
        groups += [{"domain": domain, "family": family} for family in sorted({result.family for result in of_domain})]
        groups += [{"domain": domain, "difficulty": level} for level in _difficulties(of_domain)]
    return groups


def filter_group(result: EvalResult, fields: TaskFields) -> EvalResult:
    """Return the result on a group of tasks."""

    def matches(task: TaskResult) -> bool:
        return all(getattr(task, field) == value for field, value in fields.items())

    return result.replace(task_results=tuple(filter(matches, result.task_results)))


def _difficulties(results: Sequence[TaskResult]) -> list[str]:
    return [level for level in DIFFICULTIES if any(result.difficulty == level for result in results)]
