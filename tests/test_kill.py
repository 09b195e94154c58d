"""A run that is killed, by a signal that nothing can catch, and resumed, ends as one that was not: twenty times, at
moments drawn over the whole of it, and in the middle of checkpoints."""

import json
import multiprocessing
import os
import random
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from test_train import all_metrics, config, evaluations, rewarded, same, saved, silent, trajectories
from understudy.checkpoints import checkpoints, damage, last_checkpoint
from understudy.domains import base
from understudy.models import make_tiny
from understudy.run import Run
from understudy.train import train

KILLS = 20
PROCESSES = multiprocessing.get_context("forkserver")  # which loads torch once, and forks every process of a run
SETTINGS = ("sft.steps=1", "steps=3", "save_every=1", "keep=2", "eval.every=1", "algorithm.kl_coefficient=0.05")


def go(folder: Path, model: Path) -> None:
    """All that a process does: begin the run, or go on with it, to its end."""
    base.score = rewarded  # rewards that untrained models differ in
    begun = (folder / "config.toml").exists()
    run = Run.resume(folder) if begun else Run.create(folder, config(model, *SETTINGS))
    train(run.config, run, silent)


def outcome(folder: Path) -> dict[str, Any]:
    """Everything that a run came to, but for how long it took."""
    run = Run(folder, config(folder))
    run.last, _ = last_checkpoint(folder)
    run.step = 4
    assert all(damage(path) is None for _, path in checkpoints(folder))
    return {
        "metrics": all_metrics(run),
        "episodes": trajectories(run),
        "evaluations": evaluations(run),
        "checkpoints": [step for step, _ in checkpoints(folder)],
        "weights": saved(run),
        "model": (folder / "model" / "model.safetensors").read_bytes(),
        "warnings": [json.loads(line) for line in read(folder / "health.jsonl").splitlines()],
        "left": sorted(path.name for path in folder.rglob("*.partial")),
    }


def read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def alike(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return same(one.pop("weights"), other.pop("weights")) and one == other


def writing(folder: Path) -> bool:
    """Whether a checkpoint is half written."""
    return any((folder / "checkpoints").glob("step_*.partial"))


def test_a_run_that_is_killed_at_any_moment_ends_as_one_that_was_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # Python 3.11's server preloads from no other path
    model, draw = make_tiny(tmp_path / "model"), random.Random(7)
    PROCESSES.set_forkserver_preload(["test_train"])

    def start(folder: Path) -> Any:
        if folder.exists() and not (folder / "config.toml").exists():
            shutil.rmtree(folder)  # killed before it was a run
        process = PROCESSES.Process(target=go, args=(folder, model))
        process.start()
        return process

    for name in ("first", "whole"):  # the first waits for the server
        started = time.monotonic()
        process = start(tmp_path / name)
        process.join()
        assert process.exitcode == 0
        seconds = time.monotonic() - started
    runs, kills, halves = [tmp_path / "0"], 0, 0
    while kills < KILLS:
        process = start(runs[-1])
        if kills % 4 == 3:
            while process.is_alive() and not writing(runs[-1]):
                time.sleep(0.0005)
        else:
            process.join(draw.uniform(0, seconds))
        process.kill()
        process.join()
        if process.exitcode == 0:
            runs.append(tmp_path / str(len(runs)))
        else:
            kills, halves = kills + 1, halves + writing(runs[-1])
    process = start(runs[-1])
    process.join()
    assert process.exitcode == 0
    assert halves >= 2
    assert all(alike(outcome(folder), outcome(tmp_path / "whole")) for folder in runs)
