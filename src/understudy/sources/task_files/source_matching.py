"""Find the task source that plays each row of files of tasks.

A row never chooses code, files or hosts. Its tasks are played by a shipped domain, by a source that the user names
(`domain`, `data.sources`), by the reward function of `data.reward`, or by comparing calls. A shipped domain plays the
rows of others only if it accepts their gold calls.
"""

import difflib
import functools
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

from pydantic import ValidationError

from understudy.core.errors import ConfigError, TaskError, did_you_mean
from understudy.core.imports import import_object
from understudy.core.items import Item, RowError
from understudy.core.messages import Message
from understudy.core.tasks import Split, Task
from understudy.core.user_code import user_code
from understudy.envs.task_source import StatefulSource, TaskSource
from understudy.sources.references import list_domains, load_reference
from understudy.sources.task_files.call_matching import CALLS_SUFFIX, is_call_matching, match_calls, source_name
from understudy.sources.task_files.call_sequences import CallSequence, SequenceSource
from understudy.sources.task_files.config import RowConfig
from understudy.sources.task_files.prompt_rows import column_notes, listed_tools
from understudy.sources.task_files.rows import ReadRow
from understudy.sources.task_files.task_row import TaskRow
from understudy.sources.task_files.tau_rows import to_tau_values, uncompared_parts
from understudy.sources.tool_dataset import (
    ToolDataset,
    ToolEpisode,
    ToolExample,
    answer_notes,
    episode_of_trl,
    is_trl_class,
    list_datasets,
)

_OTHER_PARAMETERS = {"prompts", "completions", "solution_str"}
"""Parameters of the reward functions of TRL and verl."""
MIN_PLAYABLE_SHARE = 0.5
"""A source plays rows of a domain if it can play at least this share of them. It refuses the others."""
_SIMILARITY_OF_TYPOS = 0.85
"""Similarity of two names (difflib's ratio) of which one is probably a typo of the other."""
_SIMILARITY_OF_DOMAINS = 0.8
"""The same for the names of domains."""


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
    used: dict[str, TaskSource] = field(default_factory=dict)
    """The sources that play at least one row, by name."""
    misfits: dict[str, Item[str]] = field(default_factory=dict)
    """Why calls are compared although a source looks as if it should play the rows, by its name. The location is that
    of the first row that it cannot play."""
    prompt_notes: list[Item[str]] = field(default_factory=list)
    """Notes on rows with questions and on near names of domains, each at the first such row."""
    has_questions: bool = False
    """Whether the reward function of the data scores rows."""

    def assign(self, rows: Sequence[ReadRow], names: Sequence[str]) -> list[Item[TaskRow] | RowError]:
        """Return each row with its task as the source that plays it has it, in order, or why none plays it.

        A row without a domain has its name of `names` as domain.
        """
        found: dict[int, Item[TaskRow] | RowError] = {}
        groups: dict[tuple[str, str, str], list[tuple[int, Item[TaskRow]]]] = {}
        for number, (row, name) in enumerate(zip(rows, names, strict=True)):
            if isinstance(row.item, RowError):
                found[number] = row.item
            else:
                key = row.kind.played_by, row.domain or name, row.item.value.source
                groups.setdefault(key, []).append((number, row.item))
        calls: dict[str, list[tuple[int, Item[TaskRow]]]] = {}
        for (played_by, domain, _), group in groups.items():
            assigned = self._assign_group(played_by, domain, [item for _, item in group])
            if assigned is None:
                calls.setdefault(source_name(domain), []).extend(group)
            else:
                found |= {number: each for (number, _), each in zip(group, assigned, strict=True)}
        for name, group in calls.items():
            matched = self._match_calls(name, [item for _, item in group])
            found |= {number: each for (number, _), each in zip(group, matched, strict=True)}
        return [found[number] for number in range(len(rows))]

    def notes(self) -> list[Item[str]]:
        """Return a note for each source that should play rows, by its looks, and plays none; and notes on questions."""
        return [*(note for name, note in self.misfits.items() if name not in self.used), *self.prompt_notes]

    def _assign_group(
        self, played_by: str, domain: str, items: Sequence[Item[TaskRow]]
    ) -> Sequence[Item[TaskRow] | RowError] | None:
        """Return the rows of a group with their tasks, or None if they must be played by comparing calls."""
        row = items[0].value
        if played_by == "reward":
            return self._score_prompts(domain, items)
        if is_call_matching(row.task.domain):
            return None
        if played_by == "source":
            source, problem = self._named(row)
            if source is None:
                return [RowError(item.location, "domain", problem, "other domain") for item in items]
            return self._use(source, [_play(item, source) for item in items])
        return None if self.data.compare_calls else self._play_if_possible(items)

    def _use(self, source: TaskSource, items: Sequence[Item[TaskRow] | RowError]) -> Sequence[Item[TaskRow] | RowError]:
        if any(isinstance(item, Item) for item in items):
            self.used[source.name] = source
        return items

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

    def _play_if_possible(self, items: Sequence[Item[TaskRow]]) -> Sequence[Item[TaskRow] | RowError] | None:
        """Return the rows as the source that can play most of them has them, or None if none can play enough."""
        named, allowed = items[0].value.task.domain, [source.name for source in self.allowed]
        shipped = [name for name in list_domains() if name not in allowed and named in (name, "")]
        best, problems, most = None, list[RowError | None](), MIN_PLAYABLE_SHARE * len(items)
        misfits = dict[str, Item[str]]()
        for source in (*self.allowed, *map(load_reference, shipped)):
            found = _find_problems(items, source)
            playable = sum(
                error is None and bool(item.value.task.gold_calls) for item, error in zip(items, found, strict=True)
            )
            if playable > most or (playable == most and best is None):
                best, problems, most = source, found, playable
            elif first := _first_misfit(items, found, source, playable > 0 or source.name in allowed):
                some = f"{source.name} can play {playable} of the {len(items)} rows"
                text = f"{some}, so calls are compared; the first that it cannot play: {first}"
                misfits[source.name] = Item(first.location, text)
        if best is None:
            self.misfits |= misfits
            return None
        return self._use(best, [error or _play(item, best) for item, error in zip(items, problems, strict=True)])

    def _match_calls(self, name: str, items: Sequence[Item[TaskRow]]) -> list[Item[TaskRow] | RowError]:
        """Return the tasks of rows that no source can play. They are played by comparing calls."""
        domain = name.removesuffix(CALLS_SUFFIX)
        known = [*list_domains(), *(each.name for each in self.allowed)]
        if close := difflib.get_close_matches(domain, {*known} - {domain}, 1, _SIMILARITY_OF_DOMAINS):
            text = f"calls of {domain!r} are compared; did you mean the domain {close[0]!r}, which runs them?"
            self.prompt_notes.append(Item(items[0].location, text))
        contents = [item.value.content for item in items if isinstance(item.value.content, Mapping)]
        if parts := dict.fromkeys(part for content in contents for part in uncompared_parts(content)):
            text = f"what tau2-bench has besides the agent's calls does not count: {', '.join(parts)}"
            self.prompt_notes.append(Item(items[0].location, text))
        source = match_calls(name, items, require_reads=self.data.require_reads)
        if source.rows:
            self.used[source.name] = source
        refused = {error.location: error for error in source.refused}
        return [
            refused.get(item.location)
            or Item(item.location, TaskRow(source.rows[item.value.task.id].task, item.value.split))
            for item in items
        ]

    def _score_prompts(self, name: str, items: Sequence[Item[TaskRow]]) -> list[Item[TaskRow] | RowError]:
        datasets = list_datasets(self.allowed)
        player = datasets[0] if len(datasets) == 1 else None
        if not (self.data.reward or player):
            problem = "a question needs a reward function; name one: data.reward=module:attribute"
            return [RowError(item.location, "", problem, "no reward") for item in items]
        episode_class = player.episode_class if player else ToolEpisode
        if self.data.reward:
            episode_class = load_episode_class(self.data.reward, episode_class)
        examples: dict[str, ToolExample] = {}
        for item in items:  # the first of repeated rows is the one that is played
            examples.setdefault(item.value.content.task_id(name), item.value.content)
        source = ToolDataset(name, "", tuple(examples.values()), episode_class)
        notes = answer_notes([(item.location, item.value.content) for item in items])
        notes += column_notes([item.value.content.info for item in items])
        if player and issubclass(episode_class, player.episode_class):
            source = replace(source, domain_policy=player.domain_policy, user_factory=player.user_factory)
            self.used.setdefault(player.name, player)
            notes.append(f"the questions of {name} are played with the tools and the system message of {player.name}")
        elif datasets:
            reason = "data.reward names a ToolEpisode" if player else "only one source can play questions"
            unused = ", ".join(each.name for each in datasets)
            notes.append(f"the questions of {name} are played without the tools of {unused}: {reason}")
        self.used[source.name] = source
        self.has_questions = True
        shown = {spec.name for spec in source.tool_specs}
        hidden = [names for item in items if (names := {*listed_tools(item.value.content.info)} - shown)]
        if hidden:
            notes.append(
                f"the tools that {len(hidden)} rows list ({', '.join(sorted(set.union(*hidden)))}) are shown to no "
                "model: tools are those of a ToolEpisode that data.reward names, or of a ToolDataset that domain names"
            )
        self.prompt_notes += [Item(items[0].location, note) for note in notes]
        return [
            Item(item.location, TaskRow(item.value.content.to_task(source.name, "train"), item.value.split))
            for item in items
        ]


def _play(item: Item[TaskRow], source: TaskSource) -> Item[TaskRow] | RowError:
    """Return a row with its task as `source` has it, or why `source` refuses it."""
    row = item.value
    try:
        task = _convert(row, source)
    except (TaskError, ValidationError) as e:
        return RowError(item.location, "gold", " ".join(str(e).split()), "gold refused")
    tools = {spec.name for spec in source.tool_specs}
    unknown = next((call.name for call in task.gold_calls if call.name not in tools), None)
    return Item(item.location, TaskRow(task, row.split)) if unknown is None else _unknown_tool(item, source, unknown)


def _unknown_tool(item: Item[TaskRow], source: TaskSource, name: str) -> RowError:
    known = _suggest_tool(name, tuple(spec.name for spec in source.tool_specs))
    return RowError(item.location, "gold", f"{source.name}: unknown tool {known}", "unknown tool")


@functools.lru_cache(maxsize=1024)
def _suggest_tool(name: str, tools: tuple[str, ...]) -> str:
    return did_you_mean(name, tools)


def _find_problems(items: Sequence[Item[TaskRow]], source: TaskSource) -> list[RowError | None]:
    """Return for each row why `source` cannot play it, or None.

    The names of the tools decide, and for a shipped domain also whether it accepts the gold calls: its tools have names
    that tools of other projects have too.
    """
    known = {_plain_name(spec.name) for spec in source.tool_specs}
    is_shipped = source.name in list_domains()

    def problem(item: Item[TaskRow]) -> RowError | None:
        for name in dict.fromkeys(call.name for call in item.value.task.gold_calls):
            if _plain_name(name) not in known and not (isinstance(source, SequenceSource) and source.has_tool(name)):
                return _unknown_tool(item, source, name)
        return _run_gold(item, source) if isinstance(source, StatefulSource) and is_shipped else None

    return [problem(item) for item in items]


def _run_gold(item: Item[TaskRow], domain: StatefulSource) -> RowError | None:
    played = _play(item, domain)
    if isinstance(played, RowError):
        return played
    try:
        domain.gold_changes(played.value.task)
    except TaskError as e:
        return RowError(item.location, "gold", f"{domain.name}: {e}", "gold refused")
    return None


def _first_misfit(
    items: Sequence[Item[TaskRow]], problems: Sequence[RowError | None], source: TaskSource, is_expected: bool
) -> RowError | None:
    """Return the first row that `source` cannot play, or None if the rows do not look as if it should play them.

    They look so if it has the tools of enough of them, apart from typos in their names, and if `is_expected`: the user
    names it, or it can play one of them.
    """
    tools = tuple({_plain_name(spec.name) for spec in source.tool_specs})

    def looks_playable(item: Item[TaskRow]) -> bool:
        names = {_plain_name(call.name) for call in item.value.task.gold_calls}
        return bool(names) and all(_is_nearly_known(name, tools) for name in names)

    errors = [(item, error) for item, error in zip(items, problems, strict=True) if error]
    near = [error for item, error in errors if looks_playable(item)]
    if not (is_expected or len(near) >= MIN_PLAYABLE_SHARE * len(items)):
        return None
    return next(iter(near), errors[0][1] if errors else None)


@functools.lru_cache(maxsize=1024)
def _is_nearly_known(name: str, tools: tuple[str, ...]) -> bool:
    return name in tools or bool(difflib.get_close_matches(name, tools, n=1, cutoff=_SIMILARITY_OF_TYPOS))


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


@functools.cache
def _plain_name(tool: str) -> str:
    """Return the name of a tool without the marks between server and tool, which differ between files."""
    return re.sub(r"[^A-Za-z0-9]+", "_", tool)


def load_episode_class(reference: str, base: type[ToolEpisode] = ToolEpisode) -> type[ToolEpisode]:
    """Return the class that `data.reward` names, or a class derived from `base` with the function that it names.

    Raise ConfigError if it names neither.
    """
    if reference.count(":") > 1:
        raise ConfigError(
            f"data.reward = {reference!r} names several functions; name one, which may call others, as in "
            "`def reward(transcript, example): return 0.5 * first(transcript, example) + 0.5 * second(…)`"
        )
    found = import_object(reference)
    if isinstance(found, type) and issubclass(found, ToolEpisode):
        return found
    if is_trl_class(found):
        return episode_of_trl(found)
    if isinstance(found, type) or not callable(found):
        raise ConfigError(
            f"data.reward = {reference!r} is of the type {type(found).__name__}; name a function "
            "reward(transcript, example), a subclass of ToolEpisode, or a class with reset and get_reward"
        )
    _validate_signature(reference, found)
    reward: Callable[[Sequence[Message], ToolExample], float] = found

    @functools.wraps(reward)
    def score(self: ToolEpisode, transcript: Sequence[Message]) -> float:
        with user_code("grader", "the reward function", reward):
            return reward(transcript, self.example)

    return type("ScoredEpisode", (base,), {"reward": score})


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
