"""What a run runs with and on: versions, machine, git, seeds. Enough to know later why two runs differ."""

import os
import platform
import shutil
import subprocess
import sys
from datetime import date
from importlib import metadata
from pathlib import Path

from understudy.records import Record

PACKAGES = (
    *("understudy", "torch", "transformers", "tokenizers", "peft", "safetensors", "vllm", "numpy", "pydantic", "mcp"),
    *("wandb", "tensorboardX", "mlflow-skinny", "trackio"),
)
PATIENCE = 10.0
"""Seconds that git has to answer; a checkout on a slow disk is then not described."""


class Checkout(Record):
    """A git checkout: its commit, and whether files of it have changed since."""

    commit: str
    dirty: bool


class Provenance(Record):
    """One start of a run. What is not installed, or no checkout, is left out."""

    day: date | None = None
    """When it was, where the machine is; None in runs from before that was kept."""
    versions: dict[str, str]
    platform: str
    processors: int
    memory: int
    """Bytes."""
    devices: tuple[str, ...]
    """NVIDIA's, by model."""
    git: dict[str, Checkout]
    """Of the working folder, and of the package's own source."""
    seeds: dict[str, int]


def provenance(seeds: dict[str, int]) -> Provenance:
    """That of this process, now."""
    source = Path(__file__).parent
    checkouts = {"working folder": _checkout(Path.cwd()), "understudy": _checkout(source)}
    return Provenance(
        day=date.today(),
        versions={"python": platform.python_version(), **_versions()},
        platform=platform.platform(),
        processors=os.cpu_count() or 0,
        memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if sys.platform != "win32" else 0,
        devices=tuple(_devices()),
        git={where: checkout for where, checkout in checkouts.items() if checkout},
        seeds=seeds,
    )


def changes(one: Provenance, other: Provenance) -> list[str]:
    """What a resumed run does not have as it had: versions, and devices."""
    names = sorted(one.versions.keys() | other.versions.keys())
    pairs = [(name, one.versions.get(name, "none"), other.versions.get(name, "none")) for name in names]
    pairs.append(("devices", ", ".join(one.devices) or "none", ", ".join(other.devices) or "none"))
    return [f"{name}: {then} then, {now} now" for name, then, now in pairs if then != now]


def _versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _devices() -> list[str]:
    """The models of NVIDIA's devices, as their driver tells them."""
    files = sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))
    lines = [line for file in files for line in file.read_text(encoding="utf-8", errors="replace").splitlines()]
    return [line.partition(":")[2].strip() for line in lines if line.startswith("Model:")]


def _checkout(folder: Path) -> Checkout | None:
    commit = _git(folder, "rev-parse", "HEAD")
    status = _git(folder, "status", "--porcelain", "--untracked-files=no") if commit else None
    return None if commit is None or status is None else Checkout(commit=commit, dirty=bool(status))


def _git(folder: Path, *arguments: str) -> str | None:
    """What git says, None where it says nothing.

    There is no git, no checkout or none of this user's, no commit, or the folder is one that this user may not enter.
    """
    if not shutil.which("git"):
        return None
    try:
        done = subprocess.run(
            ["git", "--no-optional-locks", *arguments],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )
    except (subprocess.TimeoutExpired, OSError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
