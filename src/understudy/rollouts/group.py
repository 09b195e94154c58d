"""Group: a task and the episodes of it that a training step compares."""

from array import array
from dataclasses import dataclass

from understudy.algorithms.config import AdvantageEstimator, is_custom
from understudy.core.tasks import Task
from understudy.core.trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class Group:
    """One task and its episodes, in the order of their trials."""

    task: Task
    episodes: list[Trajectory]

    @property
    def scored_episodes(self) -> list[Trajectory]:
        """The episodes that have a score."""
        return [episode for episode in self.episodes if episode.score is not None]

    @property
    def has_reward_variance(self) -> bool:
        """True if the rewards of the scored episodes differ in float32, in which advantages are computed."""
        return len(set(array("f", [episode.reward for episode in self.scored_episodes]))) > 1

    def trainable_episodes(self, estimator: AdvantageEstimator) -> list[Trajectory]:
        """Return the episodes from which an advantage estimator gets a training signal.

        Estimators that compare episodes need different rewards. `success_indicator` takes every success. `gae`
        compares with a critic and `zero` with a reference, so both take every scored episode. So does an estimator of
        the user's own, because it may compare anything.
        """
        if estimator == "success_indicator":
            return [episode for episode in self.scored_episodes if episode.reward >= 1.0]
        takes_all = estimator in ("gae", "zero") or is_custom(estimator)
        return self.scored_episodes if takes_all or self.has_reward_variance else []
