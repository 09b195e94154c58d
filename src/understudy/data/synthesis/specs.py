"""Read dependent specs: scenarios whose tasks are sequences of tool calls that use results of earlier calls.

    {"dependent_dataset": [{"scenario": "demo", "turns": 8, "limits": {"max_tools": 5, "max_servers": 2}, "tasks": [
        {"task_id": "demo_1", "complexity": "simple", "conversation": [{"role": "user", "message": "…"}],
         "solution": {"tool_sequence": [{"step": 1, "server": "s", "tool": "t", "params": {"x": "${step1.y}"}}]}}]}]}

Each task becomes a `CallSequenceSample`. It holds what an episode against real servers needs, and for each call the
earlier calls that it depends on. A placeholder must name an earlier step. It is never evaluated as code.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any, Literal

from pydantic import AliasChoices, Field, ValidationError

from understudy.core.items import Item, RowError, row_error_from_validation
from understudy.core.records import Record

_PLACEHOLDER = re.compile(r"\$\{step(\d+)\b[^}]*\}")
_ANY_PLACEHOLDER = re.compile(r"\$\{[^}]*\}")


class SpecCall(Record):
    """One call of a spec's solution."""

    step: int | None = None
    server: str = ""
    tool: str = Field(min_length=1)
    params: dict[str, Any] = {}


class Solution(Record):
    """The solution of a spec's task."""

    tool_sequence: tuple[SpecCall, ...] = Field(min_length=1)


class SpecMessage(Record):
    """One message of a spec's conversation."""

    role: Literal["user", "assistant", "system", "tool"]
    content: str = Field(validation_alias=AliasChoices("message", "content"))


class SpecTask(Record):
    """One task of a spec."""

    task_id: str = Field(min_length=1)
    complexity: int | str = ""
    conversation: tuple[SpecMessage, ...]
    solution: Solution


class SpecLimits(Record):
    """Limits of an episode."""

    max_tools: int | None = Field(default=None, ge=1)
    """Largest number of calls; None sets no limit."""
    max_servers: int | None = Field(default=None, ge=1)
    """Largest number of different servers; None sets no limit."""


class Spec(Record):
    """One scenario with its tasks."""

    scenario: str
    turns: int = Field(ge=1)
    limits: SpecLimits = SpecLimits()
    tasks: tuple[dict[str, Any], ...]


class SampleCall(Record):
    """One call of a sample's solution."""

    tool: str
    """The tool with its server, such as "slack.send_message"."""
    arguments: dict[str, Any] = {}
    """Strings may hold references such as "${step1.close}" to fields of earlier results."""
    depends_on: tuple[int, ...] = ()
    """The calls, counted from 1, whose results the arguments use."""


class CallSequenceSample(Record):
    """The compact form of one task: the user's messages, limits and solution."""

    id: str
    scenario: str
    complexity: str = ""
    first_message: str
    """The user's first message."""
    later_messages: tuple[str, ...] = ()
    """The user's further messages, in order."""
    max_turns: int
    limits: SpecLimits = SpecLimits()
    calls: tuple[SampleCall, ...]


def build_samples(items: Iterable[Item[Any] | RowError]) -> Iterator[Item[CallSequenceSample] | RowError]:
    """Yield the samples of all scenarios' tasks. An invalid task, or a repeated id, is a `RowError`."""
    seen: set[str] = set()
    for item in items:
        for made in (item,) if isinstance(item, RowError) else _of_scenario(item):
            if isinstance(made, Item) and made.value.id in seen:
                yield RowError(
                    made.location, "task_id", f"{made.value.id!r} is also the id of an earlier task", "duplicate"
                )
                continue
            if isinstance(made, Item):
                seen.add(made.value.id)
            yield made


def _of_scenario(item: Item[Any]) -> Iterator[Item[CallSequenceSample] | RowError]:
    try:
        spec = Spec.model_validate(item.value)
    except ValidationError as e:
        yield row_error_from_validation(item.location, e)
        return
    for number, value in enumerate(spec.tasks):
        where = f"{item.location}.tasks[{number}]"
        try:
            yield _sample(where, spec, SpecTask.model_validate(value))
        except ValidationError as e:
            yield row_error_from_validation(where, e)


def _sample(where: str, spec: Spec, task: SpecTask) -> Item[CallSequenceSample] | RowError:
    said = [message.content for message in task.conversation if message.role == "user"]
    if not said:
        return RowError(where, "conversation", "it has no message of the role user; at least one is needed")
    sequence = task.solution.tool_sequence
    for number, call in enumerate(sequence, 1):
        if problem := _wrong(number, call):
            return RowError(where, f"solution.tool_sequence.{number - 1}", problem)
    servers = {call.server for call in sequence}
    for name, used in (("max_tools", len(sequence)), ("max_servers", len(servers))):
        limit = getattr(spec.limits, name)
        if limit is not None and used > limit:
            return RowError(
                where, "solution.tool_sequence", f"it uses {used}, but limits.{name} is {limit}", "too long"
            )
    sample = CallSequenceSample(
        id=task.task_id,
        scenario=spec.scenario,
        complexity=str(task.complexity),
        first_message=said[0],
        later_messages=tuple(said[1:]),
        max_turns=spec.turns,
        limits=spec.limits,
        calls=tuple(_call(call) for call in sequence),
    )
    return Item(where, sample)


def _wrong(number: int, call: SpecCall) -> str:
    """Return what is wrong with a call, if anything."""
    if call.step not in (None, number):
        return f"step {call.step} is at position {number}; steps must be numbered 1, 2, 3, …"
    for text in _placeholders(call.params):
        found = _PLACEHOLDER.fullmatch(text)
        if not found or not 1 <= int(found[1]) < number:
            return f"{text} does not refer to an earlier step; write a field of one, such as ${{step1.field}}"
    return ""


def _call(call: SpecCall) -> SampleCall:
    found = {int(_PLACEHOLDER.fullmatch(text)[1]) for text in _placeholders(call.params)}  # type: ignore[index]
    name = f"{call.server}.{call.tool}" if call.server else call.tool
    return SampleCall(tool=name, arguments=call.params, depends_on=tuple(sorted(found)))


def _placeholders(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield from _ANY_PLACEHOLDER.findall(value)
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _placeholders(inner)
