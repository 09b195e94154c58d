"""The phases of a run, in order. Each starts from the weights of the previous one."""

from dataclasses import dataclass
from typing import Protocol

from understudy.runs.config import TrainConfig
from understudy.runs.resumption import TRAINED_NAME
from understudy.train.data_files import DataFiles
from understudy.train.phases.preferences import PreferencePhase
from understudy.train.phases.rl import RLPhase
from understudy.train.phases.sft import SFTPhase
from understudy.train.state import Metrics, TrainingContext, TrainingProgress

SFT_NAME, PREFERENCES_NAME = "sft", "preferences"


class TrainPhase(Protocol):
    """A phase of training."""

    def start(self) -> None:
        """Prepare the first step of the phase. A run that resumes after that step does not call this."""

    async def run_step(self, step: int) -> Metrics:
        """Train one step of the run and return its metrics."""


@dataclass(frozen=True, slots=True)
class PhaseSpan:
    """The steps of a phase."""

    name: str
    """The name of the phase, and of its weights in the result table."""
    first_step: int
    num_steps: int

    @property
    def last_step(self) -> int:
        """The last step of the phase."""
        return self.first_step + self.num_steps - 1


def phase_spans(config: TrainConfig) -> list[PhaseSpan]:
    """Return the phases that have steps, in order."""
    sft = config.sft.steps
    spans = (
        PhaseSpan(SFT_NAME, 1, sft),
        PhaseSpan(PREFERENCES_NAME, sft + 1, config.preferences.steps),
        PhaseSpan(TRAINED_NAME, config.steps_before_rl + 1, config.steps),
    )
    return [span for span in spans if span.num_steps]


def make_phases(context: TrainingContext, progress: TrainingProgress, files: DataFiles) -> dict[str, TrainPhase]:
    """Return all phases by name."""
    return {
        SFT_NAME: SFTPhase(context, progress, files.demonstrations),
        PREFERENCES_NAME: PreferencePhase(context, files.preferences),
        TRAINED_NAME: RLPhase(context, progress),
    }
