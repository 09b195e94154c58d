"""A sampler without weights: it replays given texts. For tests and documentation of everything above engines."""

import math
from collections.abc import Callable, Collection, Iterable, Sequence

from understudy.engines.base import Completion, Sampling


class ScriptedSampler:
    """Gives one text after the other, encoded by `encode`; each token claims the probability of a fair coin."""

    def __init__(self, texts: Iterable[str], encode: Callable[[str], list[int]]) -> None:
        self._texts = iter(texts)
        self._encode = encode
        self.prompts: list[list[int]] = []

    async def sample(
        self, prompt: Sequence[int], sampling: Sampling, seed: int, stop_tokens: Collection[int] = ()
    ) -> Completion:
        """The next text, cut at `sampling.max_tokens`."""
        self.prompts.append(list(prompt))
        tokens = self._encode(next(self._texts))
        kept = tokens[: sampling.max_tokens]
        return Completion(kept, [math.log(0.5)] * len(kept), "stop" if len(kept) == len(tokens) else "length")
