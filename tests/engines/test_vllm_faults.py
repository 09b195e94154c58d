"""Bad answers of a vLLM server are faults of the engine. The server is a real HTTP server with scripted replies."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from support.endpoint import Answer, send
from understudy.clients import endpoint as endpoint_module
from understudy.core.errors import ConfigError, RolloutError
from understudy.engines.interface import Completion, SamplingParams
from understudy.engines.vllm.client import INITIAL_WEIGHT_VERSION, VllmHttpClient, VllmUnavailable
from understudy.engines.vllm.config import VllmConfig
from understudy.engines.vllm.sampler import VllmSampler
from understudy.engines.vllm.weight_sync import WeightSync
from understudy.formats import FormatTokenizer

JSON = {"Content-Type": "application/json"}
MODELS, RESET = '{"data": [{"max_model_len": 10}]}', '{"success": true}'


@dataclass
class ReplyServer:
    """A server with vLLM's routes. `replies` answer the requests for replies; the last one is repeated."""

    replies: list[Answer]
    models: str = MODELS
    reset: str = RESET
    num_requests: int = 0

    def answer(self, path: str) -> Answer:
        if path == "/inference/v1/generate":
            self.num_requests += 1
            return self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        body = {"/v1/models": self.models, "/reset_prefix_cache": self.reset}.get(path)
        return Answer("OK") if body is None else Answer(body, headers=JSON)


@contextmanager
def serve(server: ReplyServer) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            send(self, server.answer(self.path))

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            send(self, server.answer(self.path))

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{http.server_address[1]}"
        finally:
            http.shutdown()
            thread.join()


def reply(tokens: Any = (5, 7), logprobs: Any = (-0.5, -0.7), **other: Any) -> Answer:
    spans = [{"version": INITIAL_WEIGHT_VERSION, "start": 0, "end": 2}]
    content = [{"logprob": logprob} for logprob in logprobs]
    choice = {"finish_reason": "stop", "token_ids": tokens, "logprobs": {"content": content}, "weight_versions": spans}
    return Answer({"choices": [choice | other]}, headers=JSON)


def sample(server: ReplyServer, folder: Path, lora: bool = True) -> Completion:
    def unused_tokenizer() -> FormatTokenizer:
        raise AssertionError("no vocabulary is needed without stop strings")

    with serve(server) as url:
        config = VllmConfig(restart_backoff=0.0, max_restarts=2)
        weights = WeightSync(lambda path: path.mkdir(), folder, lora=lora)
        sampler = VllmSampler(VllmHttpClient(config, url), weights, config, unused_tokenizer, 1, vocab_size=100)
        return asyncio.run(sampler.sample([1], SamplingParams(max_response_tokens=4), 0))


UNREADABLE: dict[str, Callable[[], Answer]] = {
    "half JSON": lambda: Answer('{"choices": [{"token_ids": [5', headers=JSON),
    "empty": lambda: Answer("", headers=JSON),
    "not UTF-8": lambda: Answer(b'{"choices": "\xff\xfe"}', headers=JSON),
    "deep": lambda: Answer("[" * 100_000, headers=JSON),
    "huge number": lambda: Answer('{"choices": ' + "9" * 5000 + "}", headers=JSON),
    "cut off": lambda: Answer(json.dumps(dict(reply().body)), headers=JSON, cut=True),  # type: ignore[arg-type]
    "bad encoding": lambda: Answer("plain", headers=JSON | {"Content-Encoding": "gzip"}),
    "too large": lambda: Answer(" " * 300_000, headers=JSON),
    "aborted": lambda: reply(finish_reason="abort"),
}
"""Answers after which the request is repeated: they pass when a server or a proxy has restarted."""
INVALID: dict[str, Callable[[], Answer]] = {
    "an error page": lambda: Answer("<html>503</html>", headers={"Content-Type": "text/html"}),
    "an unusual encoding": lambda: Answer("x", headers={"Content-Type": "text/plain; charset=zlib"}),
    "null": lambda: Answer("null", headers=JSON),
    "a list": lambda: Answer("[]", headers=JSON),
    "no choices": lambda: Answer({"object": "error"}, headers=JSON),
    "no choice": lambda: Answer({"choices": []}, headers=JSON),
    "choices are text": lambda: Answer({"choices": "none"}, headers=JSON),
    "log-probabilities are null": lambda: Answer(
        {"choices": [{**reply().body["choices"][0], "logprobs": None}]},  # type: ignore[call-overload, dict-item, index]
        headers=JSON,
    ),
    "too few log-probabilities": lambda: reply(logprobs=[-0.5]),
    "too many log-probabilities": lambda: reply(logprobs=[-0.5] * 3),
    "no tokens": lambda: reply([], []),
    "too many tokens": lambda: reply([1] * 5, [-0.5] * 5),
    "tokens are null": lambda: reply(None),
    "tokens are text": lambda: reply("57"),
    "a token is negative": lambda: reply([5, -7]),
    "a token is out of range": lambda: reply([5, 100]),
    "a token is huge": lambda: reply([5, 2**70]),
    "a token is a fraction": lambda: reply([5, 7.0]),
    "a token is text": lambda: reply([5, "7"]),
    "a token is true": lambda: reply([5, True]),
    "a version is a list": lambda: reply(weight_versions=[{"version": []}]),
    **{
        f"log-probability {bad!r}": lambda bad=bad: reply(logprobs=[-0.5, bad])  # type: ignore[misc]
        for bad in (float("nan"), float("inf"), float("-inf"), -9999.0, 0.5, None, "-0.5", True, [], -(10**400))
    },
}
"""Answers that no repetition mends: the episode is retried with another seed."""


@pytest.fixture(autouse=True)
def limit_bodies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint_module, "MAX_BODY_BYTES", 200_000)


@pytest.mark.parametrize("name", UNREADABLE)
def test_unreadable_answer_is_requested_again(tmp_path: Path, name: str) -> None:
    server = ReplyServer([UNREADABLE[name](), reply()])
    completion = sample(server, tmp_path)
    assert (completion.tokens, completion.logprobs, server.num_requests) == ([5, 7], [-0.5, -0.7], 2)


@pytest.mark.parametrize("name", UNREADABLE)
def test_repeated_unreadable_answers_are_a_fault_of_the_engine(tmp_path: Path, name: str) -> None:
    server = ReplyServer([UNREADABLE[name]()])
    with pytest.raises(RolloutError) as caught:
        sample(server, tmp_path)
    assert (caught.value.fault, server.num_requests) == ("engine", 3)


@pytest.mark.parametrize("name", INVALID)
def test_invalid_reply_is_a_fault_of_the_engine(tmp_path: Path, name: str) -> None:
    with pytest.raises(RolloutError) as caught:
        sample(ReplyServer([INVALID[name]()]), tmp_path)
    assert caught.value.fault == "engine"


@pytest.mark.parametrize(
    "models",
    ["", "[" * 100_000, "null", '{"data": []}']
    + [f'{{"data": [{{"max_model_len": {n}}}]}}' for n in ("1e999", "NaN", "-1", "0", "true", '"10"', "null")],
)
def test_invalid_context_length_is_one_line(tmp_path: Path, models: str) -> None:
    with pytest.raises(ConfigError, match="/v1/models"):
        sample(ReplyServer([reply()], models=models), tmp_path)


@pytest.mark.parametrize("body", ["null", "[]", "{}", '{"success": false}', "{", "", '"success"'])
def test_prefix_cache_that_may_be_stale_is_unavailable(tmp_path: Path, body: str) -> None:
    with serve(ReplyServer([reply()], reset=body)) as url:
        client = VllmHttpClient(VllmConfig(), url)
        with pytest.raises(VllmUnavailable, match=r"prefix"):
            asyncio.run(client.reload_weights(tmp_path, "label"))
