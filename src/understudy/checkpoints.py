"""Checkpoints: the state of a run after a step, each in a folder of its own, sealed by a manifest that is written last.

A checkpoint is whole when its manifest is there and every file in it has the digest that the manifest gives.
"""

import contextlib
import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

from understudy.disk import point, sync, whole_folder, write_whole
from understudy.errors import ConfigError

MANIFEST = "manifest.json"
LATEST = "latest"
_STEP = re.compile(r"(?:step_)?(\d{6,})(?: [^.]*)?")


@contextlib.contextmanager
def new_checkpoint(final: Path, step: int) -> Iterator[Path]:
    """A folder to save a checkpoint to; it takes its place, whole, when the block ends without an error."""
    with whole_folder(final) as partial:
        yield partial
        files = [path for path in sorted(partial.rglob("*")) if path.is_file()]
        digests = {str(file.relative_to(partial)): _digest(file) for file in files}
        for file in files:  # before older ones are removed: a machine may lose its power
            sync(file)
        write_whole(partial / MANIFEST, json.dumps({"step": step, "sha256": digests}, indent=1) + "\n")
    point_to(final)


def point_to(checkpoint: Path) -> None:
    """Have the link `latest` name a checkpoint beside it."""
    point(checkpoint.with_name(LATEST), checkpoint.name)


def checkpoints(folder: Path) -> list[tuple[int, Path]]:
    """The steps and folders of a run's checkpoints, in order, whole or not."""
    found = [(step_of(path), path) for path in (folder / "checkpoints").glob("step_*")]
    return sorted((step, path) for step, path in found if step is not None)


def last_checkpoint(folder: Path) -> tuple[Path | None, list[str]]:
    """A run's last whole checkpoint, None if none was ever written, and a line for each damaged one after it.

    Where all are damaged, that is a `ConfigError`.
    """
    found = checkpoints(folder)
    damaged: list[str] = []
    for _, path in reversed(found):
        fault = damage(path)
        if fault is None:
            return path, damaged
        damaged.append(f"checkpoint {path} is damaged ({fault}); it is skipped")
    if found:
        raise ConfigError(f"{'; '.join(damaged)}; no whole checkpoint is left: start anew with another --out")
    return None, damaged


def damage(checkpoint: Path) -> str | None:
    """What is wrong with a checkpoint, or None when it is whole."""
    try:
        digests = json.loads((checkpoint / MANIFEST).read_bytes())["sha256"]
        wrong = [name for name, digest in digests.items() if _digest(checkpoint / name) != digest]
    except FileNotFoundError as e:
        return f"{Path(e.filename).name} is missing"
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return f"{MANIFEST} or what it names cannot be read"
    return f"{wrong[0]} does not have the digest of its manifest" if wrong else None


def step_name(step: int) -> str:
    """How files and folders of a step are called."""
    return f"step_{step:06}"


def step_of(path: Path) -> int | None:
    """The step that a file or folder of a run is called after, None where it is called otherwise."""
    match = _STEP.fullmatch(path.stem if path.suffix in (".json", ".jsonl") else path.name)
    return int(match[1]) if match else None


def _digest(path: Path) -> str:
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()
