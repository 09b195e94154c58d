"""The tokens of an episode for the page: ids, texts, log-probabilities and advantages."""

import math
from collections.abc import Sequence

from understudy.core.records import Record
from understudy.core.trajectory import Trajectory
from understudy.formats.detokenizer import IncrementalDetokenizer
from understudy.runs.storage.trained_episodes import EpisodeTrainingData, spread_over_tokens
from understudy.viewer.episodes.decoder import TokenDecoder


class TokenView(Record):
    """The tokens of an episode. Every list except `turns` has one value per token."""

    ids: tuple[int, ...]
    texts: tuple[str, ...] | None
    """None without a tokenizer. If several tokens encode one character, it is in the text of the last one."""
    sampled: tuple[bool, ...]
    logprobs: tuple[float | None, ...]
    """The sampler's log-probabilities, in nats; None for tokens that were not sampled, and for values that are not
    finite.
    """
    turns: tuple[tuple[int, int], ...]
    """The tokens of each reply as [start, end)."""
    advantages: tuple[float | None, ...] | None = None
    """None if the episode was not trained on."""
    trainer_logprobs: tuple[float | None, ...] | None = None
    """The trainer's log-probabilities, in nats, before its first update on the episode; None if they are not stored.
    """
    note: str = ""
    """What cannot be shown, and why."""


def build_token_view(
    episode: Trajectory, decoder: TokenDecoder | str, trained: EpisodeTrainingData | None = None
) -> TokenView:
    """Return the tokens of an episode. The lists are empty if no local model played it."""
    logprobs = trained.logprobs if trained else ()
    return TokenView(
        ids=tuple(episode.tokens),
        texts=None if isinstance(decoder, str) else tuple(_texts(episode.tokens, decoder)),
        sampled=tuple(episode.mask),
        logprobs=_sampler_logprobs(episode),
        turns=tuple(episode.reply_spans()),
        advantages=tuple(trained.token_advantages(episode)) if trained else None,
        trainer_logprobs=tuple(spread_over_tokens(episode, logprobs)) if logprobs else None,
        note=_note(episode, decoder),
    )


def _note(episode: Trajectory, decoder: TokenDecoder | str) -> str:
    if not episode.tokens:
        return "This episode has no tokens: they are stored only if a local model played it."
    return decoder if isinstance(decoder, str) else ""


def _texts(ids: Sequence[int], decoder: TokenDecoder) -> list[str]:
    decoding = IncrementalDetokenizer(decoder.vocabulary)
    texts = [decoding.add(token) for token in ids]
    if texts:
        texts[-1] += decoding.pending_text()
    return texts


def _sampler_logprobs(episode: Trajectory) -> tuple[float | None, ...]:
    pairs = zip(episode.mask, episode.logprobs, strict=True)
    return tuple(value if sampled and math.isfinite(value) else None for sampled, value in pairs)
