"""Tests of health checks, full disks, the best checkpoint and evaluation metrics in training runs."""

import asyncio
import math
import re
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support.disk import limited_file_size
from support.tiny_runs import (
    all_metrics,
    distinct_character_rewards,
    equal_values,
    ignore_progress,
    load_checkpoint_files,
    step_metrics,
    tiny,
    tiny_config,
    train_tiny_run,
)
from understudy.cli.launch import open_run
from understudy.core.errors import ConfigError, RolloutError
from understudy.core.trajectory import Trajectory
from understudy.engines.local.engine import LocalEngine
from understudy.engines.process_group import SINGLE_PROCESS
from understudy.evaluation.result import EvalResult, TaskResult
from understudy.runs.run import Run, read_warnings
from understudy.runs.storage.checkpoints import list_checkpoints
from understudy.train.evaluation import _unless_interrupted, eval_metrics
from understudy.train.loop import train

__all__ = ["distinct_character_rewards", "tiny"]
WITHOUT_SFT = ("sft.steps=0", "steps=2", "health.window=1", "save_every=0")


@pytest.mark.slow
@pytest.mark.parametrize("every", [0, 1])
def test_run_without_successes_warns_and_stops_on_request(tiny: Path, tmp_path: Path, every: int) -> None:
    """A random model never succeeds, which the checks report before RL and in its first step.

    If step 1 is evaluated, its metrics are written after the resume, with those of the evaluation.
    """
    cold, warnings = (*WITHOUT_SFT, f"eval.every={every}"), list[str]()

    def report(phase: str, done: int, of: int, metrics: Mapping[str, float]) -> None:
        if not of and phase.startswith("step"):
            warnings.append(phase)

    run = Run.create(tmp_path / "run", tiny_config(tiny, *cold, "health.stop_on=zero_variance_groups"))
    with pytest.raises(RolloutError, match=r"\bstep 1\b.*health\.stop_on\b.*\bzero_variance_groups: 100%"):
        train(run.config, run, report)
    assert re.match(r"step 0: health/initial_success: .*\b0\.0%.*sft\.steps=48\b", warnings[0])
    assert [(warning["step"], warning["check"]) for warning in read_warnings(run.folder)] == [
        (0, "initial_success"),
        (1, "zero_variance_groups"),
        (1, "noop_baseline"),
    ]
    start, *written = all_metrics(run)
    assert len(written) == 1
    assert (start["health/initial_success"], start["eval/toy/success_rate"], start["eval/toy/noop_success_rate"]) == (
        1.0,
        0.0,
        0.0,
    )
    assert [step for step, _ in list_checkpoints(run.folder)] == [1]
    resumed = open_run(["health.stop_on=[]"], None, run.folder)
    train(resumed.config, resumed, ignore_progress)
    first = all_metrics(resumed)[1]
    assert (first["health/zero_variance_groups"], first["health/noop_baseline"], first["health/empty_replies"]) == (
        1.0,
        1.0,
        0.0,
    )
    assert ("eval/toy/success_rate" in first) == bool(every)
    whole = train_tiny_run(tmp_path / "whole", tiny, *cold)
    assert all_metrics(resumed) == all_metrics(whole)
    assert read_warnings(resumed.folder) == read_warnings(whole.folder), "and what stays bad is said once"
    assert Run.resume(run.folder).config.health.stop_on == ()


@pytest.mark.usefixtures("distinct_character_rewards")
def test_nan_loss_stops_a_run_and_keeps_the_previous_checkpoint(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original_update = LocalEngine.update

    async def update_with_nan(self: LocalEngine, *values: Any, **named: Any) -> dict[str, float]:
        return await original_update(self, *values, **named) | ({"loss": math.nan} if self.weights_version == 2 else {})

    monkeypatch.setattr(LocalEngine, "update", update_with_nan)
    with pytest.raises(RolloutError, match=r"health\.stop_on\b.*\bfinite: .*train/loss\b.*\bstep 1\b"):
        train_tiny_run(tmp_path / "run", tiny)
    run = Run(tmp_path / "run", tiny_config(tiny))
    assert [step for step, _ in list_checkpoints(run.folder)] == [1]
    assert [line["train/loss"] is None for line in step_metrics(run)] == [False, True]


@pytest.mark.slow
@pytest.mark.usefixtures("distinct_character_rewards")
def test_run_resumes_after_a_disk_full_during_a_checkpoint(tiny: Path, tmp_path: Path) -> None:
    """The limit cuts off the engine's file of 1.4 MB; the run resumes once there is space."""
    settings = ("sft.steps=1", "steps=1")
    with (
        limited_file_size(400_000),
        pytest.raises(ConfigError, match=r"understudy train --resume ") as e,
    ):
        train_tiny_run(tmp_path / "run", tiny, *settings)
    assert isinstance(e.value.__cause__, OSError)
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == []
    resumed = Run.resume(tmp_path / "run")
    train(resumed.config, resumed, ignore_progress)
    whole = train_tiny_run(tmp_path / "whole", tiny, *settings)
    assert all_metrics(resumed) == all_metrics(whole)
    assert equal_values(load_checkpoint_files(resumed), load_checkpoint_files(whole))


@pytest.mark.parametrize("finetune", ["full", "lora"])
def test_disk_full_while_writing_the_model_raises_with_resume_command(
    tiny: Path, tmp_path: Path, finetune: str
) -> None:
    run = Run.create(tmp_path / "run", tiny_config(tiny, f"engine.finetune={finetune}"))
    engine = LocalEngine(tiny, run.config.engine)
    message = r"understudy train --resume "
    with limited_file_size(2000), pytest.raises(ConfigError, match=message), run.write_model() as folder:
        engine.export(folder)
    assert not [path for path in run.folder.iterdir() if path.name.startswith("model")]


@pytest.mark.usefixtures("distinct_character_rewards")
def test_best_checkpoint_by_validation_is_kept(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The best is by success rate; an evaluation without rewards is not the best."""
    rates = iter([0.5, None, 0.25, 0.75, 0.5, 0.25])

    async def episodes(*args: Any, **kwargs: Any) -> list[Trajectory]:
        return []

    def summary(*args: Any) -> EvalResult:
        rate = next(rates)
        rewards = [None if rate is None else float(i < rate * 4) for i in range(4)]
        results = [
            TaskResult(task=str(i), domain="toy", family="one", difficulty="easy", fingerprint="", rewards=(reward,))
            for i, reward in enumerate(rewards)
        ]
        return EvalResult(domain="toy", seed=0, trials=1, task_results=tuple(results))

    monkeypatch.setattr("understudy.evaluation.runner.play_episodes", episodes)
    monkeypatch.setattr("understudy.evaluation.runner.summarize_episodes", summary)
    run = train_tiny_run(
        tmp_path / "run", tiny, "eval.every=1", "save_every=0", "keep_checkpoints=1", "sft.steps=1", "steps=4"
    )
    success_rates = [line.get("eval/toy/success_rate") for line in all_metrics(run)]
    assert success_rates == [0.5, None, 0.25, 0.75, 0.5, 0.25]
    assert [step for step, _ in list_checkpoints(run.folder)] == [3, 5]
    assert Run.resume(run.folder).step == 5


def test_cancelled_evaluation_ends_its_episodes() -> None:
    ended = list[bool]()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    async def cancel() -> None:
        context: Any = SimpleNamespace(process_group=SINGLE_PROCESS, should_stop=False)
        running = asyncio.ensure_future(_unless_interrupted(context, work()))
        await asyncio.sleep(0.01)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert ended == [True]

    asyncio.run(cancel())


def test_eval_metrics_match_hand_computed_values() -> None:
    def evaluation(rewards: Mapping[str, tuple[float | None, ...]]) -> EvalResult:
        results = [
            TaskResult(task=domain, domain=domain, family="one", difficulty="easy", fingerprint="", rewards=each)
            for domain, each in rewards.items()
        ]
        return EvalResult(domain="mix", seed=0, trials=2, task_results=tuple(results))

    found = evaluation({"retail": (1.0, 0.5), "a/b": (None, 0.0), "lost": (None, None)})
    nothing = evaluation({"retail": (0.0, 0.0), "a/b": (1.0, 1.0), "lost": (0.0, 0.0)})
    assert eval_metrics(found, nothing, "test") == {
        "test/a_b/success_rate": 0.0,
        "test/a_b/reward": 0.0,
        "test/a_b/noop_success_rate": 1.0,
        "test/retail/success_rate": 0.5,
        "test/retail/reward": 0.75,
        "test/retail/noop_success_rate": 0.0,
    }
    assert {name.partition("/")[0] for name in eval_metrics(found, nothing, "eval")} == {"eval"}
