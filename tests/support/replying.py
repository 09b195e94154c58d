"""A sampler with given replies, in the tokens of a tiny model."""

import asyncio
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from understudy.core.messages import Message
from understudy.engines.interface import Completion, SamplingParams, TokenCallback
from understudy.formats import load_chat_format

Reply = Callable[[Sequence[int], int], Message]
"""Returns the reply to a prompt and a seed."""


class ReplySampler:
    """A sampler whose replies a function of prompt and seed gives. It records each call."""

    context_length = 100_000

    def __init__(self, folder: Path, reply: Reply) -> None:
        self.format = load_chat_format(folder)
        self.reply = reply
        self.calls: list[tuple[list[int], list[int]]] = []
        self.asked: list[SamplingParams] = []
        self.gate, self.begun = asyncio.Event(), asyncio.Event()
        self.gate.set()

    def validate_sampling(self, sampling: SamplingParams) -> None:
        """Accept everything."""

    async def sample(
        self,
        prompt: Sequence[int],
        sampling: SamplingParams,
        seed: int,
        stop_tokens: Collection[int] = (),
        on_tokens: TokenCallback | None = None,
    ) -> Completion:
        tokens = self.format.encode_reply(self.reply(prompt, seed))[: sampling.max_response_tokens]
        self.calls.append((list(prompt), tokens))
        self.asked.append(sampling)
        self.begun.set()
        await self.gate.wait()
        ended = tokens[-1] in stop_tokens
        return Completion(tokens, [-token / 1000 for token in tokens], "stop" if ended else "length", 3)

    def close(self) -> None:
        """Do nothing."""


def say(text: str) -> Reply:
    return lambda prompt, seed: Message(role="assistant", content=text)
