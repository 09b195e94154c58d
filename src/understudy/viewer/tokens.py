"""Tokens of an episode to look at: ids, texts, who wrote them, and how likely the sampler held them."""

import math
from collections.abc import Sequence

from understudy.formats.decoding import Decoding
from understudy.records import Record
from understudy.trajectory import Trajectory
from understudy.viewer.voice import Voice


class Tokens(Record):
    """One value a token in each list; all of one length."""

    ids: tuple[int, ...]
    texts: tuple[str, ...] | None
    """Where a character takes several tokens, it stands at the last one. None without a vocabulary."""
    sampled: tuple[bool, ...]
    logprobs: tuple[float | None, ...]
    """Under the weights that sampled; None for what was not sampled."""
    turns: tuple[tuple[int, int], ...]
    """The agent's turns, [start, end)."""
    advantage: float | None = None
    """Of every sampled token, where it is one number."""
    why: str = ""
    """What is not shown, and why."""


def tokens(episode: Trajectory, voice: Voice | str, advantage: float | None = None) -> Tokens:
    """The tokens of an episode; none where it was played by an endpoint."""
    return Tokens(
        ids=tuple(episode.tokens),
        texts=None if isinstance(voice, str) else tuple(_texts(episode.tokens, voice)),
        sampled=tuple(episode.mask),
        logprobs=of_sampled(episode, episode.logprobs),
        turns=tuple(episode.spans()),
        advantage=advantage,
        why=_why(episode, voice),
    )


def _why(episode: Trajectory, voice: Voice | str) -> str:
    if not episode.tokens:
        return "this episode has no tokens: its agent was no model of ours"
    return voice if isinstance(voice, str) else ""


def _texts(ids: Sequence[int], voice: Voice) -> list[str]:
    decoding = Decoding(voice.vocabulary)
    texts = [decoding.add(token) for token in ids]
    if texts:
        texts[-1] += decoding.rest()
    return texts


def of_sampled(episode: Trajectory, values: Sequence[float]) -> tuple[float | None, ...]:
    """The values of sampled tokens; JSON has no number for what is none."""
    pairs = zip(episode.mask, values, strict=True)
    return tuple(value if sampled and math.isfinite(value) else None for sampled, value in pairs)
