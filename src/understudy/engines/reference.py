"""What a policy is held to, or taught by. Torch-free, so that reading a config needs no torch."""

from typing import Literal, Self

from pydantic import Field, model_validator

from understudy.records import Record


class ReferenceConfig(Record):
    """Whose log-probabilities the policy's are compared with."""

    kind: Literal["frozen", "ema", "model"] = "frozen"
    """The policy that reinforcement learning started from; a moving average of the policy; or another model, a teacher.
    Of LoRA that has not been trained yet, `frozen` is the model without its adapters, and takes no memory."""
    model: str = ""
    """For `model`: its name or folder. It must have the same vocabulary."""
    every: int = Field(default=100, ge=1)
    """For `ema`: steps of reinforcement learning from one move to the next."""
    decay: float = Field(default=0.5, ge=0.0, lt=1.0)
    """For `ema`: what of the average stays in a move; the rest is the policy as it then is."""

    @model_validator(mode="after")
    def _one_model(self) -> Self:
        if bool(self.model) != (self.kind == "model"):
            raise ValueError("a model is named where kind is 'model', and only there")
        return self


FROZEN = ReferenceConfig()
