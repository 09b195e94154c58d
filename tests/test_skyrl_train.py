"""SkyRL's own trainer on Ray, with workers on the CPU: it learns from our rollouts, in our run folder, and goes on
there after it was killed. Without it: test_skyrl."""

import asyncio
import contextlib
import json
import os
import re
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path

import psutil
import pytest

pytest.importorskip("torch")

import skyrl_venv
from understudy.assess.sitting import Sitting, assess, set_up
from understudy.checkpoints import last_checkpoint
from understudy.config import TrainConfig
from understudy.evaluation import Evaluation
from understudy.models import make_tiny
from understudy.run import read_config, read_metrics
from understudy.settings import dump, parse
from understudy.trajectory import read_trajectories
from understudy.weights import find_weights

pytestmark = pytest.mark.skyrl
HERE = Path(__file__).parent
EXAMPLES = sorted((HERE.parent / "examples" / "skyrl").glob("*.toml"))
PATIENCE = 900  # seconds for what takes about forty
SMALL = (
    "domain=skyrl_kit:DOMAIN",
    "slice.policy=brief",
    "slice.tools=switch_lamp",
    "engine.kind=skyrl",
    "engine.device=cpu",
    "engine.dtype=float32",
    "engine.train_embeddings=true",
    "sampling.max_tokens=12",
    "limits.max_turns=2",
    "eval.tasks=6",
    "eval.temperature=1.0",
    "sft.steps=0",
    "steps=8",
    "algorithm.tasks_per_step=4",
    "algorithm.group_size=4",
    "algorithm.refill=0",
    "algorithm.learning_rate=5e-3",
    "algorithm.kl_coefficient=0",
    "skyrl.workers=cpu",
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("tiny"), architecture="qwen3")


def started(*arguments: str, log: Path, **variables: str) -> "subprocess.Popen[bytes]":
    """Python in SkyRL's environment, with this checkout's package and the tests' modules."""
    with log.open("ab") as output:
        return subprocess.Popen(
            [str(skyrl_venv.install()), *arguments],
            env=surroundings() | variables,
            stdout=output,
            stderr=subprocess.STDOUT,
        )


def surroundings() -> dict[str, str]:
    """The environment of what runs in SkyRL's."""
    paths = os.pathsep.join(str(path) for path in (HERE.parent / "src", HERE))
    offline = {
        "HF_HUB_OFFLINE": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",  # or its workers wait for whatever else a machine does
    }
    environment = {name: value for name, value in os.environ.items() if name not in ("RAY_ADDRESS", "RAY_AUTH_MODE")}
    programs = os.pathsep.join((str(skyrl_venv.install().parent), os.environ["PATH"]))
    return environment | offline | {"PYTHONPATH": paths, "PATH": programs}


def ended(process: "subprocess.Popen[bytes]", log: Path, code: int = 0) -> str:
    """What a program has said, when it has ended with this code."""
    try:
        found = process.wait(PATIENCE)
    finally:
        process.kill()
    text = log.read_text(encoding="utf-8", errors="replace")
    assert found == code, text[-6000:]
    return text


def small(folder: Path, model: Path, *settings: str) -> str:
    """A config of a run that takes seconds."""
    path = folder / "small.toml"
    path.write_text(dump(parse(TrainConfig, "", [*SMALL, f"model={model}", *settings])), encoding="utf-8")
    return str(path)


def train(*arguments: str, log: Path, code: int = 0, **variables: str) -> str:
    return ended(started("-m", "understudy", "train", *arguments, log=log, **variables), log, code)


def until(wanted: Callable[[], bool], process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while not wanted():
        assert process.poll() is None, log.read_text(encoding="utf-8", errors="replace")[-6000:]
        assert time.monotonic() < deadline
        time.sleep(0.2)


def steps_of(run: Path) -> list[int]:
    return [line["step"] for line in read_metrics(run)] if (run / "metrics.jsonl").exists() else []


@pytest.fixture(scope="module")
def learned(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of eight steps, killed after the fifth, and gone on with."""
    folder = tmp_path_factory.mktemp("learned")
    run, log = folder / "run", folder / "log"
    config = small(folder, tiny, "save_every=4", "eval.every=4")
    process = started("-m", "understudy", "train", config, "--out", str(run), log=log)
    until(lambda: 5 in steps_of(run), process, log)
    process.send_signal(signal.SIGKILL)
    process.wait()
    train("--resume", str(run), log=log)
    return run


def test_rewards_rise_also_over_a_death(learned: Path) -> None:
    lines = read_metrics(learned)
    assert [line["step"] for line in lines] == [*range(9)]
    rewards = [line["reward/average_reward"] for line in lines[1:]]
    assert sum(rewards[-3:]) / 3 > sum(rewards[:3]) / 3 + 0.1
    assert lines[8]["eval/skyrl_kit/average_reward"] > lines[0]["eval/skyrl_kit/average_reward"] + 0.1
    for name in ("train/grad_norm", "train/entropy", "loss/total", "timing/step_seconds", "generation/episodes"):
        assert all(name in line for line in lines[1:]), name


def test_sampler_and_trainer_agree_at_every_step(learned: Path) -> None:
    assert max(line["certify/logprob_max"] for line in read_metrics(learned)[1:]) < 1e-3


def test_every_episode_of_every_step_is_kept(learned: Path) -> None:
    for step in range(1, 9):
        episodes, damaged = read_trajectories(learned / "trajectories" / f"step_{step:06}.jsonl")
        assert (len(episodes), damaged) == (16, [])
        assert all(episode.score and sum(episode.mask) for episode in episodes)
    assert {episode.version for episode in episodes} == {4}  # once when it was resumed, then after steps 5 to 7


def test_evaluations_are_those_of_any_run(learned: Path) -> None:
    names = sorted(path.name for path in (learned / "evaluations").iterdir())
    assert names == ["000000 base model.json", "000004 step 4.json", "000008 trained.json"]
    result = json.loads((learned / "result.json").read_text(encoding="utf-8"))
    assert [row["name"] for row in result["rows"]] == ["do nothing", "gold", "base model", "step 4", "trained"]


@pytest.mark.filterwarnings("ignore")
def test_what_was_learned_is_what_eval_reads(learned: Path) -> None:
    """The same tasks and seeds on the exported model, by the local engine."""
    checkpoint, damaged = last_checkpoint(learned)
    assert (checkpoint and checkpoint.name, damaged) == ("step_000008", [])
    config = read_config(learned)
    sitting = Sitting(name="again", agent="model", checkpoint=str(find_weights(str(learned)).checkpoint), config=config)
    rows = asyncio.run(assess(sitting, set_up(sitting, None, Decimal(0), 64))).pairs
    then = Evaluation.model_validate_json((learned / "evaluations" / "000008 trained.json").read_text(encoding="utf-8"))
    assert [result.rewards for result in rows[-1][1].results] == [
        pytest.approx(result.rewards, abs=0.2) for result in then.results
    ]
    assert (learned / "model" / "model.safetensors").read_bytes() == (
        checkpoint / "model" / "model.safetensors"
    ).read_bytes()


@pytest.fixture(scope="module")
def bereft(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run on two workers, whose engine was killed after the first step, and what it said."""
    folder = tmp_path_factory.mktemp("bereft")
    run, log = folder / "run", folder / "log"
    config = small(folder, tiny, "steps=50", "skyrl.trainer.placement.policy_num_gpus_per_node=2")
    process = started("-m", "understudy", "train", config, "--out", str(run), log=log)
    until(lambda: 1 in steps_of(run), process, log)
    worker(process, "ray::Engine").kill()
    return run, ended(process, log, 1)


def worker(process: "subprocess.Popen[bytes]", name: str) -> psutil.Process:
    """The process that Ray has called so, or what it does begins so, of a run's."""
    found = []
    for each in psutil.Process(process.pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            found += [each] * " ".join(each.cmdline()).startswith(name)
    return found[0]


def test_two_workers_take_the_step_of_one(bereft: tuple[Path, str], learned: Path) -> None:
    one, two = read_metrics(learned)[1], read_metrics(bereft[0])[1]
    assert two["reward/average_reward"] == pytest.approx(one["reward/average_reward"], abs=1e-6)
    for name in ("train/grad_norm", "train/entropy", "loss/total"):
        assert two[name] == pytest.approx(one[name], rel=1e-3, abs=1e-5), name


def test_an_engine_that_dies_fails_episodes_and_not_the_model(bereft: tuple[Path, str]) -> None:
    run, text = bereft
    assert "episodes failed, more than max_fault_rate" in text
    assert "the inference engine failed" in text
    last = max(steps_of(run)) + 1
    episodes, _ = read_trajectories(run / "trajectories" / f"step_{last:06}.jsonl")
    assert len(episodes) == 16
    assert {episode.fault for episode in episodes if not episode.score} == {"engine"}


def test_a_worker_that_dies_ends_the_run_and_leaves_its_episodes(tmp_path: Path) -> None:
    """The example without a GPU: two workers on retail, here with a critic and a reference, and a domain to test on."""
    run, log = tmp_path / "run", tmp_path / "log"
    (example,) = [str(path) for path in EXAMPLES if path.stem == "tiny_cpu"]
    ppo = ("algorithm.preset=ppo", "algorithm.epochs=1", "algorithm.kl_kind=k2", "steps=50", "save_every=0")
    tests = ("eval.tests=skyrl_kit:DOMAIN", "eval.test_tasks=2")
    process = started("-m", "understudy", "train", example, *ppo, *tests, "--out", str(run), log=log)
    until(lambda: 1 in steps_of(run), process, log)
    worker(process, "ray::CpuPolicy").kill()
    text = ended(process, log, 1)
    assert "stopped: a worker failed" in text
    assert f"understudy train --resume {run}" in text
    start, first = read_metrics(run)[:2]
    assert {"eval/retail/success_rate", "test/skyrl_kit/success_rate"} <= start.keys()
    assert {"loss/value_loss", "train/reference_kl"} <= first.keys()
    episodes, _ = read_trajectories(run / "trajectories" / f"step_{max(steps_of(run)):06}.jsonl")
    assert {(episode.domain, episode.fault) for episode in episodes} == {("retail", None)}


def test_generation_may_go_on_while_the_weights_move(tiny: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    overlapping = (
        "skyrl.trainer.fully_async.enabled=true",
        "skyrl.trainer.fully_async.num_parallel_generation_workers=4",
        "skyrl.trainer.algorithm.policy_loss_type=rollout_is",
        "skyrl.trainer.fully_async.sample_full_batch=true",
        "skyrl.trainer.algorithm.zero_variance_filter=true",
    )
    train(small(tmp_path, tiny, *overlapping, "steps=3"), "--out", str(run), log=tmp_path / "log")
    lines = read_metrics(run)
    assert [line["step"] for line in lines] == [0, 1, 2, 3]
    for line in lines[1:]:
        assert line["generation/episodes"] == 4 * (4 + line["train/async/num_groups_dropped"])
        assert {"train/async/staleness_mean", "certify/logprob_mean"} <= line.keys()
    assert {"000000 base model.json", "000003 trained.json"} == {path.name for path in (run / "evaluations").iterdir()}
    assert [path.name for path in sorted((run / "trajectories").iterdir())] == [f"step_{i:06}.jsonl" for i in (1, 2, 3)]
    (run / "evaluations" / "000003 trained.json").unlink()  # as though it was killed before its last evaluation
    train("--resume", str(run), log=tmp_path / "log")
    assert (steps_of(run), (run / "evaluations" / "000003 trained.json").exists()) == ([0, 1, 2, 3], True)


def test_a_run_without_anything_left_to_learn_from_says_so_and_keeps_what_was_learned(
    tiny: Path, tmp_path: Path
) -> None:
    run, log = tmp_path / "run", tmp_path / "log"
    alike = ("sampling.top_k=1", "steps=2", "algorithm.tasks_per_step=1", "algorithm.group_size=2", "eval.tasks=2")
    overlapping = (
        "skyrl.trainer.fully_async.enabled=true",
        "skyrl.trainer.fully_async.num_parallel_generation_workers=2",
        "skyrl.trainer.fully_async.sample_full_batch=true",
        "skyrl.trainer.algorithm.zero_variance_filter=true",
        "skyrl.trainer.algorithm.policy_loss_type=rollout_is",
    )
    text = train(small(tmp_path, tiny, *alike, *overlapping), "--out", str(run), log=log, code=1)
    assert "stopped after step 0 of 2: of 60 groups none is left that teaches anything" in text
    assert (steps_of(run), len(read_trajectories(run / "trajectories" / "step_000001.jsonl")[0])) == ([0], 120)


def test_skyrls_own_code_takes_our_rows(tiny: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    process = started(str(HERE / "skyrl_inside.py"), "rows", str(tiny), str(tmp_path), log=log)
    assert ended(process, log).endswith("done\n")


def test_skyrl_takes_every_example(tiny: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    process = started(str(HERE / "skyrl_inside.py"), "examples", str(tiny), *map(str, EXAMPLES), log=log)
    text = ended(process, log)
    assert text.count("skyrl 0.3.0 takes the config") == len(EXAMPLES) >= 9
    assert "GPUs: 2 x 8 for the policy and its reference; inference engines: 16 x 1, on the same GPUs by turns" in text
    assert "1 x 8 for the policy and its critic and its reference" in text


def test_what_skyrl_does_not_take_is_one_line(tiny: Path, tmp_path: Path) -> None:
    setting = "skyrl.trainer.algoritm.policy_loss_type=dppo"
    text = train(small(tmp_path, tiny), setting, "--dry-run", log=tmp_path / "log", code=2)
    assert text.startswith("understudy: skyrl 0.3.0 does not take this config: Invalid fields {'algoritm'}")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """What to set for a Ray cluster that was there before, and its jobs. It asks for a token, and says it has a GPU."""
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
            env=surroundings() | token,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        until(lambda: b"Ray runtime started" in log.read_bytes(), head, log)
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


def test_a_cluster_that_is_there_is_used_and_left(cluster: dict[str, str], tiny: Path, tmp_path: Path) -> None:
    config, log = small(tmp_path, tiny, "steps=2"), tmp_path / "log"
    text = train(config, "skyrl.trainer.placement.policy_num_gpus_per_node=2", log=log, code=2, **cluster)
    assert "the cluster at RAY_ADDRESS has 1 of 2; start it by: ray start --head --num-gpus=2" in text
    train(config, "--out", str(tmp_path / "run"), log=log, **cluster)
    assert steps_of(tmp_path / "run") == [0, 1, 2]
    status = ["ray", "status", f"--address={cluster['RAY_ADDRESS']}"]
    subprocess.run(status, env=surroundings() | cluster, check=True, capture_output=True)


def test_a_cluster_that_asks_for_a_token_says_what_to_set(cluster: dict[str, str], tiny: Path, tmp_path: Path) -> None:
    untold = {name: value for name, value in cluster.items() if name != "RAY_AUTH_MODE"}
    text = train(small(tmp_path, tiny), "--out", str(tmp_path / "run"), log=tmp_path / "log", code=2, **untold)
    assert f"no Ray cluster at RAY_ADDRESS={cluster['RAY_ADDRESS']}" in text
    assert "set RAY_AUTH_MODE=token" in text
    assert steps_of(tmp_path / "run") == []


def test_the_script_hands_a_run_to_the_cluster_as_a_job(cluster: dict[str, str], tiny: Path, tmp_path: Path) -> None:
    run, sent = tmp_path / "run", tmp_path / "sent"
    sent.mkdir()
    small(sent, tiny, "steps=1")
    elsewhere = (
        surroundings() | {name: value for name, value in cluster.items() if name != "RAY_ADDRESS"} | {"CPUS": "1"}
    )
    submitted = [str(HERE.parent / "examples" / "skyrl" / "submit.sh"), "small.toml", str(run)]
    said = subprocess.run(submitted, cwd=sent, env=elsewhere, check=True, capture_output=True, text=True)
    (job,) = set(re.findall(r"raysubmit_\w+", said.stdout))
    told = subprocess.run(
        ["ray", "job", "logs", "--follow", job], env=elsewhere, capture_output=True, text=True, timeout=PATIENCE
    ).stdout
    assert (steps_of(run), (run / "result.json").exists()) == ([0, 1], True), told
