"""One failed episode laid open, for rules to read: calls with what they came to, texts, and what it lacked in the end.

Where the episode can be replayed, kinds of errors and changes of the state are the environment's own. Where it cannot,
errors are read from the words of results, and what was changed is not known.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from understudy.domains.base import Domain, TaskSource
from understudy.domains.mixture import part_of
from understudy.messages import Message, ToolCall
from understudy.replay import Replay, Turn
from understudy.rewards import rows_of, untold
from understudy.tasks import Task
from understudy.trajectory import Trajectory

Row = tuple[str, ...]
ERROR = "Error: "
_KINDS = {
    "unknown tool ": "unknown_tool",
    "bad arguments for ": "bad_arguments",
    "the user has not confirmed ": "unconfirmed",
    "the user confirmed one change": "unconfirmed",
}
"""How results begin that say of which kind their error is."""


@dataclass(frozen=True, slots=True)
class Made:
    """A call, and what it came to."""

    call: ToolCall
    place: int
    """Of the reply that makes it, in the episode's messages."""
    result: str
    error: str
    """The kind of its error; empty where it went well."""
    wrote: frozenset[Row]
    """The rows that its reply has changed."""


@dataclass(frozen=True)
class Case:
    """What there is to know of an episode."""

    task: Task
    episode: Trajectory
    scripted: bool
    """Whether its user needed no model."""
    made: tuple[Made, ...]
    goal: Mapping[Row, Any] = field(default_factory=dict)
    final: Mapping[Row, Any] = field(default_factory=dict)
    stateful: bool = False
    """Whether `goal` and `final` are known."""

    @property
    def wrong(self) -> frozenset[Row]:
        """Rows that were changed and should not have been, or otherwise."""
        return frozenset(row for row, value in self.final.items() if row not in self.goal or self.goal[row] != value)

    @property
    def undone(self) -> bool:
        """Whether a change of gold's is missing; without a state, whether a call of gold's was never made."""
        if self.stateful:
            return any(row not in self.final or self.final[row] != value for row, value in self.goal.items())
        return not all(self.fulfilled(call) for call in self.task.actions)

    @property
    def untold(self) -> list[str]:
        """What was to be told and was not."""
        return untold(self.episode.messages, self.task.outputs)

    @property
    def texts(self) -> list[tuple[int, str]]:
        """What the agent said to the user, with its place."""
        return [
            (place, message.content)
            for place, message in enumerate(self.episode.messages)
            if message.role == "assistant" and not message.tool_calls
        ]

    def fulfilled(self, gold: ToolCall) -> bool:
        """Whether a call was made as gold makes it, and went well."""
        return any(not made.error and alike(made.call, gold) for made in self.made)

    def gold(self, name: str) -> list[ToolCall]:
        """Gold's calls of a tool."""
        return [call for call in self.task.actions if call.name == name]


def alike(one: ToolCall, other: ToolCall) -> bool:
    """Whether two calls are the same but for their ids."""
    return one.name == other.name and one.arguments == other.arguments


def lay_open(source: TaskSource, task: Task, episode: Trajectory, replay: Replay, scripted: bool) -> Case:
    """The case of an episode and its replay."""
    domain = part_of(source, task.domain)
    if replay.diverged or not isinstance(domain, Domain):
        stated = () if replay.diverged else replay.turns
        return Case(task, episode, scripted, tuple(_made(stated) if stated else _from_record(episode.messages)))
    final = rows_of(replay.turns[-1].changes) if replay.turns else {}
    goal = rows_of(domain.goal(task))
    return Case(task, episode, scripted, tuple(_made(replay.turns)), goal, final, stateful=True)


def _made(turns: Sequence[Turn]) -> list[Made]:
    found, before = list[Made](), dict[Row, Any]()
    for turn in turns:
        after = rows_of(turn.changes)
        wrote = frozenset(row for row in after.keys() | before.keys() if after.get(row) != before.get(row))
        errors, before = iter(turn.errors), after
        for call, answer in zip(turn.reply.tool_calls, turn.answers, strict=False):
            error = next(errors, "") if answer.content.startswith(ERROR) else ""
            found.append(Made(call, turn.place, answer.content, error, frozenset() if error else wrote))
    return found


def _from_record(messages: Sequence[Message]) -> list[Made]:
    found, results = list[Made](), dict[str, str]()
    for place, message in reversed(list(enumerate(messages))):  # what answers a call is the next of its id
        if message.role == "tool":
            results[message.tool_call_id] = message.content
        elif message.role == "assistant":
            for call in reversed(message.tool_calls):
                result = results.pop(call.id, "")
                found.append(Made(call, place, result, _error(call, result), frozenset()))
    return found[::-1]


def _error(call: ToolCall, result: str) -> str:
    """The kind of an error, from the words of a result."""
    if call.malformed:
        return "malformed"
    if not result.startswith(ERROR):
        return ""
    text = result.removeprefix(ERROR)
    return next((kind for head, kind in _KINDS.items() if text.startswith(head)), "refused")
