"""The phases of a run, one after the other: each begins with the weights that the one before it left."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from understudy.config import TrainConfig
from understudy.resumption import TRAINED
from understudy.train import preferences, reinforcement
from understudy.train.imitation import sft_step
from understudy.train.preferences import preference_step
from understudy.train.reinforcement import reinforce_step
from understudy.train.state import Metrics, Training


@dataclass(frozen=True, slots=True)
class Phase:
    """One way to learn, and for how long."""

    weights: str
    """What its weights are called in the result table."""
    first: int
    """Its first step."""
    steps: int
    step: Callable[[Training, int], Awaitable[Metrics]]
    begin: Callable[[Training], None] | None = None

    @property
    def last(self) -> int:
        """Its last step."""
        return self.first + self.steps - 1


def phases(config: TrainConfig) -> list[Phase]:
    """Those that a config asks for, in order; together they are its steps."""
    sft = config.sft.steps
    every = (
        Phase("warm start", 1, sft, sft_step),
        Phase("preferences", sft + 1, config.preferences.steps, preference_step, preferences.begin),
        Phase(TRAINED, config.prior + 1, config.steps, reinforce_step, reinforcement.begin),
    )
    return [phase for phase in every if phase.steps]
