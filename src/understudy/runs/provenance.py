"""Provenance: the versions, machine, git commits and seeds of a run, to find out later why two runs differ."""

import os
import platform
import shutil
import subprocess
import sys
from datetime import date
from importlib import metadata
from pathlib import Path

from understudy.core.records import Record
from understudy.core.version import __version__

PACKAGES = (
    "torch",
    "transformers",
    "tokenizers",
    "peft",
    "safetensors",
    "vllm",
    "numpy",
    "pydantic",
    "mcp",
    "wandb",
    "tensorboardX",
    "mlflow-skinny",
    "trackio",
)
GIT_TIMEOUT = 10.0
"""Timeout of a git command in seconds. A checkout that exceeds it is left out."""


class GitCheckout(Record):
    """A git checkout: its commit, and whether tracked files have uncommitted changes."""

    commit: str
    dirty: bool


class Provenance(Record):
    """The provenance of one start of a run.

    Packages that are not installed, and folders that are not git checkouts, are left out.
    """

    started_on: date
    """Date in the machine's time zone."""
    versions: dict[str, str]
    platform: str
    cpu_count: int
    memory_bytes: int
    """Physical memory in bytes."""
    gpus: tuple[str, ...]
    """Models of the NVIDIA GPUs."""
    git: dict[str, GitCheckout]
    """Checkouts of the working folder and of the package's source."""
    seeds: dict[str, int]
    config_sha256: str = ""
    """Digest of the run's config.toml. Empty for starts by earlier versions."""


def collect_provenance(seeds: dict[str, int]) -> Provenance:
    """Return the provenance of this process, with these seeds."""
    source = Path(__file__).parents[1]
    checkouts = {"working folder": _checkout(Path.cwd()), "understudy": _checkout(source)}
    return Provenance(
        started_on=date.today(),
        versions={"python": platform.python_version(), "understudy": __version__, **_versions()},
        platform=platform.platform(),
        cpu_count=os.cpu_count() or 0,
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if sys.platform != "win32" else 0,
        gpus=tuple(_devices()),
        git={where: checkout for where, checkout in checkouts.items() if checkout},
        seeds=seeds,
    )


def provenance_changes(earlier: Provenance, later: Provenance) -> list[str]:
    """Return the differences of versions and devices between two starts."""
    names = sorted(earlier.versions.keys() | later.versions.keys())
    entries = [(name, earlier.versions.get(name, "none"), later.versions.get(name, "none")) for name in names]
    entries.append(("devices", ", ".join(earlier.gpus) or "none", ", ".join(later.gpus) or "none"))
    return [f"{name}: {then} then, {now} now" for name, then, now in entries if then != now]


def _versions() -> dict[str, str]:
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _devices() -> list[str]:
    """Return the models of the NVIDIA devices that the driver lists."""
    files = sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))
    lines = [line for file in files for line in file.read_text(encoding="utf-8", errors="replace").splitlines()]
    return [line.partition(":")[2].strip() for line in lines if line.startswith("Model:")]


def _checkout(folder: Path) -> GitCheckout | None:
    commit = _git(folder, "rev-parse", "HEAD")
    status = _git(folder, "status", "--porcelain", "--untracked-files=no") if commit else None
    return None if commit is None or status is None else GitCheckout(commit=commit, dirty=bool(status))


def _git(folder: Path, *arguments: str) -> str | None:
    """Return the output of a git command, or None if it fails.

    It fails without git, outside a checkout, in a checkout of another user, without a commit, in a folder that cannot
    be entered, and after `GIT_TIMEOUT`.
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
            timeout=GIT_TIMEOUT,
        )
    except (subprocess.TimeoutExpired, OSError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
