"""Selection of the episodes of a step that the update trains on."""

from collections.abc import Sequence

from understudy.core.trajectory import Trajectory
from understudy.rollouts.group import Group
from understudy.runs.config import AlgorithmConfig


def trainable_groups(groups: Sequence[Group], algorithm: AlgorithmConfig) -> list[Group]:
    """Return the groups of a step with the episodes to train on. Groups without any are left out.

    With a KL penalty or an entropy bonus, all scored episodes of a group can be trained on. The same holds for
    `reinforce_pp`, which divides by the standard deviation over the whole batch, unless the rewards are equal within
    every group. At most `algorithm.max_trained_episodes` of each group are kept.
    """
    estimator = algorithm.advantage_estimator
    trainable = [Group(group.task, group.trainable_episodes(estimator)) for group in groups]
    compares_groups = estimator == "reinforce_pp" and any(group.episodes for group in trainable)
    if algorithm.kl_coef or algorithm.entropy_coef or compares_groups:
        trainable = [Group(group.task, group.scored_episodes) for group in groups]
    most = algorithm.most_trained_episodes
    return [Group(group.task, highest_and_lowest(group.episodes, most)) for group in trainable if group.episodes]


def count_trainable(groups: Sequence[Group], algorithm: AlgorithmConfig) -> int:
    """Return how many episodes `trainable_groups` keeps if no group is left out: the scored ones, at most
    `algorithm.max_trained_episodes` of each group.
    """
    return sum(min(len(group.scored_episodes), algorithm.most_trained_episodes) for group in groups)


def highest_and_lowest(episodes: Sequence[Trajectory], count: int) -> list[Trajectory]:
    """Return `count` episodes in their order: half of them, rounded up, have the highest rewards, half the lowest."""
    ranked = sorted(range(len(episodes)), key=lambda index: episodes[index].reward, reverse=True)
    chosen = {*ranked[: -(-count // 2)], *ranked[len(ranked) - count // 2 :]} if count < len(ranked) else {*ranked}
    return [episode for index, episode in enumerate(episodes) if index in chosen]
