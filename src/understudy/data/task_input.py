"""Streams of tasks from files or from a domain's frozen tasks. They can be read repeatedly."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from understudy.core.items import Item, RowError, row_error_from_validation
from understudy.core.readers import SUFFIXES, read_rows
from understudy.core.tasks import SPLITS, Split, Task, require_stored_fields
from understudy.envs.sources import load_source
from understudy.envs.task_files.skyrl_rows import SkyRLRow, from_skyrl_row
from understudy.envs.task_files.tau_rows import TauTask, from_tau_task
from understudy.envs.task_source import TaskSource
from understudy.runs.targets import find_target

InputForm = Literal["tasks", "skyrl", "tau"]


@dataclass(frozen=True)
class TaskInput:
    """A source of tasks: files or a domain."""

    name: str
    paths: tuple[Path, ...] = ()
    domain: TaskSource | None = None
    default_domain: str = ""
    """The domain of tau-style tasks that name none."""
    split: Split | None = None
    """If set, only tasks of this split."""

    def items(self) -> Iterator[Item[Task] | RowError]:
        """Yield all tasks from the beginning."""
        for item in self._items():
            if self.split is None or isinstance(item, RowError) or item.value.split == self.split:
                yield item

    def detect_form(self) -> InputForm:
        """Return the kind of the first readable value."""
        values = (item.value for path in self.paths for item in read_rows(path) if isinstance(item, Item))
        return _form(next(values, None))

    def _items(self) -> Iterator[Item[Task] | RowError]:
        if self.domain is not None:
            for split in SPLITS if self.split is None else (self.split,):
                yield from (Item(task.id, task) for task in self.domain.tasks(split))
        for path in self.paths:
            yield from (_task(item, f"{path.stem}/{n}", self.default_domain) for n, item in enumerate(read_rows(path)))


def open_task_input(dataset: str, default_domain: str = "", split: Split | None = None) -> TaskInput:
    """Open the tasks of a domain, of a file or of a folder's files.

    `default_domain` is the domain of tasks in a file that name none. Raise ConfigError for any other `dataset`.
    """
    target = find_target(dataset, ("domain", "tasks"))
    if target.kind == "domain":
        return TaskInput(target.text, domain=load_source(target.text), split=split)
    paths = _files(target.path) if target.path.is_dir() else (target.path,)
    return TaskInput(dataset, paths, default_domain=default_domain, split=split)


def _files(folder: Path) -> tuple[Path, ...]:
    return tuple(path for path in sorted(folder.iterdir()) if path.suffix in SUFFIXES)


def _form(value: Any) -> InputForm:
    keys = value.keys() if isinstance(value, dict) else ()
    return "skyrl" if "reward_spec" in keys else "tau" if "instruction" in keys else "tasks"


def _task(item: Item[Any] | RowError, identity: str, default_domain: str) -> Item[Task] | RowError:
    """Convert a value to a task: one of our tasks, a row, or a tau-style task."""
    if isinstance(item, RowError):
        return item
    try:
        match _form(item.value):
            case "skyrl":
                return from_skyrl_row(Item(item.location, SkyRLRow.model_validate(item.value)))
            case "tasks":
                return Item(item.location, require_stored_fields(Task.model_validate(item.value)))
            case "tau":
                return _from_tau(Item(item.location, TauTask.model_validate(item.value)), identity, default_domain)
    except ValidationError as e:
        return row_error_from_validation(item.location, e)


def _from_tau(item: Item[TauTask], identity: str, default_domain: str) -> Item[Task] | RowError:
    domain = item.value.domain or default_domain
    if not domain:
        return RowError(item.location, "domain", "it is missing; give --domain")
    return Item(item.location, from_tau_task(item.value, f"{domain}/{identity}", domain))
