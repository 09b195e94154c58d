"""An algorithm: the best of a group is imitated, as far as it is better than the others. A recipe: docs/extending.md.

An estimator of advantages is a function of rewards and groups; means go into `token_weights`, and the loss stays a sum.
"""

import torch
from torch import Tensor


def best_of_group(rewards: Tensor, group: Tensor) -> Tensor:
    """The lead of each group's best episodes over the group's mean, shared among them; else 0. All are [B]."""
    advantages = torch.zeros_like(rewards)
    for number in group.unique():
        here = group == number
        best = here & (rewards == rewards[here].max())
        advantages[best] = (rewards[here].max() - rewards[here].mean()) / best.sum()
    return advantages
