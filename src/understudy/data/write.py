"""Output that is whole or not there: it is written beside its place as `.partial`, and renamed when it is complete.

`tasks.jsonl` and `rows.parquet` are one file, any other name is a folder with a file for each part. A partial output is
always JSONL, also where parquet is made of it in the end, because half a parquet file cannot be read. To go on, the
lines that are there are compared with those that come, so that one made with other options is never mixed in.
"""

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from pydantic_core import from_json

from understudy.data.read import needed
from understudy.data.rows import ExtraInfo, RewardSpec, Said
from understudy.disk import writing
from understudy.errors import ConfigError
from understudy.records import Record

Format = Literal["jsonl", "parquet"]
FILES = (".jsonl", ".parquet")

_GROUP = 2000
"""Rows of a parquet row group: about 5 MB of JSON."""


class Lines:
    """One JSONL file in the making. Lines that an earlier attempt left are compared, then the file is appended to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.left, self.count = 0, 0
        """How many old lines are still to come; how many lines have been given."""
        path.touch()
        size = 0
        with path.open("rb") as file:
            for line in file:
                if line.endswith(b"\n"):
                    self.left, size = self.left + 1, size + len(line)
        os.truncate(path, size)
        self._file = path.open("r+b")

    def write(self, line: str) -> None:
        """Add a line; one that differs from what is there is a `ConfigError`."""
        data, self.count = line.encode() + b"\n", self.count + 1
        if not self.left:
            self._file.write(data)
            self._file.flush()  # a proposal of a language model is dear
            return
        self.left -= 1
        if self._file.readline() != data:
            raise self._other(f"line {self.count} is not what these options make")

    def finish(self) -> None:
        """Everything has been written."""
        if self.left:
            raise self._other(f"it has {self.left} lines more than these options make")
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file, finished or not."""
        self._file.close()

    def _other(self, why: str) -> ConfigError:
        return ConfigError(f"{self.path}: {why}; give those it was begun with, or remove it to begin anew")


class Output:
    """An output in the making: a file, or a folder of parts."""

    def __init__(self, out: Path, partial: Path, parts: Sequence[str], format: Format) -> None:
        self._out, self._partial, self._format = out, partial, format
        self._files = {part: Lines(partial / f"{part}.jsonl" if parts else partial) for part in parts or ("",)}

    def write(self, record: Record, part: str = "") -> None:
        """Add a record to a part."""
        line = record.model_dump_json(exclude_defaults=True)
        with _writing(self._out):
            self._files[part].write(line)

    @property
    def counts(self) -> dict[str, int]:
        """Records given so far, by part."""
        return {part: lines.count for part, lines in self._files.items()}

    def finish(self) -> None:
        """All is written: put it in its place."""
        for lines in self._files.values():
            lines.finish()
            lines.close()
        if self._format == "jsonl":
            os.replace(self._partial, self._out)
        elif self._partial.is_dir():
            self._finish_folder()
        else:
            whole = self._partial.with_name(f"{self._partial.name}.parquet")
            _to_parquet(self._partial, whole)
            os.replace(whole, self._out)
            self._partial.unlink()

    def _finish_folder(self) -> None:
        lines = [self._partial / f"{part}.jsonl" for part in self._files]
        for path in lines:
            _to_parquet(path, path.with_suffix(".parquet"))
        for path in lines:
            path.unlink()
        os.replace(self._partial, self._out)

    def close(self) -> None:
        """Close all files; what is written stays as a partial output, unless it is nothing."""
        with contextlib.ExitStack() as closing:  # all of them, also where one cannot write what it still holds
            for lines in self._files.values():
                closing.callback(lines.close)
        if all(lines.path.exists() and not lines.path.stat().st_size for lines in self._files.values()):
            for lines in self._files.values():
                lines.path.unlink()
            if self._partial.is_dir():
                self._partial.rmdir()


@contextlib.contextmanager
def output(out: Path, *, parts: Sequence[str] = (), format: Format = "jsonl", resume: bool = False) -> Iterator[Output]:
    """An output that takes its place when the block ends without an error, and else stays partial.

    `parts` are the files of a folder, empty for one file. What is there already is never written over: a `ConfigError`.
    """
    partial = out.with_name(f"{out.name}.partial")
    refuse_existing(out, resume)
    if partial.exists() and partial.is_dir() != bool(parts):
        raise ConfigError(f"{partial} was begun with other options; remove it to begin anew")
    if format == "parquet":
        needed("pyarrow.parquet", "writing parquet")
    with _writing(out):
        if parts:
            partial.mkdir(exist_ok=True)
        made = Output(out, partial, parts, format)
    try:
        yield made
        with _writing(out):
            made.finish()
    finally:
        with _writing(out):  # what a full disk did not take is tried once more
            made.close()


def _writing(out: Path) -> contextlib.AbstractContextManager[None]:
    return writing(out, "give the same command again, with --resume if it takes that")


def refuse_existing(out: Path, resume: bool) -> None:
    """Writing over anything is a `ConfigError`, and so is an unfinished output that is not resumed."""
    if out.exists():
        raise ConfigError(f"{out} is there already; give another name, or remove it")
    if (partial := out.with_name(f"{out.name}.partial")).exists() and not resume:
        raise ConfigError(f"{partial} is unfinished; go on with it by --resume, or remove it")
    if not out.parent.is_dir():
        raise ConfigError(f"there is no folder {out.parent} to write {out.name} to")


def partial_lines(out: Path) -> Iterator[bytes]:
    """The whole lines of a file that an earlier attempt left unfinished."""
    partial = out.with_name(f"{out.name}.partial")
    if partial.is_file():
        with partial.open("rb") as file:
            yield from (line for line in file if line.endswith(b"\n"))


def _to_parquet(source: Path, target: Path) -> None:
    """Rows as parquet, by groups."""
    parquet, schema = needed("pyarrow.parquet", "writing parquet"), _schema()
    arrow = needed("pyarrow", "writing parquet")
    with source.open("rb") as file, parquet.ParquetWriter(target, schema, compression="zstd") as writer:
        group: list[object] = []
        for line in file:
            group.append(from_json(line))
            if len(group) == _GROUP:
                writer.write_table(arrow.Table.from_pylist(group, schema))
                group = []
        if group:
            writer.write_table(arrow.Table.from_pylist(group, schema))


def _schema() -> object:
    """The columns of `rows.Row`."""
    arrow = needed("pyarrow", "writing parquet")
    text = arrow.string()
    columns = {"data_source": text, "env_class": text}
    for column, of in (("prompt", Said), ("reward_spec", RewardSpec), ("extra_info", ExtraInfo)):
        columns[column] = arrow.struct([(name, text) for name in of.model_fields])
    return arrow.schema({**columns, "prompt": arrow.list_(columns["prompt"])})
