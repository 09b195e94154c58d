"""The schedule of a run: SFT, preferences and RL as ranges of its steps, its evaluations and its checkpoints."""

from dataclasses import dataclass

from understudy.runs.config import TrainConfig
from understudy.runs.resumption import TRAINED_NAME, rl_weights_name

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


def eval_name_after(config: TrainConfig, step: int) -> str | None:
    """Return the name of the evaluation after a step, or None if there is none. Step 0 is the start of the run."""
    ends = {span.last_step: span.name for span in phase_spans(config)}
    if step in ends:
        return ends[step]
    if step == 0:
        return "base"
    done = step - config.steps_before_rl  # RL steps
    return rl_weights_name(config, step) if done > 0 and is_due(done, config.eval.every) else None


def has_checkpoint_after(config: TrainConfig, step: int) -> bool:
    """Return whether the config schedules a checkpoint after a step. A run that stops writes another one."""
    return is_due(step, config.save_every) or eval_name_after(config, step) is not None


def is_due(step: int, every: int) -> bool:
    """Return whether `every` is not 0 and divides `step`."""
    return bool(every) and step % every == 0
