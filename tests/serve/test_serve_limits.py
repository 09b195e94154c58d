"""Test the server's access control, request limits, cancellation, start and shutdown."""

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from support.serving import (
    HELLO,
    KEY,
    http_client,
    load_tiny_served_model,
    make_scripted_model,
    make_short_context_model,
    openai_client,
    request_completion,
    serve_on_loopback,
)
from understudy.core.errors import ConfigError
from understudy.engines.interface import SamplingParams
from understudy.runs.serving import serve_model
from understudy.runs.weights import resolve_weights
from understudy.serve.options import ServeConfig


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_short_context_model(tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    with serve_on_loopback(load_tiny_served_model(folder, concurrency=4), concurrency=4, max_body_bytes=60_000) as url:
        yield url


def test_api_key_is_required_if_configured(folder: Path) -> None:
    model, _ = make_scripted_model(folder, lambda _: "Hi.")
    with serve_on_loopback(model, KEY) as url:
        for key in ("wrong", KEY[:-1], KEY + "x"):
            with pytest.raises(openai.AuthenticationError), openai_client(url, key) as api:
                api.models.list()
        with openai_client(url, KEY) as api:
            assert api.chat.completions.create(model="tiny", messages=HELLO).choices  # type: ignore[call-overload]
        lower = http_client().get(f"{url}/models", headers={"Authorization": f"bearer {KEY}"})
        assert lower.status_code == 200
        nobody = http_client().get(f"{url}/models")
        assert (nobody.status_code, nobody.headers["WWW-Authenticate"]) == (401, "Bearer")
        assert KEY not in nobody.text
        assert http_client().get(url.removesuffix("/v1") + "/health").status_code == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:9", 200),
        ("localhost", 200),
        ("[::1]:80", 200),
        ("evil.example", 400),
        ("127.0.0.1.evil.example:80", 400),
    ],
)
def test_foreign_host_header_is_rejected_on_loopback(url: str, host: str, status: int) -> None:
    response = http_client().get(f"{url}/models", headers={"Host": host})
    assert response.status_code == status
    assert "access-control-allow-origin" not in response.headers


def test_requests_over_the_limit_get_status_429(folder: Path) -> None:
    model, _ = make_scripted_model(folder, lambda _: "x" * 1000, pause=0.05)
    with serve_on_loopback(model, concurrency=2) as url, openai_client(url) as api:
        stream = api.chat.completions.create(model="tiny", messages=HELLO, stream=True, n=2)  # type: ignore[call-overload]
        next(stream)
        with pytest.raises(openai.RateLimitError, match=r"\b2 of 2\b") as refused:
            request_completion(url)
        assert refused.value.response.headers["Retry-After"] == "1"
        stream.close()
        assert _succeeds_soon(lambda: request_completion(url, max_tokens=2).choices)


def _succeeds_soon(done: Any) -> bool:
    """Return whether `done` succeeds within a minute."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            if done():
                return True
        except openai.RateLimitError:
            pass
        time.sleep(0.02)
    return False


@pytest.mark.parametrize("stream", [False, True])
def test_disconnected_client_frees_its_slot(folder: Path, stream: bool) -> None:
    model, script = make_scripted_model(folder, lambda _: "x" * 1000, pause=0.1)
    with serve_on_loopback(model, concurrency=1) as url:
        body = json.dumps({"model": "tiny", "messages": HELLO, "stream": stream}).encode()
        address, _, path = url.removeprefix("http://").partition("/")
        head = f"POST /{path}/chat/completions HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n"
        with socket.create_connection(("127.0.0.1", int(address.partition(":")[2])), timeout=60) as client:
            client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            if stream:
                assert client.recv(1)
            assert _succeeds_soon(lambda: script.prompts)
        assert _succeeds_soon(lambda: script.cancelled == 1)
        assert _succeeds_soon(lambda: request_completion(url, max_tokens=1).choices)


def test_cancelled_sampling_frees_its_slot(folder: Path) -> None:
    model = load_tiny_served_model(folder, concurrency=1)

    async def leave() -> None:
        seen = asyncio.Event()
        on_tokens = lambda *_: seen.set()  # noqa: E731
        sampling = SamplingParams(max_response_tokens=1000, temperature=1.0)
        task = asyncio.ensure_future(model.sampler.sample([1, 2, 3], sampling, 0, (), on_tokens))
        await seen.wait()
        task.cancel()
        done = await asyncio.wait_for(model.sampler.sample([4, 5], SamplingParams(max_response_tokens=2), 0), 120)
        assert len(done.tokens) == 2

    asyncio.run(leave())


def test_streamed_tokens_equal_the_completion(folder: Path) -> None:
    model = load_tiny_served_model(folder, concurrency=4)

    async def sample(seed: int) -> None:
        tokens: list[int] = []
        logprobs: list[float] = []
        on_tokens = lambda t, l, _: (tokens.extend(t), logprobs.extend(l))  # noqa: E731, E741
        done = await model.sampler.sample(
            [1, 2, 3, 1, 2], SamplingParams(max_response_tokens=60, temperature=0.3), seed, (65,), on_tokens
        )  # type: ignore[arg-type]
        assert (tokens, logprobs) == (done.tokens, done.logprobs)

    async def both() -> None:
        await asyncio.gather(*map(sample, range(4)))

    asyncio.run(both())


def test_running_stream_completes_at_shutdown(folder: Path) -> None:
    model, _ = make_scripted_model(folder, lambda _: "x" * 40, pause=0.02)
    pieces: list[str] = []
    with contextlib.ExitStack() as stack:
        with serve_on_loopback(model) as url:
            api = stack.enter_context(openai_client(url))
            stream = api.chat.completions.create(model="tiny", messages=HELLO, stream=True)  # type: ignore[call-overload]
            next(stream)
            follow = threading.Thread(target=lambda: pieces.extend(c.choices[0].delta.content or "" for c in stream))
            follow.start()
        follow.join()
    assert "".join(pieces) == "x" * 40


@pytest.fixture
def interrupted_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the server by one that is interrupted by Ctrl-C as soon as it is ready."""
    monkeypatch.setattr("understudy.runs.serving.run_server", lambda app, listener, on_ready: on_ready())


def serve_messages(folder: Path, **options: Any) -> list[str]:
    said: list[str] = []
    weights = resolve_weights(str(folder), ["engine.dtype=float32"]).replace(name="tiny", warnings=("damaged",))
    serve_model(weights, ServeConfig(**{"port": 0, **options}), said.append)
    return said


CTRL_C_AT_ONCE = """
import signal
from understudy.serve.options import ServeConfig
from understudy.serve.server import open_socket, run_server

async def app(scope, receive, send):
    raise AssertionError("nobody sends a request")

def interrupt():
    signal.raise_signal(signal.SIGINT)
    print("ready")

signal.signal(signal.SIGINT, signal.default_int_handler)
with open_socket(ServeConfig(port=0)) as listener:
    run_server(app, listener, interrupt)
print("ended")
"""


def test_ctrl_c_before_the_event_loop_exists_shuts_the_server_down_in_order() -> None:
    """In a process of its own, because sse-starlette remembers the end of any server for the whole process."""
    command = [sys.executable, "-c", CTRL_C_AT_ONCE]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert (ended.returncode, ended.stdout.split(), ended.stderr) == (0, ["ready", "ended"], "")


@pytest.mark.usefixtures("interrupted_server")
def test_startup_messages_name_url_and_warnings(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, sampled, last = serve_messages(folder)
    assert first == "damaged"
    assert "PyTorch: " in sampled
    assert re.search(r"\btiny\b.* http://127\.0\.0\.1:\d+/v1", last)
    open_to_all = serve_messages(folder, host="0.0.0.0")
    assert re.search(r"0\.0\.0\.0.*--api-key-var", open_to_all[2])
    monkeypatch.setenv("MY_KEY", KEY)
    assert len(serve_messages(folder, host="0.0.0.0", api_key_var="MY_KEY")) == 3


@pytest.mark.usefixtures("interrupted_server")
def test_server_that_cannot_listen_raises_config_error(folder: Path) -> None:
    text = r"port \d+ of 127\.0\.0\.1\b.*--port"
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(ConfigError, match=text):
        serve_messages(folder, port=taken.getsockname()[1])
    with pytest.raises(ConfigError, match="no such host port 0"):
        serve_messages(folder, host="no such host")
    with pytest.raises(ConfigError, match=r"NOT_THERE\b.*api_key_var"):
        serve_messages(folder, api_key_var="NOT_THERE")
    with pytest.raises(ConfigError, match="api_key_var") as caught:
        serve_messages(folder, api_key_var="sk-123456")
    assert "sk-123456" not in str(caught.value)


@pytest.mark.parametrize(
    ("host", "local"), [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("box", False)]
)
def test_is_loopback_of_hosts(host: str, local: bool) -> None:
    assert ServeConfig(host=host).is_loopback == local


def start_program(*arguments: str) -> "subprocess.Popen[str]":
    signals = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    code = f"{signals}; from understudy.cli.main import main; main()"
    return subprocess.Popen([sys.executable, "-c", code, *arguments], stderr=subprocess.PIPE, text=True, env=os.environ)


@pytest.mark.slow
def test_serve_command_runs_until_ctrl_c(folder: Path) -> None:
    process = start_program("serve", str(folder), "engine.dtype=float32", "--port", "0", "--served-model-name", "tiny")
    assert process.stderr
    assert "PyTorch: " in process.stderr.readline()
    line = process.stderr.readline()
    (address,) = re.findall(r"http://127\.0\.0\.1:\d+/v1", line)
    assert request_completion(address).choices
    process.send_signal(signal.SIGINT)
    assert process.wait(120) == 0
    assert process.stderr.read() == ""
    process.stderr.close()
