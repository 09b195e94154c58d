"""How preferences are learned from. Torch-free, so that reading a config needs no torch."""

from typing import Literal

from pydantic import Field

from understudy.records import Record


class Preferences(Record):
    """The phase between the warm start and reinforcement: conversations out of a file, better ones and worse ones."""

    steps: int = Field(default=0, ge=0)
    """Optimizer steps; 0 goes without this phase."""
    file: str = ""
    """JSONL: pairs `chosen` and `rejected` for `dpo`, `messages` and `wanted` for `kto`."""
    kind: Literal["dpo", "kto"] = "dpo"
    """Pairs of which one is better, or single conversations that are wanted or not."""
    batch_size: int = Field(default=8, ge=1)
    """Pairs, or conversations, in a step."""
    learning_rate: float = Field(default=1e-5, gt=0.0)
    """At its highest, after `warmup`; from there it falls, in a line, to a tenth at the last step."""
    warmup: int = Field(default=4, ge=0)
    """Steps over which the learning rate rises to its value."""
    beta: float = Field(default=0.1, gt=0.0)
    """How strongly the policy is held to the one that the phase started from: higher is closer."""
    unwanted_weight: float = Field(default=1.0, ge=0.0)
    """For `kto`: what an unwanted conversation weighs beside a wanted one; lower it where most are unwanted."""
    imitation: float = Field(default=0.0, ge=0.0)
    """What imitating the better conversations weighs beside the comparison, as a mean over their tokens: it keeps them
    from becoming unlikely together with the worse ones (Pang et al. 2024, arXiv:2404.19733)."""
