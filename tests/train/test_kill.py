"""Test that a run killed with SIGKILL, at random moments and in the middle of its checkpoints, and resumed ends like an
uninterrupted run.
"""

import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from support.tiny_runs import (
    all_metrics,
    equal_values,
    evaluation_episodes,
    evaluations,
    ignore_progress,
    load_checkpoint_files,
    run_episodes,
    score_distinct_characters,
    tiny_config,
)
from understudy.engines.models import make_tiny_model
from understudy.envs import domain as domain_module
from understudy.runs.run import Run
from understudy.runs.storage import checkpoints
from understudy.runs.storage.checkpoints import find_damage, last_checkpoint, list_checkpoints
from understudy.train.loop import train

KILLS = 8
PROCESSES = multiprocessing.get_context("forkserver")  # loads torch once and forks each process of a run
SETTINGS = ("sft.steps=1", "steps=3", "save_every=1", "keep_checkpoints=2", "eval.every=1", "algorithm.kl_coef=0.05")


def train_to_end(folder: Path, model: Path, dies_in_a_checkpoint: bool) -> None:
    """Start or resume the run, and train to the end, or until a checkpoint lacks only its manifest."""
    if dies_in_a_checkpoint:
        checkpoints.atomic_write = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[attr-defined]
    domain_module.score_episode = score_distinct_characters  # it differs between the episodes of an untrained model
    is_started = (folder / "config.toml").exists()
    run = Run.resume(folder) if is_started else Run.create(folder, tiny_config(model, *SETTINGS))
    train(run.config, run, ignore_progress)


def run_result(folder: Path) -> dict[str, Any]:
    """Return the whole result of a run, without durations."""
    run = Run(folder, tiny_config(folder))
    run.last_checkpoint, _ = last_checkpoint(folder)
    run.step = 4
    assert all(find_damage(path) is None for _, path in list_checkpoints(folder))
    return {
        "metrics": all_metrics(run),
        "episodes": run_episodes(run),
        "evaluations": evaluations(run),
        "evaluation episodes": evaluation_episodes(run),
        "checkpoints": [step for step, _ in list_checkpoints(folder)],
        "weights": load_checkpoint_files(run),
        "model": (folder / "model" / "model.safetensors").read_bytes(),
        "warnings": [json.loads(line) for line in read_if_exists(folder / "health.jsonl").splitlines()],
        "left": sorted(path.name for path in folder.rglob("*.partial")),
    }


def read_if_exists(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def equal_results(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return equal_values(one.pop("weights"), other.pop("weights")) and one == other


def has_half_a_checkpoint(folder: Path) -> bool:
    """Return whether a checkpoint is partly written."""
    return any((folder / "checkpoints").glob("step_*.partial"))


@pytest.mark.slow
def test_run_killed_at_random_moments_resumes_to_the_same_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join(sys.path)
    )  # the forkserver of Python 3.11 preloads only from PYTHONPATH
    model, draw = make_tiny_model(tmp_path / "model"), random.Random(7)
    PROCESSES.set_forkserver_preload(["support.tiny_runs"])

    def start(folder: Path, dies_in_a_checkpoint: bool = False) -> Any:
        if folder.exists() and not (folder / "config.toml").exists():
            shutil.rmtree(folder)  # killed before it wrote its config
        process = PROCESSES.Process(target=train_to_end, args=(folder, model, dies_in_a_checkpoint))
        process.start()
        return process

    for name in ("first", "whole"):  # the first also waits for the forkserver to start
        started = time.monotonic()
        process = start(tmp_path / name)
        process.join()
        assert process.exitcode == 0
        seconds = time.monotonic() - started
    runs, kills = [tmp_path / "0"], 0
    while kills < KILLS:
        in_a_checkpoint = kills % 4 == 3
        process = start(runs[-1], in_a_checkpoint)
        process.join(None if in_a_checkpoint else draw.uniform(0, seconds))
        process.kill()
        process.join()
        if process.exitcode == 0:
            runs.append(tmp_path / str(len(runs)))
        else:
            kills += 1
            assert process.exitcode == -signal.SIGKILL
            assert has_half_a_checkpoint(runs[-1]) or not in_a_checkpoint
    process = start(runs[-1])
    process.join()
    assert process.exitcode == 0
    assert all(equal_results(run_result(folder), run_result(tmp_path / "whole")) for folder in runs)
