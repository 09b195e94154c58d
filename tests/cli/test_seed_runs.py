"""Test `train` with several seeds: which runs it starts, resumes and skips, and what it ends with."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from support.eval_results import make_result
from support.paths import TESTS
from support.program import Call, call
from support.run_evaluations import write_run_evaluation
from understudy.cli import seed_runs
from understudy.cli.seed_runs import split_seeds
from understudy.runs.run import Run, read_run_config
from understudy.runs.storage.status import StatusRecorder, read_run_status
from understudy.runs.targets import resolve
from understudy.train.completion import complete_resumed_config
from understudy.train.processes import BRIEF_VARIABLE

__all__ = ["call"]

pytest.importorskip("torch")


class Started:
    """Stands for `run_process`: notes each command, and writes the run with the status that it is given for a seed."""

    def __init__(self, statuses: dict[int, int] | None = None) -> None:
        self.statuses, self.commands = statuses or {}, list[list[str]]()

    def __call__(self, command: Sequence[str], variables: Mapping[str, str]) -> int:
        assert variables == {BRIEF_VARIABLE: "1"}
        words = [*command[command.index("train") + 1 :]]
        self.commands.append(words)
        if "--resume" in words:
            place = words.index("--resume")
            folder = Path(words[place + 1])
            run = Run.resume(folder, complete_resumed_config(resolve(words[:place]).config, read_run_config(folder)))
        else:
            place = words.index("--out")
            run = Run.create(Path(words[place + 1]), resolve(words[:place]).config)
        status = self.statuses.get(run.config.seed, 0)
        if status == 0:
            with StatusRecorder(run.folder):
                write_run_evaluation(run, 1, "rl", make_result((1.0,), (float(run.config.seed > 0),)))
        return status


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Started:
    started = Started()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(seed_runs, "run_process", started)
    return started


def test_each_seed_is_a_run_and_the_table_of_all_follows(call: Call, start: Started) -> None:
    code, out, err = call("train", "smoke", "steps=2", "--seed", "0,2,3", "--debug", "--num-processes", "2")
    assert code == 0, err
    assert start.commands == [
        f"smoke steps=2 seed=0 seed={seed} --out runs/smoke-seed{seed} --num-processes 2 --debug".split()
        for seed in (0, 2, 3)
    ]
    assert "0.833" in out
    assert "runs/smoke-seed2" in out
    assert out.count("Hardest tasks") == 1
    assert "understudy view runs/smoke-seed0 runs/smoke-seed2 runs/smoke-seed3" in out


def test_same_command_skips_finished_runs_and_resumes_unfinished_ones(call: Call, start: Started) -> None:
    start.statuses = {1: 130}
    code, out, _ = call("train", "smoke", "seed=[0, 1, 2]", "--out", "runs/a")
    assert (code, out, len(start.commands)) == (130, "", 2)
    assert read_run_status(Path("runs/a-seed0")).state == "finished"
    start.statuses.clear()
    code, out, _ = call("train", "smoke", "seed=[0, 1, 2]", "--out", "runs/a")
    assert code == 0
    assert start.commands[2:] == [
        f"smoke seed=0 seed={seed} {option} runs/a-seed{seed}".split()
        for seed, option in ((1, "--resume"), (2, "--out"))
    ]
    assert "runs/a-seed1" in out
    assert call("train", "smoke", "seed=[0, 1, 2]", "--out", "runs/a")[1] == out
    assert len(start.commands) == 4


@pytest.mark.parametrize(("status", "seeds"), [(1, [0, 1, 2]), (2, [0, 1]), (143, [0, 1])])
def test_only_stops_that_concern_all_seeds_end_the_others(
    call: Call, start: Started, status: int, seeds: list[int]
) -> None:
    start.statuses = {1: status}
    code, out, _ = call("train", "smoke", "seed=0,1,2", "--out", "a")
    assert (code, [int(words[words.index("--out") + 1][-1]) for words in start.commands]) == (status, seeds)
    assert ("a-seed2" in out, "a-seed1" in out) == (status == 1, False)


def test_wrong_seeds_and_folders_are_one_line(call: Call, start: Started) -> None:
    call("train", "smoke", "seed=0,1", "--out", "a")
    Path("b-seed1").mkdir()
    Path("b-seed1", "notes").touch()
    for words, said in (
        ("seed=0,x", "seed = 'x'"),
        ("seed=0-1", "seed=0,1"),
        ("seed=-1", "seed = -1"),
        ("seed=0,-1", "seed = -1"),
        ("seed=0 1", "seed=0,1"),
        ("seed=0, 1 2", "seed=0,1"),
        ("steps=0-5", "steps should be a number"),
        ("seed=0,1,0", "seed=0,1,0"),
        ("seed=0,1 --resume a-seed0", "a-seed0"),
        ("seed=0,1 steps=77 --out a", "77"),
        ("seed=0,1 algorithm.learning_rate=0.5 --out a", "algorithm.learning_rate"),
        ("seed=0,1 --out b", "b-seed1"),
    ):
        code, out, err = call("train", "smoke", *words.split())
        assert (code, out, err.count("\n")) == (2, "", 1), (words, err)
        assert said in err
    assert len(start.commands) == 2


def test_seeds_are_split_from_the_other_arguments() -> None:
    assert split_seeds(["retail", "seed=3", "seed=1,2", "steps=1"]) == (["retail", "steps=1", "seed=1"], [1, 2])
    for words in (["retail", "seed=3"], ["retail", "eval.seed=1"], []):
        assert split_seeds(words) == (words, [])


def test_dry_run_names_the_runs(call: Call, start: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    from understudy.cli import launch
    from understudy.train.planning.preflight import PreflightReport

    def planned(words: Sequence[str], out: Path, resume: None, processes: int) -> PreflightReport:
        config = resolve(words).config
        return PreflightReport.model_construct(
            config=config, folder=out, verdict=f"seed {config.seed}", gold_sizes=None, notes=()
        )

    monkeypatch.setattr(launch, "dry_run", planned)
    monkeypatch.setattr("understudy.train.planning.preflight._sizes", lambda *_: "")
    call("train", "smoke", "seed=0", "--out", "a-seed0")
    code, out, _ = call("train", "smoke", "seed=4,5", "--out", "a", "--dry-run")
    assert (code, start.commands) == (0, [])
    assert "seed 4; folder of the run: a-seed4" in out
    assert "a-seed4 (new), a-seed5 (new)" in out


@pytest.mark.slow
def test_interrupted_seeds_are_resumed_by_the_same_command(tmp_path: Path) -> None:
    from support.tiny_runs import SMALL
    from understudy.engines.models import make_tiny_model

    model = make_tiny_model(tmp_path / "model")
    words = [*SMALL, f"model={model}", "limits.max_turns=7", "steps=2", "seed=0,1", "--out", "runs/a"]
    command = [sys.executable, "-m", "understudy", "train", *words]
    environment = os.environ | {"PYTHONPATH": str(TESTS)}
    with subprocess.Popen(command, cwd=tmp_path, env=environment) as running:
        first, second = tmp_path / "runs/a-seed0", tmp_path / "runs/a-seed1"
        while not (second / "metrics.jsonl").exists():
            assert running.poll() is None
            time.sleep(0.05)
        running.send_signal(signal.SIGINT)
        assert running.wait(120) == 130
    assert [read_run_status(run).state for run in (first, second)] == ["finished", "stopped"]
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert "runs/a-seed1" in ended.stdout
    assert read_run_status(second).state == "finished"
