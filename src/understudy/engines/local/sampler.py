"""Continuous batching over live episodes: whoever asks is answered together with whoever else is asking.

`sample` calls of many episodes run side by side in one event loop. A driver task takes turns: it lets episodes that got
a reply step their environments and come back, prefills what is new, and decodes for every live reply one token, and as
many more as were guessed right (see `guesses`). With environments that don't wait for the outside world the order of
all this is fixed, and so is every bit of the result.
"""

import asyncio
import itertools
import random
from array import array
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch

from understudy.batch import shared_prefixes
from understudy.engines.base import Completion, Sampling, Told
from understudy.engines.local import filters, kernels
from understudy.engines.local.cache import Cache, Slot
from understudy.engines.local.guesses import WORD, Replies, guess
from understudy.engines.local.model import Model
from understudy.engines.local.passes import Decode, Prefill, PrefixFill
from understudy.formats.decoding import StopStrings

SETTLE = 6  # turns of the event loop in which answered episodes come back with their next prompt
MIN_PREFIX = 16  # tokens; a shorter common prefix is not worth a pass of its own
MOST_GUESSES = 8  # of one reply in one pass


@dataclass(slots=True, eq=False)
class Request:
    """One reply in the making."""

    prompt: list[int]
    sampling: Sampling
    stop_tokens: Collection[int]
    random: random.Random
    future: "asyncio.Future[Completion]"
    sequence: "array[int]"
    """The prompt, and what was sampled."""
    told: Told | None = None
    stops: StopStrings | None = None
    slot: Slot | None = None
    stopped: bool = False
    """Whether a stop string is complete."""
    logprobs: list[float] = field(default_factory=list)
    _uniforms: list[float] = field(default_factory=list)

    @property
    def live(self) -> Slot:
        """The slot of an admitted request."""
        assert self.slot is not None
        return self.slot

    @property
    def tokens(self) -> list[int]:
        """What was sampled."""
        return self.sequence[len(self.prompt) :].tolist()

    @property
    def left(self) -> int:
        """How many tokens may still be sampled."""
        return self.sampling.max_tokens - len(self.logprobs)

    @property
    def finish(self) -> Literal["stop", "length"] | None:
        """Why the reply is over, or None while it is not."""
        if self.stopped or (self.logprobs and self.sequence[-1] in self.stop_tokens):
            return "stop"
        return "length" if self.left <= 0 else None

    def uniforms(self, count: int) -> list[float]:
        """The random numbers of the next `count` tokens. Each belongs to its token, however often it is asked for."""
        first = len(self.logprobs)
        self._uniforms += [self.random.random() for _ in range(first + count - len(self._uniforms))]
        return self._uniforms[first : first + count]

    def take(self, guesses: Sequence[int], tokens: Sequence[int], logprobs: Sequence[float]) -> None:
        """Append sampled tokens: the first, and each further one whose predecessor was guessed right."""
        for i, (token, logprob) in enumerate(zip(tokens, logprobs, strict=True)):
            self.sequence.append(token)
            self.logprobs.append(logprob)
            self.stopped = bool(self.stops and self.stops.feed(token))
            if i == len(guesses) or token != guesses[i] or self.finish:
                return
            self.live.tokens.append(token)


class LocalSampler:
    """Samples from a model's current weights; `refresh` after they change."""

    def __init__(self, model: Model, sequences: int, rows: int) -> None:
        """`sequences` live ones at most; guesses fill a decoding pass up to `rows`."""
        self._model, self._rows = model, rows
        config = model.config
        dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        layers, heads = config.num_hidden_layers, config.num_key_value_heads
        self._cache = Cache(layers, heads, dim, sequences, model.dtype, model.device)
        self._queue: list[Request] = []
        self._active: list[Request] = []
        self._unanswered: set[Request] = set()
        self._driver: asyncio.Task[None] | None = None
        self._replies = Replies()
        self.version = 0

    def refresh(self, version: int) -> None:
        """The weights are now those of `version`."""
        self.forget()
        self.version = version

    def forget(self) -> None:
        """Forget what is cached."""
        self._cache.clear()
        self._replies = Replies()

    def close(self) -> None:
        """Give back the cache's memory."""
        self.forget()

    def refuse(self, sampling: Sampling) -> None:
        """Nothing: it samples by all options. See `engines.base.Streaming`."""

    async def sample(
        self,
        prompt: Sequence[int],
        sampling: Sampling,
        seed: int,
        stop_tokens: Collection[int] = (),
        told: Told | None = None,
    ) -> Completion:
        """Continue a prompt; see `engines.base.Streaming`."""
        if not prompt:
            raise ValueError("an empty prompt cannot be continued")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Completion] = loop.create_future()
        stops = StopStrings(self._model.vocabulary, sampling.stop) if sampling.stop else None
        sequence = array(WORD, prompt)
        request = Request(list(prompt), sampling, stop_tokens, random.Random(seed), future, sequence, told, stops)
        self._queue.append(request)
        self._unanswered.add(request)
        if self._driver is None or self._driver.done():
            self._driver = loop.create_task(self._drive())
            self._driver.add_done_callback(self._ended)
        return await request.future

    async def _drive(self) -> None:
        while self._queue or self._active:
            for _ in range(SETTLE):
                await asyncio.sleep(0)
            with torch.inference_mode():
                self._turn()

    def _ended(self, driver: "asyncio.Task[None]") -> None:
        """A driver that failed tells all who wait for it; one that ran out of work leaves later requests alone."""
        error = asyncio.CancelledError() if driver.cancelled() else driver.exception()
        if error is None:
            return
        waiting, self._unanswered = self._unanswered, set()
        self._queue, self._active = [], []
        self._cache.clear()
        for request in waiting:
            if not request.future.done():
                request.future.set_exception(error)

    def _turn(self) -> None:
        """Prefill when enough is waiting, else decode. Nothing is left to do when those who waited went away."""
        if self._queue and (len(self._queue) >= max(2, len(self._active) // 4) or not self._active):
            admitted = self._admit()
            if admitted:
                self._prefill(admitted)
                return
        if self._active:
            self._decode()

    def _admit(self) -> list[Request]:
        """Give waiting requests their slots, as far as there are any."""
        self._unanswered -= {request for request in self._queue if request.future.done()}
        self._queue = [request for request in self._queue if not request.future.done()]
        for request in self._queue:
            found = self._cache.find(request.prompt)
            request.slot = self._cache.take(found) if found else None
        fresh = [request for request in self._queue if request.slot is None]
        self._share([request.prompt for request in fresh])
        for request in fresh:
            if slot := self._cache.evict():
                slot.prefix = self._cache.prefix_of(request.prompt)
                slot.tokens = list(slot.prefix.tokens) if slot.prefix else []
                request.slot = slot
        admitted = [request for request in self._queue if request.slot]
        self._queue = [request for request in self._queue if not request.slot]
        return admitted

    def _share(self, prompts: Sequence[Sequence[int]]) -> None:
        """Compute the prefixes that new prompts share, where none is cached yet."""
        self._cache.forget_prefixes()
        new = [prompt for prompt in prompts if self._cache.prefix_of(prompt) is None]
        for part in shared_prefixes(new, [len(prompt) - 1 for prompt in new]):
            if part.prefix >= MIN_PREFIX:
                prefix = self._cache.new_prefix(new[part.rows[0]][: part.prefix])
                tokens = torch.tensor(prefix.tokens, device=self._model.device)[None]
                positions = torch.arange(part.prefix, device=self._model.device)[None]
                self._model.hidden(tokens, positions, PrefixFill(prefix))

    def _prefill(self, requests: Sequence[Request]) -> None:
        rows = sorted(requests, key=lambda r: (_prefix(r.live), len(r.live.tokens) - len(r.prompt)))
        slots = [r.live for r in rows]
        new = [r.prompt[len(r.live.tokens) :] for r in rows]
        self._cache.reserve(max(slot.own + len(tokens) for slot, tokens in zip(slots, new, strict=True)))
        layout = Prefill(self._cache, slots, new, self._model.query_heads_per_key, self._model.device)
        hidden = self._model.hidden(layout.tokens, layout.positions, layout)
        for slot, tokens in zip(slots, new, strict=True):
            slot.tokens += tokens
        self._active += rows
        self._pick(rows, [[] for _ in rows], hidden[layout.last])

    def _decode(self) -> None:
        rows = sorted(self._active, key=lambda r: (_prefix(r.live), r.live.index))
        slots = [r.live for r in rows]
        guesses = self._guess(rows)
        fed = [[r.sequence[-1], *guessed] for r, guessed in zip(rows, guesses, strict=True)]
        self._cache.reserve(max(slot.own + len(tokens) for slot, tokens in zip(slots, fed, strict=True)))
        layout = Decode(self._cache, slots, fed, self._model.query_heads_per_key, self._model.device)
        hidden = self._model.hidden(layout.tokens, layout.positions, layout)
        for slot, tokens in zip(slots, fed, strict=True):
            slot.tokens.append(tokens[0])
        self._pick(rows, guesses, hidden)

    def _guess(self, rows: Sequence[Request]) -> list[list[int]]:
        """What each reply may go on with, as much as there is room for in one pass."""
        most = min(MOST_GUESSES, self._rows // len(rows) - 1)
        return [guess(r.sequence, self._replies, min(most, r.left - 1)) for r in rows]

    def _pick(self, rows: Sequence[Request], guesses: Sequence[Sequence[int]], hidden: torch.Tensor) -> None:
        """Sample what follows each row and each of its guesses, and hand over the replies that are complete."""
        logits = self._model.logits(hidden)
        spans = [0, *itertools.accumulate(len(guessed) + 1 for guessed in guesses)]
        for kind in sorted({_kind(r.sampling) for r in rows}):
            chosen = [i for i, r in enumerate(rows) if _kind(r.sampling) == kind]
            index = [j for i in chosen for j in range(spans[i], spans[i + 1])]
            part = logits if len(chosen) == len(rows) else logits[index]
            drawn = _draw([rows[i] for i in chosen], [guesses[i] for i in chosen], part)
            tokens, logprobs = (iter(x.tolist()) for x in drawn)
            for i in chosen:
                self._take(rows[i], guesses[i], tokens, logprobs)
        self._hand_over()

    def _take(self, row: Request, guesses: Sequence[int], tokens: Iterator[int], logprobs: Iterator[float]) -> None:
        before, count = len(row.sequence), len(guesses) + 1
        row.take(guesses, list(itertools.islice(tokens, count)), list(itertools.islice(logprobs, count)))
        self._replies.learn(row.sequence, before)
        if row.told and not row.future.done():
            row.told(row.sequence[before:].tolist(), row.logprobs[before - len(row.prompt) :])

    def _hand_over(self) -> None:
        """Answer the requests whose reply is complete, and drop those that nobody waits for any more."""
        for request in [r for r in self._active if r.finish or r.future.done()]:
            self._active.remove(request)
            self._unanswered.discard(request)
            request.live.busy = False
            if request.finish and not request.future.done():
                request.future.set_result(Completion(request.tokens, request.logprobs, request.finish, self.version))


def _prefix(slot: Slot) -> int:
    """Which prefix a slot's tokens begin with; rows of one stand together."""
    return slot.prefix.index if slot.prefix else 0


def _kind(sampling: Sampling) -> tuple[bool, float, float]:
    """What is drawn in one go: rows of one temperature and min-p, and all those that have other filters."""
    if (sampling.top_p, sampling.top_k, sampling.repetition_penalty) != (1.0, 0, 1.0):
        return True, 0.0, 0.0
    return False, sampling.temperature, sampling.min_p


def _draw(
    rows: Sequence[Request], guesses: Sequence[Sequence[int]], logits: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The token that follows each row, and each of its guesses, with its log-probability. All rows are of one kind."""
    pairs = list(zip(rows, guesses, strict=True))
    drawn = [uniform for row, guessed in pairs for uniform in row.uniforms(len(guessed) + 1)]
    uniforms = torch.tensor(drawn, device=logits.device)
    filtered, temperature, min_p = _kind(rows[0].sampling)
    if not filtered:
        return kernels.sample(logits, temperature, uniforms, min_p)
    samplings = [row.sampling for row, guessed in pairs for _ in range(len(guessed) + 1)]
    seen = [ids for row, guessed in pairs for ids in _seen(row, guessed)]
    return filters.sample(logits, samplings, seen, uniforms)


def _seen(row: Request, guesses: Sequence[int]) -> Iterator[torch.Tensor]:
    """The tokens before what follows the row, and before what follows each guess; none where they do not matter."""
    if row.sampling.repetition_penalty == 1.0:
        yield from [torch.empty(0, dtype=torch.int64)] * (len(guesses) + 1)
        return
    every = torch.tensor([*row.sequence, *guesses])
    for i in range(len(guesses) + 1):
        yield every[: len(row.sequence) + i]
