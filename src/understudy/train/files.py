"""Files that a run learns from: it goes on with what it was begun with, and says how much of it is read."""

import hashlib
import math
from dataclasses import dataclass
from pathlib import Path

from understudy.algorithms.preference_options import Preferences
from understudy.config import SFTConfig, TrainConfig
from understudy.domains.base import TaskSource
from understudy.errors import ConfigError
from understudy.formats import ChatFormat
from understudy.run import Run
from understudy.train.demonstrations import read_demonstrations
from understudy.train.preferences import Unit, read_preferences
from understudy.trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class Files:
    """What the phases of a run that are still to come learn from, out of files."""

    demonstrations: list[Trajectory]
    preferences: list[Unit]
    notes: tuple[str, ...]
    """What there is to know of them, a line each."""

    def refuse_changed(self, run: Run) -> None:
        """Remember the digests of the files in the run's folder, or compare them; another one is a ConfigError."""
        if self.demonstrations:
            _refuse_changed(run, run.config.sft.file, "demonstrations")
        if self.preferences:
            _refuse_changed(run, run.config.preferences.file, "preferences")


def read_files(config: TrainConfig, domain: TaskSource, format: ChatFormat, done: int) -> Files:
    """Those of a run that has done so many steps. What cannot be learned from is a ConfigError or a TaskError."""
    handed_over, preferences, notes = list[Trajectory](), list[Unit](), list[str]()
    if done < config.sft.steps:
        handed_over, notes = read_demonstrations(config.sft, config.limits.max_tokens, domain, format)
        if handed_over:
            notes.append(passes(config.sft, config.sft.demonstrations + len(handed_over)))
    if config.preferences.steps and done < config.prior:
        preferences = read_preferences(config, format)
        notes.append(passes(config.preferences, len(preferences)))
    return Files(handed_over, preferences, tuple(notes))


def _refuse_changed(run: Run, file: str, name: str) -> None:
    path = Path(file).expanduser()
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
