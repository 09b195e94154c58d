"""Find the task source that plays each row of files of tasks.

A row never chooses code, files or hosts. Its tasks are played by a shipped domain, by a source that the user names
(`domain`, `data.sources`), by the reward function of `data.reward`, or by comparing calls.
"""

import inspect
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from pydantic import ValidationError

from understudy.core.errors import ConfigError, TaskError, did_you_mean
from understudy.core.imports import import_object
from understudy.core.items import Item, RowError
from understudy.core.messages import Message
from understudy.core.tasks import Split, Task
from understudy.core.user_code import user_code
from understudy.envs.task_source import TaskSource
from understudy.sources.references import list_domains, load_reference
from understudy.sources.task_files.call_matching import is_call_matching, match_calls, source_name
from understudy.sources.task_files.call_sequences import CallSequence, SequenceSource
from understudy.sources.task_files.config import RowConfig
from understudy.sources.task_files.rows import ReadRow
from understudy.sources.task_files.task_row import TaskRow
from understudy.sources.task_files.tau_rows import to_tau_values
from understudy.sources.tool_dataset import ToolDataset, ToolEpisode, ToolExample

_OTHER_PARAMETERS = {"prompts", "completions", "solution_str"}
"""Parameters of the reward functions of TRL and verl."""
MIN_PLAYABLE_SHARE = 0.5
"""A source plays rows of a domain if it has all tools of at least this share of them. It refuses the others."""


@runtime_checkable
class RowSource(Protocol):
    """Protocol of a task source that converts rows of its own benchmark to tasks."""

    def to_task(self, id: str, split: Split, raw: Mapping[str, Any]) -> Task:
        """Convert a row."""


@dataclass
class SourceMatcher:
    """The sources that may play rows."""

    allowed: Sequence[TaskSource]
    """The sources that the user names."""
    data: RowConfig
    name: str
    """The name of the source of rows without a domain."""
    used: dict[str, TaskSource] = field(default_factory=dict)
    """The sources that play at least one row, by name."""

    def assign(self, rows: Sequence[ReadRow]) -> list[Item[TaskRow] | RowError]:
        """Return each row with its task as the source that plays it has it, in order, or why none plays it."""
        found: dict[int, Item[TaskRow] | RowError] = {}
        groups: dict[tuple[str, str, str], list[tuple[int, Item[TaskRow]]]] = {}
        for number, row in enumerate(rows):
            if isinstance(row.item, RowError):
                found[number] = row.item
            else:
                groups.setdefault(_group_key(row, row.item.value), []).append((number, row.item))
        calls: dict[str, list[tuple[int, Item[TaskRow]]]] = {}
        for (played_by, domain, _), group in groups.items():
            assigned = self._assign_group(played_by, [item for _, item in group])
            if assigned is None:
                calls.setdefault(source_name(domain or self.name), []).extend(group)
            else:
                found |= {number: each for (number, _), each in zip(group, assigned, strict=True)}
        for group in calls.values():
            matched = self._match_calls([item for _, item in group])
            found |= {number: each for (number, _), each in zip(group, matched, strict=True)}
        return [found[number] for number in range(len(rows))]

    def _assign_group(self, played_by: str, items: Sequence[Item[TaskRow]]) -> list[Item[TaskRow] | RowError] | None:
        """Return the rows of a group with their tasks, or None if they must be played by comparing calls."""
        rows = [item.value for item in items]
        if played_by == "reward":
            return self._score_prompts(items)
        if played_by == "source" and not is_call_matching(rows[0].task.domain):
            source, problem = self._named(rows[0])
            if source is None:
                return [RowError(item.location, "domain", problem, "other domain") for item in items]
            return [self._play(item, source) for item in items]
        source = None if is_call_matching(rows[0].task.domain) else self._with_tools(rows)
        return [self._play(item, source) for item in items] if source else None

    def _named(self, row: TaskRow) -> tuple[TaskSource | None, str]:
        """Return the source of a task's domain, or what the user must name."""
        domain, reference = row.task.domain, row.source
        known = {source.name: source for source in self.allowed}
        if domain in known:
            return known[domain], ""
        if domain in list_domains() and not reference:
            return load_reference(domain), ""
        named = reference or "module:attribute, mcp:FILE or a benchmark"
        return None, f"{domain!r} is not a shipped domain; to play it, name its source: data.sources={named}"

    def _with_tools(self, rows: Sequence[TaskRow]) -> TaskSource | None:
        """Return the source that has the tools of most rows, or None if none has those of enough rows."""
        named = rows[0].task.domain
        domains = [name for name in list_domains() if name == named or not named]
        used = [{call.name for call in row.task.gold_calls} for row in rows]
        best, most = None, MIN_PLAYABLE_SHARE * len(rows)
        for source in (*self.allowed, *map(load_reference, domains)):
            playable = sum(bool(tools) and _has_tools(source, tools) for tools in used)
            if playable > most or (playable == most and best is None):
                best, most = source, playable
        return best

    def _play(self, item: Item[TaskRow], source: TaskSource) -> Item[TaskRow] | RowError:
        row = item.value
        try:
            task = _convert(row, source)
        except (TaskError, ValidationError) as e:
            return RowError(item.location, "gold", " ".join(str(e).split()), "gold refused")
        tools = {spec.name for spec in source.tool_specs}
        for name in (call.name for call in task.gold_calls if call.name not in tools):
            problem = f"{source.name}: unknown tool {did_you_mean(name, tools)}"
            return RowError(item.location, "gold", problem, "unknown tool")
        self.used[source.name] = source
        return Item(item.location, TaskRow(task, row.split))

    def _match_calls(self, items: Sequence[Item[TaskRow]]) -> list[Item[TaskRow] | RowError]:
        """Return the tasks of rows that no source has the tools of. They are played by comparing calls."""
        source = match_calls(items[0].value.task.domain or self.name, items, require_reads=self.data.require_reads)
        if source.rows:
            self.used[source.name] = source
        refused = {error.location: error for error in source.refused}
        return [
            refused.get(item.location)
            or Item(item.location, TaskRow(source.rows[item.value.task.id].task, item.value.split))
            for item in items
        ]

    def _score_prompts(self, items: Sequence[Item[TaskRow]]) -> list[Item[TaskRow] | RowError]:
        if not self.data.reward:
            problem = "a question needs a reward function; name one: data.reward=module:attribute"
            return [RowError(item.location, "", problem, "no reward") for item in items]
        examples: dict[str, ToolExample] = {}
        for item in items:  # the first of repeated rows is the one that is played
            examples.setdefault(item.value.content.task_id(self.name), item.value.content)
        source = ToolDataset(self.name, "", tuple(examples.values()), load_episode_class(self.data.reward))
        self.used[source.name] = source
        return [
            Item(item.location, TaskRow(item.value.content.to_task(source.name, "train"), item.value.split))
            for item in items
        ]


def _convert(row: TaskRow, source: TaskSource) -> Task:
    """Return the task of a row as `source` has it. Raise TaskError or ValidationError if the source cannot play it."""
    if isinstance(source, SequenceSource):
        sequence = row.content if isinstance(row.content, CallSequence) else CallSequence.from_task(row.task)
        return source.add_task(sequence, row.split or "train")
    if isinstance(source, RowSource) and row.task.domain != source.name:
        raw = row.content if isinstance(row.content, Mapping) else to_tau_values(row.task)
        return source.to_task(row.task.id, row.split or "train", raw)
    gold = tuple(message for message in row.task.gold if message.role != "tool")  # recorded results
    return row.task.replace(domain=source.name, gold=gold)


def _has_tools(source: TaskSource, names: Collection[str]) -> bool:
    known = {_plain_name(spec.name) for spec in source.tool_specs}
    missing = [name for name in names if _plain_name(name) not in known]
    return not missing or (isinstance(source, SequenceSource) and all(map(source.has_tool, missing)))


def _plain_name(tool: str) -> str:
    """Return the name of a tool without the marks between server and tool, which differ between files."""
    return re.sub(r"[^A-Za-z0-9]+", "_", tool)


def load_episode_class(reference: str) -> type[ToolEpisode]:
    """Return the class of the episodes that `data.reward` names: a `ToolEpisode`, or one with its function as reward.

    Raise ConfigError if it names neither.
    """
    found = import_object(reference)
    if isinstance(found, type) and issubclass(found, ToolEpisode):
        return found
    if isinstance(found, type) or not callable(found):
        raise ConfigError(
            f"data.reward = {reference!r} is a {type(found).__name__}; name a function reward(transcript, example) "
            "or a subclass of ToolEpisode"
        )
    _validate_signature(reference, found)
    reward: Callable[[Sequence[Message], ToolExample], float] = found

    class ScoredEpisode(ToolEpisode):
        def reward(self, transcript: Sequence[Message]) -> float:
            with user_code("grader", "the reward function", reward):
                return reward(transcript, self.example)

    return ScoredEpisode


def _validate_signature(reference: str, function: Callable[..., Any]) -> None:
    """Raise ConfigError if a reward function cannot be called with (transcript, example), as those of TRL and verl."""
    try:
        signature = inspect.signature(function)
    except ValueError:  # a function of C code may have none
        return
    try:
        signature.bind((), None)
        fits = not _OTHER_PARAMETERS & signature.parameters.keys()
    except TypeError:
        fits = False
    if not fits:
        raise ConfigError(
            f"data.reward = {reference!r} takes {signature}, but a reward is called as reward(transcript, example); "
            "wrap it: the reply is transcript[-1].content, the answer example.answer, and the row example.info"
        )


def _group_key(row: ReadRow, task_row: TaskRow) -> tuple[str, str, str]:
    domain = "" if row.kind.played_by == "reward" else task_row.task.domain
    return row.kind.played_by, domain, task_row.source
