"""Samples from an engine's current weights through vLLM.

Weights are sent lazily: the first reply that is wanted after they have changed waits until none is under way, then they
are sent, so that no reply mixes two states of them. What a dead vLLM was asked is asked again once it has been started
anew and has the current weights; episodes wait meanwhile, and nothing that was played is lost.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from understudy.engines.base import Completion, Sampling, Told, no_room
from understudy.engines.vllm.config import VllmConfig
from understudy.engines.vllm.endpoint import Lost, Reply, Vllm
from understudy.engines.vllm.weights import Weights
from understudy.errors import ConfigError, RolloutError
from understudy.formats import Vocabulary
from understudy.formats.decoding import StopStrings

COLDEST = 0.01
"""vLLM raises temperatures between 0 and this one to it."""
AHEAD = 2
"""How many times as many replies as it samples side by side vLLM is asked for at once: it never runs out of work, and
none waits there so long that the time for a reply runs out while a thousand others are sampled."""


class VllmSampler:
    """See `engines.base.Sampler`; `refresh` after the weights have changed."""

    def __init__(
        self, vllm: Vllm, weights: Weights, config: VllmConfig, vocabulary: Callable[[], Vocabulary], sequences: int
    ) -> None:
        """`vocabulary` is asked for where stop strings are; vLLM samples `sequences` replies side by side."""
        self._vllm, self._weights, self._config, self._sequences = vllm, weights, config, sequences
        self._vocabulary = vocabulary
        self._failures = 0  # in a row, with no reply in between
        self._failure: Lost | None = None
        self._visits: _Visits | None = None
        self.version = 0

    def refresh(self, version: int) -> None:
        """The weights are now those of `version`."""
        self._weights.changed()
        self.version = version

    def forget(self) -> None:
        """Nothing to forget: what vLLM keeps was computed from the weights that it has."""

    def close(self) -> None:
        """End what was started."""
        self._vllm.stop()
        self._weights.lost()

    def refuse(self, sampling: Sampling) -> None:
        """See `engines.base.Streaming`."""
        if 0 < sampling.temperature < COLDEST:
            raise ConfigError(f"sampling.temperature = {sampling.temperature}: vLLM takes 0, or at least {COLDEST}")

    async def sample(
        self,
        prompt: Sequence[int],
        sampling: Sampling,
        seed: int,
        stop_tokens: Collection[int] = (),
        told: Told | None = None,
    ) -> Completion:
        """Continue a prompt. `seed` decides, as far as vLLM's rounding is the same beside other replies.

        `told` is not told anything: replies come whole. One with a stop string in it is cut after it was sampled, since
        vLLM is given no tokenizer. Where `sampling` has filters, log-probabilities are those of what they leave, which
        is what vLLM gives.
        """
        if not prompt:
            raise ValueError("an empty prompt cannot be continued")
        self.refuse(sampling)
        for _ in range(self._config.restarts + 1):
            async with self._visit():
                version, label = self.version, self._weights.label
                if len(prompt) >= self._vllm.context:
                    return no_room(version)
                try:
                    reply = await self._ask(prompt, sampling, seed, stop_tokens)
                except Lost as e:
                    failure = e
                    if label == self._weights.label:  # else somebody has looked after it meanwhile
                        self._weights.lost()
                    continue
            self._failures = 0
            count = self._end(reply.tokens, sampling)
            whole = count is None
            ended: Literal["stop", "length"] = "stop" if not whole or reply.tokens[-1] in stop_tokens else "length"
            return Completion(reply.tokens[:count], reply.logprobs[:count], ended, version)
        raise RolloutError(f"no reply in {self._config.restarts + 1} attempts: {failure}", "engine")

    async def _ask(self, prompt: Sequence[int], sampling: Sampling, seed: int, stop_tokens: Collection[int]) -> Reply:
        params: dict[str, Any] = {
            "max_tokens": min(sampling.max_tokens, self._vllm.context - len(prompt)),
            "temperature": sampling.temperature,
            "seed": seed,
            "stop_token_ids": sorted(stop_tokens),
            "ignore_eos": True,  # only what the format calls a stop ends a reply
            "logprobs": 0,
            "detokenize": False,
            **_filters(sampling),
        }
        expected = self._weights.weight_version
        reply = await self._vllm.generate(self._weights.model, prompt, params)
        if reply.weight_version != expected:
            raise Lost(f"vLLM has the weights {reply.weight_version!r} in place of {expected!r}")
        return reply

    def _end(self, tokens: Sequence[int], sampling: Sampling) -> int | None:
        """How many of the tokens there are up to the first stop string, None where there is none in them."""
        if not sampling.stop:
            return None
        stops = StopStrings(self._vocabulary(), sampling.stop)
        return next((i for i, token in enumerate(tokens, 1) if stops.feed(token)), None)

    @contextlib.asynccontextmanager
    async def _visit(self) -> AsyncIterator[None]:
        """A time in which vLLM has the current weights, and keeps them."""
        visits = self._of_this_loop()
        async with visits.gate:
            async with visits.door:
                if not self._weights.current:
                    await visits.nobody.wait()
                    await self._bring_up()
                visits.enter()
            try:
                yield
            finally:
                visits.leave()

    def _of_this_loop(self) -> "_Visits":
        if self._visits is None or self._visits.loop is not asyncio.get_running_loop():
            self._visits = _Visits(asyncio.get_running_loop(), asyncio.Semaphore(AHEAD * self._sequences))
        return self._visits

    async def _bring_up(self) -> None:
        """Until vLLM runs and has the current weights, or has failed too often."""
        while not self._weights.current:
            self._give_up()
            try:
                await self._start()
                await self._weights.send(self._vllm)
            except Lost as e:
                self._weights.lost()
                self._failures, self._failure = self._failures + 1, e

    def _give_up(self) -> None:
        """Raise where vLLM has never come up, or failed too often since."""
        if self._failures and not self._vllm.context:
            raise ConfigError(f"vLLM cannot be used (engine.sampler=torch goes without): {self._failure}")
        if self._failures > self._config.restarts:
            raise RolloutError(f"vLLM failed {self._failures} times in a row: {self._failure}", "engine")

    async def _start(self) -> None:
        """Start vLLM where it does not run."""
        if self._weights.label or (self._vllm.context and await self._vllm.healthy()):
            return
        if self._failures:
            await asyncio.sleep(self._config.backoff * 2 ** (self._failures - 1))
        await self._vllm.start()


def _filters(sampling: Sampling) -> dict[str, Any]:
    """What vLLM is told of the filters that are on."""
    named = {"top_p": sampling.top_p, "top_k": sampling.top_k, "min_p": sampling.min_p}
    return {**named, "repetition_penalty": sampling.repetition_penalty} if sampling.filtered else {}


@dataclass
class _Visits:
    """Who is asking vLLM in one event loop. Through the door one goes at a time; the gate holds back who would wait."""

    loop: asyncio.AbstractEventLoop
    gate: asyncio.Semaphore
    door: asyncio.Lock = field(default_factory=asyncio.Lock)
    nobody: asyncio.Event = field(default_factory=asyncio.Event)
    _inside: int = 0

    def __post_init__(self) -> None:
        self.nobody.set()

    def enter(self) -> None:
        self._inside += 1
        self.nobody.clear()

    def leave(self) -> None:
        self._inside -= 1
        if not self._inside:
            self.nobody.set()
