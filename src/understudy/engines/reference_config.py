"""Configuration of the reference policy. Importing it does not import torch."""

from typing import Literal, Self

from pydantic import Field, model_validator

from understudy.core.records import Record


class ReferenceConfig(Record):
    """The reference policy, whose log-probabilities are compared with the policy's."""

    kind: Literal["frozen", "ema", "model"] = "frozen"
    """`frozen` is the policy at the start of RL, `ema` a moving average of the policy, `model` another model (a
    teacher). With untrained LoRA adapters, `frozen` is the base model and takes no memory."""
    model: str = ""
    """For `model`: name or folder of the model. It must have the same vocabulary. Empty means the model of the run,
    before training."""
    sync_steps: int = Field(default=100, ge=1)
    """For `ema`: RL steps between two updates of the average."""
    ema_decay: float = Field(default=0.5, ge=0.0, lt=1.0)
    """For `ema`: weight of the old average in an update. The rest is the current policy."""

    @model_validator(mode="after")
    def _validate_model(self) -> Self:
        if bool(self.model) != (self.kind == "model"):
            raise ValueError("set model if kind is 'model', and only then")
        return self


FROZEN_REFERENCE = ReferenceConfig()
