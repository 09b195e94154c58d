"""Samples out of dependent specs: scenarios whose tasks are sequences of tool calls, later ones using earlier results.

    {"dependent_dataset": [{"scenario": "demo", "turns": 8, "limits": {"max_tools": 5, "max_servers": 2}, "tasks": [
        {"task_id": "demo_1", "complexity": "simple", "conversation": [{"role": "user", "message": "…"}],
         "solution": {"tool_sequence": [{"step": 1, "server": "s", "tool": "t", "params": {"x": "${step1.y}"}}]}}]}]}

One `Sample` comes of each task. It keeps what an episode against real servers needs, and says of each call which
earlier ones it depends on; a placeholder that names no earlier step is refused, and never evaluated.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any, Literal

from pydantic import AliasChoices, Field, ValidationError

from understudy.data.items import Bad, Item, malformed
from understudy.records import Record

_PLACEHOLDER = re.compile(r"\$\{step(\d+)\b[^}]*\}")
_ANY_PLACEHOLDER = re.compile(r"\$\{[^}]*\}")


class SpecCall(Record):
    """One call of a spec's solution."""

    step: int | None = None
    server: str = ""
    tool: str = Field(min_length=1)
    params: dict[str, Any] = {}


class Solution(Record):
    """How a spec's task is solved."""

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


class Limits(Record):
    """How much an episode may use."""

    max_tools: int | None = Field(default=None, ge=1)
    """Calls."""
    max_servers: int | None = Field(default=None, ge=1)
    """Different servers."""


class Spec(Record):
    """One scenario with its tasks."""

    scenario: str
    turns: int = Field(ge=1)
    limits: Limits = Limits()
    tasks: tuple[dict[str, Any], ...]


class Call(Record):
    """One call of a sample's solution."""

    tool: str
    """With its server, as in "slack.send_message"."""
    arguments: dict[str, Any] = {}
    """Strings may hold "${step1.close}": what the first call's result has there."""
    needs: tuple[int, ...] = ()
    """The calls, counted from 1, whose results the arguments hold."""


class Sample(Record):
    """The compact form of one task: what the user says, how long it may take, and how it is solved."""

    id: str
    scenario: str
    complexity: str = ""
    opening: str
    """The user's first message."""
    later: tuple[str, ...] = ()
    """The user's further messages, in order."""
    max_turns: int
    limits: Limits = Limits()
    calls: tuple[Call, ...]


def samples(items: Iterable[Item[Any] | Bad]) -> Iterator[Item[Sample] | Bad]:
    """The samples of all scenarios' tasks; no id comes twice."""
    seen: set[str] = set()
    for item in items:
        for made in (item,) if isinstance(item, Bad) else _of_scenario(item):
            if isinstance(made, Item) and made.value.id in seen:
                yield Bad(made.where, "task_id", f"{made.value.id!r} is also the id of an earlier task", "duplicate")
                continue
            if isinstance(made, Item):
                seen.add(made.value.id)
            yield made


def _of_scenario(item: Item[Any]) -> Iterator[Item[Sample] | Bad]:
    try:
        spec = Spec.model_validate(item.value)
    except ValidationError as e:
        yield malformed(item.where, e)
        return
    for number, value in enumerate(spec.tasks):
        where = f"{item.where}.tasks[{number}]"
        try:
            yield _sample(where, spec, SpecTask.model_validate(value))
        except ValidationError as e:
            yield malformed(where, e)


def _sample(where: str, spec: Spec, task: SpecTask) -> Item[Sample] | Bad:
    said = [message.content for message in task.conversation if message.role == "user"]
    if not said:
        return Bad(where, "conversation", "the user says nothing")
    sequence = task.solution.tool_sequence
    for number, call in enumerate(sequence, 1):
        if problem := _wrong(number, call):
            return Bad(where, f"solution.tool_sequence.{number - 1}", problem)
    servers = {call.server for call in sequence}
    for name, used in (("max_tools", len(sequence)), ("max_servers", len(servers))):
        limit = getattr(spec.limits, name)
        if limit is not None and used > limit:
            return Bad(where, "solution.tool_sequence", f"it uses {used}, where limits.{name} is {limit}", "too long")
    sample = Sample(
        id=task.task_id,
        scenario=spec.scenario,
        complexity=str(task.complexity),
        opening=said[0],
        later=tuple(said[1:]),
        max_turns=spec.turns,
        limits=spec.limits,
        calls=tuple(_call(call) for call in sequence),
    )
    return Item(where, sample)


def _wrong(number: int, call: SpecCall) -> str:
    """What is wrong with the call in this place, if anything."""
    if call.step not in (None, number):
        return f"step {call.step} stands in place {number}"
    for text in _placeholders(call.params):
        found = _PLACEHOLDER.fullmatch(text)
        if not found or not 1 <= int(found[1]) < number:
            return f"{text} names no earlier step; such as ${{step1.field}} is allowed"
    return ""


def _call(call: SpecCall) -> Call:
    found = {int(_PLACEHOLDER.fullmatch(text)[1]) for text in _placeholders(call.params)}  # type: ignore[index]
    name = f"{call.server}.{call.tool}" if call.server else call.tool
    return Call(tool=name, arguments=call.params, needs=tuple(sorted(found)))


def _placeholders(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield from _ANY_PLACEHOLDER.findall(value)
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _placeholders(inner)
