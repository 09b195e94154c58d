"""Episodes to learn from: played by an agent, or stored by a run.

Until the output is written, played episodes are stored in `NAME.episodes` beside it, so that an interrupted command
can be resumed. The layout is that of an evaluation's folder (`evaluation.runner`).
"""

from collections.abc import Iterator
from pathlib import Path

from understudy.core.errors import ConfigError
from understudy.core.trajectory import Trajectory
from understudy.runs.run import episode_files, read_run_config
from understudy.runs.storage.episode_store import read_episodes


def partial_folder(out: Path) -> Path:
    """Return the folder that stores the played episodes until `out` is written."""
    return out.with_name(f"{out.name}.episodes")


def validate_no_partial(out: Path, resume: bool) -> None:
    """Raise ConfigError if an earlier command was interrupted and `resume` is not set."""
    if (folder := partial_folder(out)).exists() and not resume:
        raise ConfigError(f"{folder} is unfinished; resume it with --resume, or remove it")


def read_stored_episodes(run: Path) -> Iterator[Trajectory]:
    """Yield the stored episodes of a run's RL, step by step. Raise ConfigError for a damaged line, or if none are
    stored.

    Conversations of a preference phase belong to no task, so they are left out.
    """
    steps_before = read_run_config(run).steps_before_rl
    files = [file for step, file in episode_files(run).items() if step > steps_before]
    if not files:
        raise ConfigError(f"{run} stores no episodes; give --agent to play new ones")
    for file in files:
        yield from read_episodes(file)
