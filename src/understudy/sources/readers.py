"""Readers that stream the rows of a data file.

.jsonl     one value a line
.json      a list, or an object with a list named in `JSON_LIST_PATHS`; parsed incrementally (ijson). An
           object without such a list is one row
.parquet   one row at a time, by row groups (pyarrow)
.arrow     one row at a time, by record batches (pyarrow); `datasets` saves such streams
.csv       one row a line after that of the column names (csv). Separators are commas, semicolons or tabs. An empty
           cell is null; a cell with a list or an object as JSON is that value, any other cell is text. A column
           without a name is left out: pandas writes the index of a table so
.py        the literals of a list `TASKS`; never executed. Only this reader loads a whole file (`python_literals`)

Arrow pads objects: each object of a column has the keys of all others, with nulls. So nulls in objects of .parquet and
.arrow files are left out. So is the index of pandas, `__index_level_0__`, in all files. Texts may begin with a byte
order mark, which some editors write.
"""

import codecs
import contextlib
import csv
import functools
import mmap
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO

from pydantic_core import from_json

from understudy.core.errors import ConfigError, did_you_mean, install_hint
from understudy.core.items import Item, RowError
from understudy.sources.python_literals import read_python_literals

SUFFIXES = (".json", ".jsonl", ".csv", ".parquet", ".py")
"""Suffixes of files of tasks. Files of conversations: `sources.dataset_files`."""
JSON_LIST_PATHS = {
    "": "item",
    "data": "data.item",
    "tasks": "tasks.item",
    "dependent_dataset": "dependent_dataset.item",
    "trajectories": "trajectories.item",
}
"""Places of the list of rows in a JSON file: key of the list ("" for the top level) -> path of its items for ijson."""

_INDEX_COLUMN = re.compile(r"__index_level_\d+__")
"""Matches the names under which pandas saves the index of a table."""
_BATCH = 1000
_MAX_CELL = 1 << 27
"""Most characters of a cell in a .csv file."""
_MAX_DEPTH, _MAX_DIGITS = 200, 4300
"""Largest nesting depth and number of digits in a .json file: the limits of pydantic's parser, which reads .jsonl."""
_LONG_NUMBER = re.compile(rb'(?:[^"0-9]++|"(?:[^"\\]++|\\.)*+"?|[0-9]{1,%d}+(?![0-9]))*+[0-9]' % _MAX_DIGITS, re.DOTALL)
"""Matches the beginning of a JSON text up to a number of more digits, outside of its strings."""


_PYTHON_LITERAL = re.compile(rb"\s*\[?\s*\{\s*'")
"""Matches the beginning of a dict of Python whose first key has single quotes."""
_NAN = re.compile(rb":\s*-?(?:NaN|Infinity)\b")
_BEGINNING = 200
"""Number of bytes of a .json file that tell what it is instead of JSON."""
_OTHER_SUFFIXES = {
    **dict.fromkeys((".tsv", ".tab"), "rename it to .csv, whose cells may be separated by tabs"),
    **dict.fromkeys((".ndjson", ".jsonlines", ".jl"), "rename it to .jsonl"),
    **dict.fromkeys((".gz", ".zip", ".zst", ".bz2", ".xz"), "unpack it"),
    **dict.fromkeys((".xls", ".xlsx", ".ods"), "save it as .csv"),
    ".txt": "if each line is a JSON object, rename it to .jsonl",
}
"""What to do with files that no reader has, by their suffix."""


def read_rows(path: Path) -> Iterator[Item[Any] | RowError]:
    """Yield the values of a file.

    A row that cannot be read gives a RowError; reading continues after it where the format allows. Raise ConfigError if
    the file does not exist, cannot be opened or has another suffix.
    """
    readers: Mapping[str, Callable[[Path], Iterator[Item[Any] | RowError]]] = {
        ".jsonl": _jsonl,
        ".json": _json,
        ".parquet": _parquet,
        ".arrow": _arrow_stream,
        ".csv": _csv,
        ".py": read_python_literals,
    }
    if not path.is_file():
        raise ConfigError(f"there is no file {path}")
    try:
        path.open("rb").close()
    except OSError as e:
        raise ConfigError(f"{path} cannot be read ({e.strerror}); fix that, or name another file") from e
    if path.suffix not in readers:
        raise ConfigError(f"{path}: unknown file suffix {explain_suffix(path, readers)}")
    return map(_without_index, readers[path.suffix](path))


def _without_index(item: Item[Any] | RowError) -> Item[Any] | RowError:
    if isinstance(item, Item) and isinstance(item.value, dict) and any(map(_is_index, item.value)):
        return Item(item.location, without_index(item.value))
    return item


def without_index(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of a row without the index that pandas saves beside them."""
    return {name: value for name, value in row.items() if not _is_index(name)}


def _is_index(name: object) -> bool:
    return bool(_INDEX_COLUMN.fullmatch(str(name)))


def explain_suffix(path: Path, known: Iterable[str]) -> str:
    """Return the end of an error text: a suffix that no reader has, what to do, and the allowed ones."""
    if remedy := _OTHER_SUFFIXES.get(path.suffix.lower()):
        return f"{path.suffix!r}; {remedy}; allowed: {', '.join(sorted(known))}"
    return did_you_mean(path.suffix, known)


@functools.cache
def require_module(module: str, purpose: str) -> ModuleType:
    """Import a module of the extra `data`. Raise ConfigError if it is not installed."""
    import importlib

    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as e:
        raise ConfigError(f"{purpose} needs {e.name}; {install_hint('data')}") from e


@contextlib.contextmanager
def _open_text(path: Path) -> Iterator[BinaryIO]:
    """Open a text file to read its bytes after the byte order mark, if it has one."""
    with path.open("rb") as file:
        if file.read(len(codecs.BOM_UTF8)) != codecs.BOM_UTF8:
            file.seek(0)
        yield file


def _jsonl(path: Path) -> Iterator[Item[Any] | RowError]:
    """Yield the values of the lines. Empty lines at the end are ignored; others are errors."""
    empty = 0
    with _open_text(path) as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                empty += 1
                continue
            for place in range(number - empty, number):
                yield RowError(f"{path}:{place}", "", "an empty line", "unreadable")
            empty = 0
            try:
                yield Item(f"{path}:{number}", from_json(line, allow_inf_nan=False))
            except ValueError as e:
                hint = _explain_text(line) or (_explain_first_line(line, path) if number == 1 else "")
                yield RowError(f"{path}:{number}", "", f"not JSON: {e}{hint}", "unreadable")
                if number == 1 and hint and line.strip() in (b"[", b"{"):
                    return  # the other lines are parts of the same value


def _explain_text(text: bytes) -> str:
    """Return the end of an error for a text that is not JSON: what it is instead, if that is known."""
    if _PYTHON_LITERAL.match(text):
        return "; it is a Python dict: write it with json.dumps(row), which gives double quotes, true, false and null"
    if text.rstrip().endswith(b"},"):
        return "; a line ends after its object: remove the comma"
    if _NAN.search(text):
        return "; JSON has no NaN: write null, or leave the key out"
    return ""


def _explain_first_line(line: bytes, path: Path) -> str:
    """Return the end of an error for a file whose first line opens a list, or an object of several lines."""
    if line.lstrip().startswith(b"["):
        return f"; a JSON list of rows needs the suffix .json: rename the file to {path.stem}.json"
    if line.strip() == b"{":
        return "; each line holds one whole object: write it with json.dumps(row), without indent"
    return ""


def _csv(path: Path) -> Iterator[Item[Any] | RowError]:
    csv.field_size_limit(_MAX_CELL)
    number = 0
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            separator = max(",;\t", key=file.readline().count)
            file.seek(0)
            rows = csv.DictReader(file, delimiter=separator, strict=True)
            _refuse_repeated_columns(path, rows.fieldnames or ())
            for number, cells in enumerate(rows, 1):
                if None in cells:
                    problem = (
                        f"more cells than the {len(cells) - 1} columns; enclose texts with {separator!r} in quotes"
                    )
                    yield RowError(f"{path}: row {number}", "", problem, "unreadable")
                else:
                    yield Item(f"{path}: row {number}", {name: _cell(text) for name, text in cells.items() if name})
    except (csv.Error, UnicodeDecodeError) as e:
        yield RowError(f"{path}: row {number + 1}", "", f"not CSV in UTF-8: {_on_one_line(e)}", "unreadable")


def _refuse_repeated_columns(path: Path, names: Sequence[str]) -> None:
    """Raise ConfigError if two columns have one name."""
    if repeated := next((name for name in names if name and names.count(name) > 1), ""):
        raise ConfigError(f"{path}: the column {repeated!r} is there {names.count(repeated)} times; rename the others")


def _cell(text: str | None) -> Any:
    """Return the value of a cell: None if it is empty, the list or object of JSON text, else the text."""
    if not text or not text.lstrip().startswith(("[", "{")):
        return text or None
    try:
        return from_json(text, allow_inf_nan=False)
    except ValueError:
        return text


def _json(path: Path) -> Iterator[Item[Any] | RowError]:
    ijson = require_module("ijson", "reading .json files")
    _validate_limits(ijson, path)
    items_path = _find_items_path(ijson, path)
    label = items_path.removesuffix("item").rstrip(".")
    number = 0
    try:
        with _open_text(path) as file:
            for value in ijson.items(file, items_path):  # with `use_float`, integers beyond 64 bits are errors
                yield Item(f"{path}: {label}[{number}]" if items_path else str(path), _with_floats(value))
                number += 1
    except _json_errors(ijson) as e:
        yield RowError(f"{path}: {label}[{number}]", "", f"not JSON: {_on_one_line(e)}", "unreadable")


def _with_floats(value: Any) -> Any:
    """Return a value of ijson with floats in place of its decimal numbers."""
    if isinstance(value, dict):
        return {key: _with_floats(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_with_floats(inner) for inner in value]
    return float(value) if isinstance(value, Decimal) else value


def _json_errors(ijson: ModuleType) -> tuple[type[Exception], ...]:
    """Return the exceptions for a text that is not JSON; UnicodeDecodeError for a lone surrogate."""
    return ijson.JSONError, UnicodeDecodeError


def _validate_limits(ijson: ModuleType, path: Path) -> None:
    """Raise ConfigError if a file would exhaust the memory of ijson by its nesting, or crash it by a long number."""
    if path.stat().st_size:  # an empty file cannot be mapped
        with path.open("rb") as mapped, mmap.mmap(mapped.fileno(), 0, access=mmap.ACCESS_READ) as data:
            if _LONG_NUMBER.match(data):
                raise ConfigError(f"{path}: more than {_MAX_DIGITS} digits in a row; remove or shorten that number")
    depth = 0
    with _open_text(path) as file, contextlib.suppress(*_json_errors(ijson)):  # which are reported with their rows
        for event, _ in ijson.basic_parse(file):
            depth += event.startswith("start") - event.startswith("end_")
            if depth > _MAX_DEPTH:
                raise ConfigError(f"{path}: nested more than {_MAX_DEPTH} deep; flatten it")


def _find_items_path(ijson: ModuleType, path: Path) -> str:
    """Return ijson's path of the items of the file's list, or "" for an object that is one row."""
    is_object = names_no_list = False
    try:
        with _open_text(path) as file:
            for prefix, event, value in ijson.parse(file):
                if event == "start_array" and prefix in JSON_LIST_PATHS:
                    return JSON_LIST_PATHS[prefix]
                is_object |= not prefix and event == "start_map"
                names_no_list |= not prefix and event == "map_key" and value in JSON_LIST_PATHS
    except _json_errors(ijson) as e:
        with _open_text(path) as file:
            hint = _explain_text(file.read(_BEGINNING))
        hint = hint or "; if each line is a JSON object, give the file a name that ends in .jsonl"
        raise ConfigError(f"{path}: not JSON: {_on_one_line(e)}{hint}") from e
    if is_object and not names_no_list:
        return ""
    names = ", ".join(repr(name) for name in JSON_LIST_PATHS if name)
    raise ConfigError(f"{path}: no list of rows; the file must be a list or have a list of one of these names: {names}")


def _on_one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _parquet(path: Path) -> Iterator[Item[Any] | RowError]:
    arrow, parquet = require_module("pyarrow", "reading parquet"), require_module("pyarrow.parquet", "reading parquet")
    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=_BATCH):
                for row in _batch_rows(batch):
                    number += 1
                    yield Item(f"{path}: row {number}", row)
    except (arrow.ArrowException, OSError) as e:
        yield RowError(f"{path}: row {number + 1}", "", f"not parquet: {_on_one_line(e)}", "unreadable")


def _arrow_stream(path: Path) -> Iterator[Item[Any] | RowError]:
    arrow = require_module("pyarrow", "reading .arrow files")
    ipc = require_module("pyarrow.ipc", "reading .arrow files")
    number = 0
    try:
        with arrow.memory_map(str(path)) as file, ipc.open_stream(file) as stream:
            for batch in stream:
                for row in _batch_rows(batch):
                    number += 1
                    yield Item(f"{path}: row {number}", row)
    except (arrow.ArrowException, OSError) as e:
        yield RowError(f"{path}: row {number + 1}", "", f"not an Arrow stream: {_on_one_line(e)}", "unreadable")


def _batch_rows(batch: Any) -> Iterator[dict[str, Any]]:
    """Yield the rows of a record batch, a slice at a time, so that few are Python objects at once."""
    for start in range(0, batch.num_rows, _BATCH):
        for row in batch.slice(start, _BATCH).to_pylist():
            yield without_nulls_inside(row)


def without_nulls_inside(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row whose values have no nulls in their objects. Its own columns stay."""
    return {name: without_nulls(value) for name, value in row.items()}


def without_nulls(value: Any) -> Any:
    """Return a value whose objects have no nulls. Nulls in lists stay."""
    if isinstance(value, dict):
        return {key: without_nulls(inner) for key, inner in value.items() if inner is not None}
    return [without_nulls(inner) for inner in value] if isinstance(value, list | tuple) else value
