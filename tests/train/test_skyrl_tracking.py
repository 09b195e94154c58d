"""Tests of the metrics, episodes and errors that a run on SkyRL records, without SkyRL."""

import json
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support.contexts import make_context
from toy import make_task
from understudy.core.errors import RolloutError
from understudy.core.messages import Message
from understudy.core.tasks import Score
from understudy.core.trajectory import StopReason, Trajectory, read_trajectories
from understudy.rollouts.group import Group
from understudy.runs.config import parse_config
from understudy.runs.run import read_metrics
from understudy.train.checkpointing import save_checkpoint
from understudy.train.skyrl.tracking import TrackingAdapter
from understudy.train.state import TrainingContext, TrainingProgress

SETTINGS = (
    "engine.kind=skyrl",
    "sft.steps=0",
    "algorithm.max_resampled_groups=0",
    "steps=3",
)
STEP_METRICS = {"policy/grad_norm": 1.0, "policy/policy_entropy": 0.5, "policy/final_loss": 0.1}


def start_run(folder: Path, *settings: str, **parts: Any) -> tuple[TrainingContext, TrackingAdapter]:
    """Return the context and tracker of a run before its first step."""
    context = make_context(folder, parse_config("", [*SETTINGS, *settings]), **parts)
    tracker = TrackingAdapter(context, TrainingProgress())
    tracker.log({}, 0, commit=True)
    return context, tracker


def group(*rewards: float | None, task: str = "t") -> Group:
    """Return a group of episodes with these rewards; None stands for an engine fault."""
    episodes = []
    for reward in rewards:
        episode = Trajectory(task, seed=7)
        episode.observe([], [1, 2])
        episode.act(Message(role="assistant", content="x"), [3], [-0.5])
        episode.score = Score(reward=reward) if reward is not None else None
        episode.stop_reason, episode.fault = (
            (StopReason.DONE, None) if reward is not None else (StopReason.FAULT, "engine")
        )
        episodes.append(episode)
    return Group(make_task(task, "train", "one", "easy", ["L1"]), episodes)


def tasks_of(context: TrainingContext, step: int) -> list[str]:
    episodes, _ = read_trajectories(context.run.folder / "trajectories" / f"step_{step:06}.jsonl")
    return [episode.task_id for episode in episodes]


def test_step_metrics_are_of_the_groups_trained_on(tmp_path: Path) -> None:
    """Four groups are sampled in step 1. Two are taken in step 1 and two in step 2, one of which has equal rewards."""
    context, tracker = start_run(tmp_path / "run")
    for slot, reward in enumerate((0.0, 1.0, 0.5, 0.25)):
        tracker.queue_group(str(slot), group(reward, 1.0, task=str(slot)))
    for step, slots in ((1, "02"), (2, "13")):
        tracker.take_queued_groups(slots)
        tracker.log(STEP_METRICS, step)
        tracker.log({"timing/step": 2.0}, step, commit=True)
    first, second = read_metrics(context.run.folder)
    assert [line["rollout/episodes"] for line in (first, second)] == [4, 4]
    assert [line["rollout/reward"] for line in (first, second)] == [0.625, 0.8125]
    assert all({"health/finite", "time/step_seconds", "train/grad_norm"} <= line.keys() for line in (first, second))
    assert (tasks_of(context, 1), tasks_of(context, 2)) == (["0", "0", "2", "2"], ["1", "1", "3", "3"])
    assert tracker.last_step == 2


def test_interrupt_ends_a_run_after_the_current_step(tmp_path: Path) -> None:
    interrupted: list[bool] = []
    engine = SimpleNamespace(save=lambda folder: None)
    context, tracker = start_run(tmp_path / "run", engine=engine, is_interrupted=lambda: bool(interrupted))
    tracker.queue_group("0", group(0.0, 1.0))
    tracker.queue_group("1", group(0.0, 1.0))
    tracker.take_queued_groups("0")
    tracker.log(STEP_METRICS, 1, commit=True)
    interrupted.append(True)
    tracker.take_queued_groups("1")
    tracker.log_step(2, STEP_METRICS)
    save_checkpoint(context, TrainingProgress(), 2)
    with pytest.raises(KeyboardInterrupt, match=r"\bstep 2\b"):
        tracker.log(STEP_METRICS, 2, commit=True)


def test_untrained_groups_are_stored_with_the_current_step(tmp_path: Path) -> None:
    context, tracker = start_run(tmp_path / "run")
    for slot in "abcd":
        tracker.queue_group(slot, group(0.0, 1.0, task=slot))
    tracker.take_queued_groups("a")
    tracker.log(STEP_METRICS, 1, commit=True)
    tracker.take_queued_groups("b")
    tracker.close()
    assert (tasks_of(context, 1), tasks_of(context, 2)) == (["a"] * 2, ["b", "b", "c", "c", "d", "d"])


def test_untrained_groups_are_dropped_after_the_last_step(tmp_path: Path) -> None:
    context, tracker = start_run(tmp_path / "run", "steps=1")
    tracker.queue_group("a", group(0.0, 1.0))
    tracker.queue_group("b", group(0.0, 1.0))
    tracker.take_queued_groups("a")
    tracker.log(STEP_METRICS, 1, commit=True)
    tracker.close()
    assert [path.name for path in (context.run.folder / "trajectories").iterdir()] == ["step_000001.jsonl"]


def test_step_with_too_many_faults_raises_and_stores_its_episodes(tmp_path: Path) -> None:
    context, tracker = start_run(tmp_path / "run", "max_fault_rate=0.2")
    tracker.queue_group("a", group(None, 1.0, task="a"))
    with pytest.raises(RolloutError, match=r"\b1 of 2\b"):
        tracker.take_queued_groups("a")
    tracker.close()
    assert tasks_of(context, 1) == ["a"] * 2


class FakeJudge:
    """A judge whose metrics are reset when they are read."""

    cost = Decimal(0)

    def __init__(self) -> None:
        self.asked = 5.0

    def pop_metrics(self) -> dict[str, float]:
        metrics, self.asked = {"rollout/judge/episodes": self.asked}, 0.0
        return metrics


def test_step_metrics_are_written_before_the_checkpoint_and_once(tmp_path: Path) -> None:
    context, tracker = start_run(tmp_path / "run", reward_judge=FakeJudge())
    tracker.add_groups([group(0.0, 1.0)], 1)
    tracker.log_step(1, STEP_METRICS)
    (step,) = read_metrics(context.run.folder)
    assert (step["rollout/judge/episodes"], step["health/finite"], step["train/loss"]) == (5.0, 0.0, 0.1)
    tracker.log_eval(1, {"eval/x/success_rate": 0.5})
    tracker.log(STEP_METRICS | {"timing/step": 2.0}, 1, commit=True)
    lines = [json.loads(line) for line in (context.run.folder / "metrics.jsonl").read_text().splitlines()]
    assert lines == [
        {"kind": "train"} | step,
        {"step": 1, "kind": "eval", "eval/x/success_rate": 0.5},
        {"step": 1, "kind": "train", "time/step_seconds": 2.0},
    ]
