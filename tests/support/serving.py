"""A real server of the tiny random model on a free loopback port, in its own thread, and its clients."""

import asyncio
import functools
import json
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import openai

from support.listening import serve_app
from understudy.core.errors import ConfigError
from understudy.engines.interface import Completion, SamplingParams, TokenCallback
from understudy.engines.models import make_tiny_model
from understudy.formats import FormatTokenizer, load_chat_format
from understudy.runs.serving import load_served_model
from understudy.runs.weights import resolve_weights
from understudy.serve.generation import ServedModel
from understudy.serve.options import ServeConfig
from understudy.serve.server import make_serve_app

CONTEXT = 2048
HELLO = [{"role": "user", "content": "Hello, who are you?"}]
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {"a": {}}}}}
    for name in ("f", "g")
]
KEY = "sk-proj-7dJ2kQ9vX1zL4mW8"


def make_short_context_model(folder: Path) -> Path:
    """Return a tiny model with a short context, so that a reply without a limit ends soon."""
    make_tiny_model(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": CONTEXT}))
    return folder


def load_tiny_served_model(folder: Path, name: str = "tiny", **options: Any) -> ServedModel:
    """Load the model in a folder as the server does."""
    weights = resolve_weights(str(folder), ["engine.dtype=float32", "engine.threads=1"])
    return load_served_model(weights.replace(name=name), ServeConfig(**options))


class ScriptedSampler:
    """A sampler with given texts. To a request that ends with the user message X it replies with the text of X, token
    by token.
    """

    context_length = CONTEXT

    def __init__(self, folder: Path, reply: Callable[[str], str], pause: float, streams: bool) -> None:
        self._vocabulary, self._reply, self._pause = FormatTokenizer.load(folder / "tokenizer.json"), reply, pause
        self._streams = streams
        self.prompts: list[list[int]] = []
        self.last_token_may_follow: threading.Event | None = None
        self.was_read_before_the_last_token = False
        self.cancelled = 0

    def validate_sampling(self, sampling: SamplingParams) -> None:
        """Accept only two temperatures."""
        if sampling.temperature not in (0.0, 1.0):
            raise ConfigError(f"sampling.temperature = {sampling.temperature}: allowed: 1 and 0")

    async def sample(
        self,
        prompt: Sequence[int],
        sampling: SamplingParams,
        seed: int,
        stop_tokens: Collection[int] = (),
        on_tokens: TokenCallback | None = None,
    ) -> Completion:
        """Return the tokens of the text and the stop token."""
        self.prompts.append(list(prompt))
        said = self._reply(self._vocabulary.decode(prompt))
        tokens = [*self._vocabulary.encode(said), self._vocabulary.added_tokens["<|im_end|>"]]
        kept = tokens[: sampling.max_response_tokens]
        try:
            for number, token in enumerate(kept):
                await asyncio.sleep(self._pause)
                if self.last_token_may_follow and number == len(kept) - 1:
                    self.was_read_before_the_last_token = await asyncio.to_thread(self.last_token_may_follow.wait, 60)
                if on_tokens and self._streams:
                    on_tokens([token], [-0.5], [])
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return Completion(kept, [-0.5] * len(kept), "stop" if len(kept) == len(tokens) else "length")

    def close(self) -> None:
        """Do nothing."""


def make_scripted_model(
    folder: Path, reply: Callable[[str], str], pause: float = 0.0, streams: bool = True
) -> tuple[ServedModel, ScriptedSampler]:
    """Return a served model with scripted texts in the tiny model's format. If `streams`, it reports each token when
    it is sampled.
    """
    script = ScriptedSampler(folder, reply, pause, streams)
    return ServedModel(
        "tiny", script, load_chat_format(folder), FormatTokenizer.load(folder / "tokenizer.json")
    ), script


@contextmanager
def serve_on_loopback(model: ServedModel, key: str = "", **options: Any) -> Iterator[str]:
    """Yield the base URL of a server."""
    with serve_app(lambda config: make_serve_app(model, config, key), **options) as address:
        yield f"{address}/v1"


@functools.cache
def http_client() -> httpx2.Client:
    """Return a plain HTTP client, for requests that OpenAI's client would not send."""
    return httpx2.Client(verify=False, timeout=60, headers={"Connection": "close"})


def openai_client(url: str, key: str = "none") -> openai.OpenAI:
    """Return OpenAI's client."""
    plain = httpx2.Client(verify=False, timeout=60)  # reading the certificates takes longer than a request
    return openai.OpenAI(base_url=url, api_key=key, max_retries=0, http_client=plain)


def request_completion(url: str, **more: Any) -> Any:
    """Return a reply."""
    with openai_client(url) as api:
        return api.chat.completions.create(**{"model": "tiny", "messages": HELLO, "max_tokens": 16, "seed": 7, **more})


def stream_chunks(url: str, **more: Any) -> list[Any]:
    """Return the chunks of a streamed reply."""
    with openai_client(url) as api:
        body = {"model": "tiny", "messages": HELLO, "max_tokens": 16, "seed": 7, **more}
        return list(api.chat.completions.create(**body, stream=True, stream_options={"include_usage": True}))


def join_chunks(chunks: list[Any], index: int = 0) -> tuple[str, list[Any], str, list[Any]]:
    """Return the content of a stream: text, calls, finish reason and log-probabilities."""
    choices = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
    text = "".join(choice.delta.content or "" for choice in choices)
    calls = [call for choice in choices for call in choice.delta.tool_calls or ()]
    finish = [choice.finish_reason for choice in choices if choice.finish_reason]
    logprobs = [token for choice in choices if choice.logprobs for token in choice.logprobs.content]
    assert len(finish) == 1
    return text, calls, finish[0], logprobs
