"""The phases of a run, in order. Each starts from the weights of the previous one."""

from collections.abc import Sequence
from typing import Protocol

from understudy.core.trajectory import Trajectory
from understudy.runs.phases import PREFERENCES_NAME, SFT_NAME
from understudy.runs.resumption import TRAINED_NAME
from understudy.train.data_files import DataFiles
from understudy.train.phases.preferences import PreferencePhase
from understudy.train.phases.rl import RLPhase
from understudy.train.phases.sft import SFTPhase
from understudy.train.state import Metrics, TrainingContext, TrainingProgress


class TrainPhase(Protocol):
    """A phase of training."""

    def start(self) -> None:
        """Prepare the first step of the phase. A run that resumes after that step does not call this."""

    async def run_step(self, step: int) -> Metrics:
        """Train one step of the run and return its metrics."""


def make_phases(
    context: TrainingContext, progress: TrainingProgress, files: DataFiles, gold: Sequence[Trajectory]
) -> dict[str, TrainPhase]:
    """Return all phases by name. `gold` are the gold episodes that SFT trains on."""
    return {
        SFT_NAME: SFTPhase(context, progress, [*gold, *files.demonstrations]),
        PREFERENCES_NAME: PreferencePhase(context, files.preferences),
        TRAINED_NAME: RLPhase(context, progress),
    }
