"""Test stored training data of episodes: compressed advantages, rounding, and reading back."""

import math
from pathlib import Path

import pytest

from support.run_folder import CONFIG
from understudy.core.errors import ConfigError
from understudy.core.messages import Message
from understudy.core.trajectory import Trajectory
from understudy.runs.run import Run
from understudy.runs.storage.trained_episodes import (
    EpisodeTrainingData,
    compress_advantages,
    read_trained_episodes,
    round_values,
    trained_file,
)


def make_episode() -> Trajectory:
    """Return an episode with replies of two tokens and of one token."""
    made = Trajectory("t")
    made.observe([], [1, 2])
    made.act(Message(role="assistant"), [3, 4], [-0.1, -0.2])
    made.observe([], [5])
    made.act(Message(role="assistant"), [6], [-0.3])
    return made


@pytest.mark.parametrize(
    ("values", "stored"),
    [((0.5, 0.5, 0.5), (0.5,)), ((0.5, 0.5, -1.0), (0.5, -1.0)), ((0.5, 0.25, -1.0), (0.5, 0.25, -1.0))],
)
def test_advantages_are_stored_per_episode_reply_or_token(
    values: tuple[float, float, float], stored: tuple[float, ...]
) -> None:
    first, second, third = values
    tokens = [0.0, 0.0, first, second, 0.0, third]
    assert compress_advantages(make_episode().mask, tokens) == stored
    found = EpisodeTrainingData(number=1, reward=1.0, advantages=stored).token_advantages(make_episode())
    assert found == [None, None, first, second, None, third]


def test_values_are_rounded_to_float32_precision() -> None:
    assert round_values([-12.3456789, 1e-9, math.nan]) == (-12.34568, 1e-9, None)


def test_trained_episodes_read_back_and_resume_drops_later_ones(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", CONFIG)
    made = [EpisodeTrainingData(number=n, reward=0.5, advantages=(0.5, None), logprobs=(-0.5,)) for n in (2, 3)]
    run.save_trained_episodes(1, made)
    assert read_trained_episodes(run.folder, 1) == {2: made[0], 3: made[1]}
    assert read_trained_episodes(run.folder, 2) == {}
    Run.resume(run.folder)
    assert not trained_file(run.folder, 1).exists()
    run.save_trained_episodes(1, made)
    trained_file(run.folder, 1).write_text("{}")
    with pytest.raises(ConfigError, match=r"step_000001\.jsonl"):
        read_trained_episodes(run.folder, 1)


def test_advantages_of_another_episode_are_rejected() -> None:
    with pytest.raises(ConfigError, match=r"\bt: 2\b.*\b3\b"):
        EpisodeTrainingData(number=1, reward=1.0, advantages=(0.5, 0.25), logprobs=()).token_advantages(
            Trajectory("t", tokens=[1, 2, 3, 4], mask=[False, True, True, True], logprobs=[0.0] * 4)
        )
