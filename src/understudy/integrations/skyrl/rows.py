"""Episodes as rows of SkyRL's batch: prompt and response ids, loss masks, log-probabilities, rewards. Needs no SkyRL.

A row's prompt is all before the first sampled token, its response all from there to the last one: what the agent was
shown in between has loss mask 0. Nothing is tokenized: the ids are those that were sampled from, and sampled.
"""

from collections.abc import Sequence
from typing import Any

from understudy.trajectory import Stop, Trajectory


def as_rows(groups: Sequence[Sequence[Trajectory]], rewards: Sequence[Sequence[float]]) -> dict[str, Any]:
    """The rows of all episodes, group by group, as the keys of SkyRL's `GeneratorOutput` have them.

    `rewards` are those of the groups' episodes: one each, which comes with the last token of the last turn.
    """
    episodes = [episode for group in groups for episode in group]
    rows = [_row(episode) for episode in episodes]
    return {
        "prompt_token_ids": [row[0] for row in rows],
        "response_ids": [row[1] for row in rows],
        "loss_masks": [row[2] for row in rows],
        "rollout_logprobs": [row[3] for row in rows],
        "rewards": [reward for group in rewards for reward in group],
        "stop_reasons": ["stop" if episode.stop is Stop.DONE else "length" for episode in episodes],
        "trajectory_generation_times": [sum(episode.seconds.values()) for episode in episodes],
        "env_metrics": [dict(episode.score.parts) if episode.score else {} for episode in episodes],
    }


def rewards_of(group: Sequence[Trajectory], penalties: Sequence[float]) -> list[float]:
    """The rewards of a group's episodes, less their penalties.

    One that the machinery failed has none, and is not learned from: it is given the mean of the others, so that what
    they are compared with does not change by it.
    """
    scored = [e.reward - p for e, p in zip(group, penalties, strict=True) if e.score is not None]
    mean = sum(scored) / len(scored) if scored else 0.0
    return [e.reward - p if e.score is not None else mean for e, p in zip(group, penalties, strict=True)]


def _row(episode: Trajectory) -> tuple[list[int], list[int], list[int], list[float]]:
    """Prompt, response, mask, log-probabilities of an episode; where nothing was sampled, two tokens of no weight."""
    spans = list(episode.spans())
    if not spans:
        token = episode.tokens[:1] or [0]
        return token, token, [0], [0.0]
    first, last = spans[0][0], spans[-1][1]
    weight = int(episode.score is not None)
    mask = [int(sampled) * weight for sampled in episode.mask[first:last]]
    return episode.tokens[:first], episode.tokens[first:last], mask, episode.logprobs[first:last]
