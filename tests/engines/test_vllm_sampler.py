"""Tests of the vLLM sampler without vLLM: weight sync, restarts, error messages and the choice of the sampler."""

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest

import understudy
from support.machine import process_ends
from understudy.core.errors import ConfigError, RolloutError
from understudy.engines.interface import Completion, SamplingParams
from understudy.engines.local.config import LocalEngineConfig
from understudy.engines.models import tiny_model
from understudy.engines.vllm.client import (
    INITIAL_WEIGHT_VERSION,
    SERVED_MODEL_NAME,
    VllmCompletion,
    VllmHttpClient,
    VllmTimeout,
    VllmUnavailable,
    _reply,
)
from understudy.engines.vllm.config import VllmConfig
from understudy.engines.vllm.in_process import InProcessVllm
from understudy.engines.vllm.sampler import VllmSampler
from understudy.engines.vllm.server import VllmServer, server_args, vllm_installed
from understudy.engines.vllm.weight_sync import WeightSync
from understudy.formats import FormatTokenizer
from understudy.runs.agents import open_model
from understudy.runs.config import TrainConfig, parse_config
from understudy.runs.serving import load_served_model
from understudy.runs.weights import resolve_weights
from understudy.serve.options import ServeConfig

SAMPLING = SamplingParams(max_response_tokens=4)


def unused_tokenizer() -> FormatTokenizer:
    raise AssertionError("no vocabulary is needed without stop strings")


class FakeVllm:
    """A vLLM whose replies repeat the number of its weights.

    It dies at the requests numbered in `deaths`, counted from 1. If `max_starts` is not 0, further starts fail.
    """

    def __init__(self, is_owned: bool = True, deaths: Sequence[int] = (), max_starts: int = 0) -> None:
        self.is_owned, self.context_length = is_owned, 0
        self.events: list[str] = []
        self.adapters: dict[str, int] = {}
        self.weights, self.label = 0, INITIAL_WEIGHT_VERSION
        self._deaths, self._max_starts = set(deaths), max_starts
        self._alive, self._num_requests, self.request_received = False, 0, asyncio.Event()

    async def start(self) -> None:
        self.events.append("start")
        await asyncio.sleep(0)
        if self._max_starts and len([e for e in self.events if e == "start"]) > self._max_starts:
            raise VllmUnavailable("vLLM's server ended with status 1: out of memory")
        self._alive, self.context_length = True, 10
        self.adapters, self.weights, self.label = {}, 0, INITIAL_WEIGHT_VERSION

    async def is_healthy(self) -> bool:
        return self._alive

    async def generate(self, model: str, prompt: Sequence[int], params: Mapping[str, Any]) -> VllmCompletion:
        self._num_requests += 1
        self.request_received.set()
        if self._num_requests in self._deaths:
            self._alive = False
        for _ in range(3):
            await asyncio.sleep(0)
        self._must_live()
        if model != SERVED_MODEL_NAME and model not in self.adapters:
            raise VllmUnavailable(f"status 404: no {model}")
        weights = self.weights if model == SERVED_MODEL_NAME else self.adapters[model]
        self.events.append(f"reply {weights}")
        return VllmCompletion([weights] * params["max_tokens"], [-0.5] * params["max_tokens"], self.label)

    async def load_adapter(self, name: str, folder: Path) -> None:
        self._must_live()
        assert name not in self.adapters
        self.adapters[name] = int((folder / "weights").read_text())
        self.events.append(f"load {self.adapters[name]}")

    async def unload_adapter(self, name: str) -> None:
        self._must_live()
        self.events.append(f"unload {self.adapters.pop(name)}")

    async def reload_weights(self, folder: Path, label: str) -> None:
        self._must_live()
        self.weights, self.label = int((folder / "weights").read_text()), label
        self.events.append(f"load {self.weights}")

    def stop(self) -> None:
        self._alive = False

    def _must_live(self) -> None:
        if not self._alive:
            raise VllmUnavailable("no connection")


class SamplerCase:
    """A sampler over a fake vLLM. The weights are the number of the last update."""

    def __init__(self, folder: Path, vllm: FakeVllm, lora: bool = False, **settings: Any) -> None:
        self.vllm, self.folder = vllm, folder
        weights = WeightSync(self._write, folder, lora=lora)
        self.sampler = VllmSampler(
            vllm, weights, VllmConfig(restart_backoff=0.0, **settings), unused_tokenizer, 64, vocab_size=256
        )

    def _write(self, folder: Path) -> None:
        folder.mkdir()
        (folder / "weights").write_text(str(self.sampler.weights_version))

    async def ask(self, count: int = 1) -> list[Completion]:
        return await asyncio.gather(*(self.sampler.sample([1, 2], SAMPLING, seed) for seed in range(count)))


def run(work: Callable[[], Awaitable[Any]]) -> Any:
    async def wait() -> Any:
        return await work()

    return asyncio.run(wait())


@pytest.mark.parametrize("lora", [False, True])
def test_weights_are_synced_once_before_the_next_request(tmp_path: Path, lora: bool) -> None:
    case = SamplerCase(tmp_path, FakeVllm(), lora=lora)

    async def steps() -> list[Completion]:
        replies = await case.ask(2)
        for version in (1, 2):  # nothing is sampled from version 1
            case.sampler.set_weights_version(version)
        return replies + await case.ask(2)

    replies = run(steps)
    assert [(reply.tokens[0], reply.weights_version) for reply in replies] == [(0, 0), (0, 0), (2, 2), (2, 2)]
    first, then = (["load 0"], ["load 2", "unload 0"]) if lora else ([], ["load 2"])
    assert case.vllm.events == ["start", *first, "reply 0", "reply 0", *then, "reply 2", "reply 2"]
    assert not list(tmp_path.iterdir()), "what was handed over is removed"


def test_external_server_gets_the_weights_before_its_first_reply(tmp_path: Path) -> None:
    case = SamplerCase(tmp_path, FakeVllm(is_owned=False))
    run(case.ask)
    assert case.vllm.events == ["start", "load 0", "reply 0"]


class ConstantVllm(FakeVllm):
    """A vLLM with a constant reply that stores the parameters of the last request."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text, self.params = text, dict[str, Any]()

    async def start(self) -> None:
        await super().start()
        self.context_length = 1 + len(self._text)

    async def generate(self, model: str, prompt: Sequence[int], params: Mapping[str, Any]) -> VllmCompletion:
        self.params = dict(params)
        tokens = list(self._text.encode())
        return VllmCompletion(tokens, [-float(i) for i in range(len(tokens))], self.label)


@pytest.mark.parametrize(
    ("stop", "kept"), [(("two",), "one two"), (("zero", "e"), "one"), (("zero",), "one two three")]
)
def test_reply_is_cut_after_the_token_that_completes_a_stop_string(
    tmp_path: Path, stop: tuple[str, ...], kept: str
) -> None:
    weights = WeightSync(lambda folder: None, tmp_path, lora=False)
    vocabulary = FormatTokenizer.load(tiny_model() / "tokenizer.json")
    sampler = VllmSampler(ConstantVllm("one two three"), weights, VllmConfig(), lambda: vocabulary, 64, vocab_size=256)
    reply = run(lambda: sampler.sample([1], SamplingParams(max_response_tokens=13, stop=stop), 0))
    assert bytes(reply.tokens).decode() == kept
    assert reply.logprobs == [-float(i) for i in range(len(kept))]
    assert reply.finish_reason == ("length" if kept == "one two three" else "stop")


def test_only_enabled_filters_are_sent_to_vllm(tmp_path: Path) -> None:
    vllm = ConstantVllm("x")
    sampler = VllmSampler(
        vllm, WeightSync(lambda folder: None, tmp_path, lora=False), VllmConfig(), unused_tokenizer, 64, vocab_size=256
    )
    filters = {"top_p": 0.9, "top_k": 3, "min_p": 0.1, "repetition_penalty": 1.5}
    filters |= {"frequency_penalty": 0.5, "presence_penalty": -0.5}
    run(lambda: sampler.sample([1], SamplingParams(**filters), 0))  # type: ignore[arg-type]
    assert {name: vllm.params.get(name) for name in filters} == filters
    run(lambda: sampler.sample([1], SamplingParams(), 0))
    assert not filters.keys() & vllm.params.keys()


class CountingVllm(FakeVllm):
    """A vLLM that records the largest number of concurrent requests."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0

    async def generate(self, model: str, prompt: Sequence[int], params: Mapping[str, Any]) -> VllmCompletion:
        self.now += 1
        self.most = max(self.most, self.now)
        for _ in range(50):  # long enough for the other requests to arrive
            await asyncio.sleep(0)
        reply = await super().generate(model, prompt, params)
        self.now -= 1
        return reply


def test_concurrent_requests_are_limited(tmp_path: Path) -> None:
    vllm = CountingVllm()
    weights = WeightSync(lambda folder: None, tmp_path, lora=False)
    sampler = VllmSampler(vllm, weights, VllmConfig(), unused_tokenizer, 3, vocab_size=256)

    async def sample_many() -> list[Completion]:
        return await asyncio.gather(*(sampler.sample([1], SAMPLING, seed) for seed in range(20)))

    assert (len(run(sample_many)), vllm.most) == (20, 6)


@pytest.mark.parametrize("lora", [False, True])
def test_weights_are_not_changed_while_requests_are_running(tmp_path: Path, lora: bool) -> None:
    case = SamplerCase(tmp_path, FakeVllm(), lora=lora)

    async def steps() -> tuple[list[Completion], list[Completion]]:
        early = asyncio.ensure_future(case.ask(3))
        await case.vllm.request_received.wait()
        case.sampler.set_weights_version(1)
        late = await case.ask(2)
        return await early, late

    early, late = run(steps)
    assert {(reply.tokens[0], reply.weights_version) for reply in early if reply.weights_version == 0} == {(0, 0)}
    assert {(reply.tokens[0], reply.weights_version) for reply in late} == {(1, 1)}
    before, _, after = "|".join(case.vllm.events).partition("load 1")
    assert "reply 1" not in before
    assert "reply 0" not in after


@pytest.mark.parametrize("lora", [False, True])
def test_unfinished_requests_are_retried_after_a_server_restart(tmp_path: Path, lora: bool) -> None:
    case = SamplerCase(tmp_path, FakeVllm(deaths=[4]), lora=lora)

    async def steps() -> tuple[list[Completion], list[Completion]]:
        finished = await case.ask(2)
        case.sampler.set_weights_version(1)
        return finished, await case.ask(5)

    finished, replies = run(steps)
    assert [reply.tokens[0] for reply in finished] == [0, 0]
    assert [(reply.tokens[0], reply.weights_version) for reply in replies] == [(1, 1)] * 5
    assert case.vllm.events.count("start") == 2
    assert case.vllm.events.count("reply 0") == 2, "finished replies are not asked for again"


def test_restarted_external_server_gets_the_weights_again(tmp_path: Path) -> None:
    case = SamplerCase(tmp_path, FakeVllm(is_owned=False))

    async def steps() -> list[Completion]:
        await case.ask()
        case.vllm.label = INITIAL_WEIGHT_VERSION
        return await case.ask()

    assert len(run(steps)) == 1
    assert case.vllm.events == ["start", "load 0", "reply 0", "reply 0", "load 0", "reply 0"]


def test_server_that_cannot_restart_is_an_engine_fault(tmp_path: Path) -> None:
    case = SamplerCase(tmp_path, FakeVllm(deaths=[2], max_starts=1), max_restarts=2)

    async def steps() -> list[Any]:
        await case.ask()
        return [await asyncio.gather(case.ask(), case.ask(), return_exceptions=True) for _ in range(2)]

    for error in [each for pair in run(steps) for each in pair]:
        assert isinstance(error, RolloutError)
        assert error.fault == "engine"
        assert re.search(r"\b3\b.*\bstatus 1\b.*out of memory", str(error))
    assert case.vllm.events.count("start") == 3, "one, and two in vain; then it is given up"


def test_request_that_kills_every_server_raises_after_max_restarts(tmp_path: Path) -> None:
    case = SamplerCase(tmp_path, FakeVllm(deaths=range(1, 100)), max_restarts=1)
    with pytest.raises(RolloutError, match=r"\b2\b.*connection"):
        run(case.ask)
    assert case.vllm.events == ["start", "start"]


def test_server_that_dies_at_every_request_is_restarted_with_a_backoff_and_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = SamplerCase(tmp_path, FakeVllm(deaths=range(1, 100)), max_restarts=2)
    case.sampler._config = case.sampler._config.replace(restart_backoff=0.001)
    sleep, waits = asyncio.sleep, list[float]()

    async def record(seconds: float) -> None:
        waits.append(seconds)
        await sleep(seconds)

    async def waves() -> list[Any]:
        return [await asyncio.gather(case.ask(), case.ask(), return_exceptions=True) for _ in range(3)]

    monkeypatch.setattr(asyncio, "sleep", record)
    errors = [error for wave in run(waves) for error in wave]
    assert all(isinstance(error, RolloutError) and error.fault == "engine" for error in errors)
    assert case.vllm.events == ["start"] * 3
    assert [seconds for seconds in waits if seconds] == [0.001, 0.002]


def test_cancelled_request_does_not_block_a_weight_update(tmp_path: Path) -> None:
    case = SamplerCase(tmp_path, FakeVllm())

    async def steps() -> list[Completion]:
        task = asyncio.ensure_future(case.ask(3))
        await case.vllm.request_received.wait()
        task.cancel()
        await asyncio.wait([task])
        case.sampler.set_weights_version(1)
        return await asyncio.wait_for(case.ask(), 60)

    assert run(steps)[0].tokens[0] == 1


def test_sampler_works_from_several_event_loops(tmp_path: Path) -> None:
    case = SamplerCase(tmp_path, FakeVllm())
    assert len(run(lambda: case.ask(3))) == 3
    case.sampler.set_weights_version(1)
    assert [reply.weights_version for reply in run(lambda: case.ask(3))] == [1, 1, 1]


def test_engine_in_this_process_is_restarted_in_another_event_loop(tmp_path: Path) -> None:
    class InProcessFake(InProcessVllm):
        starts = 0

        async def start(self) -> None:
            self.starts, self.context_length = self.starts + 1, 10
            self._engine, self._loop = SimpleNamespace(errored=False), asyncio.get_running_loop()

        async def generate(self, *_: Any) -> VllmCompletion:
            assert self._loop is asyncio.get_running_loop()
            return VllmCompletion([1] * 4, [-0.5] * 4, INITIAL_WEIGHT_VERSION)

    vllm = InProcessFake(tmp_path, [], VllmConfig())
    case = SamplerCase(tmp_path, vllm)  # type: ignore[arg-type]
    for starts in (1, 2):
        assert len(run(lambda: case.ask(3))) == 3
        assert vllm.starts == starts


def test_sampling_limits_and_invalid_requests(tmp_path: Path) -> None:
    case = SamplerCase(tmp_path, FakeVllm())
    reply = asyncio.run(case.sampler.sample([1] * 8, SAMPLING, 0))
    assert (len(reply.tokens), reply.finish_reason) == (2, "length"), "as much as fits"
    assert asyncio.run(case.sampler.sample([1] * 10, SAMPLING, 0)).context_full, "a prompt as long as the context"
    with pytest.raises(ConfigError, match=r"0\.01"):
        asyncio.run(case.sampler.sample([1], SamplingParams(temperature=0.001), 0))
    with pytest.raises(ValueError, match="prompt"):
        asyncio.run(case.sampler.sample([], SAMPLING, 0))


class HangingEngine:
    """An engine of vLLM that never replies."""

    ended = False

    async def generate(self, *_: object, **__: object) -> AsyncIterator[None]:
        await asyncio.Event().wait()
        yield None

    def shutdown(self) -> None:
        self.ended = True


@pytest.fixture
def _installed_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put stand-ins of the parts of vLLM that a request needs into its place."""
    errors = {name: type(name, (Exception,), {}) for name in ("EngineDeadError", "EngineGenerateError")}
    for name, members in {
        "vllm": {"SamplingParams": dict},
        "vllm.sampling_params": {"RequestOutputKind": SimpleNamespace(FINAL_ONLY=2)},
        "vllm.v1": {},
        "vllm.v1.engine": {},
        "vllm.v1.engine.exceptions": errors,
    }.items():
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(**members))


@pytest.mark.usefixtures("_installed_vllm")
def test_silent_in_process_engine_is_shut_down(tmp_path: Path) -> None:
    inside, engine = InProcessVllm(tmp_path, [], VllmConfig(reply_timeout=0.05)), HangingEngine()
    inside._engine = engine
    with pytest.raises(VllmTimeout, match=r"0\.05"):
        asyncio.run(inside.generate(SERVED_MODEL_NAME, [1], {"max_tokens": 1}))
    assert engine.ended
    with pytest.raises(VllmUnavailable):
        asyncio.run(inside.generate(SERVED_MODEL_NAME, [1], {"max_tokens": 1}))


LOGPROB = SimpleNamespace(logprob=-0.5)


@pytest.mark.usefixtures("_installed_vllm")
@pytest.mark.parametrize("logprobs", [None, [], [{6: LOGPROB}], [None], [{5: None}], [{5: LOGPROB}] * 2])
def test_in_process_reply_without_logprobs_is_an_engine_fault(tmp_path: Path, logprobs: Any) -> None:
    class Engine(HangingEngine):
        async def generate(self, *_: object, **__: object) -> AsyncIterator[Any]:
            yield SimpleNamespace(outputs=[SimpleNamespace(token_ids=[5], logprobs=logprobs, weight_versions=None)])

    inside = InProcessVllm(tmp_path, [], VllmConfig())
    inside._engine = Engine()
    with pytest.raises(RolloutError) as caught:
        asyncio.run(inside.generate(SERVED_MODEL_NAME, [1], {"max_tokens": 1}))
    assert caught.value.fault == "engine"


def test_error_of_a_failing_server_start_quotes_its_log(tmp_path: Path) -> None:
    python = tmp_path / "python"
    words = ("ERROR x.py] ValueError: no such model", "RuntimeError: Engine core initialization failed.")
    python.write_text("\n".join(["#!/bin/sh", *(f"echo '{line}'" for line in words), "exit 3"]))
    python.chmod(0o755)
    config = VllmConfig(python=str(python), max_restarts=0)
    server = VllmServer(tmp_path, [], config, tmp_path)
    sampler = VllmSampler(
        server, WeightSync(Path.mkdir, tmp_path, lora=False), config, unused_tokenizer, 64, vocab_size=256
    )
    with pytest.raises(ConfigError, match=r"\b3\b.*ValueError: no such model") as error:
        asyncio.run(sampler.sample([1], SAMPLING, 0))
    assert str(server.log_path) in str(error.value).partition("\n")[0]
    assert "engine.sampler=torch" in str(error.value)


def test_server_that_starts_too_slowly_is_stopped(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nsleep 60 & sleep 60")
    python.chmod(0o755)
    server = VllmServer(tmp_path, [], VllmConfig(python=str(python), start_timeout=0.1), tmp_path)
    with pytest.raises(VllmUnavailable, match=r"0\.1\b"):
        asyncio.run(server.start())
    assert server._process is not None
    process = server._process
    server.stop()
    assert process.poll() is not None


LAUNCHER = """
import os, signal, sys
from pathlib import Path
from understudy.engines.vllm.config import VllmConfig
from understudy.engines.vllm.server import VllmServer

server = VllmServer(Path("."), [], VllmConfig(), Path(sys.argv[1]))
server._launch()
while not Path(sys.argv[1], "pid").exists():
    pass
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_server_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    stand_in = tmp_path / "vllm/entrypoints/openai/api_server.py"
    stand_in.parent.mkdir(parents=True)
    pid = tmp_path / "pid"
    stand_in.write_text(f"""
import os, time
open("{pid}.part", "x").write(str(os.getpid()))
os.rename("{pid}.part", "{pid}")
time.sleep(600)
""")
    environment = {**os.environ, "PYTHONPATH": f"{Path(understudy.__file__).parent.parent}:{tmp_path}"}
    done = subprocess.run([sys.executable, "-c", LAUNCHER, str(tmp_path)], env=environment, check=False)
    assert done.returncode == -signal.SIGKILL
    assert process_ends(int(pid.read_text()))


class StatusHandler(BaseHTTPRequestHandler):
    """A handler that answers with the status in the path."""

    def do_POST(self) -> None:
        status = int(self.path.rpartition("/")[2])
        self.send_response(status)
        self.end_headers()
        self.wfile.write(b"why")

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/health" else 401)
        self.end_headers()
        self.wfile.write(b"no key")

    def log_message(self, format: str, *args: Any) -> None: ...


def test_endpoint_that_rejects_the_key_raises(tmp_path: Path) -> None:
    http = ThreadingHTTPServer(("127.0.0.1", 0), StatusHandler)
    Thread(target=http.serve_forever, daemon=True).start()
    config = VllmConfig(restart_backoff=0.0)
    endpoint = VllmHttpClient(config, f"http://127.0.0.1:{http.server_port}")
    sampler = VllmSampler(
        endpoint,
        WeightSync(lambda folder: folder.mkdir(), tmp_path, lora=True),
        config,
        unused_tokenizer,
        1,
        vocab_size=256,
    )
    try:
        with pytest.raises(ConfigError, match=r"\b401\b.*no key"):
            asyncio.run(sampler.sample([1], SAMPLING, 0))
    finally:
        http.shutdown()
        http.server_close()


def test_http_status_codes_map_to_errors() -> None:
    http = ThreadingHTTPServer(("127.0.0.1", 0), StatusHandler)
    Thread(target=http.serve_forever, daemon=True).start()
    try:
        endpoint = VllmHttpClient(VllmConfig(), f"http://127.0.0.1:{http.server_port}")
        assert asyncio.run(endpoint._post("/200", {})) == "why"
        for status in (404, 500, 503):
            with pytest.raises(VllmUnavailable, match=rf"\b{status}\b.*why"):
                asyncio.run(endpoint._post(f"/{status}", {}))
        with pytest.raises(RolloutError, match=r"/400\b.*\b400\b.*why"):
            asyncio.run(endpoint._post("/400", {}))
    finally:
        http.shutdown()
        http.server_close()
    with pytest.raises(VllmUnavailable, match="ConnectError"):
        asyncio.run(endpoint._post("/200", {}))


def test_completion_response_is_parsed_and_validated() -> None:
    def response(**other: Any) -> dict[str, Any]:
        content = [{"token_id": token, "logprob": -token / 10} for token in (5, 7)]
        spans = [{"version": "a", "start": 0, "end": 2}]
        choice = {"finish_reason": "stop", "token_ids": [5, 7], "logprobs": {"content": content}}
        return {"choices": [choice | {"weight_versions": spans} | other]}

    assert _reply(response()) == VllmCompletion([5, 7], [-0.5, -0.7], "a")
    mixed = [{"version": "a", "start": 0, "end": 1}, {"version": "b", "start": 1, "end": 2}]
    assert _reply(response(weight_versions=mixed)).weight_version == "", "of no weights that were asked for"
    with pytest.raises(VllmUnavailable, match="abort"):
        _reply(response(finish_reason="abort"))
    for other in ({}, {"choices": []}, "OK", response(logprobs=None), response(weight_versions=None)):
        with pytest.raises(RolloutError, match=r"vLLM 0\.32"):
            _reply(other)


def test_lora_rank_is_rounded_up_to_a_supported_rank() -> None:
    def arguments(rank: int) -> list[str]:
        return server_args(VllmConfig(), dtype="float32", max_num_seqs=8, lora_rank=rank, on_cpu=False)

    assert arguments(9)[arguments(9).index("--max-lora-rank") + 1] == "16"
    assert "--enable-lora" not in arguments(0)
    with pytest.raises(ConfigError, match=r"engine\.lora\.rank = 513\b.*512"):
        arguments(513)


def test_vllm_installation_is_detected() -> None:
    assert vllm_installed("/bin/true")
    assert not vllm_installed("/bin/false")
    assert not vllm_installed("")
    assert not vllm_installed(sys.executable)
    with pytest.raises(ConfigError, match=r"engine\.vllm\.python = '/nowhere'.*No such file"):
        vllm_installed("/nowhere")
    with pytest.raises(ConfigError, match=r"engine\.vllm\.base_url = 'localhost'"):
        VllmConfig(base_url="localhost")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch")
    from understudy.engines.models import make_tiny_model

    folder = make_tiny_model(tmp_path_factory.mktemp("tiny"))
    config = json.loads((folder / "config.json").read_text())
    halved = {name: config[name] // 2 for name in ("num_attention_heads", "num_key_value_heads")}
    # vLLM on a CPU needs heads of 32. Half as many heads of twice the size have the same weights.
    (folder / "config.json").write_text(json.dumps(config | halved | {"head_dim": 2 * config["head_dim"]}))
    return folder


def test_heads_that_vllm_does_not_support_on_a_cpu_are_refused_before_it_starts(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from understudy.engines.local.engine import LocalEngine
    from understudy.engines.models import make_tiny_model

    folder = make_tiny_model(tmp_path)
    settings = {"device": "cpu", "dtype": "float32", "vllm": {"python": "/bin/true"}}
    with pytest.raises(ConfigError, match=r"engine\.sampler = 'vllm'.*\b32, .*head_dim is 16\b"):
        LocalEngine(folder, LocalEngineConfig.model_validate(settings | {"sampler": "vllm"}))
    engine = LocalEngine(folder, LocalEngineConfig.model_validate(settings))
    assert (engine.sampler_choice.sampler, "head_dim" in engine.sampler_choice.reason) == ("torch", True)
    url = {"base_url": "http://localhost:8000"}
    other = LocalEngine(folder, LocalEngineConfig.model_validate(settings | {"vllm": url}))
    assert other.sampler_choice.sampler == "vllm", "the server of an address may run on a GPU"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, r"PyTorch: .*engine\.vllm\.python"),
        ({"sampler": "torch"}, r"PyTorch: .*engine\.sampler"),
        ({"vllm": {"python": "/bin/true"}}, "vLLM: "),
        ({"vllm": {"python": "/bin/false"}}, r"PyTorch: .*/bin/false\b.*engine\.vllm\.python"),
        ({"vllm": {"base_url": "http://localhost:8000"}}, r"vLLM: .*engine\.vllm\.base_url"),
        ({"sampler": "vllm", "vllm": {"python": "/bin/true"}}, r"vLLM: .*engine\.sampler"),
        (
            {"vllm": {"python": "/bin/true", "gpu_memory_utilization": 1e-6}},
            r"PyTorch: .*\b32768 tokens\b.*engine\.vllm\.gpu_memory_utilization",
        ),
        ({"vllm": {"python": "/bin/true"}, "train_embeddings": True}, r"PyTorch: .*vLLM 0\.32"),
        (
            {"vllm": {"python": "/bin/true"}, "finetune": "lora", "lora": {"rank": 513}},
            r"PyTorch: .*\b512\b.*engine\.lora\.rank\b.*\b513\b",
        ),
        ({"vllm": {"python": "/bin/true", "in_process": True}}, r"PyTorch: .*engine\.vllm\.in_process"),
    ],
)
def test_sampler_choice_and_its_reason(tiny: Path, settings: dict[str, Any], expected: str) -> None:
    from understudy.engines.local.engine import LocalEngine

    config = LocalEngineConfig.model_validate({"device": "cpu", "dtype": "float32"} | settings)
    engine = LocalEngine(tiny, config)
    assert re.search(rf"\b{expected}", str(engine.sampler_choice))
    assert isinstance(engine._sampling.sampler, VllmSampler) == expected.startswith("vLLM")


def test_vllm_context_is_limited_to_the_length_of_episodes(tiny: Path, tmp_path: Path) -> None:
    long, short = shutil.copytree(tiny, tmp_path / "long"), shutil.copytree(tiny, tmp_path / "short")
    values = json.loads((long / "config.json").read_text())
    for folder, context in ((long, 1 << 40), (short, 8192)):
        (folder / "config.json").write_text(json.dumps(values | {"max_position_embeddings": context}))
    lengths = (
        "limits.max_episode_tokens=1000",
        "sampling.max_response_tokens=50",
        "engine.device=cpu",
        "engine.vllm.python=/bin/true",
    )

    def config_of(folder: Path, *settings: str) -> TrainConfig:
        return parse_config("", [f"model={folder}", *lengths, *settings])

    played, _ = open_model(config_of(long))
    assert (played.context_length, "by vLLM: " in str(played.sampler_choice)) == (1000 + 8192 + 50, True)
    assert max_model_len_argument(played) == "9242"
    own, _ = open_model(config_of(short))
    assert (own.context_length, max_model_len_argument(own)) == (8192, None)
    own, _ = open_model(config_of(long, "engine.vllm.max_model_len=77"))
    assert (own.context_length, max_model_len_argument(own)) == (77, "77")
    for settings in (["engine.vllm.base_url=http://localhost:8000"], ["engine.kind=tinker"]):
        config = config_of(long, *settings) if "base_url" in settings[0] else parse_config("", settings)
        assert config.resolved_engine == config.engine
    served = load_served_model(resolve_weights(str(long), lengths), ServeConfig())
    assert re.search(rf"\bPyTorch: .*\b{1 << 40} tokens\b.*engine\.vllm\.max_model_len", served.sampler_note)
    assert served.sampler.context_length == 1 << 40


def max_model_len_argument(engine: Any) -> str | None:
    """Return the longest sequence that vLLM's server is started with."""
    command: list[str] = engine._sampling.sampler._vllm._command
    return command[command.index("--max-model-len") + 1] if "--max-model-len" in command else None


def test_missing_vllm_is_reported_in_one_line(tiny: Path) -> None:
    from understudy.engines.local.engine import LocalEngine

    with pytest.raises(ConfigError, match=r"engine\.sampler = 'vllm'") as error:
        LocalEngine(tiny, LocalEngineConfig(device="cpu", sampler="vllm"))
    assert "\n" not in str(error.value)
