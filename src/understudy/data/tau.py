"""Tasks out of tau-style ones: `{user_id, instruction, actions: [{name, kwargs}], outputs, domain, complexity}`.

Such a task holds no conversation. Its instruction becomes the opening, and what a simulated user is told; its actions
become the gold calls, its outputs one gold text after them. It has no wishes, so nothing scripted can play its user.
"""

from typing import Any

from pydantic import Field

from understudy.messages import Message, ToolCall
from understudy.records import Record
from understudy.tasks import Difficulty, Scenario, Task

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


class Action(Record):
    """One gold call."""

    name: str
    kwargs: dict[str, Any]


class TauTask(Record):
    """A task as tau-bench and its descendants write them; keys that are not among these are refused."""

    user_id: str = ""
    instruction: str = Field(min_length=1)
    actions: tuple[Action, ...]
    outputs: tuple[str, ...] = ()
    domain: str = ""
    complexity: int | str | None = None
    annotator: int | str | None = None
    generated_at: str = ""


def from_tau(tau: TauTask, identity: str, domain: str) -> Task:
    """The task; its family is its complexity, so that a split can be stratified by it."""
    complexity = "" if tau.complexity is None else str(tau.complexity).casefold()
    calls = (ToolCall(name=action.name, arguments=action.kwargs) for action in tau.actions)
    gold = [Message(role="assistant", tool_calls=(call,)) for call in calls]
    told = [Message(role="assistant", content=" ".join(tau.outputs))] if tau.outputs else []
    return Task(
        id=identity,
        domain=domain,
        split="train",
        family=f"complexity-{complexity}" if complexity else "tau",
        difficulty=_difficulty(complexity, len(tau.actions)),
        scenario=Scenario(instructions=tau.instruction, opening=tau.instruction),
        gold=(*gold, *told),
        outputs=tau.outputs,
    )


def _difficulty(complexity: str, calls: int) -> Difficulty:
    """By the complexity; without one, and beyond the known ones, by the number of gold calls."""
    counted: Difficulty = "easy" if calls <= 2 else "medium" if calls <= 4 else "hard"
    return _NAMED.get(complexity, "hard" if complexity.isdigit() and int(complexity) > 3 else counted)
