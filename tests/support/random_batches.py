"""Batches of random tokens, log-probabilities and advantages, with fixed seeds."""

from collections.abc import Sequence

import torch

from understudy.algorithms.batch import Batch, collate
from understudy.core.messages import Message
from understudy.core.tasks import Score
from understudy.core.trajectory import Trajectory


def random_batch(lengths: Sequence[tuple[int, int]]) -> Batch:
    """Return a batch with one row for each pair of numbers of prompt tokens and of sampled tokens."""
    draw = torch.Generator().manual_seed(len(lengths))
    episodes = []
    for given, sampled in lengths:
        episode = Trajectory("t", score=Score(reward=0.0))
        tokens = torch.randint(0, 256, (given + sampled,), generator=draw).tolist()
        episode.observe([], tokens[:given])
        logprobs = (-3 * torch.rand(sampled, generator=draw)).tolist()
        episode.act(Message(role="assistant"), tokens[given:], logprobs)
        episode.observe([], [0])  # an observation after the last reply
        episodes.append(episode)
    batch = collate(episodes)
    return batch.replace(advantages=torch.randn(batch.tokens.shape, generator=draw) * batch.mask)
