"""Our rollout as SkyRL's generator: SkyRL asks for so many groups, and gets them as they were sampled.

SkyRL's prompts are slots only. Which tasks are played, with which seeds, which groups follow those that teach nothing,
and what failures earn, is decided as by the local engine.
"""

from collections.abc import Sequence
from typing import Any

import torch
from skyrl.train.generators.base import GeneratorInput, GeneratorInterface, GeneratorOutput
from skyrl.train.generators.utils import get_rollout_metrics

from understudy.algorithms.advantages import overlong_penalty
from understudy.errors import ConfigError, TaskError
from understudy.integrations.skyrl.journal import Journal
from understudy.integrations.skyrl.rows import as_rows, rewards_of
from understudy.integrations.skyrl.sampler import SkyrlSampler
from understudy.rollout import play_group
from understudy.tasks import Task
from understudy.train.lessons import lesson
from understudy.train.reinforcement import play_step, refuse_faulty, seed_of
from understudy.train.state import Training
from understudy.trajectory import Trajectory


class Rollouts(GeneratorInterface):  # type: ignore[misc]  # SkyRL has no types
    """See SkyRL's `GeneratorInterface`."""

    def __init__(self, training: Training, sampler: SkyrlSampler, journal: Journal, asynchronous: bool) -> None:
        self._training, self._sampler, self._journal = training, sampler, journal
        self._asynchronous = asynchronous
        self._tasks: list[Task] = []
        self._stream = training.stream(0)

    async def generate(self, input_batch: GeneratorInput) -> GeneratorOutput:
        """As many groups of episodes as there are prompts in the batch, each of which stands there once an episode."""
        size = self._training.config.algorithm.group_size
        slots = [int(extras["slot"]) for extras in input_batch["env_extras"][::size]]
        step = input_batch["batch_metadata"].global_step
        played = await (self._group(slots[0]) if self._asynchronous else self._step(step))
        await self._sampler.finish(episode.seed for group in played for episode in group)
        return self._output(self._worth_most(played, len(slots)), input_batch)

    async def _step(self, step: int) -> list[list[Trajectory]]:
        """The groups of a whole step; they are kept at once, so that they outlast whatever comes after."""
        groups = await play_step(self._training, step)
        self._journal.played(groups, step)
        refuse_faulty(groups, self._training.config.max_fault_rate)
        return groups

    async def _group(self, slot: int) -> list[list[Trajectory]]:
        """One group, of the stream's task at this place: which others are played beside it is not known."""
        training, config = self._training, self._training.config
        while len(self._tasks) <= slot:
            self._tasks.append(next(self._stream))
        seed, size = seed_of(config.seed, slot), config.algorithm.group_size
        task = self._tasks[slot]
        try:
            group = await play_group(training.trained_on, task, training.agent, config.limits, size, seed)
        except (ConfigError, TaskError) as e:  # which SkyRL answers by ending the process there and then
            training.report(f"stopped: {e}", 0, 0, {})
            self._journal.close()
            raise
        self._journal.ahead(str(slot), group)
        return [group]

    def _worth_most(self, groups: Sequence[list[Trajectory]], count: int) -> list[list[Trajectory]]:
        """So many groups, in the order they were played: those that teach nothing are the first to be left out."""
        advantage = self._training.config.algorithm.advantage
        worth = sorted(range(len(groups)), key=lambda place: not lesson(groups[place], advantage))
        return [groups[place] for place in sorted(worth[:count])]

    def _output(self, groups: Sequence[Sequence[Trajectory]], asked: GeneratorInput) -> GeneratorOutput:
        rows = as_rows(groups, [rewards_of(group, self._penalties(group)) for group in groups])
        metrics = get_rollout_metrics(rows["response_ids"], rows["rewards"], loss_masks=rows["loss_masks"])
        found: dict[str, Any] = {**rows, "rollout_metrics": metrics, "trajectory_ids": asked["trajectory_ids"]}
        return found

    def _penalties(self, group: Sequence[Trajectory]) -> list[float]:
        """What each episode loses for its length."""
        overlong, limit = self._training.config.algorithm.overlong, self._training.config.limits.max_tokens
        lengths = torch.tensor([len(episode.tokens) for episode in group])
        taken = overlong_penalty(lengths, limit, overlong.margin) * overlong.penalty
        return [float(each) for each in taken]
