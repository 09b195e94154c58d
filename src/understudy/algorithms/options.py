"""What an algorithm can be asked for. Torch-free, so that reading a config needs no torch."""

from typing import Literal

from pydantic import Field

from understudy.records import Record

Advantage = Literal["group", "group_std", "leave_one_out", "batch_std", "success", "none"]
Per = Literal["token", "sequence", "constant"]
Penalty = Literal["k1", "k2", "k3"]


class Loss(Record):
    """Which loss an update takes, and its constants."""

    kind: Literal["policy", "gspo", "cispo", "nll"] = "policy"
    """PPO's clipped surrogate, GSPO's, which clips whole sequences, CISPO's, which clips a token's weight and not its
    gradient, or plain imitation."""
    clip_low: float = Field(default=0.2, ge=0.0, lt=1.0)
    """A token whose probability ratio fell below `1 - clip_low` gets no gradient that lowers it further."""
    clip_high: float = Field(default=0.2, ge=0.0)
    """A token whose ratio rose above `1 + clip_high` gets no gradient that raises it further (DAPO: 0.28)."""
