"""The vLLM sampler without vLLM: when weights are sent, what happens when the server dies, and which sampler is chosen.

`Scripted` stands for vLLM: its replies are the label of the weights that it has, so that a reply by others shows.
"""

import asyncio
import json
import os
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
from machine import ends
from understudy.config import TrainConfig
from understudy.engines.base import Completion, Sampling
from understudy.engines.local.config import LocalConfig
from understudy.engines.vllm.config import VllmConfig
from understudy.engines.vllm.endpoint import MODEL, UNTOUCHED, Endpoint, Lost, Reply, Silent, _reply
from understudy.engines.vllm.inside import Inside
from understudy.engines.vllm.sampler import VllmSampler
from understudy.engines.vllm.server import Server, installed, options
from understudy.engines.vllm.weights import Weights
from understudy.errors import ConfigError, RolloutError
from understudy.formats import Vocabulary
from understudy.models import tiny_model
from understudy.players import open_model
from understudy.serve.options import ServeConfig
from understudy.serve.server import open_served
from understudy.settings import parse
from understudy.weights import find_weights

SAMPLING = Sampling(max_tokens=4)


def unused() -> Vocabulary:
    raise AssertionError("no vocabulary is needed without stop strings")


class Scripted:
    """A vLLM whose replies repeat the number of its weights. It dies at the requests `deaths`, counted from 1, and
    cannot start more than `unable` times where that is not 0."""

    def __init__(self, owned: bool = True, deaths: Sequence[int] = (), unable: int = 0) -> None:
        self.owned, self.context = owned, 0
        self.events: list[str] = []
        self.adapters: dict[str, int] = {}
        self.weights, self.label = 0, UNTOUCHED
        self._deaths, self._unable = set(deaths), unable
        self._alive, self._asked, self.asked = False, 0, asyncio.Event()

    async def start(self) -> None:
        self.events.append("start")
        await asyncio.sleep(0)
        if self._unable and len([e for e in self.events if e == "start"]) > self._unable:
            raise Lost("vLLM's server ended with status 1: out of memory")
        self._alive, self.context = True, 10
        self.adapters, self.weights, self.label = {}, 0, UNTOUCHED

    async def healthy(self) -> bool:
        return self._alive

    async def generate(self, model: str, prompt: Sequence[int], params: Mapping[str, Any]) -> Reply:
        self._asked += 1
        self.asked.set()
        if self._asked in self._deaths:
            self._alive = False
        for _ in range(3):
            await asyncio.sleep(0)
        self._must_live()
        if model != MODEL and model not in self.adapters:
            raise Lost(f"status 404: no {model}")
        weights = self.weights if model == MODEL else self.adapters[model]
        self.events.append(f"reply {weights}")
        return Reply([weights] * params["max_tokens"], [-0.5] * params["max_tokens"], self.label)

    async def load_adapter(self, name: str, folder: Path) -> None:
        self._must_live()
        assert name not in self.adapters
        self.adapters[name] = int((folder / "weights").read_text())
        self.events.append(f"load {self.adapters[name]}")

    async def unload_adapter(self, name: str) -> None:
        self._must_live()
        self.events.append(f"unload {self.adapters.pop(name)}")

    async def reload(self, folder: Path, label: str) -> None:
        self._must_live()
        self.weights, self.label = int((folder / "weights").read_text()), label
        self.events.append(f"load {self.weights}")

    def stop(self) -> None:
        self._alive = False

    def _must_live(self) -> None:
        if not self._alive:
            raise Lost("no connection")


class Case:
    """A sampler over a scripted vLLM. The weights are the number of the last update."""

    def __init__(self, folder: Path, vllm: Scripted, lora: bool = False, **settings: Any) -> None:
        self.vllm, self.folder = vllm, folder
        weights = Weights(self._write, folder, lora=lora)
        self.sampler = VllmSampler(vllm, weights, VllmConfig(backoff=0.0, **settings), unused, 64)

    def _write(self, folder: Path) -> None:
        folder.mkdir()
        (folder / "weights").write_text(str(self.sampler.version))

    async def ask(self, count: int = 1) -> list[Completion]:
        return await asyncio.gather(*(self.sampler.sample([1, 2], SAMPLING, seed) for seed in range(count)))


def run(work: Callable[[], Awaitable[Any]]) -> Any:
    async def wait() -> Any:
        return await work()

    return asyncio.run(wait())


@pytest.mark.parametrize("lora", [False, True])
def test_weights_are_sent_once_and_when_they_are_wanted(tmp_path: Path, lora: bool) -> None:
    case = Case(tmp_path, Scripted(), lora=lora)

    async def steps() -> list[Completion]:
        replies = await case.ask(2)
        for version in (1, 2):  # of the first nobody samples
            case.sampler.refresh(version)
        return replies + await case.ask(2)

    replies = run(steps)
    assert [(reply.tokens[0], reply.version) for reply in replies] == [(0, 0), (0, 0), (2, 2), (2, 2)]
    first, then = (["load 0"], ["load 2", "unload 0"]) if lora else ([], ["load 2"])
    assert case.vllm.events == ["start", *first, "reply 0", "reply 0", *then, "reply 2", "reply 2"]
    assert not list(tmp_path.iterdir()), "what was handed over is removed"


def test_a_server_of_others_gets_the_weights_before_its_first_reply(tmp_path: Path) -> None:
    case = Case(tmp_path, Scripted(owned=False))
    run(case.ask)
    assert case.vllm.events == ["start", "load 0", "reply 0"]


class Saying(Scripted):
    """A vLLM that always says the same, and keeps what it was asked for."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text, self.params = text, dict[str, Any]()

    async def generate(self, model: str, prompt: Sequence[int], params: Mapping[str, Any]) -> Reply:
        self.params = dict(params)
        tokens = list(self._text.encode())
        return Reply(tokens, [-float(i) for i in range(len(tokens))], self.label)


@pytest.mark.parametrize(
    ("stop", "kept"), [(("two",), "one two"), (("zero", "e"), "one"), (("zero",), "one two three")]
)
def test_a_reply_is_cut_at_the_token_that_completes_a_stop_string(
    tmp_path: Path, stop: tuple[str, ...], kept: str
) -> None:
    weights = Weights(lambda folder: None, tmp_path, lora=False)
    vocabulary = Vocabulary.load(tiny_model() / "tokenizer.json")
    sampler = VllmSampler(Saying("one two three"), weights, VllmConfig(), lambda: vocabulary, 64)
    reply = run(lambda: sampler.sample([1], Sampling(max_tokens=13, stop=stop), 0))
    assert bytes(reply.tokens).decode() == kept
    assert reply.logprobs == [-float(i) for i in range(len(kept))]
    assert reply.finish == ("length" if kept == "one two three" else "stop")


def test_filters_reach_vllm_and_only_where_they_are_on(tmp_path: Path) -> None:
    vllm = Saying("x")
    sampler = VllmSampler(vllm, Weights(lambda folder: None, tmp_path, lora=False), VllmConfig(), unused, 64)
    filters = {"top_p": 0.9, "top_k": 3, "min_p": 0.1, "repetition_penalty": 1.5}
    run(lambda: sampler.sample([1], Sampling(**filters), 0))  # type: ignore[arg-type]
    assert {name: vllm.params.get(name) for name in filters} == filters
    run(lambda: sampler.sample([1], Sampling(), 0))
    assert not filters.keys() & vllm.params.keys()


class Crowded(Scripted):
    """A vLLM that remembers how many replies it was asked for at once."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0

    async def generate(self, model: str, prompt: Sequence[int], params: Mapping[str, Any]) -> Reply:
        self.now += 1
        self.most = max(self.most, self.now)
        for _ in range(50):  # as long as others need to come through the door
            await asyncio.sleep(0)
        reply = await super().generate(model, prompt, params)
        self.now -= 1
        return reply


def test_no_reply_waits_in_vllm_for_more_than_another(tmp_path: Path) -> None:
    vllm = Crowded()
    weights = Weights(lambda folder: None, tmp_path, lora=False)
    sampler = VllmSampler(vllm, weights, VllmConfig(), unused, 3)

    async def many() -> list[Completion]:
        return await asyncio.gather(*(sampler.sample([1], SAMPLING, seed) for seed in range(20)))

    assert (len(run(many)), vllm.most) == (20, 6)


@pytest.mark.parametrize("lora", [False, True])
def test_no_reply_is_under_way_while_weights_change(tmp_path: Path, lora: bool) -> None:
    case = Case(tmp_path, Scripted(), lora=lora)

    async def steps() -> tuple[list[Completion], list[Completion]]:
        early = asyncio.ensure_future(case.ask(3))
        await case.vllm.asked.wait()
        case.sampler.refresh(1)
        late = await case.ask(2)
        return await early, late

    early, late = run(steps)
    assert {(reply.tokens[0], reply.version) for reply in early if reply.version == 0} == {(0, 0)}
    assert {(reply.tokens[0], reply.version) for reply in late} == {(1, 1)}
    before, _, after = "|".join(case.vllm.events).partition("load 1")
    assert "reply 1" not in before
    assert "reply 0" not in after


@pytest.mark.parametrize("lora", [False, True])
def test_what_a_dead_server_was_asked_is_asked_again_with_the_current_weights(tmp_path: Path, lora: bool) -> None:
    case = Case(tmp_path, Scripted(deaths=[4]), lora=lora)

    async def steps() -> tuple[list[Completion], list[Completion]]:
        finished = await case.ask(2)
        case.sampler.refresh(1)
        return finished, await case.ask(5)

    finished, replies = run(steps)
    assert [reply.tokens[0] for reply in finished] == [0, 0]
    assert [(reply.tokens[0], reply.version) for reply in replies] == [(1, 1)] * 5
    assert case.vllm.events.count("start") == 2
    assert case.vllm.events.count("reply 0") == 2, "finished replies are not asked for again"


def test_a_server_that_was_started_anew_by_others_gets_the_weights_again(tmp_path: Path) -> None:
    case = Case(tmp_path, Scripted(owned=False))

    async def steps() -> list[Completion]:
        await case.ask()
        case.vllm.label = UNTOUCHED
        return await case.ask()

    assert len(run(steps)) == 1
    assert case.vllm.events == ["start", "load 0", "reply 0", "reply 0", "load 0", "reply 0"]


def test_a_server_that_does_not_come_back_is_the_engines_fault(tmp_path: Path) -> None:
    case = Case(tmp_path, Scripted(deaths=[2], unable=1), restarts=2)

    async def steps() -> list[Any]:
        await case.ask()
        return [await asyncio.gather(case.ask(), case.ask(), return_exceptions=True) for _ in range(2)]

    for error in [each for pair in run(steps) for each in pair]:
        assert isinstance(error, RolloutError)
        assert error.fault == "engine"
        assert "vLLM failed 3 times in a row: vLLM's server ended with status 1: out of memory" in str(error)
    assert case.vllm.events.count("start") == 4, "one, and three in vain; then it is given up"


def test_a_request_that_kills_each_server_is_given_up(tmp_path: Path) -> None:
    case = Case(tmp_path, Scripted(deaths=range(1, 100)), restarts=1)
    with pytest.raises(RolloutError, match="no reply in 2 attempts: no connection"):
        run(case.ask)
    assert case.vllm.events == ["start", "start"]


def test_one_who_gives_up_waiting_leaves_the_door_open(tmp_path: Path) -> None:
    case = Case(tmp_path, Scripted())

    async def steps() -> list[Completion]:
        task = asyncio.ensure_future(case.ask(3))
        await case.vllm.asked.wait()
        task.cancel()
        await asyncio.wait([task])
        case.sampler.refresh(1)
        return await asyncio.wait_for(case.ask(), 5)

    assert run(steps)[0].tokens[0] == 1


def test_every_event_loop_may_ask(tmp_path: Path) -> None:
    case = Case(tmp_path, Scripted())
    assert len(run(lambda: case.ask(3))) == 3
    case.sampler.refresh(1)
    assert [reply.version for reply in run(lambda: case.ask(3))] == [1, 1, 1]


def test_what_cannot_be_sampled_is_said(tmp_path: Path) -> None:
    case = Case(tmp_path, Scripted())
    reply = asyncio.run(case.sampler.sample([1] * 8, SAMPLING, 0))
    assert (len(reply.tokens), reply.finish) == (2, "length"), "as much as fits"
    assert asyncio.run(case.sampler.sample([1] * 10, SAMPLING, 0)).full, "a prompt as long as the context"
    with pytest.raises(ConfigError, match=r"vLLM takes 0, or at least 0\.01"):
        asyncio.run(case.sampler.sample([1], Sampling(temperature=0.001), 0))
    with pytest.raises(ValueError, match="empty prompt"):
        asyncio.run(case.sampler.sample([], SAMPLING, 0))


# ---- inside the process ----


class Hanging:
    """vLLM's engine, which never gives a reply."""

    ended = False

    async def generate(self, *_: object, **__: object) -> AsyncIterator[None]:
        await asyncio.Event().wait()
        yield None

    def shutdown(self) -> None:
        self.ended = True


def test_an_engine_that_is_silent_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    errors = {name: type(name, (Exception,), {}) for name in ("EngineDeadError", "EngineGenerateError")}
    for name, members in {
        "vllm": {"SamplingParams": dict},
        "vllm.sampling_params": {"RequestOutputKind": SimpleNamespace(FINAL_ONLY=2)},
        "vllm.v1": {},
        "vllm.v1.engine": {},
        "vllm.v1.engine.exceptions": errors,
    }.items():
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(**members))
    inside, engine = Inside(tmp_path, [], VllmConfig(reply_timeout=0.05)), Hanging()
    inside._engine = engine
    with pytest.raises(Silent, match=r"no reply within 0\.05 s"):
        asyncio.run(inside.generate(MODEL, [1], {"max_tokens": 1}))
    assert engine.ended
    with pytest.raises(Lost, match="does not run"):
        asyncio.run(inside.generate(MODEL, [1], {"max_tokens": 1}))


# ---- the server ----


def test_a_server_that_cannot_start_is_told_in_its_own_words(tmp_path: Path) -> None:
    python = tmp_path / "python"
    words = ("ERROR x.py] ValueError: no such model", "RuntimeError: Engine core initialization failed.")
    python.write_text("\n".join(["#!/bin/sh", *(f"echo '{line}'" for line in words), "exit 3"]))
    python.chmod(0o755)
    config = VllmConfig(python=str(python), restarts=0)
    server = Server(tmp_path, [], config, tmp_path)
    sampler = VllmSampler(server, Weights(Path.mkdir, tmp_path, lora=False), config, unused, 64)
    with pytest.raises(ConfigError, match=r"ended with status 3: .*ValueError: no such model") as error:
        asyncio.run(sampler.sample([1], SAMPLING, 0))
    assert str(server.log) in str(error.value).partition("\n")[0]
    assert "engine.sampler=torch goes without" in str(error.value)


def test_a_server_that_is_too_slow_is_ended(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nsleep 60 & sleep 60")
    python.chmod(0o755)
    server = Server(tmp_path, [], VllmConfig(python=str(python), start_timeout=0.1), tmp_path)
    with pytest.raises(Lost, match=r"does not answer after 0.1 s"):
        asyncio.run(server.start())
    assert server._process is not None
    process = server._process
    server.stop()
    assert process.poll() is not None


ORPHAN = """
import os, signal, sys
from pathlib import Path
from understudy.engines.vllm.config import VllmConfig
from understudy.engines.vllm.server import Server

server = Server(Path("."), [], VllmConfig(), Path(sys.argv[1]))
server._launch()
while not Path(sys.argv[1], "pid").exists():
    pass
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_server_ends_with_whoever_started_it(tmp_path: Path) -> None:
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
    done = subprocess.run([sys.executable, "-c", ORPHAN, str(tmp_path)], env=environment, check=False)
    assert done.returncode == -signal.SIGKILL
    assert ends(int(pid.read_text()))


class Answers(BaseHTTPRequestHandler):
    """Answers each path by the status that it names."""

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


def test_a_server_that_is_no_vllm_or_wants_a_key_is_one_line(tmp_path: Path) -> None:
    http = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    Thread(target=http.serve_forever, daemon=True).start()
    config = VllmConfig(backoff=0.0)
    endpoint = Endpoint(config, f"http://127.0.0.1:{http.server_port}")
    sampler = VllmSampler(endpoint, Weights(lambda folder: folder.mkdir(), tmp_path, lora=True), config, unused, 1)
    try:
        with pytest.raises(ConfigError, match=r"cannot be used .* as no vLLM does, by status 401: no key"):
            asyncio.run(sampler.sample([1], SAMPLING, 0))
    finally:
        http.shutdown()
        http.server_close()


def test_what_a_status_means() -> None:
    http = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    Thread(target=http.serve_forever, daemon=True).start()
    try:
        endpoint = Endpoint(VllmConfig(), f"http://127.0.0.1:{http.server_port}")
        assert asyncio.run(endpoint._post("/200", {})) == "why"
        for status in (404, 500, 503):
            with pytest.raises(Lost, match=f"status {status}: why"):
                asyncio.run(endpoint._post(f"/{status}", {}))
        with pytest.raises(RolloutError, match="refuses /400: status 400: why"):
            asyncio.run(endpoint._post("/400", {}))
    finally:
        http.shutdown()
        http.server_close()
    with pytest.raises(Lost, match="has no connection"):
        asyncio.run(endpoint._post("/200", {}))


def test_what_an_answer_means() -> None:
    def answer(**other: Any) -> dict[str, Any]:
        content = [{"token_id": token, "logprob": -token / 10} for token in (5, 7)]
        spans = [{"version": "a", "start": 0, "end": 2}]
        choice = {"finish_reason": "stop", "token_ids": [5, 7], "logprobs": {"content": content}}
        return {"choices": [choice | {"weight_versions": spans} | other]}

    assert _reply(answer()) == Reply([5, 7], [-0.5, -0.7], "a")
    mixed = [{"version": "a", "start": 0, "end": 1}, {"version": "b", "start": 1, "end": 2}]
    assert _reply(answer(weight_versions=mixed)).weight_version == "", "of no weights that were asked for"
    with pytest.raises(Lost, match="broke a reply off: abort"):
        _reply(answer(finish_reason="abort"))
    for other in ({}, {"choices": []}, "OK", answer(logprobs=None), answer(weight_versions=None)):
        with pytest.raises(RolloutError, match=r"is no reply of vLLM 0\.32"):
            _reply(other)


def test_options_name_a_rank_that_vllm_knows() -> None:
    def of(rank: int) -> list[str]:
        return options(VllmConfig(), dtype="float32", sequences=8, rank=rank, cpu=False)

    assert of(9)[of(9).index("--max-lora-rank") + 1] == "16"
    assert "--enable-lora" not in of(0)


def test_where_vllm_is_looked_for() -> None:
    assert installed("/bin/true")
    assert not installed("/bin/false")
    assert not installed("")
    assert not installed(sys.executable)
    with pytest.raises(ConfigError, match=r"engine.vllm.python = '/nowhere' cannot be run: No such file"):
        installed("/nowhere")
    with pytest.raises(ConfigError, match=r"engine.vllm.url = 'localhost'"):
        VllmConfig(url="localhost")


# ---- the choice ----


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch")
    from understudy.models import make_tiny

    return make_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({}, "PyTorch: vLLM is not installed in this Python (engine.vllm.python can name another)"),
        ({"sampler": "torch"}, "PyTorch: engine.sampler asks for it"),
        ({"vllm": {"python": "/bin/true"}}, "vLLM: it is installed, and the model fits"),
        ({"vllm": {"python": "/bin/false"}}, "PyTorch: vLLM is not installed in /bin/false (engine.vllm.python can"),
        ({"vllm": {"url": "http://localhost:8000"}}, "vLLM: engine.vllm.url names one"),
        ({"sampler": "vllm", "vllm": {"python": "/bin/true"}}, "vLLM: engine.sampler asks for it"),
        (
            {"vllm": {"python": "/bin/true", "gpu_memory_utilization": 1e-6}},
            "PyTorch: the model and one sequence of 8192 tokens need 0.0 GiB, and engine.vllm.gpu_memory_utilization",
        ),
        ({"vllm": {"python": "/bin/true"}, "train_embeddings": True}, "PyTorch: on a CPU vLLM 0.32 keeps a copy"),
        (
            {"vllm": {"python": "/bin/true"}, "finetune": "lora", "lora": {"rank": 513}},
            "PyTorch: vLLM takes adapters of rank 512 at most, and engine.lora.rank is 513",
        ),
        ({"vllm": {"python": "/bin/true", "in_process": True}}, "PyTorch: engine.vllm.in_process needs vLLM in this"),
    ],
)
def test_which_sampler_is_chosen_and_why(tiny: Path, settings: dict[str, Any], line: str) -> None:
    from understudy.engines.local.engine import LocalEngine

    config = LocalConfig.model_validate({"device": "cpu", "dtype": "float32"} | settings)
    engine = LocalEngine(tiny, config)
    assert str(engine.choice).startswith(f"replies are sampled by {line}")
    assert isinstance(engine._sampler, VllmSampler) == line.startswith("vLLM")


def test_vllm_is_asked_for_what_episodes_come_to_and_not_for_all_of_a_long_context(tiny: Path, tmp_path: Path) -> None:
    long = shutil.copytree(tiny, tmp_path / "long")
    values = json.loads((long / "config.json").read_text())
    (long / "config.json").write_text(json.dumps(values | {"max_position_embeddings": 1 << 40}))
    lengths = ("limits.max_tokens=1000", "sampling.max_tokens=50", "engine.device=cpu", "engine.vllm.python=/bin/true")

    def of(folder: Path, *settings: str) -> TrainConfig:
        return parse(TrainConfig, "", [f"model={folder}", *lengths, *settings])

    played, _ = open_model(of(long))
    assert (played.context, str(played.choice).split(":")[0]) == (1000 + 8192 + 50, "replies are sampled by vLLM")
    assert asked_length(played) == "9242"
    short, _ = open_model(of(tiny))
    assert (short.context, asked_length(short)) == (8192, None)
    own, _ = open_model(of(long, "engine.vllm.max_model_len=77"))
    assert (own.context, asked_length(own)) == (77, "77")
    for settings in (["engine.vllm.url=http://localhost:8000"], ["engine.kind=tinker"]):
        config = of(long, *settings) if "url" in settings[0] else parse(TrainConfig, "", settings)
        assert config.fitted == config.engine
    served = open_served(find_weights(str(long), lengths), ServeConfig())
    assert f"by PyTorch: the model and one sequence of {1 << 40} tokens need" in served.sampled
    assert served.sampled.endswith("; raise that, or lower engine.vllm.max_model_len")
    assert served.sampler.context == 1 << 40


def asked_length(engine: Any) -> str | None:
    """What a server of vLLM's is told of the longest sequence."""
    command: list[str] = engine._sampler._vllm._command
    return command[command.index("--max-model-len") + 1] if "--max-model-len" in command else None


def test_vllm_that_is_asked_for_and_not_there_is_one_line(tiny: Path) -> None:
    from understudy.engines.local.engine import LocalEngine

    with pytest.raises(ConfigError, match=r"engine\.sampler = 'vllm': vLLM is not installed in this Python") as error:
        LocalEngine(tiny, LocalConfig(device="cpu", sampler="vllm"))
    assert "\n" not in str(error.value)
