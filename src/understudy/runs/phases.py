"""The phases of a run, SFT, preferences and RL, as ranges of its steps."""

from dataclasses import dataclass

from understudy.runs.config import TrainConfig
from understudy.runs.resumption import TRAINED_NAME

SFT_NAME, PREFERENCES_NAME = "sft", "preferences"


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
