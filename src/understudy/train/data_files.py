"""The data files of a run. They must not change when it is resumed."""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from understudy.algorithms.preference_config import PreferenceConfig
from understudy.core.errors import ConfigError
from understudy.core.trajectory import Trajectory
from understudy.envs.file_summary import FileSummary
from understudy.envs.task_source import TaskSource
from understudy.formats import ChatFormat
from understudy.runs.config import SFTConfig, TrainConfig
from understudy.runs.run import Run
from understudy.sources.dataset_files import digest_dataset
from understudy.train.phases.demonstrations import read_demonstrations
from understudy.train.phases.preferences import PreferenceUnit, read_preferences


@dataclass(frozen=True, slots=True)
class DataFiles:
    """The data of the phases that a run has not finished."""

    demonstrations: list[Trajectory]
    preferences: list[PreferenceUnit]
    notes: tuple[str, ...]
    """Lines of text about the data, for the terminal."""
    task_files: Sequence[tuple[str, str]]
    """The name and the digest of each file of tasks. Files of several eval sets may have the same name."""

    def validate_unchanged(self, run: Run) -> None:
        """Store the digests of the files in the run's folder. If they are stored and differ, raise ConfigError."""
        if self.demonstrations:
            _validate_digest(run, run.config.sft.dataset_file, "demonstrations")
        if self.preferences:
            _validate_digest(run, run.config.preferences.dataset_file, "preferences")
        if self.task_files:
            _validate_task_files(run, self.task_files)


def read_data_files(
    config: TrainConfig,
    domain: TaskSource,
    format: ChatFormat,
    done_steps: int,
    task_files: Sequence[FileSummary] = (),
) -> DataFiles:
    """Read the data files that a run needs after `done_steps` steps. Raise ConfigError or TaskError if invalid.

    `task_files` are those of its tasks, which are read already.
    """
    handed_over, preferences = list[Trajectory](), list[PreferenceUnit]()
    notes = list(dict.fromkeys(line for summary in task_files for line in summary.lines()))
    if done_steps < config.sft.steps:
        handed_over, more = read_demonstrations(config.sft, config.limits.max_episode_tokens, domain, format)
        notes += more
        if handed_over:
            notes.append(describe_epochs(config.sft, config.sft.num_demonstrations + len(handed_over)))
    if config.preferences.steps and done_steps < config.steps_before_rl:
        preferences, more = read_preferences(config, format)
        notes += more
        notes.append(describe_epochs(config.preferences, len(preferences)))
    digests = list(dict.fromkeys((summary.name, summary.digest) for summary in task_files))
    return DataFiles(handed_over, preferences, tuple(notes), digests)


def _validate_digest(run: Run, file: str, name: str) -> None:
    path = Path(os.path.expanduser(file))
    digest, known = digest_dataset(path), run.folder / f"{name}.sha256"
    if not known.exists():
        run.write_file(known.name, digest + "\n")
    elif known.read_text(encoding="utf-8").strip() != digest:
        raise ConfigError(f"{path} has changed since {run.folder} was started; restore the file, or start a new run")


def _validate_task_files(run: Run, digests: Sequence[tuple[str, str]]) -> None:
    known, text = run.folder / "task_files.sha256", "".join(f"{digest}  {name}\n" for name, digest in digests)
    if not known.exists():
        run.write_file(known.name, text)
        return
    stored = set(known.read_text(encoding="utf-8").splitlines())
    for name, digest in digests:
        if f"{digest}  {name}" not in stored:
            raise ConfigError(
                f"the file of tasks {name} has changed since {run.folder} was started; restore it, or start a new run"
            )


def describe_epochs(phase: SFTConfig | PreferenceConfig, count: int) -> str:
    """Return a line of text with the number of epochs of a phase over `count` conversations or pairs."""
    name, what = ("sft", "demonstrations") if isinstance(phase, SFTConfig) else ("preferences", "preferences")
    read = phase.steps * phase.batch_size
    steps = f"{name}.steps = {phase.steps} with {name}.batch_size = {phase.batch_size}"
    if read < count:
        once = math.ceil(count / phase.batch_size)
        return f"{steps} read {read} of {count} {what}; {name}.steps={once} reads each once"
    return f"{steps} read each of {count} {what} {read / count:.3g} times"
