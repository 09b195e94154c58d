"""What a run on SkyRL writes of its steps, whoever plays their episodes when, and whatever ends it: without SkyRL."""

from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

from understudy.chat import Usage
from understudy.config import TrainConfig
from understudy.errors import RolloutError
from understudy.integrations.skyrl.journal import Journal
from understudy.messages import Message
from understudy.run import Run, read_metrics
from understudy.settings import parse
from understudy.tasks import Score
from understudy.train.state import Training
from understudy.trajectory import Stop, Trajectory, read_trajectories

SETTINGS = ("engine.kind=skyrl", "sft.steps=0", "engine.train_embeddings=true", "algorithm.refill=0", "steps=3")
TOLD = {"policy/grad_norm": 1.0, "policy/policy_entropy": 0.5, "policy/final_loss": 0.1}


def begun(folder: Path, *settings: str) -> tuple[Training, Journal]:
    """A run whose first step is to come."""
    config = parse(TrainConfig, "", [*SETTINGS, *settings])
    users: Any = SimpleNamespace(usage=Usage(), scripted=True)
    unused: Any = None
    parts = (unused, unused, unused, lambda *_: None, users, unused, ())
    training = Training(config, Run.create(folder, config), *parts)
    journal = Journal(training)
    journal.log({}, 0, commit=True)
    return training, journal


def group(*rewards: float | None, task: str = "t") -> list[Trajectory]:
    """A group of episodes with these rewards; None is one that the engine failed."""
    made = []
    for reward in rewards:
        episode = Trajectory(task, seed=7)
        episode.observe([], [1, 2])
        episode.act(Message(role="assistant", content="x"), [3], [-0.5])
        episode.score = Score(reward=reward) if reward is not None else None
        episode.stop, episode.fault = (Stop.DONE, None) if reward is not None else (Stop.FAULT, "engine")
        made.append(episode)
    return made


def tasks_of(training: Training, step: int) -> list[str]:
    episodes, _ = read_trajectories(training.run.folder / "trajectories" / f"step_{step:06}.jsonl")
    return [episode.task for episode in episodes]


def test_a_step_tells_of_the_groups_that_it_learns_from(tmp_path: Path) -> None:
    """All are played in the first step; two are learned from there, one later, and one teaches nothing."""
    training, journal = begun(tmp_path / "run")
    for slot, reward in enumerate((0.0, 1.0, 0.5, 0.25)):
        journal.ahead(str(slot), group(reward, 1.0, task=str(slot)))
    for step, slots in ((1, "02"), (2, "13")):
        journal.taken(slots)
        journal.log(TOLD, step)
        journal.log({"timing/step": 2.0}, step, commit=True)
    _, first, second = read_metrics(training.run.folder)
    assert [line["generation/episodes"] for line in (first, second)] == [4, 4]
    assert [line["reward/average_reward"] for line in (first, second)] == [0.625, 0.8125]
    assert all({"health/finite", "timing/step_seconds", "train/grad_norm"} <= line.keys() for line in (first, second))
    assert (tasks_of(training, 1), tasks_of(training, 2)) == (["0", "0", "2", "2"], ["1", "1", "3", "3"])
    assert journal.done == 2


def test_the_user_ends_a_run_after_its_last_group_is_played(tmp_path: Path) -> None:
    training, journal = begun(tmp_path / "run")
    saved: Any = SimpleNamespace(save=lambda folder: None)
    training.engine = saved
    journal.ahead("0", group(0.0, 1.0))
    journal.ahead("1", group(0.0, 1.0))
    journal.taken("0")
    journal.log(TOLD, 1, commit=True)
    training.interrupted = lambda: True
    journal.taken("1")
    journal.look(TOLD)
    training.save(2)
    with pytest.raises(KeyboardInterrupt, match="stopped after step 2"):
        journal.log(TOLD, 2, commit=True)


def test_what_was_played_and_not_learned_from_belongs_to_the_step_under_way(tmp_path: Path) -> None:
    training, journal = begun(tmp_path / "run")
    for slot in "abcd":
        journal.ahead(slot, group(0.0, 1.0, task=slot))
    journal.taken("a")
    journal.log(TOLD, 1, commit=True)
    journal.taken("b")
    journal.close()
    assert (tasks_of(training, 1), tasks_of(training, 2)) == (["a"] * 2, ["b", "b", "c", "c", "d", "d"])


def test_nothing_is_kept_after_the_last_step(tmp_path: Path) -> None:
    training, journal = begun(tmp_path / "run", "steps=1")
    journal.ahead("a", group(0.0, 1.0))
    journal.ahead("b", group(0.0, 1.0))
    journal.taken("a")
    journal.log(TOLD, 1, commit=True)
    journal.close()
    assert [path.name for path in (training.run.folder / "trajectories").iterdir()] == ["step_000001.jsonl"]


def test_a_step_whose_episodes_failed_is_not_learned_from(tmp_path: Path) -> None:
    training, journal = begun(tmp_path / "run", "max_fault_rate=0.2")
    journal.ahead("a", group(None, 1.0, task="a"))
    with pytest.raises(RolloutError, match="1 of 2 episodes failed"):
        journal.taken("a")
    journal.close()
    assert tasks_of(training, 1) == ["a"] * 2


class Forgetful:
    """A judge, who tells once what was asked."""

    cost = Decimal(0)

    def __init__(self) -> None:
        self.asked = 5.0

    def taken(self) -> dict[str, float]:
        told, self.asked = {"judge/asked": self.asked}, 0.0
        return told


def test_a_step_whose_line_is_written_by_who_resumes_has_what_it_would_have_had(tmp_path: Path) -> None:
    """Killed while the evaluation after the step was played: after its checkpoint, before its line."""
    training, journal = begun(tmp_path / "run")
    vars(training)["judge"] = Forgetful()
    journal.played([group(0.0, 1.0)], 1)
    journal.look(TOLD)
    kept = training.pending
    journal.examined({"eval/x/success_rate": 0.5})
    journal.log(TOLD, 1, commit=True)
    whole = read_metrics(training.run.folder)[1]
    assert (whole["judge/asked"], whole["health/finite"], whole["eval/x/success_rate"]) == (5.0, 0.0, 0.5)

    training, _ = begun(tmp_path / "resumed")
    training.pending, training.run.step = kept, 1
    journal = Journal(training)
    journal.examined({"eval/x/success_rate": 0.5})
    journal.log({}, 1, commit=True)
    assert read_metrics(training.run.folder)[1] == whole
