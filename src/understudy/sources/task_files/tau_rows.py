"""Rows of tau-bench and tau2-bench, such as `{instruction, actions: [{name, kwargs}], outputs, domain, complexity}`.

Such a task has no conversation. Its instruction becomes the opening and the prompt of a simulated user; its actions
become the gold calls, and its outputs one gold text after them. It has no goals, so a scripted user says everything at
once, and needs to confirm nothing.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field

from understudy.core.messages import Message, ToolCall
from understudy.core.records import Record
from understudy.core.tasks import Scenario, Task
from understudy.sources.task_files.call_matching import DEFAULT_ANSWER
from understudy.sources.task_files.call_rows import ROW_COLUMNS
from understudy.sources.task_files.task_row import (
    TaskRow,
    complexity_note,
    difficulty_of,
    left_out_keys,
    refuse_near_misses,
    to_call,
)

_TAU2_KEYS = frozenset(("actions", "communicate_info", "env_assertions", "nl_assertions", "reward_basis"))
"""Keys of `evaluation_criteria`."""


class _TauColumns(Record):
    user_id: str = ""
    instruction: str = Field(min_length=1)
    actions: tuple[dict[str, Any], ...]
    outputs: tuple[str, ...] = ()
    domain: str = ""
    complexity: int | str | None = None
    annotator: int | str | None = None
    generated_at: str = ""


class _Tau2Criteria(Record, extra="ignore"):
    actions: tuple[dict[str, Any], ...] | None = None
    communicate_info: tuple[str, ...] | None = None


def is_tau_row(row: Mapping[str, Any]) -> bool:
    """Return whether a row has the form of tau-bench: no columns of other trainers, and no results of its actions."""
    actions = row.get("actions", ())
    listed = actions if isinstance(actions, list | tuple) else ()
    recorded = any(isinstance(action, dict) and "result" in action for action in listed)
    others = {*ROW_COLUMNS, "output", "chosen", "rejected"}  # the last three are those of Alpaca's conversations
    return "instruction" in row and not row.keys() & others and not recorded


def read_tau_row(row: Mapping[str, Any], identity: str) -> TaskRow:
    """Return the task of a row of tau-bench. Its family is its complexity, which splits are stratified by.

    Raise InvalidField for an action that is no call, and ValidationError for an unknown column or a part of the wrong
    type.
    """
    tau = _TauColumns.model_validate(row)
    complexity = "" if tau.complexity is None else str(tau.complexity).casefold()
    calls = [to_call(action, number) for number, action in enumerate(tau.actions)]
    task = _make_task(f"{tau.domain}/{identity}".lstrip("/"), tau.instruction, calls, tau.outputs, complexity)
    family = f"complexity-{complexity}" if complexity else "tau"
    return TaskRow(
        task.replace(domain=tau.domain, family=family),
        notes=(*left_out_keys(tau.actions), *complexity_note(tau.complexity)),
    )


def read_tau2_row(row: Mapping[str, Any], identity: str) -> TaskRow:
    """Return the task of a row of tau2-bench: `{id, user_scenario, evaluation_criteria: {actions, communicate_info}}`.

    Actions of the user are left out. Raise InvalidField for an action that is no call or a key that is nearly one of
    tau2-bench, and ValidationError if a part has the wrong type.
    """
    given = row.get("evaluation_criteria") or {}
    criteria = _Tau2Criteria.model_validate(given)
    refuse_near_misses(given, _TAU2_KEYS, _TAU2_KEYS - given.keys())
    user = row.get("user_scenario") or {}
    instructions = user.get("instructions", user) if isinstance(user, dict) else user
    parts = instructions.items() if isinstance(instructions, dict) else ()
    text = "\n".join(f"{name}: {part}" for name, part in parts if part) or str(instructions)
    actions = [each for each in criteria.actions or () if each.get("requestor") in (None, "assistant")]
    calls = [to_call(action, number) for number, action in enumerate(actions)]
    task = _make_task(str(row.get("id", identity)), text, calls, criteria.communicate_info or ())
    return TaskRow(task.replace(family="tau2"), content=row, notes=left_out_keys(actions))


def uncompared_parts(row: Mapping[str, Any]) -> list[str]:
    """Return the parts of a row of tau2-bench that do not count if its calls are compared; none for other rows."""
    criteria = row.get("evaluation_criteria") or {}
    actions = criteria.get("actions") or ()
    parts = {
        "initial_state": row.get("initial_state"),
        "actions of the user": any(each.get("requestor") not in (None, "assistant") for each in actions),
        "compare_args": any(each.get("compare_args") is not None for each in actions),
        **{name: criteria.get(name) for name in ("env_assertions", "nl_assertions")},
    }
    return [name for name, part in parts.items() if part]


def to_tau_values(task: Task) -> dict[str, Any]:
    """Return the instruction, actions and outputs of a task, as tau-bench has them."""
    actions = [{"name": call.name, "kwargs": call.arguments} for call in task.gold_calls]
    return {"instruction": task.scenario.instructions, "actions": actions, "outputs": list(task.outputs)}


def _make_task(
    id: str, instruction: str, calls: Sequence[ToolCall], outputs: tuple[str, ...], complexity: str = ""
) -> Task:
    turns = [Message(role="assistant", tool_calls=(call,)) for call in calls]
    answer = Message(role="assistant", content=" ".join(outputs) or DEFAULT_ANSWER)
    return Task(
        id=id,
        difficulty=difficulty_of(complexity, len(calls)),
        scenario=Scenario(instructions=instruction, opening=instruction),
        gold=(*turns, answer),
        outputs=outputs,
    )
