"""Samples from an engine's current weights through vLLM.

Weights are sent lazily. After they have changed, the next request waits until no reply is in progress, then sends them.
So every reply comes from one version of the weights. If vLLM dies, it is restarted with the current weights and its
requests are repeated. Episodes wait meanwhile and lose nothing.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from understudy.core.errors import ConfigError, RolloutError
from understudy.core.event_loop import LoopLocal
from understudy.engines.interface import (
    Completion,
    SamplingParams,
    TokenCallback,
    context_full_completion,
    validate_reply,
)
from understudy.engines.vllm.client import VllmBackend, VllmCompletion, VllmUnavailable
from understudy.engines.vllm.config import VllmConfig
from understudy.engines.vllm.weight_sync import WeightSync
from understudy.formats import FormatTokenizer
from understudy.formats.detokenizer import find_stop_string

MIN_TEMPERATURE = 0.01
"""vLLM raises temperatures between 0 and this value to it."""
QUEUE_FACTOR = 2
"""Concurrent requests, as a multiple of `max_num_seqs`: enough that vLLM never waits for requests, and few enough
that none times out in its queue.
"""


class VllmSampler:
    """Implements `engines.interface.Sampler`. Call `set_weights_version` after the weights have changed."""

    def __init__(
        self,
        vllm: VllmBackend,
        weight_sync: WeightSync,
        config: VllmConfig,
        vocabulary: Callable[[], FormatTokenizer],
        max_num_seqs: int,
        *,
        vocab_size: int,
    ) -> None:
        """`vocabulary` is called only for stop strings. vLLM samples up to `max_num_seqs` replies concurrently.

        `vocab_size` is the number of token ids of the model.
        """
        self._vocab_size = vocab_size
        self._vllm = vllm
        self._weights = weight_sync
        self._config = config
        self._sequences = max_num_seqs
        self._vocabulary = vocabulary
        self._failures = 0  # consecutive failures without a reply
        self._failure: VllmUnavailable | None = None
        self._gate = LoopLocal(lambda: _RequestGate(asyncio.Semaphore(QUEUE_FACTOR * self._sequences)))
        self.weights_version = 0

    def set_weights_version(self, version: int) -> None:
        """Set the version of the new weights, which are sent with the next request."""
        self._weights.mark_changed()
        self.weights_version = version

    def reset_prefix_cache(self) -> None:
        """Do nothing: vLLM's prefix cache always belongs to its current weights."""

    def close(self) -> None:
        """Stop vLLM."""
        self._vllm.stop()
        self._weights.mark_unknown()

    def validate_sampling(self, sampling: SamplingParams) -> None:
        """Raise ConfigError if vLLM does not support `sampling`."""
        if 0 < sampling.temperature < MIN_TEMPERATURE:
            raise ConfigError(
                f"sampling.temperature = {sampling.temperature}: vLLM supports 0 and values from {MIN_TEMPERATURE}"
            )

    async def sample(
        self,
        prompt: Sequence[int],
        sampling: SamplingParams,
        seed: int,
        stop_tokens: Collection[int] = (),
        on_tokens: TokenCallback | None = None,
    ) -> Completion:
        """Continue a prompt. The seed determines the reply, apart from vLLM's rounding, which depends on concurrent
        replies.

        Replies arrive whole, so `on_tokens` is never called. A reply is cut at its first stop string here, since vLLM
        gets no tokenizer. With filters, the log-probabilities are those of the filtered distribution.

        Raise RolloutError if vLLM fails, or if its reply cannot be trained on.
        """
        if not prompt:
            raise ValueError("the prompt is empty")
        self.validate_sampling(sampling)
        for _ in range(self._config.max_restarts + 1):
            async with self._with_current_weights():
                version, label = self.weights_version, self._weights.version_label
                if len(prompt) >= self._vllm.context_length:
                    return context_full_completion(version)
                try:
                    reply = await self._ask(prompt, sampling, seed, stop_tokens)
                except VllmUnavailable as e:
                    failure = e
                    if label == self._weights.version_label:  # otherwise another request has already reported it
                        self._count_failure(e)
                    continue
            self._failures = 0
            count = find_stop_string(reply.tokens, sampling.stop, self._vocabulary)
            whole = count is None
            ended: Literal["stop", "length"] = "stop" if not whole or reply.tokens[-1] in stop_tokens else "length"
            return Completion(reply.tokens[:count], reply.logprobs[:count], ended, version)
        raise RolloutError(f"no reply in {self._config.max_restarts + 1} attempts: {failure}", "engine")

    async def _ask(
        self, prompt: Sequence[int], sampling: SamplingParams, seed: int, stop_tokens: Collection[int]
    ) -> VllmCompletion:
        params: dict[str, Any] = {
            "max_tokens": min(sampling.max_response_tokens, self._vllm.context_length - len(prompt)),
            "temperature": sampling.temperature,
            "seed": seed,
            "stop_token_ids": sorted(stop_tokens),
            "ignore_eos": True,  # only `stop_tokens` end a reply
            "logprobs": 0,
            "detokenize": False,
            **_filters(sampling),
        }
        expected = self._weights.weight_version
        reply = await self._vllm.generate(self._weights.model_name, prompt, params)
        if reply.weight_version != expected:
            raise VllmUnavailable(f"vLLM has the weights {reply.weight_version!r}, expected {expected!r}")
        validate_reply(
            "vLLM", reply.tokens, reply.logprobs, max_tokens=params["max_tokens"], vocab_size=self._vocab_size
        )
        return reply

    @contextlib.asynccontextmanager
    async def _with_current_weights(self) -> AsyncIterator[None]:
        """Keep vLLM at the current weights inside the block."""
        visits = self._gate.get()
        async with visits.slots:
            async with visits.sync_lock:
                if visits.is_new:
                    if self._weights.version_label and not await self._vllm.is_healthy():
                        self._weights.mark_unknown()
                    visits.is_new = False
                if not self._weights.is_current:
                    await visits.idle.wait()
                    await self._sync_weights()
                visits.enter()
            try:
                yield
            finally:
                visits.leave()

    async def _sync_weights(self) -> None:
        """Wait until vLLM runs with the current weights. Raise RolloutError if it has failed too often."""
        while not self._weights.is_current:
            self._raise_if_failed()
            try:
                await self._start()
                await self._weights.sync(self._vllm)
            except VllmUnavailable as e:
                self._count_failure(e)

    def _count_failure(self, error: VllmUnavailable) -> None:
        """Record that vLLM has failed, so that it is restarted, after a wait that grows with each failure."""
        self._weights.mark_unknown()
        self._failures, self._failure = self._failures + 1, error

    def _raise_if_failed(self) -> None:
        """Raise ConfigError if vLLM has never started, or RolloutError if it has failed too often."""
        if self._failures and not self._vllm.context_length:
            raise ConfigError(f"vLLM does not start; fix this or set engine.sampler=torch: {self._failure}")
        if self._failures > self._config.max_restarts:
            raise RolloutError(f"vLLM failed {self._failures} times in a row: {self._failure}", "engine")

    async def _start(self) -> None:
        """Start vLLM unless it runs."""
        if self._weights.version_label or (self._vllm.context_length and await self._vllm.is_healthy()):
            return
        if self._failures:
            await asyncio.sleep(self._config.restart_backoff * 2 ** (self._failures - 1))
        await self._vllm.start()


def _filters(sampling: SamplingParams) -> dict[str, Any]:
    """Return vLLM's parameters for the filters in use."""
    named = {"top_p": sampling.top_p, "top_k": sampling.top_k, "min_p": sampling.min_p}
    penalties = {
        "repetition_penalty": sampling.repetition_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "presence_penalty": sampling.presence_penalty,
    }
    return named | penalties if sampling.has_filters else {}


@dataclass
class _RequestGate:
    """Limits the concurrent requests of one event loop (`slots`) and signals that none is in progress (`idle`)."""

    slots: asyncio.Semaphore
    sync_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    is_new: bool = True
    """True until the first request, which must check vLLM: one that runs in this process works in one event loop."""
    _inside: int = 0

    def __post_init__(self) -> None:
        self.idle.set()

    def enter(self) -> None:
        self._inside += 1
        self.idle.clear()

    def leave(self) -> None:
        self._inside -= 1
        if not self._inside:
            self.idle.set()
