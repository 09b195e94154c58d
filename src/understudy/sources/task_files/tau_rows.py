"""Convert tau-style tasks: `{user_id, instruction, actions: [{name, kwargs}], outputs, domain, complexity}`.

Such a task has no conversation. Its instruction becomes the opening and the prompt of a simulated user; its actions
become the gold calls, and its outputs one gold text after them. It has no goals, so a scripted user says everything at
once, and needs to confirm nothing.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from understudy.core.json_values import parse_index
from understudy.core.messages import Message, ToolCall
from understudy.core.records import Record
from understudy.core.tasks import Difficulty, Scenario, Task

DEFAULT_ANSWER = "Done."
"""The gold text of tasks without outputs."""

_NAMED: dict[str, Difficulty] = {
    "1": "easy",
    "2": "medium",
    "3": "hard",
    "easy": "easy",
    "simple": "easy",
    "medium": "medium",
    "moderate": "medium",
    "hard": "hard",
    "difficult": "hard",
    "complex": "hard",
}


class TauAction(Record):
    """One gold call."""

    name: str
    kwargs: dict[str, Any]


class TauTask(Record):
    """A task in the form of tau-bench and its descendants. Unknown keys are errors."""

    user_id: str = ""
    instruction: str = Field(min_length=1)
    actions: tuple[TauAction, ...]
    outputs: tuple[str, ...] = ()
    domain: str = ""
    complexity: int | str | None = None
    annotator: int | str | None = None
    generated_at: str = ""


class _Tau2Action(Record, extra="ignore"):
    name: str
    arguments: dict[str, Any] | None = None
    requestor: str | None = None


class _Tau2Criteria(Record, extra="ignore"):
    actions: tuple[_Tau2Action, ...] | None = None
    communicate_info: tuple[str, ...] | None = None


def from_tau_task(tau: TauTask, task_id: str, domain: str) -> Task:
    """Convert to a task. Its family is its complexity, which splits are stratified by."""
    complexity = "" if tau.complexity is None else str(tau.complexity).casefold()
    calls = (ToolCall(name=action.name, arguments=action.kwargs) for action in tau.actions)
    gold = [Message(role="assistant", tool_calls=(call,)) for call in calls]
    answer = [Message(role="assistant", content=" ".join(tau.outputs) or DEFAULT_ANSWER)]
    return Task(
        id=task_id,
        domain=domain,
        split="train",
        family=f"complexity-{complexity}" if complexity else "tau",
        difficulty=_difficulty(complexity, len(tau.actions)),
        scenario=Scenario(instructions=tau.instruction, opening=tau.instruction),
        gold=(*gold, *answer),
        outputs=tau.outputs,
    )


def from_tau2_task(row: Mapping[str, Any], identity: str) -> Task:
    """Convert a task of tau2-bench, `{id, user_scenario, evaluation_criteria: {actions, communicate_info}}`.

    Actions of the user are left out. Raise ValidationError if a part has the wrong type.
    """
    criteria = _Tau2Criteria.model_validate(row.get("evaluation_criteria") or {})
    user = row.get("user_scenario") or {}
    instructions = user.get("instructions", user) if isinstance(user, dict) else user
    parts = instructions.items() if isinstance(instructions, dict) else ()
    text = "\n".join(f"{name}: {part}" for name, part in parts if part) or str(instructions)
    actions = [each for each in criteria.actions or () if each.requestor in (None, "assistant")]
    tau = TauTask(
        instruction=text,
        actions=tuple(TauAction(name=each.name, kwargs=each.arguments or {}) for each in actions),
        outputs=criteria.communicate_info or (),
    )
    return from_tau_task(tau, str(row.get("id", identity)), "").replace(family="tau2")


def to_tau_values(task: Task) -> dict[str, Any]:
    """Return the instruction, actions and outputs of a task, as tau-bench has them."""
    actions = [{"name": call.name, "kwargs": call.arguments} for call in task.gold_calls]
    return {"instruction": task.scenario.instructions, "actions": actions, "outputs": list(task.outputs)}


def _difficulty(complexity: str, calls: int) -> Difficulty:
    """Return the difficulty by the complexity, or by the number of gold calls if it is unknown."""
    counted: Difficulty = "easy" if calls <= 2 else "medium" if calls <= 4 else "hard"
    return _NAMED.get(complexity, "hard" if (parse_index(complexity) or 0) > 3 else counted)
