"""A failed episode in the form that rules read: calls with their results, texts, and what is missing at the end.

If the episode can be replayed, the kinds of errors and the changes of the state come from the environment. Otherwise
errors are recognized by the start of tool results, and changes are unknown.
"""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from understudy.core.errors import TaskError
from understudy.core.messages import ERROR_PREFIX, Message, ToolCall
from understudy.core.tasks import Task
from understudy.core.trajectory import Trajectory
from understudy.envs.rewards import flatten_changes
from understudy.envs.task_source import ExternalSource, StatefulSource, TaskSource, find_missing_facts, find_source
from understudy.rollouts.replay import ReplayedTurn, ReplayResult
from understudy.sources.task_files.inferred_tools import only_reads

RowKey = tuple[str, ...]
_KINDS = {
    "unknown tool ": "unknown_tool",
    "bad arguments for ": "invalid_arguments",
    "the user has not confirmed ": "unconfirmed",
    "the user confirmed one change": "unconfirmed",
}
"""Starts of tool results that show the kind of their error."""


@dataclass(frozen=True, slots=True)
class ExecutedCall:
    """A tool call and its result."""

    call: ToolCall
    message_index: int
    """Index of the reply with the call in the episode's messages."""
    result: str
    error_kind: str
    """Kind of the error; empty if the call succeeded."""
    changed_rows: frozenset[RowKey]
    """Rows of the state that changed in the same turn. Empty if the call failed."""


@dataclass(frozen=True)
class FailureCase:
    """A failed episode, in the form that rules read."""

    task: Task
    episode: Trajectory
    scripted_user: bool
    """True if the user was scripted."""
    calls: tuple[ExecutedCall, ...]
    missing_facts: tuple[str, ...] = ()
    """Facts that the user should have been told and was not."""
    goal_rows: Mapping[RowKey, Any] = field(default_factory=dict)
    final_rows: Mapping[RowKey, Any] = field(default_factory=dict)
    has_state: bool = False
    """True if `goal_rows` and `final_rows` are known."""
    reading_tools: frozenset[str] = frozenset()
    """Tools of gold calls that only read."""
    grades_answer: bool = False
    """True if gold's last text is an answer that is graded, as in data sets. Domains with a state grade none."""

    @property
    def wrong_rows(self) -> frozenset[RowKey]:
        """Rows that the episode changed, and gold left unchanged or changed to another value."""
        return frozenset(
            row for row, value in self.final_rows.items() if row not in self.goal_rows or self.goal_rows[row] != value
        )

    @property
    def missing_changes(self) -> bool:
        """True if a change of gold is missing. Without a state: if a call of gold was not made, or failed.

        Reads of a domain with a state count in neither case, because its reward does not require them.
        """
        if self.has_state:
            return any(
                row not in self.final_rows or self.final_rows[row] != value for row, value in self.goal_rows.items()
            )
        needed = (c for c in self.task.gold_calls if self.grades_answer or c.name not in self.reading_tools)
        return not all(map(self.was_executed, needed))

    @property
    def agent_texts(self) -> list[tuple[int, str]]:
        """The agent's messages to the user, each with its index in the episode's messages."""
        return [
            (place, message.content)
            for place, message in enumerate(self.episode.messages)
            if message.role == "assistant" and not message.tool_calls
        ]

    def was_executed(self, gold: ToolCall) -> bool:
        """Return whether this gold call was made with the same arguments and succeeded."""
        return any(not made.error_kind and same_call(made.call, gold) for made in self.calls)

    def gold_calls(self, name: str) -> list[ToolCall]:
        """Return gold's calls of a tool."""
        return [call for call in self.task.gold_calls if call.name == name]


def same_call(one: ToolCall, other: ToolCall) -> bool:
    """Return whether two calls have the same tool and arguments. Their ids may differ."""
    return one.name == other.name and one.arguments == other.arguments


def build_case(
    source: TaskSource, task: Task, episode: Trajectory, replay: ReplayResult, scripted_user: bool
) -> FailureCase:
    """Return the case of an episode and its replay.

    After a diverged replay, or without a state, the calls are read from the replay or from the messages, and no rows
    are known.
    """
    leaf = find_source(source, task.domain)
    reading, graded = reading_tools(leaf, task), not isinstance(leaf, StatefulSource)
    told = episode.score is not None and episode.score.parts.get("facts_told") == 1.0
    missing = () if told else tuple(find_missing_facts(source, task, episode.messages))
    if replay.divergence or not isinstance(leaf, StatefulSource):
        stated = () if replay.divergence else replay.turns
        return FailureCase(
            task,
            episode,
            scripted_user,
            tuple(_executed_calls(stated) if stated else _calls_from_messages(episode.messages)),
            missing,
            reading_tools=reading,
            grades_answer=graded,
        )
    final = flatten_changes(replay.turns[-1].state_changes) if replay.turns else {}
    goal = flatten_changes(leaf.gold_changes(task))
    calls = tuple(_executed_calls(replay.turns))
    return FailureCase(task, episode, scripted_user, calls, missing, goal, final, has_state=True, reading_tools=reading)


def reading_tools(source: TaskSource, task: Task) -> frozenset[str]:
    """Return the tools of gold calls that only read: by their names if the source does not report exactly which
    calls write, or refuses the gold calls of a stored task."""
    names = {call.name for call in task.gold_calls}
    if not isinstance(source, ExternalSource) and source.reports_writes:
        with contextlib.suppress(TaskError):
            return frozenset(names - {call.name for call in source.gold_writes(task)})
    return frozenset(filter(only_reads, names))


def _executed_calls(turns: Sequence[ReplayedTurn]) -> list[ExecutedCall]:
    calls: list[ExecutedCall] = []
    before: dict[RowKey, Any] = {}
    for turn in turns:
        after = flatten_changes(turn.state_changes)
        wrote = frozenset(row for row in after.keys() | before.keys() if after.get(row) != before.get(row))
        before = after
        errors = iter(turn.errors)
        for call, answer in zip(turn.reply.tool_calls, turn.tool_results, strict=False):
            error = next(errors, "") if answer.content.startswith(ERROR_PREFIX) else ""
            calls.append(ExecutedCall(call, turn.message_index, answer.content, error, frozenset() if error else wrote))
    return calls


def _calls_from_messages(messages: Sequence[Message]) -> list[ExecutedCall]:
    calls: list[ExecutedCall] = []
    results: dict[str, str] = {}
    for place, message in reversed(list(enumerate(messages))):  # a call's result is the next message with its id
        if message.role == "tool":
            results[message.tool_call_id] = message.content
        elif message.role == "assistant":
            for call in reversed(message.tool_calls):
                result = results.pop(call.id, "")
                calls.append(ExecutedCall(call, place, result, _error(call, result), frozenset()))
    return calls[::-1]


def _error(call: ToolCall, result: str) -> str:
    """Return the kind of a call's error, from the start of its result; empty if it succeeded."""
    if call.parse_error:
        return "malformed"
    if not result.startswith(ERROR_PREFIX):
        return ""
    text = result.removeprefix(ERROR_PREFIX)
    return next((kind for head, kind in _KINDS.items() if text.startswith(head)), "refused")
