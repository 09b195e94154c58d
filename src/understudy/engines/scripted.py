"""A sampler without weights that replays given texts, for tests and documentation."""

import math
from collections.abc import Callable, Collection, Iterable, Sequence

from understudy.engines.interface import Completion, SamplingParams


class ScriptedSampler:
    """Returns one text per call, encoded by `encode`. Every token has log-probability log(0.5)."""

    def __init__(self, texts: Iterable[str], encode: Callable[[str], list[int]]) -> None:
        self._texts = iter(texts)
        self._encode = encode
        self.prompts: list[list[int]] = []

    async def sample(
        self, prompt: Sequence[int], sampling: SamplingParams, seed: int, stop_tokens: Collection[int] = ()
    ) -> Completion:
        """Return the next text, truncated to `sampling.max_response_tokens`."""
        self.prompts.append(list(prompt))
        tokens = self._encode(next(self._texts))
        reply = tokens[: sampling.max_response_tokens]
        return Completion(reply, [math.log(0.5)] * len(reply), "stop" if len(reply) == len(tokens) else "length")
