"""Conversion of episodes to rows of SkyRL's batch: prompt and response ids, loss masks, log-probabilities, rewards.

Each token sequence of an episode is a row, which SkyRL calls a step of the trajectory. A row's prompt has all tokens
before the first sampled one, and its response all tokens from there to the last sampled one. Tokens between replies
have loss mask 0. Nothing is tokenized again. This module does not import SkyRL.
"""

import itertools
from collections.abc import Sequence
from typing import Any

from understudy.algorithms.config import OverlongConfig
from understudy.algorithms.rewards import training_rewards
from understudy.core.trajectory import StopReason, TokenSequence
from understudy.rollouts.group import Group


def to_generator_output(
    groups: Sequence[Group], rewards: Sequence[Sequence[float]], trajectory_ids: Sequence[Any]
) -> dict[str, Any]:
    """Return the rows of all episodes, group by group, with the keys of SkyRL's `GeneratorOutput`.

    `rewards` has one reward for each episode of each group, and `trajectory_ids` one id for each episode. SkyRL gives
    the reward at the last token of the response. If an episode has several rows, SkyRL compares the rewards of the rows
    with `is_last_step`.
    """
    each = zip((e for group in groups for e in group.episodes), itertools.chain(*rewards), trajectory_ids, strict=True)
    steps = [(*played, sequence) for played in each for sequence in played[0].sequences]
    rows = [_row(sequence, episode.score is not None) for episode, _, _, sequence in steps]
    episodes = [step[0] for step in steps]
    last_steps = [sequence is episode.sequences[-1] for episode, _, _, sequence in steps]
    return {
        "prompt_token_ids": [row[0] for row in rows],
        "response_ids": [row[1] for row in rows],
        "loss_masks": [row[2] for row in rows],
        "rollout_logprobs": [row[3] for row in rows],
        "rewards": [reward for _, reward, _, _ in steps],
        "trajectory_ids": [name for _, _, name, _ in steps],
        "is_last_step": last_steps if any(episode.branches for episode in episodes) else None,
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


def _row(sequence: TokenSequence, is_scored: bool) -> tuple[list[int], list[int], list[int], list[float]]:
    """Return a sequence's prompt ids, response ids, loss mask and log-probabilities.

    If nothing was sampled, the prompt and the response are one token each, with loss mask 0.
    """
    spans = list(sequence.reply_spans())
    if not spans:
        token = sequence.tokens[:1] or [0]
        return token, token, [0], [0.0]
    first, last = spans[0][0], spans[-1][1]
    mask = [int(sampled and is_scored) for sampled in sequence.mask[first:last]]
    return sequence.tokens[:first], sequence.tokens[first:last], mask, sequence.logprobs[first:last]
