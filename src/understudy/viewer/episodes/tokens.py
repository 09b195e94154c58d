"""The tokens of an episode for the page: ids, texts, log-probabilities and advantages."""

import itertools
import math
from collections.abc import Iterator, Sequence

from understudy.core.records import Record
from understudy.core.trajectory import TokenSequence, Trajectory, sampled_spans
from understudy.formats.detokenizer import IncrementalDetokenizer
from understudy.runs.storage.trained_episodes import EpisodeTrainingData, spread_over_tokens
from understudy.viewer.episodes.decoder import TokenDecoder


class TokenView(Record):
    """The tokens of an episode, one sequence after the other. Lists have one value per token, except `turns` and
    `sequences`.
    """

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
    sequences: tuple[tuple[int, int], ...]
    """The tokens of each sequence as [start, end)."""
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
    sequences, mask = episode.sequences, episode.all_masks
    ends = list(itertools.accumulate(len(sequence.tokens) for sequence in sequences))
    return TokenView(
        ids=tuple(token for sequence in sequences for token in sequence.tokens),
        texts=None if isinstance(decoder, str) else tuple(t for s in sequences for t in _texts(s.tokens, decoder)),
        sampled=tuple(mask),
        logprobs=tuple(value for sequence in sequences for value in _sampler_logprobs(sequence)),
        turns=tuple(sampled_spans(mask)),
        sequences=tuple(itertools.pairwise([0, *ends])),
        advantages=tuple(trained.token_advantages(episode)) if trained else None,
        trainer_logprobs=tuple(spread_over_tokens(episode, logprobs)) if logprobs else None,
        note=_note(episode, decoder),
    )


def _note(episode: Trajectory, decoder: TokenDecoder | str) -> str:
    if not episode.num_tokens:
        return "This episode has no tokens: they are stored only if a local model played it."
    return decoder if isinstance(decoder, str) else ""


def _texts(ids: Sequence[int], decoder: TokenDecoder) -> list[str]:
    decoding = IncrementalDetokenizer(decoder.vocabulary)
    texts = [decoding.add(token) for token in ids]
    if texts:
        texts[-1] += decoding.pending_text()
    return texts


def _sampler_logprobs(sequence: TokenSequence) -> Iterator[float | None]:
    for sampled, value in zip(sequence.mask, sequence.logprobs, strict=True):
        yield value if sampled and math.isfinite(value) else None
