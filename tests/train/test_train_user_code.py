"""Test runs whose user code raises exceptions: they go on, and name the code."""

from collections.abc import Sequence
from itertools import count
from pathlib import Path

import pytest

from support.shelves import Shelf
from support.tiny_runs import step_metrics, tiny, train_tiny_run  # noqa: F401
from understudy.core.errors import RolloutError, TaskError
from understudy.core.messages import Message
from understudy.core.trajectory import StopReason
from understudy.runs.episodes import read_stored_episodes
from understudy.runs.run import read_warnings

SETTINGS = (
    "domain=support.shelves:SHELVES",
    "slice.domain_policy=full",
    "slice.tools=",
    "eval.tasks=1",
    "sft.steps=1",
    "limits.max_turns=4",
)


def reward_that_fails(every: int) -> object:
    """Return a reward function that raises in every call of number `every`. Gold earns 1 and is not counted."""
    calls = count(1)

    def reward(self: Shelf, transcript: Sequence[Message]) -> float:
        if transcript[-1].content == "Done.":
            return 1.0
        if next(calls) % every == 0:
            raise ZeroDivisionError("division by zero")
        return len(transcript[-1].content) % 7 / 7

    return reward


def test_run_survives_a_reward_that_sometimes_raises(
    tiny: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Shelf, "reward", reward_that_fails(every=3))
    reports: list[str] = []
    run = train_tiny_run(
        tmp_path / "run",
        tiny,
        *SETTINGS,
        "steps=2",
        "limits.max_retries=0",
        "max_fault_rate=1",
        report=lambda phase, *_: reports.append(phase),
    )
    episodes = list(read_stored_episodes(run.folder))
    faulty = [episode for episode in episodes if episode.stop_reason is StopReason.FAULT]
    assert 0 < len(faulty) < len(episodes)
    assert {episode.fault for episode in faulty} == {"grader"}
    assert all("ZeroDivisionError" in episode.exceptions[0].traceback for episode in faulty)
    (warning,) = (each for each in read_warnings(run.folder) if each["check"] == "user_code")
    assert warning["location"].startswith("test_train_user_code.py:")
    assert "Traceback" in warning["traceback"]
    assert sum("ZeroDivisionError" in line for line in reports) == 1
    assert any("train/loss" in record for record in step_metrics(run))


def test_run_stops_if_most_rewards_raise(
    tiny: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def reward(self: Shelf, transcript: Sequence[Message]) -> float:
        text = transcript[-1].content
        if text not in ("", "Done."):
            raise ZeroDivisionError("division by zero")
        return float(text == "Done.")

    monkeypatch.setattr(Shelf, "reward", reward)
    with pytest.raises(RolloutError, match=r"ZeroDivisionError.*test_train_user_code\.py:\d+") as raised:
        train_tiny_run(tmp_path / "run", tiny, *SETTINGS, "steps=2")
    assert raised.value.fault == "grader"


def test_run_does_not_start_if_all_rewards_raise(
    tiny: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Shelf, "reward", reward_that_fails(every=1))
    with pytest.raises(TaskError, match=r"ZeroDivisionError.*test_train_user_code\.py:\d+"):
        train_tiny_run(tmp_path / "run", tiny, *SETTINGS, "steps=2")


SEEN: list[str] = []


def test_the_start_of_a_run_names_state_that_episodes_share(
    tiny: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def reward(self: Shelf, transcript: Sequence[Message]) -> float:
        SEEN.append(transcript[-1].content)
        return float(transcript[-1].content == "Done.")

    monkeypatch.setattr(Shelf, "reward", reward)
    reports: list[str] = []
    train_tiny_run(tmp_path / "run", tiny, *SETTINGS, "steps=0", report=lambda phase, *_: reports.append(phase))
    (line,) = (line for line in reports if "SEEN" in line)
    assert line.startswith(f"{__name__}.SEEN has changed")
