"""The reward that an episode is trained on: its reward minus the overlong penalty."""

from collections.abc import Sequence

import torch
from torch import Tensor

from understudy.algorithms.config import OverlongConfig
from understudy.core.trajectory import Trajectory


def training_rewards(episodes: Sequence[Trajectory], overlong: OverlongConfig, max_episode_tokens: int) -> Tensor:
    """Return the reward that each episode is trained on [B]: `Trajectory.reward` minus the overlong penalty.

    Raise ValueError if an episode has no score.
    """
    rewards = torch.tensor([episode.reward for episode in episodes], dtype=torch.float32)
    lengths = torch.tensor([episode.num_tokens for episode in episodes])
    return rewards - overlong.penalty * overlong_fraction(lengths, max_episode_tokens, overlong.buffer_fraction)


def overlong_fraction(lengths: Tensor, max_tokens: int, buffer_fraction: float) -> Tensor:
    """Return the fraction of the overlong penalty for episodes of `lengths` [B] tokens, as [B] in 0 to 1.

    The fraction is 0 up to `max_tokens * (1 - buffer_fraction)` and rises linearly to 1 at `max_tokens` (Yu et al.
    2025, arXiv:2503.14476, eq. 13). It is 0 everywhere if `buffer_fraction` is 0.
    """
    if not buffer_fraction:
        return torch.zeros(lengths.shape)
    excess = lengths - max_tokens * (1 - buffer_fraction)
    return (excess / (max_tokens * buffer_fraction)).clamp(0.0, 1.0)
