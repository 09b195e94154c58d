"""Continuous batching over live episodes: whoever asks is answered together with whoever else is asking.

`sample` calls of many episodes run side by side in one event loop. A driver task takes turns: it lets episodes that got
a reply step their environments and come back, prefills what is new, and decodes one token for every live reply. With
environments that don't wait for the outside world the order of all this is fixed, and so is every bit of the result.
"""

import asyncio
import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch

from understudy.batch import shared_prefixes
from understudy.engines.base import Completion, Sampling
from understudy.engines.local import kernels
from understudy.engines.local.cache import Cache, Slot
from understudy.engines.local.model import Model
from understudy.engines.local.passes import Decode, Prefill, PrefixFill

SETTLE = 6  # turns of the event loop in which answered episodes come back with their next prompt
MIN_PREFIX = 16  # tokens; a shorter common prefix is not worth a pass of its own


@dataclass(slots=True, eq=False)
class Request:
    """One reply in the making."""

    prompt: list[int]
    sampling: Sampling
    stop_tokens: Collection[int]
    random: random.Random
    future: "asyncio.Future[Completion]"
    slot: Slot | None = None
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    @property
    def live(self) -> Slot:
        """The slot of an admitted request."""
        assert self.slot is not None
        return self.slot

    @property
    def finish(self) -> Literal["stop", "length"] | None:
        """Why the reply is over, or None while it is not."""
        if self.tokens and self.tokens[-1] in self.stop_tokens:
            return "stop"
        return "length" if len(self.tokens) >= self.sampling.max_tokens else None


class LocalSampler:
    """Samples from a model's current weights; `refresh` after they change."""

    def __init__(self, model: Model, sequences: int) -> None:
        self._model = model
        config = model.config
        dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        layers, heads = config.num_hidden_layers, config.num_key_value_heads
        self._cache = Cache(layers, heads, dim, sequences, model.dtype, model.device)
        self._queue: list[Request] = []
        self._active: list[Request] = []
        self._unanswered: set[Request] = set()
        self._driver: asyncio.Task[None] | None = None
        self.version = 0

    def refresh(self, version: int) -> None:
        """Forget what is cached: the weights are now those of `version`."""
        self._cache.clear()
        self.version = version

    async def sample(
        self, prompt: Sequence[int], sampling: Sampling, seed: int, stop_tokens: Collection[int] = ()
    ) -> Completion:
        """Continue a prompt; see `engines.base.Sampler`."""
        if not prompt:
            raise ValueError("an empty prompt cannot be continued")
        loop = asyncio.get_running_loop()
        request = Request(list(prompt), sampling, stop_tokens, random.Random(seed), loop.create_future())
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
        rows = sorted(requests, key=lambda r: self._order(r.live))
        slots = [r.live for r in rows]
        new = [r.prompt[len(r.live.tokens) :] for r in rows]
        self._cache.reserve(max(slot.own + len(tokens) for slot, tokens in zip(slots, new, strict=True)))
        layout = Prefill(self._cache, slots, new, self._model.query_heads_per_key, self._model.device)
        hidden = self._model.hidden(layout.tokens, layout.positions, layout)
        for slot, tokens in zip(slots, new, strict=True):
            slot.tokens += tokens
        self._active += rows
        self._pick(rows, hidden[layout.last])

    def _decode(self) -> None:
        rows = sorted(self._active, key=lambda r: self._order(r.live))
        slots = [r.live for r in rows]
        self._cache.reserve(max(slot.own for slot in slots) + 1)
        last = [r.tokens[-1] for r in rows]
        layout = Decode(self._cache, slots, last, self._model.query_heads_per_key, self._model.device)
        hidden = self._model.hidden(layout.tokens, layout.positions, layout)
        for slot, token in zip(slots, last, strict=True):
            slot.tokens.append(token)
        self._pick(rows, hidden)

    def _order(self, slot: Slot) -> tuple[int, int]:
        """Rows of one prefix stand together."""
        return (slot.prefix.index if slot.prefix else 0, slot.index)

    def _pick(self, rows: Sequence[Request], hidden: torch.Tensor) -> None:
        """Sample the next token of every row, and hand over the replies that are complete."""
        logits = self._model.logits(hidden)
        for temperature in sorted({r.sampling.temperature for r in rows}):
            index = [i for i, r in enumerate(rows) if r.sampling.temperature == temperature]
            uniforms = torch.tensor([rows[i].random.random() for i in index], device=hidden.device)
            part = logits if len(index) == len(rows) else logits[index]
            tokens, logprobs = kernels.sample(part, temperature, uniforms)
            for i, token, logprob in zip(index, tokens.tolist(), logprobs.tolist(), strict=True):
                rows[i].tokens.append(token)
                rows[i].logprobs.append(logprob)
        self._hand_over()

    def _hand_over(self) -> None:
        """Answer the requests whose reply is complete, and drop those that nobody waits for any more."""
        for request in [r for r in self._active if r.finish or r.future.done()]:
            self._active.remove(request)
            self._unanswered.discard(request)
            request.live.busy = False
            if request.finish and not request.future.done():
                request.future.set_result(Completion(request.tokens, request.logprobs, request.finish, self.version))
