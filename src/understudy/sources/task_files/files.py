"""Data files of tasks: a path, a folder, or `hf:owner/name[#config]`, which `datasets` loads.

The name of a file or of a saved split gives the split of its rows, unless their own column does: a name with the word
of `SPLIT_NAMES`, such as train, val, test or eval.
"""

import hashlib
import importlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from understudy.core.errors import ConfigError
from understudy.core.files import digest_file
from understudy.core.items import Item, RowError
from understudy.core.tasks import Split
from understudy.sources.dataset_files import is_data_file, list_saved_splits, split_from_name
from understudy.sources.python_literals import has_task_list
from understudy.sources.readers import SUFFIXES, read_rows, without_index, without_nulls_inside
from understudy.sources.references import SOURCE_MODULES

HUB_PREFIX = "hf:"
"""Prefix of a data set that `datasets` loads: a repository of the Hugging Face hub, or a local folder."""


@dataclass(frozen=True)
class RowFile:
    """Rows of one file, or of one split of a data set."""

    name: str
    split: Split | None
    """The split that the name gives."""
    path: Path | None = None
    """The local file; None for a data set that `datasets` loads."""
    dataset: Any = None
    """A split that `datasets` has loaded."""

    def rows(self) -> Iterator[Item[Any] | RowError]:
        """Yield the rows."""
        if self.path is not None:
            return read_rows(self.path)
        return (
            Item(f"{self.name}: row {number}", without_nulls_inside(without_index(row)))
            for number, row in enumerate(self.dataset, 1)
        )


def is_task_file(name: str) -> bool:
    """Return whether a name is that of a data file, of a folder with data files, or of a data set (`hf:`)."""
    path = Path(os.path.expanduser(name))
    if name.partition(":")[0] in SOURCE_MODULES:  # such as nemo-gym:URL#train.jsonl
        return False
    if name.startswith(HUB_PREFIX) or path.suffix in SUFFIXES:
        return True
    return path.is_dir() and bool(_list_folder(path))


def list_row_files(name: str) -> list[RowFile]:
    """Return the files that a name means. Raise ConfigError if there are none."""
    if name.startswith(HUB_PREFIX):
        return _load_hub(name.removeprefix(HUB_PREFIX))
    path = Path(os.path.expanduser(name))
    if not path.is_dir():
        return [RowFile(str(path), split_from_name(path.stem), path)]
    if not (files := _list_folder(path)):
        raise ConfigError(f"{path} has no data file ({', '.join(SUFFIXES)})")
    return files


def digest_row_files(files: Sequence[RowFile]) -> str:
    """Return a SHA-256 digest of the names and contents of local files; empty if there are none.

    `datasets` identifies a split by its fingerprint, which takes the place of its content.
    """
    parts = [f"{file.path.name} {digest_file(file.path)}" for file in files if file.path is not None]
    parts += [f"{file.name} {getattr(file.dataset, '_fingerprint', '')}" for file in files if file.path is None]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest() if parts else ""


def _list_folder(folder: Path) -> list[RowFile]:
    """Return the files of a folder, of a saved data set, or of its saved splits."""
    if saved := list_saved_splits(folder):
        return [RowFile(str(path), split_from_name(name), path) for name, path in saved]
    files = (path for path in sorted(folder.iterdir()) if path.suffix in SUFFIXES and is_data_file(path))
    # A folder of data may hold code too, such as a reward.
    files = (path for path in files if path.suffix != ".py" or has_task_list(path))
    return [RowFile(str(path), split_from_name(path.stem), path) for path in files]


def _load_hub(reference: str) -> list[RowFile]:
    name, _, config = reference.partition("#")
    try:
        datasets = importlib.import_module("datasets")
    except ModuleNotFoundError as e:
        raise ConfigError(f"{HUB_PREFIX}{reference} needs the package datasets; run pip install datasets") from e
    try:
        loaded = datasets.load_dataset(name, *([config] if config else []))
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as e:
        reason = " ".join(str(e).split())
        raise ConfigError(f"{HUB_PREFIX}{reference} cannot be loaded: {type(e).__name__}: {reason}") from e
    return [
        RowFile(f"{HUB_PREFIX}{reference}/{split}", split_from_name(split), dataset=rows)
        for split, rows in loaded.items()
    ]
