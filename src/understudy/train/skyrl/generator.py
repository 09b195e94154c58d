"""A SkyRL generator that plays our rollouts. SkyRL requests a number of groups and gets their sampled tokens.

SkyRL's prompts are placeholders. Our `RLPhase`, which the local engine also uses, chooses the tasks and the seeds and
replaces groups with equal rewards. With SkyRL's asynchronous trainer, this module plays one group for each slot.
"""

from collections.abc import Sequence
from typing import Any

from skyrl.train.generators.base import GeneratorInput, GeneratorInterface, GeneratorOutput
from skyrl.train.generators.utils import get_rollout_metrics

from understudy.core.errors import ConfigError, TaskError
from understudy.core.tasks import Task
from understudy.rollouts.group import Group
from understudy.rollouts.rollout import RolloutRequest
from understudy.rollouts.scheduler import play_groups
from understudy.train.phases.rl import RLPhase, step_seed, validate_fault_rate
from understudy.train.skyrl.generator_output import group_rewards, to_generator_output
from understudy.train.skyrl.sampler import SkyRLSampler
from understudy.train.skyrl.tracking import TrackingAdapter


class RolloutGenerator(GeneratorInterface):  # type: ignore[misc]  # SkyRL has no types
    """A SkyRL generator that plays our rollouts. See SkyRL's `GeneratorInterface`."""

    def __init__(self, phase: RLPhase, sampler: SkyRLSampler, tracker: TrackingAdapter, asynchronous: bool) -> None:
        self._phase, self._context = phase, phase.context
        self._sampler, self._tracker = sampler, tracker
        self._asynchronous = asynchronous
        self._tasks: list[Task] = []
        self._stream = self._context.train_tasks()

    async def generate(self, input_batch: GeneratorInput) -> GeneratorOutput:
        """Return one group for each distinct prompt. The batch has each prompt `algorithm.group_size` times."""
        size = self._context.config.algorithm.group_size
        slots = [int(extras["slot"]) for extras in input_batch["env_extras"][::size]]
        step = input_batch["batch_metadata"].global_step
        played = await (self._group(slots[0]) if self._asynchronous else self._step(step))
        await self._sampler.finish_sessions(episode.seed for group in played for episode in group.episodes)
        return self._output(self._select_groups(played, len(slots)), input_batch)

    async def _step(self, step: int) -> list[Group]:
        """Play the groups of a step, and write their episodes. Raise RolloutError if too many of them failed."""
        groups = await self._phase.play_groups(step)
        self._tracker.add_groups(groups, step)
        episodes = [episode for group in groups for episode in group.episodes]
        validate_fault_rate(episodes, self._context.config.max_fault_rate, self._context.run.resume_command)
        return groups

    async def _group(self, slot: int) -> list[Group]:
        """Play one group on the training task with index `slot`."""
        phase, config = self._phase, self._context.config
        while len(self._tasks) <= slot:
            self._tasks.append(next(self._stream))
        task, size = self._tasks[slot], config.algorithm.group_size
        request = RolloutRequest(phase.environments, phase.agent, config.limits, step_seed(config.seed, slot))
        try:
            (group,) = await play_groups(request, iter([task]), group_size=size, num_groups=1)
        except (ConfigError, TaskError) as e:  # SkyRL ends the process at once, so report the error here
            self._context.report(f"stopped: {e}", 0, 0, {})
            self._tracker.close()
            raise
        self._tracker.queue_group(str(slot), group)
        return [group]

    def _select_groups(self, groups: Sequence[Group], count: int) -> list[Group]:
        """Return `count` groups in the order in which they were played.

        If there are more, groups without trainable episodes are dropped first.
        """
        estimator = self._context.config.algorithm.advantage_estimator
        order = sorted(range(len(groups)), key=lambda index: not groups[index].trainable_episodes(estimator))
        return [groups[index] for index in sorted(order[:count])]

    def _output(self, groups: Sequence[Group], request: GeneratorInput) -> GeneratorOutput:
        config = self._context.config
        limit = config.limits.max_episode_tokens
        rewards = [group_rewards(group, config.algorithm.overlong, limit) for group in groups]
        rows = to_generator_output(groups, rewards, request["trajectory_ids"])
        metrics = get_rollout_metrics(rows["response_ids"], rows["rewards"], loss_masks=rows["loss_masks"])
        output: dict[str, Any] = {**rows, "rollout_metrics": metrics}
        return output
