"""RL: play groups of episodes, then update the weights with their advantages."""

import dataclasses
import random
import time
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from understudy.algorithms.advantages import (
    add_entropy_bonus,
    apply_kl_penalty,
    episode_advantages,
    has_group_variance,
    tis_weights,
    token_weights,
    turn_advantages,
)
from understudy.algorithms.batch import Batch, collate
from understudy.algorithms.config import is_custom
from understudy.algorithms.critic import action_starts
from understudy.algorithms.custom import custom_advantages
from understudy.algorithms.rewards import training_rewards
from understudy.core.errors import RolloutError
from understudy.core.tasks import Task
from understudy.core.trajectory import StopReason, Trajectory
from understudy.engines.interface import LogprobTolerance, Trainer, require_critic, require_reference
from understudy.evaluation.evaluate import replace_users
from understudy.rollouts.curriculum import TaskSampler, make_task_sampler, update_success_rates
from understudy.rollouts.group import Group
from understudy.rollouts.reward_shaping import ShapedEnvironmentFactory, ShapingConfig
from understudy.rollouts.rollout import EnvironmentFactory, RolloutRequest
from understudy.rollouts.scheduler import play_groups
from understudy.runs.agents import make_model_player
from understudy.runs.config import AlgorithmConfig, TrainConfig
from understudy.train.anchor_states import index_anchor_states
from understudy.train.critic import critic_metrics, with_gae_advantages
from understudy.train.metrics import (
    advantage_metrics,
    judge_metrics,
    learning_rate,
    rollout_metrics,
    user_usage_metrics,
)
from understudy.train.selection import count_trainable, trainable_groups
from understudy.train.state import SAMPLE, UPDATE, Metrics, TrainingContext, TrainingProgress
from understudy.train.step_records import report_exceptions
from understudy.train.trained_batch import TrainedBatch


class RLPhase:
    """Plays groups of episodes, then updates the weights with their advantages."""

    def __init__(self, context: TrainingContext, progress: TrainingProgress) -> None:
        self.context, self.progress = context, progress
        penalty = context.config.format.repair_penalty
        config = context.config
        self.agent = make_model_player(config, context.engine, context.format, config.sampling, penalty)
        self.environments = _make_environments(context)
        self._next_tasks: Iterator[Task] = iter(())
        """The training tasks after the first `_num_drawn`."""
        self._num_drawn = -1

    def start(self) -> None:
        """Skip the tasks of demonstrations, reset the optimizer, and set the reference if the algorithm needs one."""
        config, engine = self.context.config, self.context.engine
        self.progress.tasks_used = max(self.progress.tasks_used, config.sft.num_gold_episodes)
        engine.reset_optimizer()
        if config.preferences.steps:
            require_reference(engine).drop_reference()
        if config.algorithm.kl_coef:
            require_reference(engine).set_reference(config.algorithm.reference)

    async def run_step(self, step: int) -> Metrics:
        """Play the groups of a step and update the weights."""
        context, config = self.context, self.context.config
        algorithm = config.algorithm
        number = step - config.steps_before_rl
        started, used, drawn = time.perf_counter(), context.users.usage, self.progress.tasks_used
        groups = await self.play_groups(step)
        context.run.save_groups(step, groups)
        played = [episode for group in groups for episode in group.episodes]
        report_exceptions(context, step, played)
        validate_fault_rate(played, config.max_fault_rate, context.run.resume_command)
        sampled = time.perf_counter()
        certified = await context.certifier.certify_step(context.run, step, number, groups)
        learning = time.perf_counter()
        moving = max(0, number - algorithm.critic_warmup_steps)
        moves = config.steps - algorithm.critic_warmup_steps
        rate = learning_rate(moving, moves, algorithm.learning_rate, algorithm.warmup_steps, algorithm.min_lr_ratio)
        metrics, trained = await _learn(context, groups, number, rate)
        if algorithm.kl_coef and number % algorithm.reference.sync_steps == 0:
            require_reference(context.engine).update_reference()
        updated = time.perf_counter()
        if trained:
            context.run.save_trained_episodes(step, trained.trained_episodes(played))
        done = time.perf_counter()
        seconds = {"rollout_seconds": sampled - started, "update_seconds": updated - learning}
        rates = {"learning_rate": rate, "step_seconds": done - started, "rollout/noop_reward": context.noop_reward}
        skipped = {"skipped_tasks": float(self.progress.tasks_used - drawn - len(groups))}
        usage = user_usage_metrics(context.users, used, context.process_group) | judge_metrics(
            context.reward_judge, context.process_group
        )
        rollouts = rollout_metrics(groups, algorithm.advantage_estimator)
        return rollouts | skipped | certified | metrics | seconds | rates | usage

    async def play_groups(self, step: int) -> list[Group]:
        """Play the groups of a step on tasks that the curriculum selects, and update the curriculum's success rates."""
        context, config, progress = self.context, self.context.config, self.progress
        tasks = self.make_task_sampler((step - config.steps_before_rl - 1) / config.steps)
        request = RolloutRequest(
            self.environments,
            self.agent,
            config.limits,
            step_seed(config.seed, step),
            context.process_group,
            context.on_episode,
            on_progress=lambda ended, total: context.report(SAMPLE, ended, total, {}),
        )
        groups = await play_groups(
            request,
            tasks,
            group_size=config.algorithm.group_size,
            num_groups=config.algorithm.groups_per_batch,
            max_resampled_groups=config.algorithm.max_resampled_groups,
            advantage_estimator=config.algorithm.advantage_estimator,
        )
        context.report(UPDATE, 0, 1, {})
        context.gather_costs()
        progress.tasks_used = tasks.num_drawn
        progress.bucket_success_rates = update_success_rates(
            progress.bucket_success_rates, groups, config.curriculum.ema_decay
        )
        return groups

    def make_task_sampler(self, fraction: float) -> TaskSampler:
        """Return a sampler of the next training tasks. `fraction` is the fraction of RL steps that are done."""
        config, used = self.context.config, self.progress.tasks_used
        if self._num_drawn != used:  # only at the start: generating tasks is slow, so later samplers share a stream
            self._num_drawn, self._next_tasks = used, self._count_drawn(self.context.train_tasks(used))
        rates = self.progress.bucket_success_rates
        return make_task_sampler(config.curriculum, self._next_tasks, used, config.seed, fraction, rates)

    def _count_drawn(self, tasks: Iterator[Task]) -> Iterator[Task]:
        for task in tasks:
            self._num_drawn += 1
            yield task


def _make_environments(context: TrainingContext) -> EnvironmentFactory:
    """Return the training environments, with the simulated users and the reward shaping of the config."""
    domain, shaping = replace_users(context.domain, context.users), context.config.algorithm.shaping
    return domain if shaping == ShapingConfig() else ShapedEnvironmentFactory(domain, shaping, context.reward_judge)


async def _learn(
    context: TrainingContext, played: Sequence[Group], number: int, rate: float
) -> tuple[Metrics, TrainedBatch | None]:
    """Update the weights with the groups that were played.

    Return the metrics, and the batch that trained the policy, or None if none did.
    """
    config, engine = context.config, context.engine
    algorithm = config.algorithm
    groups = trainable_groups(played, algorithm)
    if not groups:
        return {}, None
    batch = collate_groups(groups, config)
    if algorithm.kl_coef:
        batch = await require_reference(engine).compute_ref_logprobs(batch)
    if algorithm.uses_critic:
        batch = await require_critic(engine).compute_values(batch)
    batch = compute_advantages(batch, config)
    if has_only_rounding(batch, config, engine.tolerance):
        return _ref_kl_metrics(batch), None
    episodes = [episode for group in groups for episode in group.episodes]
    trained: TrainedBatch | None = TrainedBatch(episodes, batch, algorithm.num_minibatches)
    corrected: Metrics = {}
    if algorithm.tis_cap:
        batch, corrected = await _correct_importance(engine, batch, algorithm.tis_cap)
    if number <= algorithm.critic_warmup_steps:
        batch, trained = dataclasses.replace(batch, advantages=None), None
    seed, num_episodes = step_seed(config.seed, number), count_trainable(played, algorithm)
    steps = make_minibatches(batch, algorithm.num_minibatches, config, seed, num_episodes)
    metrics = await engine.update(steps, algorithm.loss, rate, trained.add_logprobs if trained else None)
    if trained and algorithm.tis_cap:
        trained.replace_logprobs(batch.logprobs)
    batch_metrics = advantage_metrics(batch) | critic_metrics(batch, algorithm) | _ref_kl_metrics(batch)
    return metrics | batch_metrics | corrected, trained


def _ref_kl_metrics(batch: Batch) -> Metrics:
    """Return the mean k1 KL to the reference, in nats a token; empty without a reference."""
    if batch.ref_logprobs is None:
        return {}
    return {"kl": float((batch.logprobs - batch.ref_logprobs)[batch.mask].mean())}


async def _correct_importance(engine: Trainer, batch: Batch, cap: float) -> tuple[Batch, Metrics]:
    """Return the batch with the trainer's log-probabilities, and multiply its advantages by TIS weights.

    The metrics compare the log-probabilities of sampler and trainer. They are computed here, because the update only
    gets the trainer's.
    """
    assert batch.advantages is not None
    seen = await engine.compute_logprobs(batch)
    weights = tis_weights(seen.logprobs, batch.logprobs, batch.mask, cap)
    ratio = (seen.logprobs - batch.logprobs)[batch.mask].exp()
    return seen.replace(advantages=batch.advantages * weights), {
        "tis_ratio": float(ratio.mean()),
        "tis_ratio_mse": float((ratio - 1).square().mean()),
        "tis_clip_fraction": float((ratio > cap).float().mean()),
    }


def collate_groups(groups: Sequence[Group], config: TrainConfig) -> Batch:
    """Return the batch of the groups' episodes, with the rewards that they are trained on."""
    algorithm = config.algorithm
    episodes = [episode for group in groups for episode in group.episodes]
    group_ids = [i for i, group in enumerate(groups) for _ in group.episodes]
    needs_states = algorithm.advantage_estimator == "turn" or is_custom(algorithm.advantage_estimator)
    anchor_states = index_anchor_states(groups) if needs_states else None
    batch = collate(episodes, group_ids, temperature=config.sampling.temperature or 1.0, anchor_states=anchor_states)
    rewards = training_rewards(episodes, algorithm.overlong, config.limits.max_episode_tokens)
    return batch.replace(rewards=rewards[batch.episode_ids])


def compute_advantages(batch: Batch, config: TrainConfig) -> Batch:
    """Return the batch with the advantage of each sampled token. With a critic, it also has the returns.

    The advantages are not yet multiplied by the loss weights of tokens; `make_minibatches` does that.
    """
    algorithm = config.algorithm
    if algorithm.uses_critic:
        batch = with_gae_advantages(batch, algorithm)
        assert batch.advantages is not None
        advantages = batch.advantages
    else:
        advantages = _reward_advantages(batch, algorithm)
    if batch.ref_logprobs is not None and not (algorithm.uses_critic and algorithm.kl_estimator == "k1"):
        args = batch.logprobs, batch.ref_logprobs, batch.mask, algorithm.kl_coef, algorithm.kl_estimator
        advantages = apply_kl_penalty(advantages, *args)
    if algorithm.entropy_coef:
        advantages = add_entropy_bonus(advantages, batch.logprobs, batch.mask, algorithm.entropy_coef)
    return batch.replace(advantages=advantages)


def _reward_advantages(batch: Batch, algorithm: AlgorithmConfig) -> Tensor:
    """Return the advantages [B, T] of an estimator without a critic, without the KL penalty."""
    if algorithm.advantage_estimator == "turn":
        assert batch.anchor_states is not None
        turns = turn_advantages(
            batch.rewards, batch.anchor_states, batch.mask, algorithm.turn.gae_lambda, batch.episode_ids
        )
        return turns * has_group_variance(batch.rewards, batch.group_ids)[:, None]
    if is_custom(algorithm.advantage_estimator):
        return custom_advantages(algorithm.advantage_estimator, batch)
    rows = batch.episode_rows()
    first = [own[0] for own in rows]
    episodes = episode_advantages(algorithm.advantage_estimator, batch.rewards[first], batch.group_ids[first])
    advantages = torch.empty_like(batch.rewards)
    for own, advantage in zip(rows, episodes, strict=True):
        advantages[own] = advantage
    return advantages[:, None] * batch.mask


def has_only_rounding(batch: Batch, config: TrainConfig, tolerance: LogprobTolerance) -> bool:
    """Return whether the rewards give no advantage, and rounding explains the KL to the reference.

    Such a batch says nothing about the weights. An optimizer step on it would still move them by the learning rate,
    because Adam scales the gradient, in a direction that depends on the microbatches. The KL to another model is
    never only rounding: a teacher that differs this little is still one to learn from.
    """
    algorithm = config.algorithm
    if batch.ref_logprobs is None or algorithm.reference.kind == "model" or algorithm.entropy_coef:
        return False
    if algorithm.uses_critic or _reward_advantages(batch, algorithm).any():
        return False
    return float((batch.logprobs - batch.ref_logprobs)[batch.mask].abs().mean()) <= tolerance.mean_diff


def make_minibatches(
    batch: Batch, num_minibatches: int, config: TrainConfig, seed: int = 0, num_episodes: int | None = None
) -> list[Batch]:
    """Return `num_minibatches` minibatches for each epoch, with advantages multiplied by the loss weights.

    Episodes are not split, and those of a group are spread over the minibatches. `num_episodes` counts the episodes of
    the batch and those of the step that were left out because they have no advantage.
    """
    rows = batch.episode_rows()
    share = (len(rows) if num_episodes is None else num_episodes) / num_minibatches
    num_minibatches = min(num_minibatches, len(rows))
    groups = batch.group_ids[[own[0] for own in rows]].tolist()
    return [
        _weighted_minibatch(
            batch.select([row for episode in order[i::num_minibatches] for row in rows[episode]]), config, share
        )
        for order in _orders(groups, config.algorithm.update_epochs, seed)
        for i in range(num_minibatches)
    ]


def _orders(group: Sequence[int], epochs: int, seed: int) -> Iterator[list[int]]:
    """Yield the order of the episodes for each epoch. `group` has the number of each episode's group.

    The first epoch has the episodes as given. Later epochs shuffle the groups, and the episodes within each group, so
    the episodes of a group are adjacent.
    """
    members: dict[int, list[int]] = {}
    for episode, number in enumerate(group):
        members.setdefault(number, []).append(episode)
    yield list(range(len(group)))
    for epoch in range(1, epochs):
        draw = random.Random(f"{seed}/{epoch}")
        groups = draw.sample(list(members.values()), len(members))
        yield [episode for episodes in groups for episode in draw.sample(episodes, len(episodes))]


def _weighted_minibatch(part: Batch, config: TrainConfig, num_episodes: float) -> Batch:
    """Return the batch of one optimizer step, with loss weights of tokens and, with a critic, of values.

    `num_episodes` is the step's number of episodes for each minibatch.
    """
    aggregation = config.algorithm.loss_aggregation
    limit = config.limits.max_turns * config.sampling.max_response_tokens
    if part.advantages is not None:
        weights = token_weights(part.mask, aggregation, limit, num_episodes, part.episode_ids)
        part = part.replace(advantages=part.advantages * weights)
    if part.returns is None:
        return part
    steps = action_starts(part.mask, config.algorithm.critic.action_level == "turn")
    return part.replace(value_weights=token_weights(steps, aggregation, limit, num_episodes, part.episode_ids))


def step_seed(seed: int, step: int) -> int:
    """Return the seed of a step's tasks and episodes."""
    return seed * 1_000_003 + step


def validate_fault_rate(episodes: Sequence[Trajectory], max_rate: float, resume_command: str = "") -> None:
    """Raise RolloutError if more than a fraction `max_rate` of the episodes failed: the others are a biased sample.

    The error ends with `resume_command`, if it is given.
    """
    faulty = [episode for episode in episodes if episode.stop_reason is StopReason.FAULT]
    if len(faulty) > max_rate * len(episodes):
        first, hint = faulty[0], f"; resume with: {resume_command}" if resume_command else ""
        raise RolloutError(
            f"{len(faulty)} of {len(episodes)} episodes failed, more than max_fault_rate = {max_rate}; "
            f"the first, task {first.task_id}: {first.error}{hint}",
            first.fault or "engine",
        )
