"""An advantage estimator that reinforces only the best episodes of a group. A recipe: see docs/extending.md.

An estimator is a function of rewards and groups. Means belong in `token_weights`, so that the loss remains a sum.
"""

import torch
from torch import Tensor


def best_of_group(rewards: Tensor, group: Tensor) -> Tensor:
    """Return advantages [B] from `rewards` [B] and group ids `group` [B].

    The advantage of a group's best episodes is their reward minus the group's mean, divided by the number of best
    episodes. Other episodes have 0.
    """
    advantages = torch.zeros_like(rewards)
    for number in group.unique():
        here = group == number
        best = here & (rewards == rewards[here].max())
        advantages[best] = (rewards[here].max() - rewards[here].mean()) / best.sum()
    return advantages
