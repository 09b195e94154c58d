"""Files that a run learns from: it goes on with what it was begun with, and says how much of it is read."""

import hashlib
import math
from pathlib import Path

from understudy.algorithms.preference_options import Preferences
from understudy.config import SFTConfig
from understudy.errors import ConfigError
from understudy.run import Run


def refuse_changed(run: Run, path: Path, name: str) -> None:
    """Remember the file's digest in the run's folder under this name, or compare it; another one is a ConfigError."""
    digest, known = hashlib.sha256(path.read_bytes()).hexdigest(), run.folder / f"{name}.sha256"
    if not known.exists():
        run.write(known.name, digest + "\n")
    elif known.read_text(encoding="utf-8").strip() != digest:
        raise ConfigError(f"{path} has changed since {run.folder} was begun with it; bring it back, or begin anew")


def passes(phase: SFTConfig | Preferences, count: int) -> str:
    """How often the steps of a phase go through `count` conversations or pairs, and what goes through them once."""
    name, what = ("sft", "demonstrations") if isinstance(phase, SFTConfig) else ("preferences", "preferences")
    read = phase.steps * phase.batch_size
    steps = f"{name}.steps = {phase.steps}, of {phase.batch_size} each,"
    if read < count:
        once = math.ceil(count / phase.batch_size)
        return f"{steps} read {read} of {count} {what}; {name}.steps={once} reads each once"
    return f"{steps} read each of {count} {what} {read / count:.3g} times"
