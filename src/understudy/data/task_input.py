"""Streams of tasks from files or from a domain's frozen tasks. They can be read repeatedly."""

import functools
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from understudy.core.errors import ConfigError
from understudy.core.items import Item, RowError
from understudy.core.tasks import SPLITS, Split, Task
from understudy.envs.task_source import TaskSource, list_sources, validate_names
from understudy.runs.targets import find_target
from understudy.sources.loading import load_source
from understudy.sources.references import SOURCE_MODULES, list_domains
from understudy.sources.task_files.call_matching import CallMatching, is_call_matching
from understudy.sources.task_files.config import NO_DATA, RowConfig
from understudy.sources.task_files.files import RowFile, is_task_file, list_row_files
from understudy.sources.task_files.opening import InputFile, ReadFiles, name_files, read_files
from understudy.sources.task_files.rows import (
    SEQUENCES,
    SKYRL_ROWS,
    TASKS_OF_SPECS,
    UNREADABLE,
    find_kind,
    is_whole_task,
    read_task_rows,
)
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
    """The `reward` of questions. Its sources are opened (`named`)."""
    named: Mapping[str, TaskSource] = field(default_factory=dict)
    """The sources that the rows of the files may name, by the reference that `load_source` accepts."""
    split: Split | None = None
    """If set, only tasks of this split."""
    domains: tuple[str, ...] = ()
    """If set, only tasks of these domains, as rows or the sources that play them are named."""

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
        kinds = self._read.count_kinds() if self._read else {}
        if "prompts" in kinds and len(kinds.keys() - {UNREADABLE.name}) > 1:
            raise ConfigError(f"{self.name} has questions and other rows ({', '.join(kinds)}); put them into two files")
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
    def num_policies(self) -> int:
        """Number of tasks with a domain policy of their own, which rows hold and tasks do not."""
        sources = self._read.sources if self._read else ()
        rows = (row for each in sources if isinstance(each, CallMatching) for row in each.rows.values())
        return sum(bool(row.domain_policy) for row in rows)

    def warnings(self) -> list[str]:
        """Return the number of tasks that need a value which nothing shows, of each source that compares calls."""
        sources = self._read.sources if self._read else ()
        return [note for each in sources if isinstance(each, CallMatching) and (note := each.unshown_note())]

    def sources(self) -> dict[str, TaskSource]:
        """Return the sources that play the tasks, by name. Shipped domains that rows name are left out."""
        opened = [self.domain] if self.domain is not None else list(self.named.values())
        return {source.name: source for source in (*opened, *(self._read.sources if self._read else ()))}

    def references(self, path: Path) -> dict[str, str]:
        """Return the references that rows in the file or folder `path` give to sources, by the sources' names.

        They have absolute paths. A shipped domain has none: its name is its reference. Tasks that are played by
        comparing calls name `path`, because their source is made of them.
        """
        opened = {self.name: self.domain} if self.domain is not None else self.named
        references = {source.name: absolute_reference(reference) for reference, source in opened.items()}
        return references | {name: str(path.absolute()) for name in self.sources() if is_call_matching(name)}

    def _items(self) -> Iterator[Item[Task] | RowError]:
        if self.domain is not None:
            for split in SPLITS if self.split is None else (self.split,):
                yield from (Item(task.id, task) for task in self.domain.tasks(split))
        elif self._read:
            yield from (row.item for row in self._read.rows)
        else:
            rows = (row.item for file in self.files for row in read_task_rows(file.rows(), file.name))
            yield from self._in_domains(row if isinstance(row, RowError) else _own_task(row) for row in rows)

    def _in_domains(self, items: Iterable[Item[Task] | RowError]) -> Iterator[Item[Task] | RowError]:
        """Yield the tasks of `domains`. Raise ConfigError at the end if a domain has none."""
        known = set[str]()
        for item in items:
            known |= set() if isinstance(item, RowError) else {item.value.domain}
            if not self.domains or isinstance(item, RowError) or item.value.domain in self.domains:
                yield item
        if self.domains:
            validate_names(self.name, "domain", self.domains, known)

    @functools.cached_property
    def _read(self) -> ReadFiles | None:
        """The tasks, if they have to be read together; else None."""
        values = (item.value for file in self.files for item in file.rows() if isinstance(item, Item))
        if all(map(is_whole_task, values)):
            return None
        name = name_files([self.name])
        return read_files(
            [InputFile(name, file) for file in self.files], self.data, [*self.named.values()], self.domains
        )

    @functools.cached_property
    def sequence_ids(self) -> frozenset[str]:
        """The ids of the tasks that were read from sequences of calls on MCP servers."""
        rows = self._read.rows if self._read else ()
        kinds = (SEQUENCES.name, TASKS_OF_SPECS.name)
        return frozenset(row.item.value.id for row in rows if row.kind in kinds and isinstance(row.item, Item))

    def notes(self) -> tuple[str, ...]:
        """Return which sources look as if they should play rows, and cannot."""
        return tuple(note.value for note in self._read.notes) if self._read else ()


def open_task_input(
    dataset: str, data: RowConfig = NO_DATA, split: Split | None = None, domains: tuple[str, ...] = ()
) -> TaskInput:
    """Open the tasks of a domain, of a file, of a folder's files or of a data set, or those of some of its `domains`.

    Rows of files may also name `data.sources`. `data.reward` scores questions. Raise ConfigError for any other
    `dataset`, and for a mixture.
    """
    target = find_target(dataset, ("domain", "tasks"))
    if target.kind == "domain" and not is_task_file(target.text):
        source = _load_single_source(target.text)
        validate_names(source.name, "domain", domains, [source.name])
        return TaskInput(target.text, domain=source, split=split)
    named = {reference: _load_single_source(reference) for reference in data.sources}
    files = tuple(list_row_files(target.text))
    return TaskInput(dataset, files, None, data.replace(sources=()), named, split, domains)


def _load_single_source(reference: str) -> TaskSource:
    source = load_source(reference)
    if list_sources(source) != (source,):
        raise ConfigError(f"{reference!r} is a mixture; give its domains ({source.name})")
    return source


def find_named_source(sources: dict[str, TaskSource], name: str) -> TaskSource | None:
    """Return the source of `sources` called `name`, or None. A shipped domain is loaded and added when it is named."""
    if name not in sources and name in list_domains():
        sources[name] = load_source(name)
    return sources.get(name)


def absolute_reference(reference: str) -> str:
    """Return the reference with an absolute path, because rows are read in other folders."""
    kind, _, rest = reference.partition(":")
    path, sharp, domain = rest.partition("#")
    whole = Path(os.path.expanduser(path)).absolute()  # not resolved: the Python of a virtual environment is a link
    return f"{kind}:{whole}{sharp}{domain}" if kind in SOURCE_MODULES and whole.exists() else reference


def _own_task(row: Item[TaskRow]) -> Item[Task]:
    return Item(row.location, row.value.task)
