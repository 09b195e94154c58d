"""A run's health, in whole runs: said, kept, and where it is wished a reason to stop; metrics of evaluations."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from test_run_disk import room
from test_train import all_metrics, config, metrics, run_of, same, saved, short, silent, tiny
from understudy.algorithms.options import Loss
from understudy.checkpoints import checkpoints
from understudy.engines.local.engine import LocalEngine
from understudy.errors import ConfigError, RolloutError
from understudy.evaluation import Evaluation, TaskResult
from understudy.launch import open_run
from understudy.run import Run, read_warnings
from understudy.train import train
from understudy.train.evaluation import measured
from understudy.trajectory import Trajectory

__all__ = ["short", "tiny"]
COLD = ("sft.steps=0", "steps=2", "health.window=1", "save_every=0")


@pytest.mark.parametrize("every", [0, 1])
def test_a_run_that_cannot_learn_says_so_and_stops_where_it_is_wished(tiny: Path, tmp_path: Path, every: int) -> None:
    """A random model succeeds at nothing: that is known before reinforcement learning, and seen in its first step.

    Where that step is to be evaluated, its line is written when the run goes on, with the evaluation.
    """
    cold, said = (*COLD, f"eval.every={every}"), list[str]()

    def report(phase: str, done: int, of: int, metrics: Mapping[str, float]) -> None:
        if not of and phase.startswith("step"):
            said.append(phase)

    run = Run.create(tmp_path / "run", config(tiny, *cold, "health.halt_on=groups"))
    with pytest.raises(RolloutError, match=r"^stopped after step 1, because health.halt_on has groups: 100% of the gr"):
        train(run.config, run, report)
    assert said[0].startswith("step 0: health/start: before reinforcement learning the model succeeds on 0.0% of")
    assert "; give it a warm start, sft.steps=48 or more, or easier tasks" in said[0]
    assert [(warning["step"], warning["check"]) for warning in read_warnings(run.folder)] == [
        (0, "start"),
        (1, "groups"),
        (1, "floor"),
    ]
    start, *written = all_metrics(run)
    assert len(written) == (0 if every else 1)
    assert (start["health/start"], start["eval/toy/success_rate"], start["eval/toy/floor"]) == (1.0, 0.0, 0.0)
    assert [step for step, _ in checkpoints(run.folder)] == [1]
    resumed = open_run(["health.halt_on=[]"], None, run.folder)
    train(resumed.config, resumed, silent)
    first = all_metrics(resumed)[1]
    assert (first["health/groups"], first["health/floor"], first["health/empty"]) == (1.0, 1.0, 0.0)
    assert ("eval/toy/success_rate" in first) == bool(every)
    whole = run_of(tmp_path / "whole", tiny, *cold)
    assert all_metrics(resumed) == all_metrics(whole)
    assert read_warnings(resumed.folder) == read_warnings(whole.folder), "and what stays bad is said once"
    assert Run.resume(run.folder).config.health.halt_on == ()


@pytest.mark.usefixtures("short")
def test_numbers_that_are_none_stop_a_run_and_the_checkpoint_before_stays(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = LocalEngine.update

    async def update(self: LocalEngine, steps: Any, loss: Loss, rate: float) -> dict[str, float]:
        return await honest(self, steps, loss, rate) | ({"loss": math.nan} if self.version == 2 else {})

    monkeypatch.setattr(LocalEngine, "update", update)
    with pytest.raises(RolloutError, match=r"health.halt_on has finite: loss/total is not .* to go on from step 1 "):
        run_of(tmp_path / "run", tiny)
    run = Run(tmp_path / "run", config(tiny))
    assert [step for step, _ in checkpoints(run.folder)] == [1]
    assert [line["loss/total"] is None for line in metrics(run)] == [False, True]


@pytest.mark.usefixtures("short")
def test_a_disk_that_is_full_in_the_middle_of_a_checkpoint_loses_nothing(tiny: Path, tmp_path: Path) -> None:
    """Of the engine's own file, of 1.4 MB; the run goes on once there is room."""
    settings = ("sft.steps=1", "steps=1")
    with (
        room(400_000),
        pytest.raises(ConfigError, match=r"cannot be written \(.*\); see to that, then go on with: ") as e,
    ):
        run_of(tmp_path / "run", tiny, *settings)
    assert isinstance(e.value.__cause__, OSError)
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == []
    resumed = Run.resume(tmp_path / "run")
    train(resumed.config, resumed, silent)
    whole = run_of(tmp_path / "whole", tiny, *settings)
    assert all_metrics(resumed) == all_metrics(whole)
    assert same(saved(resumed), saved(whole))


@pytest.mark.parametrize("finetune", ["full", "lora"])
def test_a_disk_that_is_full_at_the_last_write_of_a_run_is_one_line(tiny: Path, tmp_path: Path, finetune: str) -> None:
    run = Run.create(tmp_path / "run", config(tiny, f"engine.finetune={finetune}"))
    engine = LocalEngine(tiny, run.config.engine)
    told = r"cannot be written \(.*\); see to that, then go on with: "
    with room(2000), pytest.raises(ConfigError, match=told), run.model() as folder:
        engine.export(folder)
    assert not [path for path in run.folder.iterdir() if path.name.startswith("model")]


@pytest.mark.usefixtures("short")
def test_the_best_in_validation_is_kept(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By what evaluations came to, not by when they were; one that came to nothing is not the best."""
    from understudy.train import evaluation

    rates = iter([0.5, None, 0.25, 0.75, 0.5, 0.25])

    async def episodes(*args: Any, **kwargs: Any) -> list[Trajectory]:
        return []

    def summary(*args: Any) -> Evaluation:
        rate = next(rates)
        rewards = [None if rate is None else float(i < rate * 4) for i in range(4)]
        results = [
            TaskResult(task=str(i), domain="toy", family="one", difficulty="easy", rewards=(reward,))
            for i, reward in enumerate(rewards)
        ]
        return Evaluation(domain="toy", seed=0, trials=1, results=tuple(results))

    monkeypatch.setattr(evaluation, "episodes", episodes)
    monkeypatch.setattr(evaluation, "summary", summary)
    run = run_of(tmp_path / "run", tiny, "eval.every=1", "save_every=0", "keep=1", "sft.steps=1", "steps=4")
    told = [line.get("eval/toy/success_rate") for line in all_metrics(run)]
    assert told == [0.5, None, 0.25, 0.75, 0.5, 0.25]
    assert [step for step, _ in checkpoints(run.folder)] == [3, 5]
    assert Run.resume(run.folder).step == 5


def test_metrics_of_an_evaluation_by_hand() -> None:
    def evaluation(rewards: Mapping[str, tuple[float | None, ...]]) -> Evaluation:
        results = [
            TaskResult(task=domain, domain=domain, family="one", difficulty="easy", rewards=each)
            for domain, each in rewards.items()
        ]
        return Evaluation(domain="mix", seed=0, trials=2, results=tuple(results))

    found = evaluation({"retail": (1.0, 0.5), "a/b": (None, 0.0), "lost": (None, None)})
    nothing = evaluation({"retail": (0.0, 0.0), "a/b": (1.0, 1.0), "lost": (0.0, 0.0)})
    assert measured(found, nothing, "test") == {
        "test/a_b/success_rate": 0.0,
        "test/a_b/average_reward": 0.0,
        "test/a_b/floor": 1.0,
        "test/retail/success_rate": 0.5,
        "test/retail/average_reward": 0.75,
        "test/retail/floor": 0.0,
    }
    assert {name.partition("/")[0] for name in measured(found, nothing, "eval")} == {"eval"}
