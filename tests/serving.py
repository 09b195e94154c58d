"""A real server of the tiny random model on a free port of loopback, in a thread of its own, and who asks it."""

import asyncio
import functools
import json
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import openai

from listening import listening
from understudy.engines.base import Completion, Sampling, Told
from understudy.errors import ConfigError
from understudy.formats import Vocabulary, find
from understudy.models import make_tiny
from understudy.serve.choice import Model
from understudy.serve.options import ServeConfig
from understudy.serve.server import app, open_served
from understudy.weights import find_weights

CONTEXT = 2048
HELLO = [{"role": "user", "content": "Hello, who are you?"}]
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {"a": {}}}}}
    for name in ("f", "g")
]
KEY = "sk-proj-7dJ2kQ9vX1zL4mW8"


def small(folder: Path) -> Path:
    """A tiny model with a short context, so that a reply without a limit ends soon."""
    make_tiny(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": CONTEXT}))
    return folder


def served(folder: Path, name: str = "tiny", **options: Any) -> Model:
    """The model of a folder, as it is served."""
    weights = find_weights(str(folder), ["engine.dtype=float32", "engine.threads=1"])
    return open_served(weights.replace(name=name), ServeConfig(**options))


class Script:
    """A sampler that says given texts: for a request that ends with user text X, the text of X, token by token."""

    context = CONTEXT

    def __init__(self, folder: Path, reply: Callable[[str], str], pause: float, tells: bool) -> None:
        self._vocabulary, self._reply, self._pause = Vocabulary.load(folder / "tokenizer.json"), reply, pause
        self._tells = tells
        self.prompts: list[list[int]] = []
        self.cancelled = 0

    def refuse(self, sampling: Sampling) -> None:
        """As a sampler that knows two temperatures."""
        if sampling.temperature not in (0.0, 1.0):
            raise ConfigError(f"sampling.temperature = {sampling.temperature}: allowed: 1 and 0")

    async def sample(
        self,
        prompt: Sequence[int],
        sampling: Sampling,
        seed: int,
        stop_tokens: Collection[int] = (),
        told: Told | None = None,
    ) -> Completion:
        """The text, and the token that ends a turn."""
        self.prompts.append(list(prompt))
        said = self._reply(self._vocabulary.decode(prompt))
        tokens = [*self._vocabulary.encode(said), self._vocabulary.added["<|im_end|>"]]
        kept = tokens[: sampling.max_tokens]
        try:
            for token in kept:
                await asyncio.sleep(self._pause)
                if told and self._tells:
                    told([token], [-0.5])
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return Completion(kept, [-0.5] * len(kept), "stop" if len(kept) == len(tokens) else "length")

    def close(self) -> None:
        """Nothing is held."""


def scripted(folder: Path, reply: Callable[[str], str], pause: float = 0.0, tells: bool = True) -> tuple[Model, Script]:
    """A model that says what the script wants, in the tiny model's format; if it `tells`, while it samples."""
    script = Script(folder, reply, pause, tells)
    return Model("tiny", script, find(folder), Vocabulary.load(folder / "tokenizer.json")), script


@contextmanager
def serving(model: Model, key: str = "", **options: Any) -> Iterator[str]:
    """The base URL of a server."""
    with listening(lambda config: app(model, config, key), **options) as address:
        yield f"{address}/v1"


@functools.cache
def http() -> httpx2.Client:
    """Requests that no client of OpenAI would send."""
    return httpx2.Client(verify=False, timeout=60, headers={"Connection": "close"})


def client(url: str, key: str = "none") -> openai.OpenAI:
    """OpenAI's own client."""
    plain = httpx2.Client(verify=False, timeout=60)  # to read the certificates takes longer than a request
    return openai.OpenAI(base_url=url, api_key=key, max_retries=0, http_client=plain)


def ask(url: str, **more: Any) -> Any:
    """A reply."""
    with client(url) as api:
        return api.chat.completions.create(**{"model": "tiny", "messages": HELLO, "max_tokens": 16, "seed": 7, **more})


def streamed(url: str, **more: Any) -> list[Any]:
    """The pieces of a reply."""
    with client(url) as api:
        body = {"model": "tiny", "messages": HELLO, "max_tokens": 16, "seed": 7, **more}
        return list(api.chat.completions.create(**body, stream=True, stream_options={"include_usage": True}))


def joined(chunks: list[Any], index: int = 0) -> tuple[str, list[Any], str, list[Any]]:
    """What a stream comes to: text, calls, why it ended, log-probabilities."""
    choices = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
    text = "".join(choice.delta.content or "" for choice in choices)
    calls = [call for choice in choices for call in choice.delta.tool_calls or ()]
    finish = [choice.finish_reason for choice in choices if choice.finish_reason]
    logprobs = [token for choice in choices if choice.logprobs for token in choice.logprobs.content]
    assert len(finish) == 1
    return text, calls, finish[0], logprobs
