"""Continuous batching over concurrent episodes.

Many episodes call `sample` in one event loop, and a driver task serves them in turns. In each turn it first yields to
the event loop: episodes with a complete reply step their environments and call `sample` with the next prompt. Then it
prefills new tokens, or decodes one token of every active reply plus its accepted draft tokens (see
`ngram_speculation`). If environments do not wait for anything outside the process, the order is fixed, and results are
equal bit for bit.

The episodes of a group have the same prompt, and the replies of a trained policy are often equal. So requests with the
same tokens are computed once: one of them leads, and the others only draw their own tokens from its logits. A request
whose token differs gets a copy of the leader's keys and values and goes on by itself.

A reply that fails by itself (NaN logits, a grammar that fails, an exception of `on_tokens`) fails for its caller alone.
"""

import asyncio
import itertools
import math
import random
from array import array
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch

from understudy.algorithms.batch import partition_by_prefix
from understudy.core.errors import ConfigError, RolloutError
from understudy.core.sampling_masks import SamplingMask
from understudy.engines.interface import Completion, SamplingParams, TokenCallback, TokenConstraint
from understudy.engines.local.cpu import kernels
from understudy.engines.local.kept_tokens import KeptTokens, split_masks
from understudy.engines.local.model import LocalModel
from understudy.engines.local.sampling import filters
from understudy.engines.local.sampling.ngram_speculation import ARRAY_TYPECODE, NgramCache, propose_tokens
from understudy.engines.local.sampling.padded_passes import PaddedPasses
from understudy.engines.local.sampling.passes import FlatPasses, SamplingPasses
from understudy.engines.local.sampling.sequence_cache import CacheSlot
from understudy.engines.local.transfers import read_numbers, to_device
from understudy.formats.detokenizer import StopStrings

YIELDS_PER_STEP = 6  # event-loop iterations in which episodes return with their next prompt
MIN_PREFIX_TOKENS = 16  # a shorter common prefix is not worth its own pass
MAX_DRAFT_TOKENS = 8  # per reply and pass
_Update = tuple[list[int], list[float], list[SamplingMask]]


@dataclass(slots=True, eq=False)
class SampleRequest:
    """A reply that is being sampled."""

    prompt: list[int]
    sampling: SamplingParams
    stop_tokens: Collection[int]
    random: random.Random
    future: "asyncio.Future[Completion]"
    sequence: "array[int]"
    """Prompt and sampled tokens."""
    updates: "asyncio.Queue[_Update | None] | None" = None
    """New output for the caller, and None at the end."""
    stops: StopStrings | None = None
    constraint: TokenConstraint | None = None
    slot: CacheSlot | None = None
    leader: "SampleRequest | None" = None
    """The active request with the same tokens whose forward passes serve this one too."""
    error: RolloutError | None = None
    """Why the reply cannot be continued."""
    hit_stop_string: bool = False
    """True if the reply contains a complete stop string."""
    masked_logprob: float = 0.0
    """Log-probability of all allowed tokens of the next step. It is 0 without a constraint."""
    logprobs: list[float] = field(default_factory=list)
    masks: list[SamplingMask] = field(default_factory=list)
    """The sampling mask of each token, if they are recorded."""
    _uniforms: list[float] = field(default_factory=list)
    _known_masks: dict[SamplingMask, SamplingMask] = field(default_factory=dict)

    @property
    def active_slot(self) -> CacheSlot:
        """The slot of an admitted request."""
        assert self.slot is not None
        return self.slot

    @property
    def tokens(self) -> list[int]:
        """The sampled tokens."""
        return self.sequence[len(self.prompt) :].tolist()

    @property
    def records_masks(self) -> bool:
        """True if the sampling mask of each token is recorded."""
        params = self.sampling
        return params.records_masks or bool(self.constraint and params.keep_sampling_mask and params.temperature)

    @property
    def tokens_left(self) -> int:
        """Number of tokens that may still be sampled."""
        return self.sampling.max_response_tokens - len(self.logprobs)

    @property
    def finish_reason(self) -> Literal["stop", "length"] | None:
        """Why the reply has ended, or None."""
        if self.hit_stop_string or (self.logprobs and self.sequence[-1] in self.stop_tokens):
            return "stop"
        return "length" if self.tokens_left <= 0 else None

    def uniforms(self, count: int) -> list[float]:
        """Return the random numbers of the next `count` tokens. A token's number is the same in every call."""
        first = len(self.logprobs)
        self._uniforms += [self.random.random() for _ in range(first + count - len(self._uniforms))]
        return self._uniforms[first : first + count]

    def has_same_tokens_as(self, other: "SampleRequest") -> bool:
        """Return True if both have the same tokens so far, and sample and end in the same way."""
        return (
            self.constraint is None
            and other.constraint is None
            and self.sampling == other.sampling
            and self.stop_tokens == other.stop_tokens
            and self.prompt == other.prompt
            and self.sequence == other.sequence
        )

    def append(
        self, draft: Sequence[int], tokens: Sequence[int], logprobs: Sequence[float], masks: Sequence[SamplingMask]
    ) -> None:
        """Append the sampled tokens up to the first that differs from its draft or ends the reply, that token
        included. `masks` has one for each token if they are recorded.
        """
        for i, (token, logprob) in enumerate(zip(tokens, logprobs, strict=True)):
            if math.isnan(logprob):
                self.error = RolloutError("the model's logits are NaN, so no token can be sampled", "engine")
                return
            self.sequence.append(token)
            self.logprobs.append(logprob)
            if self.records_masks:  # equal masks are stored once: those of a grammar are large, and often equal
                self.masks.append(self._known_masks.setdefault(masks[i], masks[i]))
            if self.constraint:
                try:
                    self.constraint.accept(token)
                except RolloutError as error:
                    self.error = error
                    return
            self.hit_stop_string = bool(self.stops and self.stops.feed(token))
            if i == len(draft) or token != draft[i] or self.finish_reason:
                return


class LocalSampler:
    """Samples from a model's current weights. Call `set_weights_version` after they change."""

    def __init__(self, model: LocalModel, max_num_seqs: int, max_draft_rows: int) -> None:
        """`max_num_seqs` limits active sequences. Draft tokens fill a decoding pass up to `max_draft_rows` rows."""
        self._model, self._rows = model, max_draft_rows
        self._passes: SamplingPasses = (
            PaddedPasses(model, max_num_seqs) if model.padded else FlatPasses(model, max_num_seqs)
        )
        self._cache = self._passes.cache
        self._queue: list[SampleRequest] = []
        self._active: list[SampleRequest] = []
        self._unanswered: set[SampleRequest] = set()
        self._driver: asyncio.Task[None] | None = None
        self._replies = NgramCache()
        self.weights_version = 0

    def set_weights_version(self, version: int) -> None:
        """Clear the cache and set the version of the new weights."""
        self.reset_prefix_cache()
        self.weights_version = version

    def reset_prefix_cache(self) -> None:
        """Clear the key-value cache and the n-grams."""
        self._passes.clear()
        self._replies = NgramCache()

    def close(self) -> None:
        """Free the cache's memory."""
        self.reset_prefix_cache()

    def validate_sampling(self, sampling: SamplingParams) -> None:
        """Do nothing: every parameter is supported."""

    async def sample(
        self,
        prompt: Sequence[int],
        sampling: SamplingParams,
        seed: int,
        stop_tokens: Collection[int] = (),
        on_tokens: TokenCallback | None = None,
        constraint: TokenConstraint | None = None,
    ) -> Completion:
        """Continue a prompt. See `engines.interface.StreamingSampler` and `ConstrainedSampler`."""
        vocabulary_size = self._model.config.vocab_size
        if not prompt:
            raise ValueError("the prompt is empty")
        if min(prompt) < 0 or max(prompt) >= vocabulary_size:
            wrong = min(prompt) if min(prompt) < 0 else max(prompt)
            raise ConfigError(
                f"the prompt has token {wrong}, but the model's are 0 to {vocabulary_size - 1}; use its own tokenizer"
            )
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Completion] = loop.create_future()
        stops = StopStrings(self._model.vocabulary, sampling.stop) if sampling.stop else None
        sequence = array(ARRAY_TYPECODE, prompt)
        updates = asyncio.Queue[_Update | None]() if on_tokens else None
        request = SampleRequest(
            list(prompt), sampling, stop_tokens, random.Random(seed), future, sequence, updates, stops, constraint
        )
        if updates:
            future.add_done_callback(lambda _: updates.put_nowait(None))
        self._queue.append(request)
        self._unanswered.add(request)
        if self._driver is None or self._driver.done():
            self._driver = loop.create_task(self._drive())
            self._driver.add_done_callback(self._ended)
        if updates and on_tokens:
            try:
                while update := await updates.get():
                    on_tokens(*update)
            finally:
                future.cancel()  # no effect on a complete reply; ends the sampling if `on_tokens` raises
        return await future

    async def _drive(self) -> None:
        while self._queue or self._active:
            for _ in range(YIELDS_PER_STEP):
                await asyncio.sleep(0)
            with torch.inference_mode():
                self._turn()

    def _ended(self, driver: "asyncio.Task[None]") -> None:
        """If the driver failed, pass its exception to all waiting requests."""
        error = asyncio.CancelledError() if driver.cancelled() else driver.exception()
        if error is None:
            return
        waiting, self._unanswered = self._unanswered, set()
        self._queue, self._active = [], []
        self._passes.clear()
        for request in waiting:
            if not request.future.done():
                request.future.set_exception(error)

    def _turn(self) -> None:
        """Prefill if enough requests are waiting, otherwise decode."""
        if self._queue and (len(self._queue) >= max(2, len(self._active) // 4) or not self._active):
            admitted = self._admit()
            if admitted:
                self._prefill(admitted)
                return
        if self._active:
            self._decode()

    def _admit(self) -> list[SampleRequest]:
        """Assign free slots to waiting requests and return the admitted ones."""
        self._unanswered -= {request for request in self._queue if request.future.done()}
        self._queue = [request for request in self._queue if not request.future.done()]
        for request in self._queue:
            slot = self._cache.find_slot(request.prompt)
            request.slot = self._cache.acquire(slot) if slot else None
        fresh = [request for request in self._queue if request.slot is None]
        num_idle = self._cache.num_idle_slots
        if num_idle:
            self._share([request.prompt for request in fresh], num_idle)
        for request in fresh[:num_idle]:
            request.slot = self._cache.evict()
            self._cache.fill_from_prefixes(request.slot, request.prompt)
        admitted = [request for request in self._queue if request.slot]
        self._queue = [request for request in self._queue if not request.slot]
        _find_leaders(admitted)
        for request in admitted:
            if request.leader is None:
                self._cache.fill_from_slots(request.active_slot, request.prompt)
        return admitted

    def _share(self, prompts: Sequence[Sequence[int]], num_admitted: int) -> None:
        """Compute prefixes that the first `num_admitted` prompts share with others and that are not cached yet.

        All waiting prompts decide where prefixes end, as all rows of a batch do in training.
        """
        self._cache.drop_idle_prefixes()
        numbers = [i for i, prompt in enumerate(prompts) if self._cache.find_prefix(prompt) is None]
        new = [prompts[i] for i in numbers]
        for part in partition_by_prefix(new, [len(prompt) - 1 for prompt in new]):
            is_needed = any(numbers[row] < num_admitted for row in part.rows)
            if is_needed and part.prefix_length >= MIN_PREFIX_TOKENS:
                self._passes.compute_prefix(self._cache.add_prefix(new[part.rows[0]][: part.prefix_length]))

    def _prefill(self, requests: Sequence[SampleRequest]) -> None:
        rows = sorted(
            (r for r in requests if r.leader is None),
            key=lambda r: (_prefix(r.active_slot), len(r.active_slot.tokens) - len(r.prompt)),
        )
        slots = [r.active_slot for r in rows]
        new = [r.prompt[len(r.active_slot.tokens) :] for r in rows]
        hidden = self._passes.prefill(slots, new)
        self._active += [*rows, *(r for r in requests if r.leader)]
        self._sample_next(rows, [[] for _ in rows], hidden)

    def _decode(self) -> None:
        rows = sorted(
            (r for r in self._active if r.leader is None), key=lambda r: (_prefix(r.active_slot), r.active_slot.index)
        )
        slots = [r.active_slot for r in rows]
        drafts = self._propose_drafts(rows)
        fed = [[r.sequence[-1], *draft] for r, draft in zip(rows, drafts, strict=True)]
        self._sample_next(rows, drafts, self._passes.decode(slots, fed))

    def _propose_drafts(self, rows: Sequence[SampleRequest]) -> list[list[int]]:
        """Return draft tokens for each row, none for constrained rows.

        All active requests together, also those that follow a row, have at most the logits of the available rows.
        """
        most = min(MAX_DRAFT_TOKENS, self._rows // len(self._active) - 1) if self._passes.supports_drafts else 0
        return [
            [] if r.constraint else propose_tokens(r.sequence, self._replies, min(most, r.tokens_left - 1))
            for r in rows
        ]

    def _sample_next(
        self, rows: Sequence[SampleRequest], drafts: Sequence[Sequence[int]], hidden: torch.Tensor
    ) -> None:
        """Sample the token after each row and after each of its draft tokens, then finish complete replies.

        The results of all rows are copied to the host at once, because on a GPU each copy waits for its work.
        """
        logits = self._model.logits(hidden)
        broken = ~logits.amax(-1).isfinite()
        starts = [0, *itertools.accumulate(len(draft) + 1 for draft in drafts)]
        spans = {
            row: range(start, start + len(draft) + 1) for row, draft, start in zip(rows, drafts, starts, strict=False)
        }
        masked: dict[SampleRequest, torch.Tensor] = {}
        for row, span in spans.items():
            if row.constraint:
                try:
                    allowed = _mask_logits(logits[span.start], row.constraint, row.sampling.temperature or 1.0)
                    if not row.records_masks:
                        masked[row] = allowed
                except RolloutError as error:
                    row.error = error
        drafted = dict(zip(rows, drafts, strict=True))
        followers = self._followers()
        drawing = [(request, row) for row in rows for request in (row, *followers.get(row, ()))]
        groups = [
            [(request, row) for request, row in drawing if _kind(row) == kind]
            for kind in sorted({_kind(r) for r in rows})
        ]
        draws = []
        for group in groups:
            places, part, is_broken = [j for _, row in group for j in spans[row]], logits, broken
            if places != list(range(len(logits))):
                index = to_device(torch.tensor(places), logits.device)
                part, is_broken = logits[index], broken[index]
            draws.append(_draw([r for r, _ in group], [drafted[row] for _, row in group], part, is_broken))
        numbers = iter(read_numbers(*(x for draw in draws for x in draw.vectors), *masked.values()))
        drawn = [(draw, [next(numbers) for _ in draw.vectors]) for draw in draws]
        for row in masked:
            (row.masked_logprob,) = next(numbers)
        for group, (draw, vectors) in zip(groups, drawn, strict=True):
            tokens, logprobs, is_exact, *kept = vectors
            masks = split_masks(*kept) if kept else []
            if inexact := [i for i, exact in enumerate(is_exact) if not exact]:
                again, logprobs_again, *kept_again = read_numbers(*draw.repeat(inexact))
                masks_again = split_masks(*kept_again) if kept else []
                for j, i in enumerate(inexact):
                    tokens[i], logprobs[i] = again[j], logprobs_again[j]
                    masks[i : i + 1] = masks_again[j : j + 1]
            replies = map(int, tokens), iter(logprobs), iter(masks)
            for request, row in group:
                self._take(request, drafted[row], *replies)
        for row in rows:
            self._part_followers(row, followers.get(row, ()))
            slot = row.active_slot
            slot.tokens += row.sequence[len(slot.tokens) : -1].tolist()
        self._finish_requests()

    def _followers(self) -> dict[SampleRequest, list[SampleRequest]]:
        """Return the followers of each request that has any."""
        followers: dict[SampleRequest, list[SampleRequest]] = {}
        for request in self._active:
            if request.leader:
                followers.setdefault(request.leader, []).append(request)
        return followers

    def _part_followers(self, row: SampleRequest, followers: Sequence[SampleRequest]) -> None:
        """Let followers that drew other tokens than their leader go on without it. Equal ones follow a new leader."""
        leaders = [row]
        for request in followers:
            request.leader = next((x for x in leaders if x.sequence == request.sequence), None)
            if request.leader is None:
                leaders.append(request)
                self._cache.copy(row.active_slot, request.active_slot, request.sequence[:-1].tolist())

    def _take(
        self,
        row: SampleRequest,
        draft: Sequence[int],
        tokens: Iterator[int],
        logprobs: Iterator[float],
        masks: Iterator[SamplingMask],
    ) -> None:
        before, count = len(row.sequence), len(draft) + 1
        new = list(itertools.islice(tokens, count)), [x + row.masked_logprob for x in itertools.islice(logprobs, count)]
        new_masks = list(itertools.islice(masks, count))
        if row.error:
            return
        row.append(draft, *new, new_masks)
        self._replies.add(row.sequence, before)
        if row.updates and not row.future.done() and len(row.sequence) > before:
            first = before - len(row.prompt)
            row.updates.put_nowait((row.sequence[before:].tolist(), row.logprobs[first:], row.masks[first:]))

    def _finish_requests(self) -> None:
        """Return complete replies and errors to their callers, and drop requests that were cancelled."""
        ended = [r for r in self._active if r.error or r.finish_reason or r.future.done()]
        self._active = [r for r in self._active if r not in ended]
        self._replace_leaders(ended)
        for request in ended:
            self._unanswered.discard(request)
            request.active_slot.busy = False
            if request.error:
                self._cache.discard(request.active_slot)
                if not request.future.done():
                    request.future.set_exception(request.error)
            elif request.finish_reason and not request.future.done():
                request.future.set_result(
                    Completion(
                        request.tokens, request.logprobs, request.finish_reason, self.weights_version, request.masks
                    )
                )

    def _replace_leaders(self, ended: Sequence[SampleRequest]) -> None:
        """Let the first follower of a request that was cancelled take over its slot and its other followers."""
        for request in self._active:
            gone = request.leader
            if gone is not None and gone in ended:
                request.leader = None
                request.slot, gone.slot = gone.slot, request.slot
                for other in self._active:
                    if other.leader is gone:
                        other.leader = request


def _find_leaders(requests: Sequence[SampleRequest]) -> None:
    """Let requests with the same tokens follow the one that has the most of them cached."""
    leaders: list[SampleRequest] = []
    for request in sorted(requests, key=lambda r: -len(r.active_slot.tokens)):
        request.leader = next((x for x in leaders if request.has_same_tokens_as(x)), None)
        if request.leader is None:
            leaders.append(request)


def _mask_logits(logits: torch.Tensor, constraint: TokenConstraint, temperature: float) -> torch.Tensor:
    """Set the logits [V] of forbidden tokens to minus infinity, in place.

    Return the log-probability [1] of the allowed tokens together. Added to the log-probability of a token among the
    allowed ones, it gives the one of the whole softmax. Raise RolloutError if no token is allowed.
    """
    whole = torch.logsumexp(logits.double() / temperature, 0)
    allowed = torch.frombuffer(bytearray(constraint.allowed_tokens()), dtype=torch.uint8)[: len(logits)]
    forbidden = torch.ones(len(logits), dtype=torch.bool)
    forbidden[: len(allowed)] = allowed == 0
    if forbidden.all():
        raise RolloutError("the grammar allows no token here", "engine")
    logits.masked_fill_(to_device(forbidden, logits.device), -torch.inf)
    return (torch.logsumexp(logits.double() / temperature, 0) - whole)[None]


def _prefix(slot: CacheSlot) -> int:
    """Return a sort key that makes rows with the same prefix adjacent."""
    return slot.prefix.index if slot.prefix else 0


def _kind(row: SampleRequest) -> tuple[bool, bool, float, float]:
    """Return the key by which rows are grouped for sampling.

    Rows with top-p, top-k or a penalty share one key. Other rows are grouped by temperature and min-p. Rows whose
    sampling masks are recorded are apart from the others.
    """
    sampling = row.sampling
    if (sampling.top_p, sampling.top_k) != (1.0, 0) or sampling.has_penalties:
        return row.records_masks, True, 0.0, 0.0
    return row.records_masks, False, sampling.temperature, sampling.min_p


@dataclass(frozen=True, slots=True)
class _Draw:
    """The token after each row and after each of its draft tokens."""

    vectors: tuple[torch.Tensor, ...]
    """Tokens, log-probabilities and, if the rows have filters, whether each token is exact. If sampling masks are
    recorded, also the parts of `KeptTokens`."""
    repeat: Callable[[Sequence[int]], tuple[torch.Tensor, ...]]
    """Returns the same, without the third, for the entries that are not exact."""


def _draw(
    rows: Sequence[SampleRequest], drafts: Sequence[Sequence[int]], logits: torch.Tensor, is_broken: torch.Tensor
) -> _Draw:
    """Sample from the logits of rows with the same `_kind`. The log-probability is NaN where `is_broken`."""
    rows_and_drafts = list(zip(rows, drafts, strict=True))
    numbers = [uniform for row, draft in rows_and_drafts for uniform in row.uniforms(len(draft) + 1)]
    uniforms = to_device(torch.tensor(numbers), logits.device)
    keep, filtered, temperature, min_p = _kind(rows[0])
    samplings = [row.sampling for row, draft in rows_and_drafts for _ in range(len(draft) + 1)] if filtered else []
    seen = [ids for row, draft in rows_and_drafts for ids in _previous_tokens(row, draft)] if filtered else []
    starts = [len(row.prompt) for row, draft in rows_and_drafts for _ in range(len(draft) + 1)] if filtered else []

    def repeat(entries: Sequence[int]) -> tuple[torch.Tensor, ...]:
        index = to_device(torch.tensor(entries), logits.device)
        params, previous = [samplings[i] for i in entries], [seen[i] for i in entries]
        lengths = [starts[i] for i in entries]
        again = filters.sample_filtered(logits[index], params, previous, uniforms[index], None, lengths, keep)
        return again.tokens, again.logprobs, *(again.kept or ())

    kept: KeptTokens | None = None
    is_exact = is_broken[:0]
    if filtered:
        first = filters.NUM_CANDIDATES.get(logits.device.type)
        drawn = filters.sample_filtered(logits, samplings, seen, uniforms, first, starts, keep)
        tokens, logprobs, is_exact, kept = drawn
        is_exact = is_exact | is_broken
    elif keep:
        tokens, logprobs, kept = kernels.sample_likely_tokens(logits, temperature, uniforms, min_p)
    else:
        tokens, logprobs = kernels.sample_tokens(logits, temperature, uniforms, min_p)
    return _Draw((tokens, logprobs.masked_fill(is_broken, torch.nan), is_exact, *(kept or ())), repeat)


def _previous_tokens(row: SampleRequest, draft: Sequence[int]) -> Iterator[torch.Tensor]:
    """Yield the token ids before each token to sample, or empty tensors without a penalty."""
    if not row.sampling.has_penalties:
        yield from [torch.empty(0, dtype=torch.int64)] * (len(draft) + 1)
        return
    every = torch.tensor([*row.sequence, *draft])
    for i in range(len(draft) + 1):
        yield every[: len(row.sequence) + i]
