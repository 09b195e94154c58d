"""Where episodes come from: an agent that plays now, or the trajectories that a run has stored.

What is played is kept as it ends (`kept`), in the folder `NAME.episodes` beside the output, until that is written. So
an interrupted attempt is gone on with. With them are the replies of endpoints, so that none is paid twice, and what
was paid for.
"""

from collections.abc import Iterator
from pathlib import Path

from understudy.config import TrainConfig
from understudy.errors import ConfigError
from understudy.kept import episodes_in
from understudy.records import Record
from understudy.tasks import Split
from understudy.trajectory import Trajectory


class Played(Record):
    """What is played."""

    agent: str
    split: Split
    tasks: int
    trials: int
    seed: int
    config: TrainConfig
    """Without `cost_cap`: an attempt that has reached it is gone on with under a higher one."""
    checkpoint: str = ""
    """Whose weights a run's model plays with."""


def unfinished(out: Path) -> Path:
    """Where the episodes of an attempt are kept until `out` is written."""
    return out.with_name(f"{out.name}.episodes")


def refuse_unfinished(out: Path, resume: bool) -> None:
    """An attempt that was interrupted is gone on with when that is asked for, and never begun anew by chance."""
    if (folder := unfinished(out)).exists() and not resume:
        raise ConfigError(f"{folder} is unfinished; go on with it by --resume, or remove it")


def stored(run: Path) -> Iterator[Trajectory]:
    """The episodes of a run, step by step. A damaged line is a `ConfigError`."""
    files = sorted((run / "trajectories").glob("*.jsonl"))
    if not files:
        raise ConfigError(f"{run} has stored no episodes; give --agent to play some")
    for file in files:
        yield from episodes_in(file)
