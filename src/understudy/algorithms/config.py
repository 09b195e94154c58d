"""Config sections of `algorithm`. Imports no torch, so that a config can be read without it."""

from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from understudy.core.errors import ConfigError
from understudy.core.records import Record

FunctionReference = Annotated[str, StringConstraints(pattern=r"^[\w.]+:\w+$")]
"""A function of the user's own, as `module:attribute`."""
AdvantageEstimator = (
    Literal["group_mean", "grpo", "rloo", "reinforce_pp", "gae", "success_indicator", "zero", "turn"]
    | FunctionReference
)
LossAggregation = Literal["token_mean", "sequence_mean", "seq_mean_token_sum_norm"]
KLEstimator = Literal["k1", "k2", "k3"]
LearningRate = Annotated[float, Field(gt=0.0, allow_inf_nan=False)] | Literal["auto"]
"""A learning rate. `auto` follows the model (`train.model_size`)."""


def is_custom(name: str) -> bool:
    """Return whether an advantage estimator or a loss is a function of the user's own, `module:attribute`."""
    return ":" in name


class LossConfig(Record):
    """The policy loss and its clipping constants."""

    kind: Literal["ppo", "gspo", "cispo", "nll"] | FunctionReference = "ppo"
    """`ppo` is PPO's clipped surrogate. `gspo` clips the ratio of a sequence. `cispo` clips a token's importance weight
    and keeps its gradient. `nll` is the negative log-likelihood. `module:attribute` is a function of your own
    (docs/extending.md)."""
    clip_low: float = Field(default=0.2, ge=0.0, le=1.0)
    """Lower clip range. Below `1 - clip_low` a probability ratio gets no gradient that lowers it further. 1 disables
    the lower bound."""
    clip_high: float = Field(default=0.2, ge=0.0)
    """Upper clip range. Above `1 + clip_high` a probability ratio gets no gradient that raises it further. DAPO uses
    0.28."""
    dual_clip: float = Field(default=0.0, ge=0.0, allow_inf_nan=False)
    """For `ppo`: upper bound, above 1, of the probability ratio of a token with a negative advantage; above it the
    token gets no gradient (dual-clip PPO; verl's `clip_ratio_c`, 3 there). 0 disables it."""
    target_kl: float = Field(default=0.0, ge=0.0, allow_inf_nan=False)
    """For `ppo`, `gspo` and `cispo`: after a minibatch whose `approx_kl`, the mean KL to the weights that sampled in
    nats a token, exceeds this, skip the remaining minibatches and epochs of the step. 0 disables it."""

    @model_validator(mode="after")
    def _validate_kind(self) -> Self:
        if self.dual_clip and (self.dual_clip <= 1.0 or self.kind != "ppo"):
            raise ConfigError(
                f"algorithm.loss.dual_clip = {self.dual_clip} with algorithm.loss.kind = {self.kind!r}; allowed: a "
                "number above 1 with 'ppo', or 0"
            )
        if self.target_kl and (self.kind == "nll" or is_custom(self.kind)):
            raise ConfigError(
                f"algorithm.loss.target_kl = {self.target_kl} with algorithm.loss.kind = {self.kind!r}, which reports "
                "no approx_kl; allowed: 'ppo', 'gspo' and 'cispo', or set it to 0"
            )
        return self


class CriticConfig(Record):
    """The critic of `advantage_estimator = "gae"`: a linear value head on the model's last hidden state."""

    action_level: Literal["token", "turn"] = "token"
    """One action of GAE: a sampled token, or a whole reply (`turn`), whose tokens share one advantage."""
    gamma: float = Field(default=1.0, ge=0.0, le=1.0)
    """Discount factor per action."""
    gae_lambda: float = Field(default=0.95, ge=0.0, le=1.0)
    """Lambda of GAE: 1 is Monte Carlo returns, 0 is one-step temporal difference."""
    whiten_advantages: bool = True
    """Whether to normalize the advantages of a training step to mean 0 and standard deviation 1."""
    value_clip: float = Field(default=0.2, ge=0.0)
    """Clip range of a value around its old value in the value loss; 0 disables clipping."""
    learning_rate: float = Field(default=5e-2, gt=0.0, allow_inf_nan=False)
    """Learning rate of the value head alone. One optimizer step changes a value by about this much."""
    vf_coef: float = Field(default=0.1, ge=0.0, allow_inf_nan=False)
    """Weight of the value loss in the layers shared with the policy; 0 trains only the value head on it."""
    warmup_steps: int = Field(default=0, ge=0)
    """Number of first training steps that train only the value head and leave the policy unchanged."""


class TurnAdvantageConfig(Record):
    """Turn-level advantages: the settings of `algorithm.advantage_estimator = "turn"`."""

    gae_lambda: float = Field(default=1.0, ge=0.0, le=1.0)
    """Lambda of turn-level advantages. 1 (Monte Carlo) uses the reward of the reply's episode. 0 (one-step) uses the
    mean reward of the group's episodes that visited the state after the reply.
    """


class OverlongConfig(Record):
    """Soft overlong punishment: a reward penalty for episodes close to the token limit (DAPO)."""

    buffer_fraction: float = Field(default=0.0, ge=0.0, le=1.0)
    """Length of the penalty's range at the end of `limits.max_episode_tokens`, as a fraction of it. The penalty rises
    linearly from 0 at the start of the range to its full value at the limit. 0 disables it."""
    penalty: float = Field(default=1.0, ge=0.0, allow_inf_nan=False)
    """Reward subtracted from an episode of `limits.max_episode_tokens` tokens."""
