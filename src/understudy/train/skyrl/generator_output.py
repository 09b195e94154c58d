"""Conversion of episodes to rows of SkyRL's batch: prompt and response ids, loss masks, log-probabilities, rewards.

A row's prompt has all tokens before the first sampled one, and its response all tokens from there to the last sampled
one. Tokens between replies have loss mask 0. Nothing is tokenized again. This module does not import SkyRL.
"""

from collections.abc import Sequence
from typing import Any

from understudy.algorithms.config import OverlongConfig
from understudy.algorithms.rewards import training_rewards
from understudy.core.trajectory import StopReason, Trajectory
from understudy.rollouts.group import Group


def to_generator_output(groups: Sequence[Group], rewards: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Return the rows of all episodes, group by group, with the keys of SkyRL's `GeneratorOutput`.

    `rewards` has one reward for each episode of each group. SkyRL gives it at the last token of the response.
    """
    episodes = [episode for group in groups for episode in group.episodes]
    rows = [_row(episode) for episode in episodes]
    return {
        "prompt_token_ids": [row[0] for row in rows],
        "response_ids": [row[1] for row in rows],
        "loss_masks": [row[2] for row in rows],
        "rollout_logprobs": [row[3] for row in rows],
        "rewards": [reward for group in rewards for reward in group],
        "stop_reasons": ["stop" if episode.stop_reason is StopReason.DONE else "length" for episode in episodes],
        "trajectory_generation_times": [sum(episode.timings.values()) for episode in episodes],
        "env_metrics": [dict(episode.score.parts) if episode.score else {} for episode in episodes],
    }


def group_rewards(group: Group, overlong: OverlongConfig, max_episode_tokens: int) -> list[float]:
    """Return the training rewards of a group's episodes.

    An episode without a score is not trained on. It gets the mean reward of the others, so that their baseline does not
    change.
    """
    scored = training_rewards(group.scored_episodes, overlong, max_episode_tokens).tolist()
    mean = sum(scored) / len(scored) if scored else 0.0
    rewards = iter(scored)
    return [mean if episode.score is None else next(rewards) for episode in group.episodes]


def _row(episode: Trajectory) -> tuple[list[int], list[int], list[int], list[float]]:
    """Return an episode's prompt ids, response ids, loss mask and log-probabilities.

    If nothing was sampled, the prompt and the response are one token each, with loss mask 0.
    """
    spans = list(episode.reply_spans())
    if not spans:
        token = episode.tokens[:1] or [0]
        return token, token, [0], [0.0]
    first, last = spans[0][0], spans[-1][1]
    weight = int(episode.score is not None)
    mask = [int(sampled) * weight for sampled in episode.mask[first:last]]
    return episode.tokens[:first], episode.tokens[first:last], mask, episode.logprobs[first:last]
