"""Tests of data-parallel and FSDP training: two processes over gloo give the results of one."""

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import load_file

from support.paths import TESTS
from support.rank_script import ENGINES, RUNS, create_run, train_on_ranks, write_engine_results
from support.tiny_runs import SMALL, score_distinct_characters
from understudy.core.errors import ConfigError, RolloutError
from understudy.core.settings import dump_toml
from understudy.engines.local.config import LocalEngineConfig
from understudy.engines.local.distributed.distributed import validate_devices, validate_same_weights
from understudy.engines.local.model import LocalModel
from understudy.engines.local.sampler_choice import choose_sampler
from understudy.engines.models import make_tiny_model
from understudy.engines.process_group import SINGLE_PROCESS, ProcessGroup
from understudy.rollouts.reward_shaping import RewardJudge
from understudy.runs.config import (
    parse_config,
)
from understudy.runs.run import Run, read_metrics
from understudy.runs.storage.checkpoints import last_checkpoint
from understudy.train.metrics import judge_metrics
from understudy.train.processes import run_processes

TIMEOUT = 400  # seconds; the processes take about 40


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def results(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the results of two processes, and of one process in `alone`; both run once per module."""
    folder = tmp_path_factory.mktemp("done")
    alone = folder / "alone"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("understudy.envs.domain.score_episode", score_distinct_characters)
        for name in ENGINES:
            write_engine_results(alone, tiny, name, SINGLE_PROCESS)
        write_engine_results(alone / "resumed", tiny, "full", SINGLE_PROCESS, alone / "full")
        for name in RUNS:
            train_on_ranks(lambda name=name: create_run(alone / name, tiny, name), SINGLE_PROCESS)  # type: ignore[misc]
    shutil.copytree(alone / "whole", alone / "begun")
    for later in (4, 5):
        shutil.rmtree(alone / "begun" / "checkpoints" / f"step_{later:06}")
    command = [sys.executable, "-m", "support.rank_script", str(folder), str(tiny)]
    launch_two = (
        f"import sys; from understudy.train.processes import run_processes; sys.exit(run_processes({command!r}, 2))"
    )
    subprocess.run([sys.executable, "-c", launch_two], check=True, timeout=TIMEOUT, cwd=TESTS)
    return folder


def saved_tensors(folder: Path, name: str) -> dict[str, Any]:
    return load_file(folder / name / "found.safetensors")


def first_gradients(folder: Path, name: str) -> dict[str, Any]:
    """Return the gradients of the first update, computed from Adam's first moment, which started at 0."""
    saved = load_file(folder / name / "first" / "optimizer.safetensors")
    return {key: value / 0.1 for key, value in saved.items() if "exp_avg." in key}


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in ENGINES if "bfloat16" not in name])
def test_gradients_of_two_processes_match_one(results: Path, name: str) -> None:
    one, two = first_gradients(results / "alone", name), first_gradients(results, name)
    assert one.keys() == two.keys()
    assert max(float(gradient.abs().max()) for gradient in one.values()) > 0.01
    for key, gradient in one.items():
        torch.testing.assert_close(two[key], gradient, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in ENGINES if "bfloat16" not in name])
def test_logprobs_and_metrics_of_two_processes_match_one(results: Path, name: str) -> None:
    one, two = saved_tensors(results / "alone", name), saved_tensors(results, name)
    torch.testing.assert_close(two["before"], one["before"], rtol=0, atol=1e-5)
    torch.testing.assert_close(two["reference"], one["before"], rtol=0, atol=1e-5)
    torch.testing.assert_close(two["after"], one["after"], rtol=0, atol=1e-3)
    assert (one["after"] - one["before"]).abs().max() > 0.1
    metrics = [json.loads((folder / name / "metrics.json").read_text()) for folder in (results / "alone", results)]
    for alone, shared in zip(*metrics, strict=True):
        for name in ("computed_tokens", "distinct_tokens"):
            del shared[name], alone[name]
        assert shared == pytest.approx(alone, rel=1e-3, abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ENGINES)
def test_sampled_logprobs_match_the_trainer_on_each_rank(results: Path, name: str) -> None:
    for rank in ("", " 1"):
        two = saved_tensors(results, name + rank)
        torch.testing.assert_close(two["said"], two["read"], rtol=0, atol=0.1 if "bfloat16" in name else 1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", ENGINES)
def test_only_rank_0_writes_complete_checkpoint_and_model(results: Path, name: str) -> None:
    assert not (results / f"{name} 1" / "optimizer.safetensors").exists()
    assert not any((results / f"{name} 1" / "model").iterdir())
    one, two = (load_file(folder / name / "optimizer.safetensors") for folder in (results / "alone", results))
    assert {key: value.shape for key, value in one.items()} == {key: value.shape for key, value in two.items()}
    one, two = ({p.name for p in (folder / name / "model").iterdir()} for folder in (results / "alone", results))
    assert one == two
    file = "adapter_model" if "lora" in name else "model"
    masters = load_file(results / name / "optimizer.safetensors")
    weights = load_file(results / name / "model" / f"{file}.safetensors")
    for key, weight in weights.items():
        master = masters.get(f"master.{key.removeprefix('base_model.model.').replace('.weight', '.default.weight')}")
        master = masters.get(f"master.{key}") if master is None else master
        if master is not None:
            assert torch.equal(weight, master.to(weight.dtype))
        else:
            assert "full" in name or "embed" in key or "norm" in key


@pytest.mark.slow
def test_checkpoint_resumes_with_another_number_of_processes(results: Path, tiny: Path, tmp_path: Path) -> None:
    expected = saved_tensors(results / "alone" / "resumed", "full")
    write_engine_results(tmp_path, tiny, "full, divided", SINGLE_PROCESS, results / "full, divided")
    for two in (saved_tensors(results / "resumed", "full, divided"), saved_tensors(tmp_path, "full, divided")):
        torch.testing.assert_close(two["before"], expected["before"], rtol=0, atol=1e-3)
        torch.testing.assert_close(two["after"], expected["after"], rtol=0, atol=1e-3)


class SecondProcess(ProcessGroup):
    """Rank 1 of two processes; rank 0 sent the given value."""

    rank, world_size = 1, 2

    def __init__(self, from_rank_0: object) -> None:
        self._from_rank_0 = from_rank_0

    def all_gather(self, value: Any) -> list[Any]:
        return [self._from_rank_0, value]


def test_mixed_devices_and_mps_are_rejected() -> None:
    validate_devices(SecondProcess("cpu"), torch.device("cpu"))
    with pytest.raises(ConfigError, match=r"\b1 of 2\b"):
        validate_devices(SecondProcess("cuda"), torch.device("cpu"))
    with pytest.raises(ConfigError, match="mps"):
        validate_devices(SecondProcess("mps"), torch.device("mps"))


def test_different_weights_between_processes_raise() -> None:
    validate_same_weights(SecondProcess("a"), "a")
    with pytest.raises(RolloutError, match=r"\ba, b\b"):
        validate_same_weights(SecondProcess("a"), "b")


class CountingJudge(RewardJudge):
    """A judge with a given number of scored episodes."""

    def __init__(self, num_episodes: float) -> None:
        self._num_episodes = num_episodes

    def pop_metrics(self) -> dict[str, float]:
        return {"rollout/judge/episodes": self._num_episodes}


def test_judge_metrics_are_summed_over_processes() -> None:
    assert judge_metrics(CountingJudge(3.0), SecondProcess(CountingJudge(4.0).pop_metrics())) == {
        "rollout/judge/episodes": 7.0
    }
    assert judge_metrics(None, SecondProcess({})) == {}


@pytest.mark.parametrize("settings", [{"base_url": "http://127.0.0.1:9"}, {"in_process": True}])
def test_several_processes_cannot_share_one_vllm(tiny: Path, settings: dict[str, Any]) -> None:
    config = LocalEngineConfig.model_validate({"device": "cpu", "dtype": "float32", "vllm": settings})
    model = LocalModel(tiny, config)
    assert re.search(r"\b2 processes\b", choose_sampler(model, config, 2).reason)
    with pytest.raises(ConfigError, match=r"\b2 processes\b"):
        choose_sampler(model, config.replace(sampler="vllm"), 2)


def comparable_metrics(folder: Path) -> list[dict[str, Any]]:
    """Return the metrics of all steps, without durations, computed tokens and rounding errors."""
    left = ("time/", "train/computed_tokens", "train/distinct_tokens", "certify/")
    return [{k: v for k, v in line.items() if not k.startswith(left)} for line in read_metrics(folder)]


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_run_of_two_processes_matches_one(results: Path, name: str) -> None:
    one, two = comparable_metrics(results / "alone" / name), comparable_metrics(results / name)
    assert len(two) == len(one) > 2
    for alone, shared in zip(one, two, strict=True):
        assert shared == pytest.approx(alone, rel=1e-2, abs=1e-4)
    first = [comparable_episodes(folder / name, 3) for folder in (results / "alone", results)]
    assert len(first[0]) >= 6
    assert first[0] == first[1]
    files = [sorted(str(p.relative_to(f / name)) for p in (f / name).rglob("*")) for f in (results / "alone", results)]
    assert files[0] == files[1]


def comparable_episodes(folder: Path, step: int) -> list[dict[str, Any]]:
    """Return the episodes of a step, without durations and log-probabilities."""
    text = (folder / "trajectories" / f"step_{step:06}.jsonl").read_text()
    return [
        {k: v for k, v in json.loads(line).items() if k not in ("timings", "logprobs")} for line in text.splitlines()
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["alone/begun", "stopped"])
def test_run_resumes_with_another_number_of_processes(
    results: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "stopped":
        monkeypatch.setattr("understudy.envs.domain.score_episode", score_distinct_characters)
        train_on_ranks(lambda: Run.resume(results / name), SINGLE_PROCESS)
    whole, resumed = comparable_metrics(results / "alone" / "whole"), comparable_metrics(results / name)
    assert [line["step"] for line in resumed] == [0, 1, 2, 3, 4, 5]
    for alone, shared in zip(whole, resumed, strict=True):
        assert shared == pytest.approx(alone, rel=1e-2, abs=1e-4)
    assert comparable_episodes(results / name, 4) == comparable_episodes(results / "alone" / "whole", 4)


UNANSWERED = """
import signal, sys
from understudy.train.processes import exit_with_parent
from understudy.core.errors import RolloutError
from understudy.engines.local.distributed.distributed import TorchProcessGroup
from understudy.engines.process_group import init_rank

exit_with_parent()
group = TorchProcessGroup(init_rank())
group.all_gather("begin")
group.set_timeout(1.5)
if group.rank:
    signal.pause()
try:
    group.all_gather("again")
except RolloutError as e:
    sys.exit(f"{e.fault}: {e}")
finally:
    group.close()
"""


@pytest.mark.slow
def test_process_that_does_not_answer_is_an_error_of_the_others(capfd: pytest.CaptureFixture[str]) -> None:
    assert run_processes([sys.executable, "-c", UNANSWERED], 2) == 1
    assert re.match(r"engine: .*\b1 of 2\b.*\b1\.5 s\b.*engine\.collective_timeout", capfd.readouterr().err)


CERTIFIED = """
import asyncio, sys
from pathlib import Path
from understudy.engines.interface import SamplingParams
from understudy.engines.local.config import LocalEngineConfig
from understudy.engines.local.distributed.distributed import TorchProcessGroup
from understudy.engines.local.engine import LocalEngine
from understudy.engines.process_group import init_rank
from understudy.formats import FormatTokenizer, load_chat_format
from understudy.train.certify.engine_checks import CertificationTarget, check_sampler
from understudy.train.processes import exit_with_parent

exit_with_parent()
group = TorchProcessGroup(init_rank())
folder = Path(sys.argv[1])
engine = LocalEngine(folder, LocalEngineConfig(device="cpu", dtype="float32", threads=1), 0, group)
sample = engine.sample

async def sample_otherwise(prompt, sampling, seed, *more):
    changed = bool(first and first.pop())
    completion = await sample(prompt, sampling, seed + changed, *more)
    if changed:
        assert completion.tokens != (await sample(prompt, sampling, seed, *more)).tokens
        completion.logprobs[0] += wrong
    return completion

engine.sample = sample_otherwise
tokenizer = FormatTokenizer.load(folder / "tokenizer.json")
target = CertificationTarget(engine, load_chat_format(folder), tokenizer, SamplingParams())
for wrong in (0.0, 0.5):
    first = [group.rank == 1]
    checks = asyncio.run(check_sampler(target, "sampled", group))
    for check in checks if group.rank == 0 else ():
        print(wrong, check.passed, check.measurements, sep="|")
group.close()
"""


@pytest.mark.slow
def test_certification_checks_the_sampler_of_each_process(tiny: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """One reply of process 2 has other tokens than that of process 1; its first log-probability is off by 0 or 0.5."""
    assert run_processes([sys.executable, "-c", CERTIFIED, str(tiny)], 2) == 0
    lines = [line.split("|") for line in capfd.readouterr().out.splitlines()]
    assert [line[:2] for line in lines] == [
        *(["0.0", passed] for passed in ("True", "True", "True")),
        *(["0.5", passed] for passed in ("True", "True", "False")),
    ]
    for wrong, _, measurements in lines[2::3]:
        found = re.search(r"largest (\S+),", measurements)
        assert found
        assert float(found[1]) == pytest.approx(float(wrong), abs=0.01)
    assert lines[0][2].startswith("12 episodes")


@pytest.mark.slow
def test_killed_process_ends_all_processes_with_one_error_line(tiny: Path, tmp_path: Path) -> None:
    before = psutil.Process().children(recursive=True)
    folder = tmp_path / "run"
    config = tmp_path / "lamp.toml"
    config.write_text(
        dump_toml(parse_config("", [f"model={tiny}", *SMALL, "certify.every=0", "sft.steps=0", "steps=1000"]))
    )
    arguments = [str(config), "--num-processes", "2", "--out", str(folder)]
    command = [sys.executable, "-m", "understudy", "train", *arguments]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, cwd=TESTS) as launcher:
        until = time.monotonic() + TIMEOUT
        while not (folder / "checkpoints" / "step_000001" / "manifest.json").exists():
            assert time.monotonic() < until
            assert launcher.poll() is None
            time.sleep(0.2)
        second = next(p for p in psutil.Process(launcher.pid).children() if p.environ()["RANK"] == "1")
        second.kill()
        _, errors = launcher.communicate(timeout=TIMEOUT)
    assert launcher.returncode == 128 + signal.SIGKILL
    assert re.match(r"understudy: .*\b2 of 2\b.*\b9\b", errors.splitlines()[-1])
    assert "Traceback" not in errors
    assert last_checkpoint(folder)[0] is not None
    assert set(psutil.Process().children(recursive=True)) <= set(before)
