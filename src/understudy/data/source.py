"""Source: files of any kind, or a domain's frozen tasks, as a stream of tasks that can be begun again."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from understudy.data.items import Bad, Item, malformed
from understudy.data.read import SUFFIXES, read
from understudy.data.rows import Row, from_row
from understudy.data.tau import TauTask, from_tau
from understudy.domains.base import TaskSource, find, names
from understudy.errors import ConfigError, nearest
from understudy.tasks import SPLITS, Split, Task

Form = Literal["tasks", "rows", "tau"]


@dataclass(frozen=True)
class Source:
    """Where tasks come from: files, or a domain."""

    name: str
    paths: tuple[Path, ...] = ()
    domain: TaskSource | None = None
    named: str = ""
    """The domain of tau-style tasks that name none."""
    split: Split | None = None
    """Only tasks of this split."""

    def items(self) -> Iterator[Item[Task] | Bad]:
        """All tasks, from the beginning."""
        for item in self._items():
            if self.split is None or isinstance(item, Bad) or item.value.split == self.split:
                yield item

    def form(self) -> Form:
        """What the first readable value is."""
        values = (item.value for path in self.paths for item in read(path) if isinstance(item, Item))
        return _form(next(values, None))

    def _items(self) -> Iterator[Item[Task] | Bad]:
        if self.domain is not None:
            for split in SPLITS if self.split is None else (self.split,):
                yield from (Item(task.id, task) for task in self.domain.tasks(split))
        for path in self.paths:
            yield from (_task(item, f"{path.stem}/{n}", self.named) for n, item in enumerate(read(path)))


def source(what: str, named: str = "", split: Split | None = None) -> Source:
    """A domain by name, a file, or a folder's files; `named` is the domain of a file's tasks that name none.

    A shipped domain wins over a file of the same name; write `./retail` for that.
    """
    if what in names():
        return Source(what, domain=find(what), split=split)
    path = Path(what)
    if path.is_file():
        return Source(what, (path,), named=named, split=split)
    if path.is_dir():
        return Source(what, _files(path), named=named, split=split)
    if ":" in what:
        return Source(what, domain=find(what), split=split)
    raise ConfigError(f"there is no file {what!r}, and no domain {nearest(what, names())}")


def _files(folder: Path) -> tuple[Path, ...]:
    found = tuple(path for path in sorted(folder.iterdir()) if path.suffix in SUFFIXES)
    if not found:
        raise ConfigError(f"the folder {folder} holds no file of tasks; such end in {', '.join(SUFFIXES)}")
    return found


def _form(value: Any) -> Form:
    keys = value.keys() if isinstance(value, dict) else ()
    return "rows" if "reward_spec" in keys else "tau" if "instruction" in keys else "tasks"


def _task(item: Item[Any] | Bad, identity: str, named: str) -> Item[Task] | Bad:
    """The task in a value: a task as it is, a row's, or a tau-style one's."""
    if isinstance(item, Bad):
        return item
    try:
        match _form(item.value):
            case "rows":
                return from_row(Item(item.where, Row.model_validate(item.value)))
            case "tasks":
                return Item(item.where, Task.model_validate(item.value))
            case "tau":
                return _from_tau(Item(item.where, TauTask.model_validate(item.value)), identity, named)
    except ValidationError as e:
        return malformed(item.where, e)


def _from_tau(item: Item[TauTask], identity: str, named: str) -> Item[Task] | Bad:
    domain = item.value.domain or named
    if not domain:
        return Bad(item.where, "domain", "it is missing; give --domain")
    return Item(item.where, from_tau(item.value, f"{domain}/{identity}", domain))
