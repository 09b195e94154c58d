"""Metrics of a step's episodes, and the learning rate schedule."""

import statistics
from collections import Counter
from collections.abc import Sequence

from understudy.algorithms.batch import Batch
from understudy.algorithms.config import AdvantageEstimator, LearningRate
from understudy.clients.chat import ModelUsage
from understudy.core.trajectory import StopReason, Trajectory
from understudy.engines.local.distributed.distributed import sum_across_ranks
from understudy.engines.process_group import ProcessGroup
from understudy.envs.users import UserSimulatorFactory
from understudy.rollouts.group import Group
from understudy.rollouts.reward_shaping import RewardJudge
from understudy.train.state import Metrics


def rollout_metrics(groups: Sequence[Group], estimator: AdvantageEstimator) -> Metrics:
    """Return the metrics of one step's episodes. Rates of replies and tool errors are per reply of the agent.

    `zero_variance_groups` counts the groups in which the estimator finds no trainable episode, `tool_exceptions` the
    calls in which a tool raised an exception other than ToolError, and `replies/malformed` is the rate of parse
    failures. A step whose episodes all failed by faults has no reward and no rates of replies.
    """
    episodes = [episode for group in groups for episode in group.episodes]
    stops = Counter(str(episode.stop_reason) for episode in episodes)
    counted = {
        "episodes": float(len(episodes)),
        "groups": float(len(groups)),
        "zero_variance_groups": float(sum(not group.trainable_episodes(estimator) for group in groups)),
        **{f"stop/{name}": count / len(episodes) for name, count in sorted(stops.items())},
        **_fault_rates(episodes),
    }
    scored = [episode for episode in episodes if episode.score]
    return counted | _scored_metrics(scored) if scored else counted


def _scored_metrics(scored: Sequence[Trajectory]) -> Metrics:
    """Return the metrics of the episodes that have a score. There is at least one."""
    rewards = [episode.reward for episode in scored]
    successes = sum(episode.score is not None and episode.score.reward >= 1.0 for episode in scored)
    turns = sum(episode.num_turns for episode in scored)
    counts = Counter(malformed=0)
    for episode in scored:
        counts.update(episode.event_counts)
    tool_exceptions = counts.pop("tool_exception", 0)
    return {
        "reward": statistics.fmean(rewards),
        "reward_std": statistics.pstdev(rewards),
        "reward_min": min(rewards),
        "reward_max": max(rewards),
        "success_rate": successes / len(scored),
        "turns": turns / len(scored),
        "response_tokens": float(sum(episode.num_sampled_tokens for episode in scored)),
        "episode_tokens": sum(episode.num_tokens for episode in scored) / len(scored),
        "sequences": sum(len(episode.sequences) for episode in scored) / len(scored),
        **{f"replies/{name}": count / max(1, turns) for name, count in sorted(counts.items())},
        "tool_exceptions": float(tool_exceptions),
    }


def advantage_metrics(batch: Batch) -> Metrics:
    """Return mean, standard deviation, minimum and maximum of the advantages of the sampled tokens.

    The advantages include a KL penalty and no loss weights of tokens. Return nothing if the batch has none, as in the
    warmup of a critic.
    """
    if batch.advantages is None:
        return {}
    advantages = batch.advantages[batch.mask]
    return {
        "advantage_mean": float(advantages.mean()),
        "advantage_std": float(advantages.std(correction=0)),
        "advantage_min": float(advantages.min()),
        "advantage_max": float(advantages.max()),
    }


def user_usage_metrics(users: UserSimulatorFactory, before: ModelUsage, process_group: ProcessGroup) -> Metrics:
    """Return the usage of the user model since `before`, summed over all processes. Scripted users have none."""
    if users.is_scripted:
        return {}
    return {
        f"rollout/user/{name}": float(value)
        for name, value in sum(process_group.all_gather(users.usage - before), ModelUsage())
    }


def judge_metrics(judge: RewardJudge | None, process_group: ProcessGroup) -> Metrics:
    """Return the usage of the reward judge since the last call, summed over all processes of the group."""
    return sum_across_ranks(process_group, judge.pop_metrics()) if judge else {}


def learning_rate(step: int, steps: int, peak_lr: LearningRate, warmup_steps: int, min_lr_ratio: float) -> float:
    """Return the learning rate of a step, counted from 1.

    It rises linearly over `warmup_steps`, then falls linearly to `min_lr_ratio` times the peak. Raise ValueError for a
    peak of `auto`, which `resolve_learning_rates` replaces.
    """
    if peak_lr == "auto":
        raise ValueError("a learning rate is 'auto'; call train.model_size.resolve_learning_rates(config) first")
    rising = min(1.0, step / max(1, warmup_steps))
    falling = 1.0 - (1.0 - min_lr_ratio) * max(0, step - warmup_steps) / max(1, steps - warmup_steps)
    return peak_lr * rising * falling


def _fault_rates(episodes: Sequence[Trajectory]) -> Metrics:
    faults = Counter(str(episode.fault) for episode in episodes if episode.stop_reason is StopReason.FAULT)
    return {f"rollout/fault/{name}": count / len(episodes) for name, count in sorted(faults.items())}
