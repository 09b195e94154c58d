"""Sampling through SkyRL's inference client: token ids in, token ids and their log-probabilities out."""

import asyncio
import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, Protocol

from understudy.agent import TURNS
from understudy.engines.base import Completion, Sampling, no_room
from understudy.errors import RolloutError
from understudy.formats import Vocabulary
from understudy.formats.decoding import StopStrings


class Client(Protocol):
    """The part of SkyRL's `InferenceEngineInterface` that sampling needs."""

    @property
    def weight_version(self) -> int:
        """How often weights were brought to the engines."""

    async def generate(self, input_batch: dict[str, Any], model: str | None = None) -> dict[str, Any]:
        """Replies to prompts of token ids."""

    async def finish_session(self, session_id: str) -> None:
        """An episode is over; a router may give back what it held for it."""


class SkyrlSampler:
    """See `engines.base.Sampler`; it asks `client`, which there is once SkyRL has started its engines."""

    client: Client
    context: int
    """The longest sequence that the engines take, in tokens."""

    def __init__(self, vocabulary: Callable[[], Vocabulary], failures: tuple[type[Exception], ...]) -> None:
        """`failures` is what the client raises where an engine is gone."""
        self._vocabulary, self._failures = vocabulary, failures
        self.model: str | None = None
        """What the engines call the policy; None is the only one that they have."""
        self.salted = False
        """Whether cached prefixes are told apart by the weights that computed them."""

    async def sample(
        self, prompt: Sequence[int], sampling: Sampling, seed: int, stop_tokens: Collection[int] = ()
    ) -> Completion:
        """Continue a prompt. All replies of an episode name one session, so that one engine has its prefix cached."""
        version = self.client.weight_version
        if len(prompt) >= self.context:
            return no_room(version)
        asked = {
            "prompt_token_ids": [list(prompt)],
            "sampling_params": self._params(len(prompt), sampling, seed, stop_tokens),
            "session_ids": [session_of(seed // TURNS)],
            **({"cache_salt": str(version)} if self.salted else {}),
        }
        with self._attributed():
            found = await self.client.generate(asked, model=self.model)
        tokens, logprobs = found["response_ids"][0], (found["response_logprobs"] or [None])[0]
        if logprobs is None or len(logprobs) != len(tokens) or not tokens:
            told = "none" if logprobs is None else str(len(logprobs))
            raise RolloutError(f"the engine gave {len(tokens)} tokens and {told} log-probabilities of them", "engine")
        count = self._end(tokens, sampling)
        stopped = count is not None or tokens[-1] in stop_tokens
        return Completion(list(tokens[:count]), list(logprobs[:count]), "stop" if stopped else "length", version)

    async def finish(self, seeds: Iterable[int]) -> None:
        """The episodes with these seeds are over."""
        await asyncio.gather(*(self.client.finish_session(session_of(seed)) for seed in seeds))

    def _params(self, length: int, sampling: Sampling, seed: int, stop_tokens: Collection[int]) -> dict[str, Any]:
        """vLLM's parameters of one reply. Log-probabilities are those of the tokens that are drawn, and no others."""
        return {
            "max_tokens": min(sampling.max_tokens, self.context - length),
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k or -1,
            "min_p": sampling.min_p,
            "repetition_penalty": sampling.repetition_penalty,
            "seed": seed,
            "stop_token_ids": sorted(stop_tokens),
            "ignore_eos": True,  # only what the format calls a stop ends a reply
            "logprobs": 0,
        }

    def _end(self, tokens: Sequence[int], sampling: Sampling) -> int | None:
        """How many of the tokens there are up to the first stop string, None where there is none in them."""
        if not sampling.stop:
            return None
        stops = StopStrings(self._vocabulary(), sampling.stop)
        return next((i for i, token in enumerate(tokens, 1) if stops.feed(token)), None)

    @contextlib.contextmanager
    def _attributed(self) -> Iterator[None]:
        """An engine that is gone is the machinery's fault."""
        try:
            yield
        except self._failures as e:
            raise RolloutError(f"the inference engine failed: {type(e).__name__}: {str(e)[:300]}", "engine") from e


def session_of(seed: int) -> str:
    """What an episode's session is called."""
    return f"understudy-{seed}"
