"""What an algorithm can be asked for. Torch-free, so that reading a config needs no torch."""

from typing import Literal

from pydantic import Field

from understudy.records import Record

Advantage = Literal["group", "group_std", "leave_one_out", "batch_std", "gae", "success", "none", "turn"]
Per = Literal["token", "sequence", "constant"]
Penalty = Literal["k1", "k2", "k3"]


class Loss(Record):
    """Which loss an update takes, and its constants."""

    kind: Literal["policy", "gspo", "cispo", "nll"] = "policy"
    """PPO's clipped surrogate, GSPO's, which clips whole sequences, CISPO's, which clips a token's weight and not its
    gradient, or plain imitation."""
    clip_low: float = Field(default=0.2, ge=0.0, le=1.0)
    """A token whose probability ratio fell below `1 - clip_low` gets no gradient that lowers it further; 1 sets no
    bound."""
    clip_high: float = Field(default=0.2, ge=0.0)
    """A token whose ratio rose above `1 + clip_high` gets no gradient that raises it further (DAPO: 0.28)."""


class Critic(Record):
    """What `algorithm.advantage = "gae"` learns values with: a linear head on the model's last hidden state."""

    step: Literal["token", "turn"] = "token"
    """What counts as one step: a sampled token, or a whole reply, all tokens of which have one advantage."""
    gamma: float = Field(default=1.0, ge=0.0, le=1.0)
    """What a reward is worth one step earlier."""
    lam: float = Field(default=0.95, ge=0.0, le=1.0)
    """GAE's lambda: 1 believes the rewards that came, 0 the value of the next step."""
    whiten: bool = True
    """Whether a step's advantages are brought to mean 0 and deviation 1."""
    clip: float = Field(default=0.2, ge=0.0)
    """How far from its old value an estimate may go before the pull towards the return ends; 0 sets no bound."""
    learning_rate: float = Field(default=5e-2, gt=0.0)
    """Of the head alone: about what one optimizer step moves a value by."""
    coefficient: float = Field(default=0.1, ge=0.0)
    """What the value loss weighs in the layers that it shares with the policy; 0 keeps it out of them."""
    warmup: int = Field(default=0, ge=0)
    """First steps in which the head learns alone, and the policy stays as it is."""


class Turn(Record):
    """How `algorithm.advantage = "turn"` shares a reward among the replies of an episode."""

    lam: float = Field(default=1.0, ge=0.0, le=1.0)
    """What a reply is compared by with what the group earned from where it was made: 1 takes the reward of its own
    episode, 0 what the group earned from where it led to."""


class Overlong(Record):
    """What long episodes lose of their reward, so that they are told before they are cut (DAPO's soft punishment)."""

    margin: float = Field(default=0.0, ge=0.0, le=1.0)
    """The last share of `limits.max_tokens`, over which the loss grows from nothing to the whole; 0 takes nothing."""
    penalty: float = Field(default=1.0, ge=0.0)
    """What an episode of `limits.max_tokens` loses."""
