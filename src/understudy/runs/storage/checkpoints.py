"""Checkpoints: a run's state after a step, each in a folder of its own.

The last file that is written is `manifest.json`. A checkpoint is complete if it has a manifest and each of its files
has the SHA-256 digest in the manifest.
"""

import contextlib
import json
import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pydantic_core import from_json

from understudy.core.errors import ConfigError
from understudy.core.files import RETRY_HINT, atomic_folder, atomic_symlink, atomic_write, digest_file, fsync

MANIFEST_FILE = "manifest.json"
LATEST_LINK = "latest"
_STEP = re.compile(r"(?:step_)?(\d{6,})(?: [^.]*)?")


@contextlib.contextmanager
def write_checkpoint(final: Path, step: int) -> Iterator[Path]:
    """Yield a temporary folder to save a checkpoint to.

    If the block succeeds, write the manifest and rename the folder to `final`.
    """
    with atomic_folder(final) as partial:
        yield partial
        files = [path for path in sorted(partial.rglob("*")) if path.is_file()]
        with ThreadPoolExecutor() as pool:  # digests take the processor and flushing takes the disk: both at once
            computed = pool.map(digest_file, files)
            for file in files:  # older checkpoints may be removed next, so this one must survive a power cut
                fsync(file)
            digests = {str(file.relative_to(partial)): digest for file, digest in zip(files, computed, strict=True)}
        atomic_write(partial / MANIFEST_FILE, json.dumps({"step": step, "sha256": digests}, indent=1) + "\n")
    link_latest(final)


def link_latest(checkpoint: Path) -> None:
    """Let the link `latest` point to a checkpoint in the same folder."""
    atomic_symlink(checkpoint.with_name(LATEST_LINK), checkpoint.name)


def list_checkpoints(folder: Path) -> list[tuple[int, Path]]:
    """Return the steps and folders of a run's checkpoints, also of damaged ones, sorted by step.

    Raise ConfigError if their folder cannot be read.
    """
    inside = folder / "checkpoints"
    try:  # `Path.glob` finds nothing in a folder without permission
        with os.scandir(inside) as entries:
            paths = [inside / entry.name for entry in entries if entry.name.startswith("step_")]
    except FileNotFoundError:
        return []
    except OSError as e:
        raise ConfigError(f"{inside} cannot be read ({e.strerror}); fix that, then {RETRY_HINT}") from e
    checkpoints = [(parse_step(path), path) for path in paths]
    return sorted((step, path) for step, path in checkpoints if step is not None)


def last_checkpoint(folder: Path) -> tuple[Path | None, list[str]]:
    """Return a run's last complete checkpoint, and a warning for each later one that is damaged.

    The checkpoint is None if the run has none. Raise ConfigError if all are damaged.
    """
    checkpoints = list_checkpoints(folder)
    damaged: list[str] = []
    for _, path in reversed(checkpoints):
        fault = find_damage(path)
        if fault is None:
            return path, damaged
        damaged.append(f"checkpoint {path} is damaged ({fault}); it is skipped")
    if checkpoints:
        raise ConfigError(f"{'; '.join(damaged)}; no complete checkpoint is left; start a new run with another --out")
    return None, damaged


def find_damage(checkpoint: Path) -> str | None:
    """Return what is damaged or missing in a checkpoint, or None if it is complete."""
    try:
        digests = from_json((checkpoint / MANIFEST_FILE).read_bytes())["sha256"]
        wrong = [name for name, digest in digests.items() if digest_file(checkpoint / name) != digest]
    except FileNotFoundError as e:
        return f"{Path(e.filename).name} is missing"
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return f"{MANIFEST_FILE} or a file that it lists cannot be read"
    return f"the digest of {wrong[0]} differs from that in {MANIFEST_FILE}" if wrong else None


def step_name(step: int) -> str:
    """Return the name of a step's files and folders, such as `step_000010`."""
    return f"step_{step:06}"


def parse_step(path: Path) -> int | None:
    """Return the step in the name of a run's file or folder, or None if the name has none."""
    match = _STEP.fullmatch(path.stem if path.suffix in (".json", ".jsonl") else path.name)
    return int(match[1]) if match else None
