"""Config section `preferences`. Imports no torch, so that a config can be read without it."""

from typing import Literal

from pydantic import Field

from understudy.algorithms.config import LearningRate
from understudy.core.records import Record


class PreferenceConfig(Record):
    """Preference learning, the phase between SFT and RL, on a file of better and worse conversations."""

    steps: int = Field(default=0, ge=0)
    """Optimizer steps; 0 skips this phase."""
    dataset_file: str = ""
    """A file or folder. Rows hold `chosen` and `rejected` for `dpo`, `messages` and `label` for `kto`, or have another
    known shape."""
    min_reward: float | None = None
    """For a file of episodes with rewards: the smallest reward of a desirable episode. By default 1, and a reward above
    1 is an error."""
    kind: Literal["dpo", "kto"] = "dpo"
    """Loss: `dpo` learns from pairs, `kto` from single conversations labelled desirable or undesirable."""
    batch_size: int = Field(default=8, ge=1)
    """Pairs (`dpo`) or conversations (`kto`) per optimizer step."""
    learning_rate: LearningRate = "auto"
    """Peak learning rate, reached after `warmup_steps`. It then decays linearly to a tenth at the last step. `auto`
    follows the model (docs/finetuning.md)."""
    warmup_steps: int = Field(default=4, ge=0)
    """Steps of linear warmup of the learning rate."""
    beta: float = Field(default=0.1, gt=0.0, allow_inf_nan=False)
    """Strength of the KL constraint to the policy at the start of the phase; a higher value keeps it closer."""
    undesirable_weight: float = Field(default=1.0, ge=0.0, allow_inf_nan=False)
    """For `kto`: weight of undesirable conversations relative to desirable ones. Lower it if most are undesirable."""
    rpo_alpha: float = Field(default=0.0, ge=0.0, allow_inf_nan=False)
    """Weight of an SFT loss on the better conversations, averaged over their tokens (Pang et al. 2024,
    arXiv:2404.19733). It prevents their probability from falling together with that of the worse ones."""
