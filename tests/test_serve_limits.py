"""Who may ask the server, how much at once, and how it begins and ends."""

import asyncio
import contextlib
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

import httpx2
import openai
import pytest

from serving import HELLO, KEY, ask, client, http, scripted, served, serving, small
from understudy.engines.base import Sampling
from understudy.errors import ConfigError
from understudy.serve.options import ServeConfig
from understudy.serve.server import serve
from understudy.weights import find_weights

pytest.importorskip("torch")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small(tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    with serving(served(folder, concurrency=4), concurrency=4, max_body=60_000) as url:
        yield url


def test_a_key_where_one_is_asked_for(folder: Path) -> None:
    model, _ = scripted(folder, lambda _: "Hi.")
    with serving(model, KEY) as url:
        for key in ("wrong", KEY[:-1], KEY + "x"):
            with pytest.raises(openai.AuthenticationError, match="not the right one"), client(url, key) as api:
                api.models.list()
        with client(url, KEY) as api:
            assert api.chat.completions.create(model="tiny", messages=HELLO).choices  # type: ignore[call-overload]
        nobody = http().get(f"{url}/models")
        assert (nobody.status_code, nobody.headers["WWW-Authenticate"]) == (401, "Bearer")
        assert KEY not in nobody.text
        assert http().get(url.removesuffix("/v1") + "/health").status_code == 200


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
def test_only_loopback_is_a_name_of_a_loopback_server(url: str, host: str, status: int) -> None:
    response = http().get(f"{url}/models", headers={"Host": host})
    assert response.status_code == status
    assert "access-control-allow-origin" not in response.headers


def test_more_than_can_be_done_at_once_is_put_off(folder: Path) -> None:
    model, _ = scripted(folder, lambda _: "x" * 200, pause=0.05)
    with serving(model, concurrency=2) as url, client(url) as api:
        stream = api.chat.completions.create(model="tiny", messages=HELLO, stream=True, n=2)  # type: ignore[call-overload]
        next(stream)
        with pytest.raises(openai.RateLimitError, match="2 of 2 replies at once") as refused:
            ask(url)
        assert refused.value.response.headers["Retry-After"] == "1"
        stream.close()
        assert _soon(lambda: ask(url, max_tokens=2).choices)


def _soon(done: Any) -> bool:
    """Whether something can be done within a few seconds."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            if done():
                return True
        except openai.RateLimitError:
            pass
        time.sleep(0.02)
    return False


@pytest.mark.parametrize("stream", [False, True])
def test_who_goes_away_frees_the_place(folder: Path, stream: bool) -> None:
    model, script = scripted(folder, lambda _: "x" * 1000, pause=0.02)
    with serving(model, concurrency=1) as url:
        body = {"model": "tiny", "messages": HELLO, "stream": stream}
        if stream:
            with http().stream("POST", f"{url}/chat/completions", json=body) as response:
                next(response.iter_lines())
        else:
            with pytest.raises(httpx2.TimeoutException):
                http().post(f"{url}/chat/completions", json=body, timeout=0.3)
        assert _soon(lambda: script.cancelled == 1)
        assert _soon(lambda: ask(url, max_tokens=1).choices)


def test_the_sampler_frees_the_slot_of_who_goes_away(folder: Path) -> None:
    model = served(folder, concurrency=1)

    async def leave() -> None:
        seen = asyncio.Event()
        told = lambda tokens, logprobs: seen.set()  # noqa: E731
        sampling = Sampling(max_tokens=1000, temperature=1.0)
        task = asyncio.ensure_future(model.sampler.sample([1, 2, 3], sampling, 0, (), told))
        await seen.wait()
        task.cancel()
        done = await asyncio.wait_for(model.sampler.sample([4, 5], Sampling(max_tokens=2), 0), 30)
        assert len(done.tokens) == 2

    asyncio.run(leave())


def test_what_is_told_while_sampling_is_what_was_sampled(folder: Path) -> None:
    model = served(folder, concurrency=4)

    async def sample(seed: int) -> None:
        tokens: list[int] = []
        logprobs: list[float] = []
        told = lambda t, l: (tokens.extend(t), logprobs.extend(l))  # noqa: E731, E741
        done = await model.sampler.sample([1, 2, 3, 1, 2], Sampling(max_tokens=60, temperature=0.3), seed, (65,), told)  # type: ignore[arg-type]
        assert (tokens, logprobs) == (done.tokens, done.logprobs)

    async def both() -> None:
        await asyncio.gather(*map(sample, range(4)))

    asyncio.run(both())


def test_replies_under_way_end_when_the_server_does(folder: Path) -> None:
    model, _ = scripted(folder, lambda _: "x" * 40, pause=0.02)
    pieces: list[str] = []
    with contextlib.ExitStack() as stack:
        with serving(model) as url:
            api = stack.enter_context(client(url))
            stream = api.chat.completions.create(model="tiny", messages=HELLO, stream=True)  # type: ignore[call-overload]
            next(stream)
            follow = threading.Thread(target=lambda: pieces.extend(c.choices[0].delta.content or "" for c in stream))
            follow.start()
        follow.join()
    assert "".join(pieces) == "x" * 40


# ---- the command ----


@pytest.fixture
def unserved(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server on which Ctrl-C is pressed as soon as it runs."""

    class Interrupted:
        def run(self, sockets: Any) -> None:
            raise KeyboardInterrupt

    monkeypatch.setattr("understudy.serve.server.server", lambda _: Interrupted())


def said_by(folder: Path, **options: Any) -> list[str]:
    said: list[str] = []
    weights = find_weights(str(folder), ["engine.dtype=float32"]).replace(name="tiny", warnings=("damaged",))
    serve(weights, ServeConfig(**{"port": 0, **options}), said.append)
    return said


@pytest.mark.usefixtures("unserved")
def test_what_is_said_at_the_start(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, sampled, last = said_by(folder)
    assert first == "damaged"
    assert sampled.startswith("replies are sampled by PyTorch: vLLM is not installed in this Python")
    assert re.fullmatch(r"tiny is served at http://127\.0\.0\.1:\d+/v1; Ctrl-C ends it", last)
    open_to_all = said_by(folder, host="0.0.0.0")
    assert open_to_all[2] == "whoever can reach 0.0.0.0 can use this server: set a key by --key-variable"
    monkeypatch.setenv("MY_KEY", KEY)
    assert len(said_by(folder, host="0.0.0.0", key_variable="MY_KEY")) == 3


@pytest.mark.usefixtures("unserved")
def test_where_it_cannot_listen_it_says_so(folder: Path) -> None:
    text = r"cannot listen on 127\.0\.0\.1 port \d+: .*; choose --host or --port"
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(ConfigError, match=text):
        said_by(folder, port=taken.getsockname()[1])
    with pytest.raises(ConfigError, match="cannot listen on no such host port 0"):
        said_by(folder, host="no such host")
    with pytest.raises(ConfigError, match="NOT_THERE, which key_variable names, is not set"):
        said_by(folder, key_variable="NOT_THERE")


@pytest.mark.parametrize(
    ("host", "local"), [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("box", False)]
)
def test_which_hosts_are_this_machine_alone(host: str, local: bool) -> None:
    assert ServeConfig(host=host).local == local


def start(*arguments: str) -> "subprocess.Popen[str]":
    signals = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    code = f"{signals}; from understudy.cli import main; main()"
    return subprocess.Popen([sys.executable, "-c", code, *arguments], stderr=subprocess.PIPE, text=True, env=os.environ)


def test_the_command_serves_until_ctrl_c(folder: Path) -> None:
    process = start("serve", str(folder), "engine.dtype=float32", "--port", "0", "--name", "tiny")
    assert process.stderr
    assert process.stderr.readline().startswith("replies are sampled by PyTorch: ")
    line = process.stderr.readline()
    assert line.startswith("tiny is served at http://127.0.0.1:")
    assert ask(line.split()[4].rstrip(";")).choices
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 0
    assert process.stderr.read() == ""
    process.stderr.close()
