"""Files and folders of rows: data files, folders of data files, and folders that `datasets` has saved."""

import hashlib
import itertools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from understudy.core.errors import ConfigError
from understudy.core.files import digest_file
from understudy.core.items import Item, RowError
from understudy.core.tasks import Split
from understudy.sources.readers import read_rows

DATASET_SUFFIXES = (".jsonl", ".json", ".csv", ".parquet", ".arrow")
"""Suffixes of data files. Only .jsonl and .csv need no extra package."""

_SAVED_DATASET, _SAVED_DATASET_DICT = "state.json", "dataset_dict.json"
"""Files of `Dataset.save_to_disk` and of `DatasetDict.save_to_disk`."""
_METADATA_FILES = ("dataset_info.json", "dataset_infos.json")
"""Files of `datasets` and LLaMA-Factory that describe the data files beside them."""
SPLIT_NAMES: Mapping[str, Split] = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "val", "valid", "dev"), "validation"),
    **dict.fromkeys(("test", "tests", "testing", "holdout", "heldout", "held_out", "held-out"), "test"),
    **dict.fromkeys(("eval", "evaluation"), "validation"),
}
"""Names of splits in rows, and words of names of files. Of two words in a name the first here counts."""


def list_dataset_files(path: Path) -> tuple[Path, ...]:
    """Return the data files that a path names, in order.

    A file is returned as it is. Of a folder with splits, the files of the split `train` are returned; if there are
    none, those whose names give no split. Raise ConfigError if a folder has no data file, or several splits and none of
    these.
    """
    if not path.is_dir():
        return (path,)
    if (path / _SAVED_DATASET_DICT).is_file():
        return _saved_files(_choose_split(path))
    if (path / _SAVED_DATASET).is_file():
        return _saved_files(path)
    files = _data_files(path)
    if not files:
        raise ConfigError(f"{path} has no data file ({', '.join(DATASET_SUFFIXES)}){subfolder_hint(path)}")
    splits = {file: split_from_name(file.stem) for file in files}
    chosen = tuple(file for file in files if splits[file] == "train") or _unsplit_files(path)
    if not chosen and len({*splits.values()}) > 1:
        names = ", ".join(file.name for file in files)
        raise ConfigError(f"{path} has no file of the split 'train', but {names}; name one file")
    return chosen or files


def list_left_out_files(path: Path) -> tuple[str, ...]:
    """Return the names of data files of a folder that give no split and are not read, because others are of `train`."""
    if not path.is_dir() or (path / _SAVED_DATASET_DICT).is_file() or (path / _SAVED_DATASET).is_file():
        return ()
    read = {*list_dataset_files(path)}
    return tuple(file.name for file in _unsplit_files(path) if file not in read)


def has_data_files(folder: Path) -> bool:
    """Return whether a folder has data files, or is a saved dataset."""
    return bool(_data_files(folder))


def split_from_name(name: str) -> Split | None:
    """Return the split that a name gives, such as validation for `retail_val`, or None."""
    for word, split in SPLIT_NAMES.items():
        if re.search(rf"(?:^|[^a-z]){word}(?:[^a-z]|$)", name, re.IGNORECASE):
            return split
    return None


def is_data_file(path: Path) -> bool:
    """Return whether a file is neither hidden nor a description of the data files beside it."""
    return path.is_file() and not path.name.startswith(".") and path.name not in _METADATA_FILES


def list_saved_splits(path: Path) -> list[tuple[str, Path]]:
    """Return the files of a folder that `datasets` has saved, each with the name of its split; nothing for others.

    The split of a `Dataset` has the name of its folder.
    """
    folders = [path] if (path / _SAVED_DATASET).is_file() else []
    if (path / _SAVED_DATASET_DICT).is_file():
        folders = [child for child in sorted(path.iterdir()) if (child / _SAVED_DATASET).is_file()]
    return [(folder.name, file) for folder in folders for file in _saved_files(folder)]


def read_dataset(path: Path) -> Iterator[Item[Any] | RowError]:
    """Yield the rows of a file or folder.

    Raise ConfigError if there is no row, and as `list_dataset_files` and `read_rows`.
    """
    is_empty = True
    for item in itertools.chain.from_iterable(map(read_rows, list_dataset_files(path))):
        is_empty = False
        yield item
    if is_empty:
        raise ConfigError(f"{path} has no rows; name another file or folder")


def digest_dataset(path: Path) -> str:
    """Return a SHA-256 digest of a file's content, or of the names and contents of a folder's data files."""
    digests = [(file.name, digest_file(file)) for file in list_dataset_files(path)]
    if not path.is_dir():
        return digests[0][1]
    return hashlib.sha256("".join(f"{name} {digest}\n" for name, digest in digests).encode()).hexdigest()


def _choose_split(path: Path) -> Path:
    """Return the folder of the split `train`, or that of the only split."""
    splits = [child for child in sorted(path.iterdir()) if (child / _SAVED_DATASET).is_file()]
    chosen = [split for split in splits if split.name == "train"] or splits
    if len(chosen) != 1:
        names = ", ".join(split.name for split in splits) or "none"
        raise ConfigError(f"{path} has no split 'train', but {names}; name the folder of one split")
    return chosen[0]


def _saved_files(path: Path) -> tuple[Path, ...]:
    """Return the files of a saved dataset, without those that `datasets` caches beside them (cache-*.arrow)."""
    files = tuple(sorted(path.glob("data-*.arrow"))) or tuple(path.glob("dataset.arrow"))
    if not files:
        raise ConfigError(f"{path} has {_SAVED_DATASET}, but no data-*.arrow; save the dataset again")
    return files


def _data_files(path: Path) -> tuple[Path, ...]:
    return tuple(child for child in sorted(path.iterdir()) if child.suffix in DATASET_SUFFIXES and is_data_file(child))


def _unsplit_files(path: Path) -> tuple[Path, ...]:
    return tuple(file for file in _data_files(path) if split_from_name(file.stem) is None)


def subfolder_hint(path: Path) -> str:
    """Return a hint that names the folders inside which hold data files, such as `data` in a repository of the hub."""
    folders = [child.name for child in sorted(path.iterdir()) if child.is_dir() and _data_files(child)]
    return f"; name one of its folders: {', '.join(folders)}" if folders else ""
