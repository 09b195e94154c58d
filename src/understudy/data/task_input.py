"""Streams of tasks from files or from a domain's frozen tasks. They can be read repeatedly."""

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from understudy.core.errors import ConfigError
from understudy.core.items import Item, RowError
from understudy.core.records import Record
from understudy.core.settings import parse_toml, with_full_key
from understudy.core.tasks import SPLITS, Split, Task
from understudy.envs.task_source import TaskSource
from understudy.runs.targets import find_target
from understudy.sources.loading import load_source
from understudy.sources.task_files.config import NO_DATA, RowConfig
from understudy.sources.task_files.files import RowFile, is_task_file, list_row_files
from understudy.sources.task_files.opening import ReadFiles, name_files, read_files
from understudy.sources.task_files.rows import SKYRL_ROWS, UNREADABLE, find_kind, is_whole_task, read_task_rows
from understudy.sources.task_files.task_row import TaskRow

InputForm = Literal["tasks", "skyrl", "questions", "other"]

_FORMS: Mapping[str, InputForm] = {"source": "tasks", "reward": "questions"}


@dataclass(frozen=True)
class TaskInput:
    """A source of tasks: files or a domain."""

    name: str
    files: tuple[RowFile, ...] = ()
    domain: TaskSource | None = None
    data: RowConfig = NO_DATA
    """`sources` that the rows of the files may name, and the `reward` of questions."""
    beside: Sequence[TaskSource] = ()
    """Further sources that the rows of the files may name."""
    split: Split | None = None
    """If set, only tasks of this split."""

    def items(self) -> Iterator[Item[Task] | RowError]:
        """Yield all tasks from the beginning.

        Rows that hold whole tasks are streamed. Other rows are read together, because it depends on all of them which
        source plays them.
        """
        for item in self._items():
            if self.split is None or isinstance(item, RowError) or item.value.split == self.split:
                yield item

    def detect_form(self) -> InputForm:
        """Return the kind of the first readable row. Raise ConfigError if only a part of the rows are questions."""
        if self._read and "prompts" in self._read.kinds and len(self._read.kinds.keys() - {UNREADABLE.name}) > 1:
            raise ConfigError(
                f"{self.name} has questions and other rows ({', '.join(self._read.kinds)}); put them into two files"
            )
        rows = (item.value for file in self.files for item in file.rows() if isinstance(item, Item))
        kind = find_kind(next(rows, {"scenario": {}, "gold": ()}))
        if kind is SKYRL_ROWS:
            return "skyrl"
        return _FORMS.get(kind.played_by, "other")

    @property
    def has_several_splits(self) -> bool:
        """Whether the tasks are in more than one split."""
        return len({item.value.split for item in self.items() if isinstance(item, Item)}) > 1

    @property
    def sources(self) -> Sequence[TaskSource]:
        """The sources of tasks that are not streamed."""
        return self._read.sources if self._read else ()

    def _items(self) -> Iterator[Item[Task] | RowError]:
        if self.domain is not None:
            for split in SPLITS if self.split is None else (self.split,):
                yield from (Item(task.id, task) for task in self.domain.tasks(split))
        elif self._read:
            yield from self._read.items
        else:
            rows = (row.item for file in self.files for row in read_task_rows(file.rows(), file.name))
            yield from (row if isinstance(row, RowError) else _own_task(row) for row in rows)

    @functools.cached_property
    def _read(self) -> ReadFiles | None:
        """The tasks, if they have to be read together; else None."""
        values = (item.value for file in self.files for item in file.rows() if isinstance(item, Item))
        if all(map(is_whole_task, values)):
            return None
        return read_files(name_files([self.name]), [(None, file) for file in self.files], self.data, self.beside)


def open_task_input(
    dataset: str, data: RowConfig = NO_DATA, split: Split | None = None, beside: Sequence[TaskSource] = ()
) -> TaskInput:
    """Open the tasks of a domain, of a file, of a folder's files or of a data set.

    Rows of files may also name `data.sources` and the sources `beside`. `data.reward` scores questions. Raise
    ConfigError for any other `dataset`.
    """
    target = find_target(dataset, ("domain", "tasks"))
    if target.kind == "domain" and not is_task_file(target.text):
        return TaskInput(target.text, domain=load_source(target.text), split=split)
    return TaskInput(dataset, tuple(list_row_files(target.text)), data=data, beside=beside, split=split)


class _Settings(Record):
    """The settings of a command that reads tasks."""

    data: RowConfig = RowConfig()


def parse_row_config(settings: Sequence[str]) -> RowConfig:
    """Parse settings `data.sources=…` and `data.reward=…`. Raise ConfigError for other ones."""
    return parse_toml(_Settings, "", [with_full_key(_Settings, each) for each in settings]).data


def _own_task(row: Item[TaskRow]) -> Item[Task]:
    return Item(row.location, row.value.task)
