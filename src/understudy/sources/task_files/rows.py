"""Kinds of rows in files of tasks, and the reader of each. The kind is found for each row.

A new kind needs an entry in `ROW_KINDS` and a reader, which returns `TaskRow`s or says what the row lacks. A row has
the first kind that it matches.

    tasks           understudy's own tasks, as `understudy data synthesize` writes them
    SkyRL rows      tasks as rows for SkyRL, as `understudy data convert` writes them
    tau tasks       tasks of tau-bench and its descendants: an instruction, actions and outputs
    tau2 tasks      tasks of tau2-bench: a user scenario and evaluation criteria
    call rows       an instruction, actions and outputs in other shapes, such as the rows of other trainers
    sequences       sequences of calls on MCP servers, as rows for SkyRL's MCP environment
    specs           dependent specs: scenarios whose tasks are sequences of calls
    prompts         questions with or without answers, which a reward function scores
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from pydantic import ValidationError

from understudy.core.items import Item, RowError, describe_row, row_error_from_validation
from understudy.core.tasks import Split, Task, require_stored_fields
from understudy.sources.task_files.call_matching import CallTask, is_call_matching
from understudy.sources.task_files.call_rows import ROW_COLUMNS, is_call_row, read_call_row
from understudy.sources.task_files.call_sequences import (
    CallSequence,
    is_sequence_row,
    is_spec_row,
    read_sequence_row,
    read_spec_row,
)
from understudy.sources.task_files.prompt_rows import is_prompt_row, to_tool_example
from understudy.sources.task_files.skyrl_rows import SkyRLRow, from_skyrl_row, is_skyrl_row
from understudy.sources.task_files.tau_rows import TauTask, from_tau2_task, from_tau_task
from understudy.sources.tool_dataset import ToolExample

PlayedBy = Literal["source", "calls", "reward"]
"""Who plays the tasks of a kind.

source    the task source of the task's `domain`
calls     the source whose tools the gold calls use; if there is none, calls are compared with the gold calls
reward    no source: a reward function scores the episode (`data.reward`)
"""


@dataclass(frozen=True, slots=True)
class TaskRow:
    """A task that was read from a row."""

    task: Task
    split: Split | None = None
    """The split that the row names; None if it names none."""
    source: str = ""
    """The reference of the source that plays the task, if the row has one. A reference is never opened: the source of
    the task's `domain` plays it, if the user allows that source."""
    content: Any = None
    """What the row has besides the task: a `CallTask`, a `CallSequence`, a `ToolExample` or a row of tau2-bench."""


Reader = Callable[[Item[Mapping[str, Any]], str], Iterator[Item[TaskRow] | RowError]]
"""Yields the tasks of a row (most kinds have one). The second argument is the id of a task without one."""


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

    def with_id(self, name: str) -> "ReadRow":
        """Return a row that has a `given_id` with another id."""
        assert isinstance(self.item, Item)
        row = self.item.value
        content = row.content
        if isinstance(content, CallTask):
            content = content.replace(task=content.task.replace(id=name))
        elif isinstance(content, CallSequence | ToolExample):
            content = content.replace(id=name)
        row = replace(row, task=row.task.replace(id=name), content=content)
        return replace(self, item=Item(self.item.location, row))

    def repeats(self, other: "ReadRow") -> bool:
        """Return whether two rows differ at most in their split. Both must have a `given_id`."""
        return _without_split(self) == _without_split(other)


def _without_split(row: ReadRow) -> tuple[Any, ...]:
    """Return what a row has besides its split."""
    assert isinstance(row.item, Item)
    task, content = row.item.value.task.replace(split="train"), row.item.value.content
    if isinstance(content, ToolExample):
        # Its task has an id and a split of the file.
        info = {column: value for column, value in content.info.items() if column != "split"}
        return (content.replace(split=None, info=info),)
    if isinstance(content, CallTask):
        return task, content.replace(has_split=False, task=content.task.replace(split="train"))
    return task, content.replace(split=None) if isinstance(content, CallSequence) else content


def read_task_rows(items: Iterator[Item[Any] | RowError], stem: str) -> Iterator[ReadRow]:
    """Yield the tasks of a file's rows. Tasks without an id are named by `stem` and the number of their row."""
    for number, item in enumerate(items):
        if isinstance(item, RowError):
            yield ReadRow(UNREADABLE, item)
            continue
        kind, row = find_kind(item.value), _without_null_columns(item)
        yield from (ReadRow(kind, found) for found in _read(kind, row, f"{stem}/{number}"))


def find_kind(value: Any) -> RowKind:
    """Return the kind of a row. One with a key of tasks is read as a task, whose reader says what it lacks."""
    return match_kind(value) or (OWN_TASKS if _columns(value).keys() & _KEYS_OF_TASKS else UNKNOWN)


def match_kind(value: Any) -> RowKind | None:
    """Return the kind of a row, or None if it has none."""
    columns = _columns(value)
    return next((kind for kind in ROW_KINDS if kind.matches(columns)), None)


def _columns(value: Any) -> dict[str, Any]:
    return {name: each for name, each in value.items() if each is not None} if isinstance(value, dict) else {}


def is_whole_task(value: Any) -> bool:
    """Return whether a row says by itself which source plays it. For others this depends on all rows of the file."""
    if find_kind(value).played_by != "source" or not isinstance(value, dict):
        return not isinstance(value, dict)
    labels = value.get("extra_info")
    domain = labels.get("domain") if isinstance(labels, dict) else value.get("domain")
    return not (isinstance(domain, str) and is_call_matching(domain))


def _without_null_columns(item: Item[Any]) -> Item[Any]:
    """Return the row without columns that are null, which tables give to rows that lack a value."""
    return Item(item.location, _columns(item.value)) if isinstance(item.value, dict) else item


def _read(kind: RowKind, item: Item[Any], identity: str) -> Iterator[Item[TaskRow] | RowError]:
    try:
        yield from kind.read(item, identity)
    except ValidationError as e:
        yield row_error_from_validation(item.location, e)


def _read_own(item: Item[Mapping[str, Any]], identity: str) -> Iterator[Item[TaskRow] | RowError]:
    task = require_stored_fields(Task.model_validate(item.value))
    yield Item(item.location, TaskRow(task, task.split))


def _read_unknown(item: Item[Any], identity: str) -> Iterator[Item[TaskRow] | RowError]:
    known = " | ".join(kind.keys for kind in ROW_KINDS)
    yield RowError(item.location, "", f"unknown shape {describe_row(item.value)}; shapes of tasks: {known}")


def _read_skyrl(item: Item[Mapping[str, Any]], identity: str) -> Iterator[Item[TaskRow] | RowError]:
    row = SkyRLRow.model_validate(item.value)
    found = from_skyrl_row(Item(item.location, row))
    if isinstance(found, RowError):
        yield found
        return
    task, source = found.value, row.extra_info.source
    calls = CallTask(task=task, has_split=True, domain_policy=row.domain_policy)
    content = calls if is_call_matching(task.domain) else None
    yield Item(item.location, TaskRow(task, task.split, source if source != task.domain else "", content))


def _read_tau(item: Item[Mapping[str, Any]], identity: str) -> Iterator[Item[TaskRow] | RowError]:
    row = TauTask.model_validate(item.value)
    task = from_tau_task(row, f"{row.domain}/{identity}".lstrip("/"), row.domain)
    yield Item(item.location, TaskRow(task))


def _read_tau2(item: Item[Mapping[str, Any]], identity: str) -> Iterator[Item[TaskRow] | RowError]:
    yield Item(item.location, TaskRow(from_tau2_task(item.value, identity), content=item.value))


def _read_calls(item: Item[Mapping[str, Any]], identity: str) -> Iterator[Item[TaskRow] | RowError]:
    for found in read_call_row(item, identity):
        if isinstance(found, RowError):
            yield found
            continue
        row = found.value
        yield Item(found.location, TaskRow(row.task, row.task.split if row.has_split else None, content=row))


def _read_sequence(item: Item[Mapping[str, Any]], identity: str) -> Iterator[Item[TaskRow] | RowError]:
    return _sequence_rows(read_sequence_row(item, identity))


def _read_spec(item: Item[Mapping[str, Any]], identity: str) -> Iterator[Item[TaskRow] | RowError]:
    return _sequence_rows(read_spec_row(item, identity))


def _sequence_rows(items: Iterator[Item[CallSequence] | RowError]) -> Iterator[Item[TaskRow] | RowError]:
    for found in items:
        if isinstance(found, RowError):
            yield found
            continue
        try:
            task = found.value.to_call_task().task
        except ValueError as e:
            yield RowError(found.location, "tool_sequence", str(e))
            continue
        yield Item(found.location, TaskRow(task, found.value.split, content=found.value))


def _read_prompt(item: Item[Mapping[str, Any]], identity: str) -> Iterator[Item[TaskRow] | RowError]:
    found = to_tool_example(item)
    if isinstance(found, RowError):
        yield found
        return
    example, domain = found.value, identity.partition("/")[0]
    task = example.to_task(domain, example.split or "train")
    yield Item(item.location, TaskRow(task, example.split, content=example))


def _is_tau_task(row: Mapping[str, Any]) -> bool:
    """Return whether a row has the form of tau-bench: no columns of other trainers, and no results of its actions."""
    actions = row.get("actions", ())
    listed = actions if isinstance(actions, list | tuple) else ()
    recorded = any(isinstance(action, dict) and "result" in action for action in listed)
    return "instruction" in row and not row.keys() & ROW_COLUMNS and not recorded


_KEYS_OF_TASKS = frozenset({"domain", "scenario", "gold"})
OWN_TASKS = RowKind("tasks", "{id, domain, scenario, gold}", lambda row: "scenario" in row and "gold" in row, _read_own)
SKYRL_ROWS = RowKind("SkyRL rows", "{prompt, reward_spec}", is_skyrl_row, _read_skyrl)
SPECS = RowKind("tasks of specs", "{scenario, tasks}", is_spec_row, _read_spec, "calls")
SEQUENCES = RowKind("sequences", "{prompt, tool_sequence}", is_sequence_row, _read_sequence, "calls")
TAU_TASKS = RowKind("tau tasks", "{instruction, actions}", _is_tau_task, _read_tau, "calls")
TAU2_TASKS = RowKind(
    "tau2 tasks", "{evaluation_criteria}", lambda row: "evaluation_criteria" in row, _read_tau2, "calls"
)
CALL_ROWS = RowKind("call rows", "{prompt, actions}", is_call_row, _read_calls, "calls")
PROMPTS = RowKind(
    "prompts", "{question, answer} | {prompt, answer} | {prompt, reward_model}", is_prompt_row, _read_prompt, "reward"
)
UNKNOWN = RowKind("unknown rows", "", lambda row: False, _read_unknown)
UNREADABLE = RowKind("unreadable rows", "", lambda row: False, _read_unknown)
ROW_KINDS: tuple[RowKind, ...] = (
    OWN_TASKS,
    SKYRL_ROWS,
    SPECS,
    SEQUENCES,
    TAU_TASKS,
    TAU2_TASKS,
    CALL_ROWS,
    PROMPTS,
)
