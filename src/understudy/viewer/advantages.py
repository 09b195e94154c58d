"""Advantages of stored episodes, without torch: what `algorithms.advantages` makes of the rewards of a step.

Only what one number an episode tells: a critic's differ from token to token and are not stored, and so do a penalty for
the distance from a reference, which comes on top.
"""

import math
from collections.abc import Sequence

from understudy.config import TrainConfig
from understudy.trajectory import Trajectory

_TINY = 1e-6


def advantages(groups: Sequence[Sequence[Trajectory]], config: TrainConfig) -> list[list[float | None]] | None:
    """The advantage of each episode of a step's groups; None for one that nothing is learned from.

    None altogether where they are not one number an episode.
    """
    kind = config.algorithm.advantage
    if kind in ("gae", "turn"):
        return None
    rewards = [[_reward(episode, config) for episode in group] for group in groups]
    if kind == "success":
        return [
            [_imitated(*each) for each in zip(group, mine, strict=True)]
            for group, mine in zip(groups, rewards, strict=True)
        ]
    if kind == "none":
        return [[None if reward is None else 0.0 for reward in group] for group in rewards]
    learned = [_teaching(group, mine) for group, mine in zip(groups, rewards, strict=True)]
    if kind != "batch_std":
        return [_compared(group, kind) for group in learned]
    centred = [_compared(group, "group") for group in learned]
    every = [value for group in centred for value in group if value is not None]
    scale = (_deviation(every) if len(every) > 1 else 0.0) + _TINY
    return [[None if value is None else value / scale for value in group] for group in centred]


def _imitated(episode: Trajectory, reward: float | None) -> float | None:
    """Successes are imitated, but for those that what is taken for length makes none."""
    return float(reward is not None and reward >= 1.0) if episode.score and episode.reward >= 1.0 else None


def _reward(episode: Trajectory, config: TrainConfig) -> float | None:
    """The reward to train on, less what is taken for length."""
    if episode.score is None:
        return None
    overlong, limit = config.algorithm.overlong, config.limits.max_tokens
    if not overlong.margin:
        return episode.reward
    share = (len(episode.tokens) - limit * (1 - overlong.margin)) / (limit * overlong.margin)
    return episode.reward - overlong.penalty * min(1.0, max(0.0, share))


def _teaching(group: Sequence[Trajectory], rewards: list[float | None]) -> list[float | None]:
    """The rewards of a group, none where all its episodes earned the same: it is left out of the step."""
    earned = {episode.reward for episode in group if episode.score is not None}
    return rewards if len(earned) > 1 else [None] * len(rewards)


def _compared(rewards: Sequence[float | None], kind: str) -> list[float | None]:
    known = [reward for reward in rewards if reward is not None]
    if len(known) < 2:
        return [None if reward is None else 0.0 for reward in rewards]
    total, count = math.fsum(known), len(known)
    if kind == "leave_one_out":
        return [None if r is None else r - (total - r) / (count - 1) for r in rewards]
    scale = _deviation(known) + _TINY if kind == "group_std" else 1.0
    return [None if r is None else (r - total / count) / scale for r in rewards]


def _deviation(values: Sequence[float]) -> float:
    """The sample's, n - 1."""
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))
