"""An advantage estimator that reinforces only the best episodes of a group. A recipe: see docs/extending.md."""

import torch
from torch import Tensor

from understudy.algorithms.batch import Batch


def best_of_group(batch: Batch) -> Tensor:
    """Return one advantage for each episode [B].

    The advantage of a group's best episodes is their reward minus the group's mean, divided by the number of best
    episodes. Other episodes have 0.
    """
    rewards, group_ids = batch.rewards, batch.group_ids
    advantages = torch.zeros_like(rewards)
    for number in group_ids.unique():
        here = group_ids == number
        best = here & (rewards == rewards[here].max())
        advantages[best] = (rewards[here].max() - rewards[here].mean()) / best.sum()
    return advantages
