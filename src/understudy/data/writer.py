"""Output that is either complete or absent: it is written as `.partial` and renamed when complete.

`tasks.jsonl` and `rows.parquet` are single files; any other name is a folder with a file for each split. A partial
output is always JSONL, even for parquet, because an incomplete parquet file cannot be read. When an output is resumed,
its existing lines are compared with the new ones, so that outputs of different options are never mixed.
"""

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from pydantic_core import from_json

from understudy.core.errors import ConfigError
from understudy.core.files import os_errors_as_config_errors
from understudy.core.records import Record
from understudy.sources.readers import require_module
from understudy.sources.task_files.skyrl_rows import ExtraInfo, PromptMessage, RewardSpec

FileFormat = Literal["jsonl", "parquet"]
FILE_SUFFIXES = (".jsonl", ".parquet")

_GROUP = 2000
"""Rows of a parquet row group: about 5 MB of JSON."""


class JsonlWriter:
    """A JSONL file in progress. New lines are compared with the lines of an earlier attempt, and then appended."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.left, self.count = 0, 0
        """Number of existing lines that are not yet compared, and number of calls of `write`."""
        path.touch()
        size = 0
        with path.open("rb") as file:
            for line in file:
                if line.endswith(b"\n"):
                    self.left, size = self.left + 1, size + len(line)
        os.truncate(path, size)
        self._file = path.open("r+b")

    def write(self, line: str) -> None:
        """Write a line, or compare it with the existing one at its position. Raise ConfigError if they differ."""
        data, self.count = line.encode() + b"\n", self.count + 1
        if not self.left:
            self._file.write(data)
            self._file.flush()  # a crash must not lose a line that a paid model wrote
            return
        self.left -= 1
        if self._file.readline() != data:
            raise self._other(f"line {self.count} differs from what these options produce")

    def finish(self) -> None:
        """Flush the complete file to disk. Raise ConfigError if the earlier attempt has more lines."""
        if self.left:
            raise self._other(f"it has {self.left} lines more than these options produce")
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file, complete or not."""
        self._file.close()

    def _other(self, why: str) -> ConfigError:
        return ConfigError(f"{self.path}: {why}; repeat the first attempt's options, or remove the file to start again")


class DatasetWriter:
    """An output in progress: a file, or a folder of parts."""

    def __init__(self, out: Path, partial: Path, parts: Sequence[str], format: FileFormat) -> None:
        self._out, self._partial, self._format = out, partial, format
        self._files = {part: JsonlWriter(partial / f"{part}.jsonl" if parts else partial) for part in parts or ("",)}

    def write(self, record: Record, part: str = "") -> None:
        """Add a record to a part."""
        line = record.model_dump_json(exclude_defaults=True)
        with _writing(self._out):
            self._files[part].write(line)

    @property
    def counts(self) -> dict[str, int]:
        """The number of records by part."""
        return {part: lines.count for part, lines in self._files.items()}

    def finish(self) -> None:
        """Move the complete output to its place."""
        for lines in self._files.values():
            lines.finish()
            lines.close()
        if self._format == "jsonl":
            os.replace(self._partial, self._out)
        elif self._partial.is_dir():
            self._finish_folder()
        else:
            whole = self._partial.with_name(f"{self._partial.name}.parquet")
            rows_to_parquet(self._partial, whole)
            os.replace(whole, self._out)
            self._partial.unlink()

    def _finish_folder(self) -> None:
        lines = [self._partial / f"{part}.jsonl" for part in self._files]
        for path in lines:
            rows_to_parquet(path, path.with_suffix(".parquet"))
        for path in lines:
            path.unlink()
        os.replace(self._partial, self._out)

    def close(self) -> None:
        """Close all files. Written lines stay as a partial output."""
        with contextlib.ExitStack() as closing:  # closes every file even if closing one of them fails
            for lines in self._files.values():
                closing.callback(lines.close)
        if all(lines.path.exists() and not lines.path.stat().st_size for lines in self._files.values()):
            for lines in self._files.values():
                lines.path.unlink()
            if self._partial.is_dir():
                self._partial.rmdir()


@contextlib.contextmanager
def open_output(
    out: Path, *, parts: Sequence[str] = (), format: FileFormat = "jsonl", resume: bool = False
) -> Iterator[DatasetWriter]:
    """Yield a writer whose output is moved to `out` if the block succeeds, and otherwise remains as a partial output.

    `parts` are the files of a folder, empty for a single file. Raise ConfigError if the output exists.
    """
    partial = out.with_name(f"{out.name}.partial")
    validate_output_path(out, resume)
    if partial.exists() and partial.is_dir() != bool(parts):
        raise ConfigError(f"{partial} was started with other options; remove it to start again")
    if format == "parquet":
        require_module("pyarrow.parquet", "writing parquet")
    with _writing(out):
        if parts:
            partial.mkdir(exist_ok=True)
        made = DatasetWriter(out, partial, parts, format)
    try:
        yield made
        with _writing(out):
            made.finish()
    finally:
        with _writing(out):  # closing flushes again, so a full disk can raise OSError here too
            made.close()


def _writing(out: Path) -> contextlib.AbstractContextManager[None]:
    return os_errors_as_config_errors(out, "run the same command again, with --resume if it has that option")


def validate_output_path(out: Path, resume: bool) -> None:
    """Raise ConfigError if the output exists, or if an unfinished one exists and is not resumed."""
    if out.exists():
        raise ConfigError(f"{out} already exists; choose another name, or remove it")
    if (partial := out.with_name(f"{out.name}.partial")).exists() and not resume:
        raise ConfigError(f"{partial} is unfinished; use --resume to continue, or remove it")
    if not out.parent.is_dir():
        raise ConfigError(f"{out} cannot be written: there is no folder {out.parent}; create it")


def read_partial_lines(out: Path) -> Iterator[bytes]:
    """Return the complete lines of an unfinished file."""
    partial = out.with_name(f"{out.name}.partial")
    if partial.is_file():
        with partial.open("rb") as file:
            yield from (line for line in file if line.endswith(b"\n"))


def rows_to_parquet(source: Path, target: Path) -> None:
    """Write the SkyRL rows of a JSONL file as parquet, by row groups."""
    parquet, schema = require_module("pyarrow.parquet", "writing parquet"), _schema()
    arrow = require_module("pyarrow", "writing parquet")
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
    """Return the columns of `skyrl_rows.SkyRLRow`."""
    arrow = require_module("pyarrow", "writing parquet")
    text = arrow.string()
    columns = {"data_source": text, "env_class": text}
    for column, of in (("prompt", PromptMessage), ("reward_spec", RewardSpec), ("extra_info", ExtraInfo)):
        columns[column] = arrow.struct([(name, text) for name in of.model_fields])
    return arrow.schema({**columns, "prompt": arrow.list_(columns["prompt"])})
