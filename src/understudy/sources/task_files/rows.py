"""Kinds of rows in files of tasks, and the reader of each. The kind is found for each row.

A new kind needs an entry in `ROW_KINDS`: a function that recognises a row, and one that returns its `TaskRow` or raises
`InvalidField`. A row has the first kind that it matches.

    tasks           understudy's own tasks, as `understudy data synthesize` writes them
    SkyRL rows      tasks as rows for SkyRL, as `understudy data convert` writes them
    episodes        stored episodes with their tasks, as tau-bench writes them
    conversations   recorded conversations: the request is the prompt, the calls are gold
    tau tasks       tasks of tau-bench and its descendants: an instruction, actions and outputs
    tau2 tasks      tasks of tau2-bench: a user scenario and evaluation criteria
    call rows       an instruction, actions and outputs in other shapes, such as the rows of other trainers
    sequences       sequences of calls on MCP servers, as rows for SkyRL's MCP environment
    specs           dependent specs: scenarios whose tasks are sequences of calls
    prompts         questions with or without answers, which a reward function scores
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from understudy.core.items import InvalidField, Item, RowError, describe_row
from understudy.core.tasks import Task, require_stored_fields
from understudy.sources.task_files.call_matching import is_call_matching
from understudy.sources.task_files.call_rows import is_call_row, read_call_row
from understudy.sources.task_files.call_sequences import (
    CallSequence,
    is_sequence_row,
    is_spec_row,
    read_sequences,
)
from understudy.sources.task_files.conversation_rows import is_conversation_row, read_conversation_row
from understudy.sources.task_files.episode_rows import is_episode_row, read_episode_row
from understudy.sources.task_files.prompt_rows import QUESTION_COLUMNS, is_prompt_row, read_prompt_row, rename_hint
from understudy.sources.task_files.skyrl_rows import is_skyrl_row, read_skyrl_row
from understudy.sources.task_files.task_row import TaskRow, prompt_notes, read_one
from understudy.sources.task_files.tau_rows import is_tau_row, read_tau2_row, read_tau_row
from understudy.sources.task_files.wrapped_rows import unwrap_row
from understudy.sources.tool_dataset import ToolExample

PlayedBy = Literal["source", "calls", "reward"]
"""Who plays the tasks of a kind.

source    the task source of the task's `domain`
calls     the source whose tools the gold calls use; if there is none, calls are compared with the gold calls
reward    no source: a reward function scores the episode (`data.reward`)
"""


Reader = Callable[[Item[Mapping[str, Any]], str], Iterator[Item[TaskRow] | RowError]]
"""Yields the tasks of a row, or what is wrong with it. The second argument is the id of a task without one."""


def _one(read: Callable[[Mapping[str, Any], str], TaskRow]) -> Reader:
    """Return the reader of rows with one task each, which `read` returns."""
    return lambda item, identity: iter([read_one(item.location, lambda: read(item.value, identity))])


@dataclass(frozen=True, slots=True)
class RowKind:
    """A kind of rows."""

    name: str
    """A plural, for counts."""
    keys: str
    """Keys of its rows, for errors."""
    matches: Callable[[Mapping[str, Any]], bool]
    read: Reader
    played_by: PlayedBy = "source"
    is_conversation: bool = False
    """Whether its rows are training conversations too, which `understudy data convert` takes them for."""


@dataclass(frozen=True, slots=True)
class ReadRow:
    """A row with its kind, and its task or what is wrong with it."""

    kind: RowKind
    item: Item[TaskRow] | RowError

    @property
    def given_id(self) -> str:
        """The id of the task; empty if it has none, or is a stored task, whose id never changes."""
        if isinstance(self.item, RowError) or self.kind in (OWN_TASKS, SKYRL_ROWS):
            return ""
        content = self.item.value.content
        return content.id if isinstance(content, ToolExample) else self.item.value.task.id

    @property
    def domain(self) -> str:
        """The domain that the row names; empty if it names none, or cannot be read."""
        return "" if isinstance(self.item, RowError) or self.kind is PROMPTS else self.item.value.task.domain

    def with_id(self, name: str) -> "ReadRow":
        """Return a row that has a `given_id` with another id."""
        assert isinstance(self.item, Item)
        row = self.item.value
        if isinstance(row.content, CallSequence):
            renamed = row.content.replace(id=name).to_task_row()  # its made-up results depend on the id
        else:
            content = row.content.replace(id=name) if isinstance(row.content, ToolExample) else row.content
            renamed = replace(row, task=row.task.replace(id=name), content=content)
        return replace(self, item=Item(self.item.location, renamed))

    def repeats(self, other: "ReadRow") -> bool:
        """Return whether two rows differ at most in their split. Both must have a `given_id`."""
        return _without_split(self) == _without_split(other)


def _without_split(row: ReadRow) -> TaskRow | ToolExample:
    """Return what a row has besides its split. The task of an example has an id and a split of its file."""
    assert isinstance(row.item, Item)
    found = row.item.value
    content = found.content
    if isinstance(content, ToolExample):
        info = {column: value for column, value in content.info.items() if column != "split"}
        return content.replace(split=None, info=info)
    if isinstance(content, CallSequence):
        content = content.replace(split=None)
    return replace(found, task=found.task.replace(split="train"), split=None, content=content)


def read_task_rows(items: Iterator[Item[Any] | RowError], stem: str) -> Iterator[ReadRow]:
    """Yield the tasks of a file's rows. Tasks without an id are named by `stem` and the number of their row."""
    for number, item in enumerate(items):
        if isinstance(item, RowError):
            yield ReadRow(UNREADABLE, item)
            continue
        kind = find_kind(item.value)
        row = Item(item.location, unwrap_row(item.value)) if kind is PROMPTS else _without_null_columns(item)
        yield from (ReadRow(kind, found) for found in kind.read(row, f"{stem}/{number}"))


def find_kind(value: Any) -> RowKind:
    """Return the kind of a row. One with a key of tasks or questions has that kind, whose reader says what it lacks."""
    found = match_kind(value)
    if found is None and isinstance(value, dict) and value.keys() & {*QUESTION_COLUMNS}:
        return PROMPTS  # the question is null
    return found or (OWN_TASKS if _columns(value).keys() & _KEYS_OF_TASKS else UNKNOWN)


def match_kind(value: Any) -> RowKind | None:
    """Return the kind of a row, or None if it has none."""
    columns = _columns(value)
    return next((kind for kind in ROW_KINDS if kind.matches(columns)), None)


def without_trials(rows: Iterable[ReadRow], earlier: Iterable[ReadRow]) -> list[ReadRow]:
    """Return the rows without episodes of tasks that an earlier row has an episode of."""
    kept, known = list[ReadRow](), {_trial_key(row) for row in earlier}
    for row in rows:
        key = _trial_key(row)
        if key and key in known:
            continue
        known.add(key)
        kept.append(row)
    return kept


def _trial_key(row: ReadRow) -> str:
    """Return a text that is the same for all episodes of one task; empty for rows that are no episodes."""
    if row.kind is not EPISODES or isinstance(row.item, RowError):
        return ""
    return row.item.value.task.model_dump_json(exclude={"id"})


def _columns(value: Any) -> dict[str, Any]:
    value = unwrap_row(value)
    return {name: each for name, each in value.items() if each is not None} if isinstance(value, dict) else {}


def is_whole_task(value: Any) -> bool:
    """Return whether a row says by itself which source plays it. For others this depends on all rows of the file."""
    if find_kind(value).played_by != "source":
        return False
    if not isinstance(value, dict):
        return True
    labels = value.get("extra_info")
    domain = labels.get("domain") if isinstance(labels, dict) else value.get("domain")
    return not (isinstance(domain, str) and is_call_matching(domain))


def _without_null_columns(item: Item[Any]) -> Item[Any]:
    """Return the row without columns that are null, which tables give to rows that lack a value.

    Rows of questions keep them: a reward function reads the same columns of each row.
    """
    columns = _columns(item.value)
    return Item(item.location, columns) if columns or isinstance(item.value, dict) else item


def _read_own(row: Mapping[str, Any], identity: str) -> TaskRow:
    task = require_stored_fields(Task.model_validate(row))
    return TaskRow(task, task.split)


def _read_sequences(item: Item[Mapping[str, Any]], identity: str) -> Iterator[Item[TaskRow] | RowError]:
    for found in read_sequences(item, identity):
        try:
            if isinstance(found, RowError):
                yield found
            else:
                notes = prompt_notes(item.value.get("prompt"))
                yield Item(found.location, replace(found.value.to_task_row(), notes=notes))
        except ValueError as e:  # a recorded result lacks a field that a later call refers to
            yield RowError(found.location, "tool_sequence", str(e))


def _read_unknown(row: Any, identity: str) -> TaskRow:
    if isinstance(row, dict) and "mcpServers" in row:
        raise InvalidField("mcpServers", "MCP servers are named in a TOML file, which `understudy new mcp NAME` writes")
    known = " | ".join(kind.keys for kind in ROW_KINDS)
    if isinstance(row, list):
        raise InvalidField(
            "", f"a line holds a {describe_row(row)}; a JSON list of rows needs the suffix .json: rename the file"
        )
    if renamed := rename_hint(row):
        raise InvalidField("", f"{renamed}: the shape {describe_row(row)} is unknown")
    raise InvalidField("", f"unknown shape {describe_row(row)}; shapes of tasks: {known}; see docs/data.md")


_KEYS_OF_TASKS = frozenset({"domain", "scenario", "gold"})
OWN_TASKS = RowKind(
    "tasks", "{id, domain, scenario, gold}", lambda row: "scenario" in row and "gold" in row, _one(_read_own)
)
SKYRL_ROWS = RowKind("SkyRL rows", "{prompt, reward_spec}", is_skyrl_row, _one(read_skyrl_row))
PROMPTS = RowKind(
    "prompts",
    "{question, answer} | {prompt, answer} | {prompt, reward_model}",
    is_prompt_row,
    _one(read_prompt_row),
    "reward",
    is_conversation=True,
)
EPISODES = RowKind(
    "episodes", "{reward, info: {task}}", is_episode_row, _one(read_episode_row), "calls", is_conversation=True
)
CONVERSATIONS = RowKind(
    "conversations", "{messages}", is_conversation_row, _one(read_conversation_row), "calls", is_conversation=True
)
TASKS_OF_SPECS = RowKind("tasks of specs", "{scenario, tasks}", is_spec_row, _read_sequences, "calls")
SEQUENCES = RowKind("sequences", "{prompt, tool_sequence}", is_sequence_row, _read_sequences, "calls")
UNKNOWN = RowKind("unknown rows", "", lambda row: False, _one(_read_unknown))
UNREADABLE = RowKind("unreadable rows", "", lambda row: False, _one(_read_unknown))
ROW_KINDS: tuple[RowKind, ...] = (
    OWN_TASKS,
    SKYRL_ROWS,
    EPISODES,
    CONVERSATIONS,
    TASKS_OF_SPECS,
    SEQUENCES,
    RowKind("tau tasks", "{instruction, actions}", is_tau_row, _one(read_tau_row), "calls"),
    RowKind(
        "tau2 tasks", "{evaluation_criteria}", lambda row: "evaluation_criteria" in row, _one(read_tau2_row), "calls"
    ),
    RowKind("call rows", "{prompt, actions}", is_call_row, _one(read_call_row), "calls"),
    PROMPTS,
)
