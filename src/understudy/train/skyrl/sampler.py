"""Sampling through SkyRL's inference client: token ids in, token ids and their log-probabilities out."""

import asyncio
import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, Protocol

from understudy.core.errors import RolloutError
from understudy.engines.interface import Completion, SamplingParams, context_full_completion, validate_reply
from understudy.formats import FormatTokenizer
from understudy.formats.detokenizer import find_stop_string
from understudy.rollouts.agent import TURN_SEED_STRIDE


class InferenceClient(Protocol):
    """The part of SkyRL's `InferenceEngineInterface` that sampling needs."""

    @property
    def weight_version(self) -> int:
        """The number of weight updates that the engines have received."""

    async def generate(self, input_batch: dict[str, Any], model: str | None = None) -> dict[str, Any]:
        """Return replies to prompts of token ids."""

    async def finish_session(self, session_id: str) -> None:
        """End an episode's session, so that the router can free its resources."""


class SkyRLSampler:
    """Samples through SkyRL's inference client. See `engines.interface.Sampler`."""

    client: InferenceClient
    """It is set when SkyRL has started its engines."""
    max_context_tokens: int
    """The maximum sequence length of the engines, in tokens."""
    vocab_size: int
    """The number of token ids of the model."""

    def __init__(self, vocabulary: Callable[[], FormatTokenizer], client_errors: tuple[type[Exception], ...]) -> None:
        """`vocabulary` loads the tokenizer. `client_errors` are the exceptions of a client whose engine has died."""
        self._vocabulary, self._failures = vocabulary, client_errors
        self.model: str | None = None
        """The name of the policy in the engines, or None if they have only one model."""
        self.salted = False
        """True if requests have a cache salt, so that prefixes of older weights are not reused."""

    async def sample(
        self, prompt: Sequence[int], sampling: SamplingParams, seed: int, stop_tokens: Collection[int] = ()
    ) -> Completion:
        """Sample a reply. See `engines.interface.Sampler`.

        All requests of an episode have one session id, so that the router sends them to the engine with the cached
        prefix. Raise RolloutError if the engine fails, or if its reply cannot be trained on.
        """
        version = self.client.weight_version
        if len(prompt) >= self.max_context_tokens:
            return context_full_completion(version)
        request: dict[str, Any] = {
            "prompt_token_ids": [list(prompt)],
            "sampling_params": self._params(len(prompt), sampling, seed, stop_tokens),
            "session_ids": [session_id(seed // TURN_SEED_STRIDE)],
            **({"cache_salt": str(version)} if self.salted else {}),
        }
        with self._attributed():
            answer = await self.client.generate(request, model=self.model)
        try:
            tokens, logprobs = answer["response_ids"][0], answer["response_logprobs"][0]
        except (LookupError, TypeError) as e:
            raise RolloutError(
                f"unexpected format of the inference engine's reply: {str(answer)[:200]}", "engine"
            ) from e
        most = request["sampling_params"]["max_tokens"]
        validate_reply("the inference engine", tokens, logprobs, max_tokens=most, vocab_size=self.vocab_size)
        count = find_stop_string(tokens, sampling.stop, self._vocabulary)
        stopped = count is not None or tokens[-1] in stop_tokens
        return Completion(list(tokens[:count]), list(logprobs[:count]), "stop" if stopped else "length", version)

    async def finish_sessions(self, seeds: Iterable[int]) -> None:
        """End the sessions of the episodes with these seeds."""
        await asyncio.gather(*(self.client.finish_session(session_id(seed)) for seed in seeds))

    def _params(self, length: int, sampling: SamplingParams, seed: int, stop_tokens: Collection[int]) -> dict[str, Any]:
        """Return vLLM's sampling parameters of one reply to a prompt of `length` tokens."""
        return {
            "max_tokens": min(sampling.max_response_tokens, self.max_context_tokens - length),
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k or -1,
            "min_p": sampling.min_p,
            "repetition_penalty": sampling.repetition_penalty,
            "frequency_penalty": sampling.frequency_penalty,
            "presence_penalty": sampling.presence_penalty,
            "seed": seed,
            "stop_token_ids": sorted(stop_tokens),
            "ignore_eos": True,  # only the stop tokens of the format end a reply
            "logprobs": 0,  # only the log-probabilities of the sampled tokens
        }

    @contextlib.contextmanager
    def _attributed(self) -> Iterator[None]:
        """Convert an error of the client inside the block to a RolloutError."""
        try:
            yield
        except self._failures as e:
            raise RolloutError(f"the inference engine failed: {type(e).__name__}: {str(e)[:300]}", "engine") from e


def session_id(seed: int) -> str:
    """Return the session id of the episode with this seed."""
    return f"understudy-{seed}"
