"""Tests of the stored training data of episodes (advantages, log-probabilities) and of their view in the viewer."""

import math
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from support.tiny_runs import distinct_character_rewards, make_tiny_model, tiny, train_tiny_run
from support.viewer_episodes import request_route
from understudy.algorithms.batch import Batch
from understudy.core.messages import Message
from understudy.core.tasks import Score, Task
from understudy.core.trajectory import Trajectory, read_numbered_trajectories
from understudy.rollouts.group import Group
from understudy.runs.run import Run, episode_file
from understudy.runs.storage.task_store import read_stored_tasks
from understudy.runs.storage.trained_episodes import read_trained_episodes
from understudy.train.phases.rl import collate_groups, compute_advantages
from understudy.viewer.library import RunLibrary

__all__ = ["distinct_character_rewards", "tiny"]
SETTINGS = ("sft.steps=0", "steps=1", "algorithm.overlong.buffer_fraction=0.9", "algorithm.overlong.penalty=0.3")


def rising_advantages(batch: Batch) -> Tensor:
    """An estimator of the user's own, with another advantage for each token."""
    return batch.rewards[:, None] + torch.arange(batch.mask.shape[1])[None]


def score_odd_texts(
    task: Task, state: object, goal: object, gate: object, transcript: Sequence[Message], ended: bool
) -> Score:
    """Return 1 or 0, so that an untrained model succeeds in some episodes of a group."""
    said = "".join(m.content for m in transcript if m.role == "assistant")
    return Score(reward=float(len(said) % 2))


def stored_episodes(run: Run) -> dict[int, Trajectory]:
    return read_numbered_trajectories(episode_file(run.folder, 1))[0]


@pytest.mark.usefixtures("distinct_character_rewards")
@pytest.mark.parametrize("estimator", ["group_mean", "turn", "grpo", "reinforce_pp", f"{__name__}:rising_advantages"])
def test_stored_advantages_match_those_recomputed_from_episodes(tiny: Path, tmp_path: Path, estimator: str) -> None:
    run = train_tiny_run(tmp_path / "run", tiny, *SETTINGS, f"algorithm.advantage_estimator={estimator}")
    trained, episodes = read_trained_episodes(run.folder, 1), stored_episodes(run)
    assert trained
    tasks = read_stored_tasks(run.folder)
    groups: dict[str, list[Trajectory]] = {}
    for number in trained:
        groups.setdefault(episodes[number].task_id, []).append(episodes[number])
    batch = collate_groups([Group(tasks[name], each) for name, each in groups.items()], run.config)
    expected = compute_advantages(batch, run.config).advantages
    assert expected is not None
    for row, found in enumerate(trained.values()):
        episode = episodes[found.number]
        values = [value or 0.0 for value in found.token_advantages(episode)]
        assert values == pytest.approx(expected[row, : len(episode.tokens)].tolist(), rel=1e-6)
        assert found.reward == pytest.approx(float(batch.rewards[row]))


@pytest.mark.usefixtures("distinct_character_rewards")
@pytest.mark.parametrize("extra", [(), ("algorithm.tis_cap=2",), ("algorithm.update_epochs=2",)])
def test_stored_trainer_logprobs_match_the_sampler(tiny: Path, tmp_path: Path, extra: tuple[str, ...]) -> None:
    run = train_tiny_run(tmp_path / "run", tiny, *SETTINGS, *extra)
    episodes = stored_episodes(run)
    for found in read_trained_episodes(run.folder, 1).values():
        episode = episodes[found.number]
        sampled = [value for value, mask in zip(episode.logprobs, episode.mask, strict=True) if mask]
        assert found.optimizer_steps == 0
        assert not found.logprobs or list(found.logprobs) == pytest.approx(sampled, abs=1e-4)
    assert any(found.logprobs for found in read_trained_episodes(run.folder, 1).values())


@pytest.mark.usefixtures("distinct_character_rewards")
@pytest.mark.parametrize("settings", [("algorithm.preset=ppo",), ("algorithm.kl_coef=0.1",)])
def test_token_level_advantages_are_stored_per_token(tiny: Path, tmp_path: Path, settings: tuple[str, ...]) -> None:
    teacher = make_tiny_model(tmp_path / "teacher", seed=7)
    model = ("algorithm.reference.kind=model", f"algorithm.reference.model={teacher}") if "kl" in settings[0] else ()
    run = train_tiny_run(tmp_path / "run", tiny, *SETTINGS, *settings, *model)
    trained, episodes = read_trained_episodes(run.folder, 1), stored_episodes(run)
    assert len({sum(episodes[number].mask) for number in trained}) > 1
    assert all(len(found.advantages) == sum(episodes[number].mask) for number, found in trained.items())


def test_success_indicator_stores_successes_and_says_why_others_were_left_out(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("understudy.envs.domain.score_episode", score_odd_texts)
    run = train_tiny_run(tmp_path / "run", tiny, *SETTINGS, "algorithm.advantage_estimator=success_indicator")
    trained, episodes, library = read_trained_episodes(run.folder, 1), stored_episodes(run), RunLibrary([run.folder])
    won = {number for number, episode in episodes.items() if episode.score and episode.score.reward == 1.0}
    assert trained.keys() == won
    assert 0 < len(won) < len(episodes)
    for number in episodes:
        where = {"key": "run", "step": "1", "number": str(number)}
        shown = request_route(library, "/api/episode/{key}/{step}/{number}", **where)["training"]
        assert set(shown["advantages"]) == ({1.0} if number in won else set())
        assert bool(shown["note"]) == (number not in won)


@pytest.mark.usefixtures("distinct_character_rewards")
def test_stored_optimizer_steps_count_previous_minibatches(tiny: Path, tmp_path: Path) -> None:
    run = train_tiny_run(
        tmp_path / "run", tiny, *SETTINGS, "algorithm.num_minibatches=2", "algorithm.learning_rate=1e-2"
    )
    trained, episodes = read_trained_episodes(run.folder, 1), stored_episodes(run)
    assert {found.optimizer_steps for found in trained.values()} == {0, 1}
    gaps: dict[int, list[float]] = {0: [], 1: []}
    for found in trained.values():
        episode = episodes[found.number]
        sampled = [value for value, mask in zip(episode.logprobs, episode.mask, strict=True) if mask]
        pairs = zip(found.logprobs, sampled, strict=False)
        gaps[found.optimizer_steps] += [abs(own - other) for own, other in pairs if own is not None]
    assert max(gaps[0]) < 1e-4 < max(gaps[1])


@pytest.mark.usefixtures("distinct_character_rewards")
def test_viewer_shows_training_data_or_why_there_is_none(tiny: Path, tmp_path: Path) -> None:
    run = train_tiny_run(tmp_path / "run", tiny, *SETTINGS, "algorithm.advantage_estimator=turn")
    library, trained, episodes = RunLibrary([run.folder]), read_trained_episodes(run.folder, 1), stored_episodes(run)
    number = next(iter(trained))
    where = {"key": "run", "step": "1", "number": str(number)}
    shown = request_route(library, "/api/episode/{key}/{step}/{number}", **where)["training"]
    assert shown["note"] == ""
    assert len(shown["advantages"]) == episodes[number].num_turns
    assert all(math.isfinite(value) for value in shown["advantages"])
    assert shown["reward"] == pytest.approx(trained[number].reward)
    tokens = request_route(library, "/api/episode/{key}/{step}/{number}/tokens", **where)
    assert [value is not None for value in tokens["advantages"]] == tokens["sampled"]
    base = request_route(library, "/api/episode/{key}/{step}/{number}", key="run", step="000000 base", number="1")[
        "training"
    ]
    assert base["note"]
    assert base["advantages"] == []


@pytest.mark.usefixtures("distinct_character_rewards")
def test_viewer_names_the_limit_of_trained_episodes(tiny: Path, tmp_path: Path) -> None:
    """The rewards of the group differ, so equal rewards are not the reason."""
    run = train_tiny_run(tmp_path / "run", tiny, *SETTINGS, "algorithm.max_trained_episodes=2")
    trained, episodes, library = read_trained_episodes(run.folder, 1), stored_episodes(run), RunLibrary([run.folder])
    left = episodes.keys() - trained.keys()
    assert left
    for number in left:
        where = {"key": "run", "step": "1", "number": str(number)}
        note = request_route(library, "/api/episode/{key}/{step}/{number}", **where)["training"]["note"]
        assert "algorithm.max_trained_episodes = 2" in note
