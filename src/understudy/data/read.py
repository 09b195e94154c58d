"""From a file to its values, one at a time: never the whole file in memory.

.jsonl     a value each line
.json      a list, or an object with a list `tasks` or `dependent_dataset`, read incrementally (ijson)
.parquet   a row each, by row groups (pyarrow)
.py        the literals of a list `TASKS`, read and never executed (see `literals`, which alone reads a file whole)
"""

import functools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic_core import from_json

from understudy.data.items import Bad, Item
from understudy.data.literals import literals
from understudy.errors import ConfigError, installation, nearest

SUFFIXES = (".json", ".jsonl", ".parquet", ".py")
LISTS = {"": "item", "tasks": "tasks.item", "dependent_dataset": "dependent_dataset.item"}
"""Where a JSON file may have its list, and what ijson calls the list's items."""

_BATCH = 1000


def read(path: Path) -> Iterator[Item[Any] | Bad]:
    """The values of a file. What cannot be read is a `Bad`; after it the rest goes on, where the format allows."""
    readers: Mapping[str, Callable[[Path], Iterator[Item[Any] | Bad]]] = {
        ".jsonl": _jsonl,
        ".json": _json,
        ".parquet": _parquet,
        ".py": literals,
    }
    if not path.is_file():
        raise ConfigError(f"there is no file {path}")
    try:
        path.open("rb").close()
    except OSError as e:
        raise ConfigError(f"{path} cannot be read ({e.strerror}); see to that, or name another file") from e
    if path.suffix not in readers:
        raise ConfigError(f"{path}: unknown kind of file {nearest(path.suffix, readers)}")
    return readers[path.suffix](path)


@functools.cache
def needed(module: str, purpose: str) -> ModuleType:
    """An import of the extra `data`; one that is not installed is a `ConfigError`."""
    import importlib

    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as e:
        raise ConfigError(f"{purpose} needs {e.name}; {installation('data')}") from e


def _jsonl(path: Path) -> Iterator[Item[Any] | Bad]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            where = f"{path}:{number}"
            try:
                yield Item(where, from_json(line, allow_inf_nan=False))
            except ValueError as e:
                yield Bad(where, "", f"not JSON: {e}" if line.strip() else "an empty line", "unreadable")


def _json(path: Path) -> Iterator[Item[Any] | Bad]:
    ijson = needed("ijson", "reading .json files")
    name = _list_of(ijson, path)
    label, number = name.removesuffix("item").rstrip("."), 0
    try:
        with path.open("rb") as file:
            for value in ijson.items(file, name, use_float=True):
                yield Item(f"{path}: {label}[{number}]", value)
                number += 1
    except ijson.JSONError as e:
        yield Bad(f"{path}: {label}[{number}]", "", f"not JSON: {_line(e)}", "unreadable")


def _list_of(ijson: ModuleType, path: Path) -> str:
    """What ijson calls the items of the file's list."""
    try:
        with path.open("rb") as file:
            for prefix, event, _ in ijson.parse(file):
                if event == "start_array" and prefix in LISTS:
                    return LISTS[prefix]
    except ijson.JSONError as e:
        raise ConfigError(f"{path}: not JSON: {_line(e)}") from e
    raise ConfigError(f"{path}: it has neither a list at its top nor a list 'tasks' or 'dependent_dataset'")


def _line(error: Exception) -> str:
    return " ".join(str(error).split())


def _parquet(path: Path) -> Iterator[Item[Any] | Bad]:
    arrow, parquet = needed("pyarrow", "reading parquet"), needed("pyarrow.parquet", "reading parquet")
    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=_BATCH):
                for row in batch.to_pylist():
                    number += 1
                    yield Item(f"{path}: row {number}", row)
    except (arrow.ArrowException, OSError) as e:
        yield Bad(f"{path}: row {number + 1}", "", f"not parquet: {_line(e)}", "unreadable")
