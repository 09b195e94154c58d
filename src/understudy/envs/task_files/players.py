"""Find the task source that plays each row of files of tasks.

A row never chooses code, files or hosts. Its tasks are played by a shipped domain, by a source that the user names
(`domain`, `data.sources`), by the reward function of `data.reward`, or by comparing calls.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from understudy.core.errors import ConfigError
from understudy.core.imports import import_object
from understudy.core.items import Item, RowError, RowErrorKind
from understudy.core.messages import Message
from understudy.core.tasks import Task
from understudy.envs.domains.tool_dataset import ToolDataset, ToolEpisode, ToolExample
from understudy.envs.sources import list_domains, load_source
from understudy.envs.task_files.config import DataConfig
from understudy.envs.task_files.rows import ReadRow, TaskRow
from understudy.envs.task_source import RowSource, TaskSource

MIN_TOOL_SHARE = 0.5
"""A source plays tau tasks if it has at least this share of the tools that their gold calls use."""


@dataclass
class Players:
    """The sources that may play rows."""

    allowed: Sequence[TaskSource]
    """The sources that the user names."""
    data: DataConfig
    name: str
    """The name of the source of prompts."""
    used: dict[str, TaskSource] = field(default_factory=dict)
    """The sources that play at least one row, by name."""

    def assign(self, rows: Sequence[ReadRow]) -> Iterator[Item[TaskRow] | RowError]:
        """Yield each row with its task as the source that plays it has it, in order, or why none plays it."""
        groups: dict[tuple[str, str, str], list[Item[TaskRow]]] = {}
        for row in rows:
            if isinstance(row.item, Item):
                groups.setdefault(_group_key(row, row.item.value), []).append(row.item)
        found = {key: self._find(key[0], [item.value for item in items]) for key, items in groups.items()}
        for row in rows:
            if isinstance(row.item, RowError):
                yield row.item
                continue
            source = found[_group_key(row, row.item.value)]
            yield RowError(row.item.location, *source) if isinstance(source, tuple) else self._convert(row.item, source)

    def _find(self, played_by: str, rows: Sequence[TaskRow]) -> TaskSource | tuple[str, str, RowErrorKind]:
        """Return the source of a group of rows, or the field, problem and kind of an error."""
        if played_by == "reward":
            return self._prompts(rows)
        if played_by == "calls":
            return self._with_tools(rows) or self._calls(rows)
        domain, reference = rows[0].task.domain, rows[0].source
        known = {source.name: source for source in self.allowed}
        if domain in known:
            return known[domain]
        if domain in list_domains() and not reference:
            return load_source(domain)
        named = reference or "module:attribute, mcp:FILE or a benchmark"
        problem = f"{domain!r} is not a shipped domain; to play it, name its source: data.sources={named}"
        return ("domain", problem, "other domain")

    def _with_tools(self, rows: Sequence[TaskRow]) -> TaskSource | None:
        """Return the source that has most of the tools of the gold calls, or None if none has enough of them."""
        named = rows[0].task.domain
        domains = [name for name in list_domains() if name == named or not named]
        tools = Counter(call.name for row in rows for call in row.task.gold_calls)
        best, best_share = None, MIN_TOOL_SHARE
        for source in (*self.allowed, *map(load_source, domains)):
            known = {spec.name for spec in source.tool_specs}
            share = sum(name in known for name in tools) / max(1, len(tools))
            if share > best_share or (share == best_share and best is None):
                best, best_share = source, share
        return best

    def _calls(self, rows: Sequence[TaskRow]) -> tuple[str, str, RowErrorKind]:
        named = rows[0].task.domain or "no domain"
        return ("domain", f"no source has the tools of its actions ({named}); name one: data.sources=…", "other domain")

    def _prompts(self, rows: Sequence[TaskRow]) -> TaskSource | tuple[str, str, RowErrorKind]:
        if not self.data.reward:
            problem = "a question needs a reward function; name one: data.reward=module:attribute"
            return ("", problem, "other domain")
        examples = {row.content.task_id(self.name): row.content for row in rows}
        return ToolDataset(self.name, "", tuple(examples.values()), load_episode_class(self.data.reward))

    def _convert(self, item: Item[TaskRow], source: TaskSource) -> Item[TaskRow] | RowError:
        row = item.value
        if isinstance(row.content, ToolExample):
            task = row.content.to_task(source.name, row.split or "train")
        elif row.content is not None and isinstance(source, RowSource):
            task = source.to_task(row.task.id, row.split or "train", row.content.model_dump())
        else:
            task = row.task.replace(domain=source.name)
        tools = {spec.name for spec in source.tool_specs}
        for name in (call.name for call in task.gold_calls if call.name not in tools):
            return RowError(item.location, "gold", f"{source.name} has no tool {name!r}", "unknown tool")
        self.used[source.name] = source
        return Item(item.location, TaskRow(task, row.split))


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
    reward: Callable[[Sequence[Message], ToolExample], float] = found

    class ScoredEpisode(ToolEpisode):
        def reward(self, transcript: Sequence[Message]) -> float:
            return reward(transcript, self.example)

    return ScoredEpisode


def _group_key(row: ReadRow, task_row: TaskRow) -> tuple[str, str, str]:
    domain = "" if row.kind.played_by == "reward" else task_row.task.domain
    return row.kind.played_by, domain, task_row.source


def count_players(tasks: Sequence[Task]) -> Mapping[str, int]:
    """Return the number of tasks by the source that plays them."""
    return Counter(task.domain for task in tasks)
