"""Tests of training with SkyRL's trainer on Ray, with workers on the CPU."""

import asyncio
import contextlib
import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from support import skyrl_venv
from support.paths import ROOT, TESTS
from support.run_evaluations import run_results
from tests.faults.cases import SKYRL_WORKER
from tests.faults.endpoint import DEATH
from tests.faults.injection import RUN_FOLDER, FaultPlan, count_injected
from understudy.core.settings import dump_toml
from understudy.core.trajectory import read_trajectories
from understudy.engines.models import make_tiny_model
from understudy.evaluation.runner import prepare_eval, run_eval
from understudy.runs.config import parse_config
from understudy.runs.eval_spec import EvalSpec
from understudy.runs.run import read_metrics, read_run_config
from understudy.runs.storage.checkpoints import last_checkpoint
from understudy.runs.storage.status import read_run_status
from understudy.runs.weights import resolve_weights

pytestmark = pytest.mark.skyrl
OWN_TOOLS = ROOT / "examples" / "own_tools_7b"
EXAMPLES = [*sorted((ROOT / "examples" / "skyrl").glob("*.toml")), OWN_TOOLS / "cluster.toml"]
TIMEOUT = 900  # seconds; a process takes about 40
CPU_WORKERS = (
    "engine.experiment=support.skyrl_cpu.experiment:CpuExperiment",
    "engine.trainer.placement.colocate_all=false",
    "engine.trainer.placement.colocate_policy_ref=false",
    "engine.trainer.flash_attn=false",
    "engine.trainer.remove_microbatch_padding=false",
    "engine.trainer.bf16=false",
    "engine.trainer.enable_ray_gpu_monitor=false",
    "engine.trainer.use_expandable_segments=false",
    "engine.generator.inference_engine.model_dtype=float32",
    "engine.generator.inference_engine.enable_ray_prometheus_stats=false",
)
SMALL = (
    "domain=support.skyrl_kit:DOMAIN",
    "slice.domain_policy=brief",
    "slice.tools=switch_lamp",
    "engine.kind=skyrl",
    "sampling.max_response_tokens=12",
    "limits.max_turns=2",
    "eval.tasks=6",
    "eval.temperature=1.0",
    "sft.steps=0",
    "steps=8",
    "algorithm.groups_per_batch=4",
    "algorithm.group_size=4",
    "algorithm.max_resampled_groups=0",
    "algorithm.learning_rate=5e-3",
    "algorithm.kl_coef=0",
    *CPU_WORKERS,
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"), architecture="qwen3")


def start_python(*arguments: str, log: Path, folder: Path | None = None, **variables: str) -> "subprocess.Popen[bytes]":
    """Start Python in SkyRL's environment with this repository's package and test modules."""
    with log.open("ab") as output:
        return subprocess.Popen(
            [str(skyrl_venv.install()), *arguments],
            cwd=folder,
            env=skyrl_venv.process_environment() | variables,
            stdout=output,
            stderr=subprocess.STDOUT,
        )


def wait_for_exit(process: "subprocess.Popen[bytes]", log: Path, code: int = 0) -> str:
    """Wait for a process, check its exit code, and return its log."""
    try:
        found = process.wait(TIMEOUT)
    finally:
        process.kill()
    text = log.read_text(encoding="utf-8", errors="replace")
    assert found == code, text[-6000:]
    return text


def write_config(folder: Path, model: Path, *settings: str) -> str:
    """Write a config of a run that takes seconds, and return its path."""
    path = folder / "small.toml"
    path.write_text(dump_toml(parse_config("", [*SMALL, f"model={model}", *settings])), encoding="utf-8")
    return str(path)


def train(*arguments: str, log: Path, code: int = 0, **variables: str) -> str:
    return wait_for_exit(start_python("-m", "understudy", "train", *arguments, log=log, **variables), log, code)


def wait_until(wanted: Callable[[], bool], process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not wanted():
        assert process.poll() is None, log.read_text(encoding="utf-8", errors="replace")[-6000:]
        assert time.monotonic() < deadline
        time.sleep(0.2)


def logged_steps(run: Path) -> list[int]:
    return [line["step"] for line in read_metrics(run)] if (run / "metrics.jsonl").exists() else []


@pytest.fixture(scope="module")
def killed_run(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of eight steps whose process was killed in step 7."""
    folder = tmp_path_factory.mktemp("learned")
    killed = "engine.experiment=support.skyrl_cpu.experiment:KilledExperiment"
    config = write_config(folder, tiny, "save_every=4", "eval.every=4", killed)
    train(config, "--out", str(folder / "killed"), log=folder / "log", code=-signal.SIGKILL)
    return folder / "killed"


@pytest.fixture(scope="module")
def resumed_run(killed_run: Path) -> Path:
    """A copy of the killed run that was resumed, from the checkpoint of step 4."""
    run = shutil.copytree(killed_run, killed_run.with_name("run"), symlinks=True)
    train("--resume", str(run), log=killed_run.with_name("log"))
    return run


def read_episodes(run: Path, step: int) -> list[dict[str, Any]]:
    """Return the episodes of a step, without what differs by time or rounding, and the version that is counted anew."""
    lines = (run / "trajectories" / f"step_{step:06}.jsonl").read_text(encoding="utf-8").splitlines()
    differing = {"timings", "logprobs", "weights_version"}
    return [{key: value for key, value in json.loads(line).items() if key not in differing} for line in lines]


def test_resumed_run_repeats_the_steps_after_the_checkpoint(killed_run: Path, resumed_run: Path) -> None:
    """Step 5 has the weights of the checkpoint. Step 6 has weights that depend on the optimizer's state in it."""
    checkpoint, damaged = last_checkpoint(killed_run)
    assert (checkpoint and checkpoint.name, damaged) == ("step_000004", [])
    assert logged_steps(killed_run) == [*range(7)]
    assert read_episodes(resumed_run, 5) == read_episodes(killed_run, 5)
    for step, tolerance in ((5, 1e-3), (6, 1e-2)):
        one, other = read_metrics(resumed_run)[step], read_metrics(killed_run)[step]
        for name in ("rollout/reward", "train/grad_norm", "train/entropy", "train/loss"):
            assert one[name] == pytest.approx(other[name], rel=tolerance, abs=1e-5), name


def test_rewards_rise_in_a_killed_and_resumed_run(resumed_run: Path) -> None:
    lines = read_metrics(resumed_run)
    assert [line["step"] for line in lines] == [*range(9)]
    rewards = [line["rollout/reward"] for line in lines[1:]]
    assert sum(rewards[-3:]) / 3 > sum(rewards[:3]) / 3 + 0.1
    assert lines[8]["eval/skyrl_kit/reward"] > lines[0]["eval/skyrl_kit/reward"] + 0.1
    for name in ("train/grad_norm", "train/entropy", "train/loss", "time/step_seconds", "rollout/episodes"):
        assert all(name in line for line in lines[1:]), name


def test_sampler_and_trainer_agree_at_every_step(resumed_run: Path) -> None:
    assert max(line["certify/logprob_diff_max"] for line in read_metrics(resumed_run)[1:]) < 1e-3


def test_every_episode_of_every_step_is_stored(resumed_run: Path) -> None:
    for step in range(1, 9):
        episodes, damaged = read_trajectories(resumed_run / "trajectories" / f"step_{step:06}.jsonl")
        assert (len(episodes), damaged) == (16, [])
        assert all(episode.score and sum(episode.mask) for episode in episodes)
    assert {episode.weights_version for episode in episodes} == {4}  # synced once on resume, then after steps 5 to 7


def test_run_has_the_standard_evaluations(resumed_run: Path) -> None:
    names = sorted(path.name for path in (resumed_run / "evaluations").iterdir())
    assert names == ["000000 base", "000004 step 4", "000008 rl"]
    result = json.loads((resumed_run / "result.json").read_text(encoding="utf-8"))
    assert [row["name"] for row in result["rows"]] == ["noop", "gold", "base", "step 4", "rl"]


@pytest.mark.filterwarnings("ignore")
def test_eval_of_the_exported_model_matches_the_run(resumed_run: Path) -> None:
    """Evaluates the exported model on the same tasks and seeds with the local engine."""
    checkpoint, damaged = last_checkpoint(resumed_run)
    assert (checkpoint and checkpoint.name, damaged) == ("step_000008", [])
    config = read_run_config(resumed_run)
    spec = EvalSpec(
        name="again", agent="model", checkpoint=str(resolve_weights(str(resumed_run)).checkpoint), config=config
    )
    rows = asyncio.run(run_eval(spec, prepare_eval(spec, None, Decimal(0), 64))).rows
    then = run_results(resumed_run)["000008 rl"]
    assert [result.rewards for result in rows[-1].result.task_results] == [
        pytest.approx(result.rewards, abs=0.2) for result in then.task_results
    ]
    assert (resumed_run / "model" / "model.safetensors").read_bytes() == (
        checkpoint / "model" / "model.safetensors"
    ).read_bytes()


@pytest.fixture(scope="module")
def run_with_dead_engine(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run on two workers whose engine was killed in step 2, and its log."""
    folder = tmp_path_factory.mktemp("bereft")
    run, log = folder / "run", folder / "log"
    dying = "engine.experiment=support.skyrl_cpu.experiment:DyingEngineExperiment"
    config = write_config(folder, tiny, "steps=50", "engine.trainer.placement.policy_num_gpus_per_node=2", dying)
    return run, train(config, "--out", str(run), log=log, code=1)


def test_step_of_two_workers_matches_one(run_with_dead_engine: tuple[Path, str], resumed_run: Path) -> None:
    one, two = read_metrics(resumed_run)[1], read_metrics(run_with_dead_engine[0])[1]
    assert two["rollout/reward"] == pytest.approx(one["rollout/reward"], abs=1e-6)
    for name in ("train/grad_norm", "train/entropy", "train/loss"):
        assert two[name] == pytest.approx(one[name], rel=1e-3, abs=1e-5), name


def test_episodes_after_an_engine_crash_are_engine_faults(run_with_dead_engine: tuple[Path, str]) -> None:
    run, text = run_with_dead_engine
    assert "max_fault_rate" in text
    assert "engine" in text
    assert max(logged_steps(run)) == 1
    episodes, _ = read_trajectories(run / "trajectories" / "step_000002.jsonl")
    assert len(episodes) == 16
    assert {episode.fault for episode in episodes if not episode.score} == {"engine"}


def test_crashed_worker_ends_the_run_and_keeps_its_episodes(tmp_path: Path) -> None:
    """Trains the CPU example on retail with two workers, a critic, a reference and an OOD domain. A worker of the
    policy is killed in step 2.
    """
    run, log = tmp_path / RUN_FOLDER, tmp_path / "log"
    (example,) = [str(path) for path in EXAMPLES if path.stem == "tiny_cpu"]
    ppo = ("algorithm.preset=ppo", "algorithm.update_epochs=1", "algorithm.kl_estimator=k2", "steps=50", "save_every=0")
    ood = ("eval.ood_domains=support.skyrl_kit:DOMAIN", "eval.ood_tasks=2")
    FaultPlan([(SKYRL_WORKER, DEATH)], "lasting", after_step=1).write(tmp_path)
    paths = os.pathsep.join((skyrl_venv.process_environment()["PYTHONPATH"], str(ROOT)))
    command = ("-m", "tests.faults.child", "train", example, *ppo, *ood, "--out", str(run), "--debug")
    text = wait_for_exit(start_python(*command, log=log, folder=tmp_path, PYTHONPATH=paths), log, 1)
    assert count_injected(tmp_path) == 1
    (error,) = re.findall("^understudy: .*", text, re.MULTILINE)
    assert "stopped: a worker failed" in error
    assert f"understudy train --resume {run}" in error
    assert "Traceback" not in text
    assert read_run_status(run).state in ("crashed", "stopped")
    assert logged_steps(run) == [0, 1]
    start, first = read_metrics(run)
    assert {"eval/retail/success_rate", "eval/ood/skyrl_kit/success_rate"} <= start.keys()
    assert {"train/value_loss", "train/kl"} <= first.keys()
    for step in (1, 2):
        episodes, _ = read_trajectories(run / "trajectories" / f"step_{step:06}.jsonl")
        assert {(episode.domain, episode.fault) for episode in episodes} == {("retail", None)}


def test_fully_async_training_runs_and_resumes(tiny: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    overlapping = (
        "engine.trainer.fully_async.enabled=true",
        "engine.trainer.fully_async.num_parallel_generation_workers=4",
        "engine.trainer.algorithm.policy_loss_type=rollout_is",
        "engine.trainer.fully_async.sample_full_batch=true",
        "engine.trainer.algorithm.zero_variance_filter=true",
    )
    train(write_config(tmp_path, tiny, *overlapping, "steps=3"), "--out", str(run), log=tmp_path / "log")
    lines = read_metrics(run)
    assert [line["step"] for line in lines] == [0, 1, 2, 3]
    for line in lines[1:]:
        assert line["rollout/episodes"] == 4 * (4 + line["train/async/num_groups_dropped"])
        assert {"train/async/staleness_mean", "certify/logprob_diff_mean"} <= line.keys()
    assert {"000000 base", "000003 rl"} == {path.name for path in (run / "evaluations").iterdir()}
    assert [path.name for path in sorted((run / "trajectories").iterdir())] == [f"step_{i:06}.jsonl" for i in (1, 2, 3)]
    (run / "evaluations" / "000003 rl" / "report.json").unlink()  # simulates a kill before the last evaluation
    records = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    kept = [line for line in records if (json.loads(line)["step"], json.loads(line)["kind"]) != (3, "eval")]
    (run / "metrics.jsonl").write_text("".join(kept))
    train("--resume", str(run), log=tmp_path / "log")
    assert (logged_steps(run), "000003 rl" in run_results(run)) == ([0, 1, 2, 3], True)


def test_async_run_without_reward_variance_stops_with_an_error(tiny: Path, tmp_path: Path) -> None:
    run, log = tmp_path / "run", tmp_path / "log"
    alike = ("sampling.top_k=1", "steps=2", "algorithm.groups_per_batch=1", "algorithm.group_size=2", "eval.tasks=2")
    overlapping = (
        "engine.trainer.fully_async.enabled=true",
        "engine.trainer.fully_async.num_parallel_generation_workers=2",
        "engine.trainer.fully_async.sample_full_batch=true",
        "engine.trainer.algorithm.zero_variance_filter=true",
        "engine.trainer.algorithm.policy_loss_type=rollout_is",
    )
    text = train(write_config(tmp_path, tiny, *alike, *overlapping), "--out", str(run), log=log, code=1)
    assert re.search(r"\bstep 0 of 2\b.*\b60 groups\b", text)
    assert (logged_steps(run), len(read_trajectories(run / "trajectories" / "step_000001.jsonl")[0])) == ([0], 120)


def test_skyrl_accepts_the_generator_output(tiny: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    process = start_python(str(TESTS / "support" / "skyrl_inside.py"), "rows", str(tiny), str(tmp_path), log=log)
    assert wait_for_exit(process, log).endswith("done\n")


def test_skyrl_accepts_every_example_config(tiny: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    process = start_python(
        str(TESTS / "support" / "skyrl_inside.py"), "examples", str(tiny), *map(str, EXAMPLES), log=log
    )
    text = wait_for_exit(process, log)
    assert text.count("skyrl 0.3.0 ") == len(EXAMPLES) >= 10
    assert re.search(r"\b2 x 8\b.*\b16 x 1\b", text)
    assert "1 x 8 " in text


def test_unknown_skyrl_key_is_reported_in_one_line(tiny: Path, tmp_path: Path) -> None:
    setting = "engine.trainer.algoritm.policy_loss_type=dppo"
    text = train(write_config(tmp_path, tiny), setting, "--dry-run", log=tmp_path / "log", code=2)
    assert re.match(r"understudy: skyrl 0\.3\.0 .*\{'algoritm'\}", text)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Environment variables of an existing Ray cluster and its job server, with token authentication and one GPU."""
    at, jobs = free_ports(2)
    addresses = (
        "--node-ip-address=127.0.0.1",
        f"--port={at}",
        "--dashboard-host=127.0.0.1",
        f"--dashboard-port={jobs}",
    )
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    log = tmp_path_factory.mktemp("cluster") / "log"
    with log.open("wb") as output:
        head = subprocess.Popen(
            ["ray", "start", "--head", "--block", *addresses, "--num-cpus=12", "--num-gpus=1"],
            env=skyrl_venv.process_environment() | token,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        wait_until(lambda: b"Ray runtime started" in log.read_bytes(), head, log)
        yield token | {"RAY_ADDRESS": f"127.0.0.1:{at}", "RAY_API_SERVER_ADDRESS": f"http://127.0.0.1:{jobs}"}
    finally:
        head.terminate()
        head.wait(60)


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def test_existing_cluster_is_used_and_kept_running(cluster: dict[str, str], tiny: Path, tmp_path: Path) -> None:
    """Trains the example with own tools, with its config for a cluster."""
    config, log = str(OWN_TOOLS / "cluster.toml"), tmp_path / "log"
    settings = (
        *CPU_WORKERS,
        f"model={tiny}",
        "steps=1",
        "sampling.max_response_tokens=12",
        "limits.max_episode_tokens=6500",
        "algorithm.groups_per_batch=2",
        "algorithm.group_size=2",
        "algorithm.max_resampled_groups=0",
        "eval.tasks=5",
        "engine.trainer.placement.policy_num_nodes=1",
        "engine.generator.inference_engine.num_engines=1",
    )
    paths = os.pathsep.join((skyrl_venv.process_environment()["PYTHONPATH"], str(OWN_TOOLS)))
    variables, workers = cluster | {"PYTHONPATH": paths}, "engine.trainer.placement.policy_num_gpus_per_node"
    text = train(config, *settings, f"{workers}=2", "--out", str(tmp_path / "two"), log=log, code=2, **variables)
    assert re.search(r"RAY_ADDRESS\b.*\b1\b.*ray start --head --num-gpus=2", text)
    run = tmp_path / "run"
    train(config, *settings, f"{workers}=1", "--out", str(run), log=log, **variables)
    assert logged_steps(run) == [0, 1]
    rows = {row["name"]: row["success"]["mean"] for row in json.loads((run / "result.json").read_text())["rows"]}
    assert (rows["noop"], rows["gold"]) == (0.0, 1.0)
    (episodes, _) = read_trajectories(run / "trajectories" / "step_000001.jsonl")
    assert len({episode.task_id for episode in episodes}) == 2
    assert len(episodes) == 4
    status = ["ray", "status", f"--address={cluster['RAY_ADDRESS']}"]
    subprocess.run(status, env=skyrl_venv.process_environment() | cluster, check=True, capture_output=True)


def test_missing_cluster_token_mode_is_reported(cluster: dict[str, str], tiny: Path, tmp_path: Path) -> None:
    without_auth_mode = {name: value for name, value in cluster.items() if name != "RAY_AUTH_MODE"}
    text = train(
        write_config(tmp_path, tiny), "--out", str(tmp_path / "run"), log=tmp_path / "log", code=2, **without_auth_mode
    )
    assert f"RAY_ADDRESS={cluster['RAY_ADDRESS']}" in text
    assert "set RAY_AUTH_MODE=token" in text
    assert logged_steps(tmp_path / "run") == []


def test_submit_script_runs_training_as_a_cluster_job(cluster: dict[str, str], tiny: Path, tmp_path: Path) -> None:
    run, sent = tmp_path / "run", tmp_path / "sent"
    sent.mkdir()
    write_config(sent, tiny, "steps=1")
    environment = (
        skyrl_venv.process_environment()
        | {name: value for name, value in cluster.items() if name != "RAY_ADDRESS"}
        | {"CPUS": "1"}
    )
    submitted = [str(ROOT / "examples" / "skyrl" / "submit.sh"), "small.toml", str(run)]
    submission = subprocess.run(submitted, cwd=sent, env=environment, check=True, capture_output=True, text=True)
    (job,) = set(re.findall(r"raysubmit_\w+", submission.stdout))
    job_log = subprocess.run(
        ["ray", "job", "logs", "--follow", job], env=environment, capture_output=True, text=True, timeout=TIMEOUT
    ).stdout
    assert (logged_steps(run), (run / "result.json").exists()) == ([0, 1], True), job_log
