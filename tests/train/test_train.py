"""Tests of training runs with a random model: learning, determinism, resume, KL penalty, faults and evaluations."""

import asyncio
import dataclasses
import functools
import itertools
import json
import math
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import ANY

import pytest
import torch
from safetensors.torch import load_file

import understudy.train.evaluation
import understudy.train.loop
from support.contexts import make_context
from support.groups import make_group
from support.tiny_runs import (
    SMALL,
    USER_FAULTS,
    InterruptAtStep,
    all_metrics,
    distinct_character_rewards,
    equal_values,
    evaluation_episodes,
    evaluations,
    ignore_progress,
    load_checkpoint_files,
    make_episodes,
    run_episodes,
    step_metrics,
    tiny,
    tiny_config,
    train_tiny_run,
)
from toy import make_task
from understudy.algorithms.batch import collate
from understudy.cli import launch
from understudy.core.errors import ConfigError, RolloutError, TaskError
from understudy.core.tasks import Score, Split, Task
from understudy.core.trajectory import Trajectory, read_trajectories
from understudy.engines.interface import Completion, LogprobTolerance
from understudy.engines.local.engine import LocalEngine
from understudy.engines.models import find_model, make_tiny_model
from understudy.evaluation.explain_stored import find_stored_failures
from understudy.evaluation.reports.files import read_report, read_run_report
from understudy.evaluation.runner import prepare_eval, run_eval
from understudy.evaluation.stored_episodes import open_stored_episodes
from understudy.rollouts.group import Group
from understudy.rollouts.rollout import EpisodeLimits
from understudy.runs.config import (
    TrainConfig,
)
from understudy.runs.eval_spec import read_spec
from understudy.runs.run import Run, find_run, list_run_evaluations
from understudy.runs.weights import export_model, resolve_weights
from understudy.train.loop import train
from understudy.train.metrics import advantage_metrics, learning_rate, rollout_metrics
from understudy.train.phases.rl import (
    RLPhase,
    collate_groups,
    compute_advantages,
    has_only_rounding,
    make_minibatches,
)
from understudy.train.preparation import context_warnings
from understudy.train.selection import count_trainable, trainable_groups
from understudy.train.state import TrainingProgress

__all__ = ["distinct_character_rewards", "tiny"]
EPISODES, GROUPS = "rollout/episodes", "rollout/groups"


def test_learning_rate_matches_hand_computed_values() -> None:
    rates = [learning_rate(step, 6, 2.0, 2, min_lr_ratio=0.1) for step in range(1, 7)]
    assert rates == pytest.approx([1.0, 2.0, 1.55, 1.1, 0.65, 0.2])
    assert [learning_rate(step, 3, 2.0, 0, min_lr_ratio=1.0) for step in (1, 2, 3)] == [2.0, 2.0, 2.0]
    assert [learning_rate(step, 2, 1.0, 4, min_lr_ratio=0.1) for step in (1, 2)] == [0.25, 0.5]


def test_rollout_metrics_match_hand_computed_values() -> None:
    groups = [make_group(make_episodes(*rewards)) for rewards in ((0.0, 1.0), (0.5, 0.5), (1.0, None))]
    found = rollout_metrics(groups, "group_mean")
    assert found == {
        "reward": 3 / 5,
        "reward_std": pytest.approx((0.14) ** 0.5),  # squares of -0.6, 0.4, -0.1, -0.1, 0.4: 0.7 / 5
        "reward_min": 0.0,
        "reward_max": 1.0,
        "success_rate": 2 / 5,
        "episodes": 6,
        "groups": 3,
        "zero_variance_groups": 2,
        "tool_exceptions": 0,
        "turns": 1,
        "response_tokens": 2 + 3 + 2 + 3 + 2,
        "episode_tokens": (5 + 12) / 5,
        "sequences": 1,
        "replies/text": 1,
        "replies/malformed": 0,
        "stop/done": 5 / 6,
        "stop/fault": 1 / 6,
        "rollout/fault/user": 1 / 6,
    }
    for advantage, idle in (("turn", 2), ("success_indicator", 1), ("zero", 0)):
        assert rollout_metrics(groups, advantage)["zero_variance_groups"] == idle, "groups without variance"  # type: ignore[arg-type]


def test_success_rate_ignores_the_penalty_of_repaired_replies() -> None:
    episodes = make_episodes(1.0, 0.0)
    episodes[0].penalty = 0.1
    found = rollout_metrics([make_group(episodes)], "group_mean")
    assert (found["success_rate"], found["reward"]) == (0.5, pytest.approx(0.45))


def test_step_whose_episodes_all_failed_has_no_reward() -> None:
    found = rollout_metrics([make_group(make_episodes(None, None))], "group_mean")
    assert found == {
        "episodes": 2,
        "groups": 1,
        "zero_variance_groups": 1,
        "stop/fault": 1,
        "rollout/fault/user": 1,
    }


def test_advantage_metrics_match_hand_computed_values() -> None:
    batch = collate(make_episodes(0.0, 1.0), [0, 0])
    assert advantage_metrics(batch) == {}
    found = advantage_metrics(batch.replace(advantages=torch.tensor([[9.0, -1.0, -1.0, 9.0], [9.0, 1.0, 1.0, 1.0]])))
    assert found == {  # of 2 and 3 sampled tokens
        "advantage_mean": pytest.approx(0.2),
        "advantage_std": pytest.approx(0.96**0.5),
        "advantage_min": -1,
        "advantage_max": 1,
    }


@pytest.mark.parametrize("estimator", ["group_mean", "zero"])
def test_kl_within_rounding_and_no_other_advantage_is_no_training_signal(tiny: Path, estimator: str) -> None:
    settings = tiny_config(tiny, f"algorithm.advantage_estimator={estimator}", "algorithm.kl_coef=0.1")
    tolerance = LogprobTolerance(max_diff=1e-3, mean_diff=1e-4)
    equal = collate(make_episodes(0.5, 0.5), [0, 0])
    rounded = equal.replace(ref_logprobs=equal.logprobs + 1e-5)
    assert has_only_rounding(rounded, settings, tolerance)
    assert not has_only_rounding(equal.replace(ref_logprobs=equal.logprobs + 1e-3), settings, tolerance)
    assert not has_only_rounding(equal, settings, tolerance)
    mixed = collate(make_episodes(0.0, 1.0), [0, 0])
    mixed = mixed.replace(ref_logprobs=mixed.logprobs)
    assert has_only_rounding(mixed, settings, tolerance) == (estimator == "zero")


def test_small_kl_to_a_teacher_is_a_training_signal(tiny: Path) -> None:
    settings = tiny_config(
        tiny,
        "algorithm.advantage_estimator=zero",
        "algorithm.kl_coef=1",
        "algorithm.reference.kind=model",
        f"algorithm.reference.model={tiny}",
    )
    batch = collate(make_episodes(0.5, 0.5), [0, 0])
    near = batch.replace(ref_logprobs=batch.logprobs - 0.05)
    assert not has_only_rounding(near, settings, LogprobTolerance(max_diff=1.0, mean_diff=0.1))


def test_step_of_equal_rewards_near_its_reference_keeps_the_weights(tiny: Path, tmp_path: Path) -> None:
    """Adam would turn a gradient made of rounding into a full step, in a direction that the microbatch decides."""
    for microbatch in (32, 4096):
        run = train_tiny_run(
            tmp_path / str(microbatch),
            tiny,
            "sft.steps=0",
            "steps=1",
            "algorithm.kl_coef=0.1",
            "algorithm.warmup_steps=0",
            f"engine.max_tokens_per_microbatch={microbatch}",
        )
        assert "train/grad_norm" not in step_metrics(run)[-1]
        before, after = load_file(tiny / "model.safetensors"), load_file(run.folder / "model" / "model.safetensors")
        assert all(torch.equal(before[name], after[name]) for name in before)


def test_advantages_and_minibatches_match_hand_computed_values(tiny: Path) -> None:
    batch = collate(make_episodes(0.0, 1.0, 1.0, 0.0), [0, 0, 1, 1])
    settings = tiny_config(
        tiny, "algorithm.advantage_estimator=group_mean", "algorithm.loss_aggregation=seq_mean_token_sum_norm"
    )
    whole = compute_advantages(batch, settings)
    assert whole.advantages is not None
    assert whole.advantages[:, 1].tolist() == [-0.5, 0.5, 0.5, -0.5]
    assert not whole.advantages[~batch.mask].any()
    penalized = compute_advantages(
        batch.replace(ref_logprobs=batch.logprobs - 2.0),
        settings.replace(algorithm=settings.algorithm.replace(kl_coef=0.1)),
    )
    assert penalized.advantages is not None
    assert penalized.advantages[:, 1].tolist() == pytest.approx([-0.7, 0.3, 0.3, -0.7])
    parts = make_minibatches(whole, 2, settings)
    assert [part.group_ids.tolist() for part in parts] == [[0, 1], [0, 1]]
    # Constant normalization: 2 episodes per minibatch, at most 2 turns of 12 tokens each.
    assert [part.advantages[:, 1].tolist() for part in parts] == [  # type: ignore[index]
        pytest.approx([-0.5 / 48, 0.5 / 48]),
        pytest.approx([0.5 / 48, -0.5 / 48]),
    ]
    assert len(make_minibatches(whole, 9, settings)) == 4


@pytest.mark.parametrize("num_minibatches", [1, 2])
@pytest.mark.parametrize("num_varied", [1, 3])
def test_constant_token_weight_does_not_depend_on_groups_without_variance(
    tiny: Path, num_varied: int, num_minibatches: int
) -> None:
    """Dr. GRPO: 3 groups of 4 episodes, of at most 2 turns of 12 tokens each, and one more episode without a score."""
    settings = tiny_config(tiny, "algorithm.loss_aggregation=seq_mean_token_sum_norm", "algorithm.group_size=5")
    rewards = [*[(0.0, 1.0, 0.0, 1.0)] * num_varied, *[(0.0, 0.0, 0.0, 0.0)] * (3 - num_varied)]
    groups = [make_group(make_episodes(*each, *more)) for each, more in zip(rewards, [(None,), (), ()], strict=True)]
    assert count_trainable(groups, settings.algorithm) == 12
    batch = compute_advantages(collate_groups(trainable_groups(groups, settings.algorithm), settings), settings)
    for part in make_minibatches(batch, num_minibatches, settings, num_episodes=12):
        assert part.advantages is not None
        weights = part.advantages.abs()[part.mask]
        assert weights.tolist() == pytest.approx([0.5 * num_minibatches / (12 * 2 * 12)] * len(weights))


def test_groups_of_equal_rewards_are_selected_only_with_kl_or_batch_std(tiny: Path) -> None:
    """A KL penalty and the batch deviation of reinforce_pp use groups of equal rewards; their reward advantage is 0."""
    mixed, equal, lost = (make_group(make_episodes(*each)) for each in ((0.0, 1.0), (0.3, 0.3), (None, None)))

    def select_groups(groups: Sequence[Group], *settings: str) -> list[Group]:
        return trainable_groups(groups, tiny_config(tiny, *settings).algorithm)

    every = [mixed, equal, lost]
    assert select_groups(every, "algorithm.advantage_estimator=turn") == [mixed]
    assert select_groups(every, "algorithm.kl_coef=0.1") == [mixed, equal]
    assert select_groups(every, "algorithm.advantage_estimator=reinforce_pp") == [mixed, equal]
    assert select_groups([equal, lost], "algorithm.advantage_estimator=reinforce_pp") == []
    mostly_lost = make_group(make_episodes(0.0, 0.2, 1.0, 0.1, 0.3, None, 0.5))
    for count, rewards in (
        (2, [0.0, 1.0]),
        (3, [0.0, 1.0, 0.5]),
        (4, [0.0, 1.0, 0.1, 0.5]),
        (6, [0.0, 0.2, 1.0, 0.1, 0.3, 0.5]),
    ):
        (few,) = select_groups([mostly_lost], "algorithm.group_size=7", f"algorithm.max_trained_episodes={count}")
        assert [episode.reward for episode in few.episodes] == rewards
    (won,) = select_groups(
        [make_group(make_episodes(1.0, 0.0, 1.0, 1.0))],
        "algorithm.advantage_estimator=success_indicator",
        "algorithm.max_trained_episodes=1",
    )
    assert [episode.reward for episode in won.episodes] == [1.0]
    rows, numbers, places = (
        [*mixed.episodes, *equal.episodes],
        [0, 0, 1, 1],
        [[-1, 0, 0], [-1, 0, 0, 0], [-1, 1, 1], [-1, 1, 1, 1]],
    )
    for advantage in ("group_mean", "grpo", "rloo", "reinforce_pp", "turn"):
        batch = collate(rows, numbers, anchor_states=places if advantage == "turn" else None)
        found = compute_advantages(batch, tiny_config(tiny, f"algorithm.advantage_estimator={advantage}")).advantages
        assert found is not None
        assert found[0, 1] < 0 < found[1, 1]
        assert not found[2:].any(), advantage
        if advantage == "reinforce_pp":
            assert found[1, 1] == pytest.approx(0.5 / (0.5 / 3) ** 0.5, rel=1e-4), "-0.5, 0.5, 0, 0: variance 0.5 / 3"


@pytest.mark.slow
def test_random_model_learns_from_demonstrations_and_then_from_rewards(tiny: Path, tmp_path: Path) -> None:
    learning = (
        "domain=support.tiny_runs:WATTS",
        "sampling.max_response_tokens=8",
        "save_every=0",
        "eval.trials=20",
        "eval.tasks=6",
    )
    warm = ("sft.steps=4", "sft.batch_size=4", "sft.num_demonstrations=8", "sft.learning_rate=1e-2")
    groups = ("algorithm.groups_per_batch=4", "algorithm.group_size=16", "algorithm.max_resampled_groups=0")
    run = Run.create(
        tmp_path / "run", tiny_config(tiny, *learning, *warm, *groups, "steps=16", "algorithm.learning_rate=2e-3")
    )
    rates = {
        name: found.success_rate for name, found in train(run.config, run, ignore_progress).held_out.results.items()
    }
    assert rates.keys() == {"noop", "gold", "base", "sft", "rl"}
    assert [rates[name].mean for name in ("noop", "gold", "base")] == [0.0, 1.0, 0.0]
    assert 0.2 < rates["sft"].mean < 0.7
    assert rates["rl"].mean > 0.9
    name = "rollout/reward"
    rewards = [line[name] for line in step_metrics(run) if name in line]
    assert sum(rewards[-4:]) / 4 > 0.9 > 0.6 > sum(rewards[:2]) / 2


@pytest.mark.slow
@pytest.mark.usefixtures("distinct_character_rewards")
def test_run_is_deterministic_for_a_seed(tiny: Path, tmp_path: Path) -> None:
    one, other, third = (train_tiny_run(tmp_path / str(i), tiny, f"seed={seed}") for i, seed in enumerate((0, 0, 1)))
    assert step_metrics(one) == step_metrics(other)
    assert equal_values(load_checkpoint_files(one), load_checkpoint_files(other))
    assert run_episodes(one) == run_episodes(other)
    assert evaluations(one) == evaluations(other)
    assert run_episodes(one) != run_episodes(third)
    assert [line["step"] for line in step_metrics(one)] == [1, 2, 3, 4, 5]
    assert sorted(evaluations(one)) == ["000000 base", "000002 sft", "000005 rl"]
    moments = [
        {float(v) for k, v in load_checkpoint_files(one, step).items() if k.startswith("step.")} for step in range(1, 6)
    ]
    assert moments == [{1}, set(), {1}, {2}, {3}], "reinforcement begins with moments of its own"
    lines = step_metrics(one)
    assert lines[1]["train/nll_loss"] < lines[0]["train/nll_loss"]
    assert all(line[EPISODES] == 3 * line[GROUPS] and 2 <= line[GROUPS] <= 3 for line in lines[2:])
    used = 3 + sum(line[GROUPS] for line in lines[2:])
    assert load_checkpoint_files(one)["progress"] == {"bucket_success_rates": ANY, "tasks_used": used}


@pytest.mark.slow
@pytest.mark.usefixtures("distinct_character_rewards")
def test_trained_model_is_exported_in_the_standard_layout(tiny: Path, tmp_path: Path) -> None:
    run = train_tiny_run(tmp_path / "run", tiny)
    folder = find_model(str(run.folder / "model"))
    weights = load_file(folder / "model.safetensors")
    masters = {k.removeprefix("master."): v for k, v in load_checkpoint_files(run).items() if k.startswith("master.")}
    assert masters
    assert all(torch.equal(weights[name], master) for name, master in masters.items())
    again = train_tiny_run(tmp_path / "again", folder, "sft.steps=0", "steps=0")
    before, after = (evaluations(r)[name] for r, name in ((run, "000005 rl"), (again, "000000 base")))
    assert before == after
    adapted = train_tiny_run(tmp_path / "lora", tiny, "engine.finetune=lora", "steps=1")
    assert {"adapter_config.json", "adapter_model.safetensors", "tokenizer.json"} <= {
        path.name for path in (adapted.folder / "model").iterdir()
    }


@pytest.fixture(scope="module")
def train_whole(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Run]:
    """Return a function that returns a whole run with the given settings. Equal settings are trained once."""

    @functools.cache
    def train_once(*settings: str) -> Run:
        return train_tiny_run(tmp_path_factory.mktemp("whole") / "run", tiny, *settings)

    return train_once


@pytest.mark.slow
@pytest.mark.usefixtures("distinct_character_rewards")
@pytest.mark.parametrize(
    ("phase", "done", "after"),
    [
        ("train", 1, 1),
        ("train", 4, 4),
        ("evaluate base", 1, 0),
        ("evaluate sft", 1, 2),
        ("evaluate sft", 2, 2),
        ("evaluate step 4", 1, 4),
        ("evaluate rl", 1, 5),
    ],
)
def test_interrupted_run_resumes_to_the_same_result(
    tiny: Path,
    tmp_path: Path,
    train_whole: Callable[..., Run],
    monkeypatch: pytest.MonkeyPatch,
    phase: str,
    done: int,
    after: int,
) -> None:
    monkeypatch.setattr(
        "understudy.train.evaluation.POLL_SECONDS", 0.0 if done == 1 else 60.0
    )  # at 60 s an interrupt is noticed only after the second, last episode
    settings = ("save_every=0", "eval.every=2", "algorithm.kl_coef=0.05", "engine.finetune=lora")
    whole = train_whole(*settings)
    assert "000004 step 4" in evaluations(whole)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt, match=rf"\bstep {after}\b.*understudy train --resume"):
        train_tiny_run(tmp_path / "parts", tiny, *settings, report=InterruptAtStep(phase, done))
    assert signal.getsignal(signal.SIGINT) is before
    resumed = Run.resume(tmp_path / "parts")
    assert resumed.step == after
    train(resumed.config, resumed, ignore_progress)
    assert step_metrics(resumed) == step_metrics(whole)
    assert equal_values(load_checkpoint_files(resumed), load_checkpoint_files(whole))
    assert run_episodes(resumed) == run_episodes(whole)
    assert evaluations(resumed) == evaluations(whole)
    assert evaluation_episodes(resumed) == evaluation_episodes(whole)


class Killed(BaseException):
    """Stands for the end of the process."""


@pytest.mark.slow
@pytest.mark.usefixtures("distinct_character_rewards")
@pytest.mark.parametrize(
    ("place", "before"),
    [
        (understudy.train.loop, "start_checkpoint"),
        (understudy.train.loop, "evaluate_step"),
        (understudy.train.evaluation, "write_report"),
        (understudy.train.loop, "log_eval"),
    ],
)
def test_killed_run_repeats_at_most_one_step_or_evaluation(
    tiny: Path,
    tmp_path: Path,
    train_whole: Callable[..., Run],
    monkeypatch: pytest.MonkeyPatch,
    place: ModuleType,
    before: str,
) -> None:
    """Killed in step 3 before its checkpoint, its evaluation, the report, or the evaluation's metrics."""
    settings = ("eval.every=1", "steps=2")
    whole = train_whole(*settings)
    call, update, updated_versions = getattr(place, before), LocalEngine.update, list[int]()

    def kill_in_step_3(*args: Any) -> Any:
        if 3 in args or (before == "write_report" and args[0].name.startswith("000003")):
            raise Killed
        return call(*args)

    async def counting_update(self: LocalEngine, *args: Any) -> dict[str, float]:
        updated_versions.append(self.weights_version)
        return await update(self, *args)

    monkeypatch.setattr(LocalEngine, "update", counting_update)
    with monkeypatch.context() as patch:
        patch.setattr(place, before, kill_in_step_3)
        with pytest.raises(Killed):
            train_tiny_run(tmp_path / "run", tiny, *settings)
    resumed = Run.resume(tmp_path / "run")
    assert resumed.step == (2 if before == "start_checkpoint" else 3)
    evaluated = {path.name: path.stat().st_mtime_ns for path in (resumed.folder / "evaluations").iterdir()}
    train(resumed.config, resumed, ignore_progress)
    assert len(updated_versions) == 4 + (before == "start_checkpoint")
    assert ("000003 step 3" in evaluated) == (before == "log_eval")
    assert (
        evaluated.items()
        <= {path.name: path.stat().st_mtime_ns for path in (resumed.folder / "evaluations").iterdir()}.items()
    )
    assert all_metrics(resumed) == all_metrics(whole)
    records = [json.loads(line) for line in (resumed.folder / "metrics.jsonl").read_text().splitlines()]
    order = [(record["step"], record["kind"]) for record in records]
    assert order == [(0, "eval"), (1, "train"), *((step, kind) for step in (2, 3, 4) for kind in ("train", "eval"))]


@pytest.mark.slow
@pytest.mark.usefixtures("distinct_character_rewards")
def test_run_extended_to_more_steps_matches_one_long_run(tiny: Path, tmp_path: Path) -> None:
    whole = train_tiny_run(tmp_path / "whole", tiny, "steps=4", "eval.every=2")
    train_tiny_run(tmp_path / "parts", tiny, "steps=2", "eval.every=2")
    longer = launch.open_run(["steps=4"], None, tmp_path / "parts")
    result = train(longer.config, longer, ignore_progress)
    assert step_metrics(longer) == step_metrics(whole)
    assert equal_values(load_checkpoint_files(longer), load_checkpoint_files(whole))
    assert run_episodes(longer) == run_episodes(whole)
    assert evaluations(longer) == evaluations(whole)
    names = ["noop", "gold", "base", "sft", "step 4", "rl"]
    assert [row.name for row in result.held_out.rows] == names


@pytest.mark.usefixtures("distinct_character_rewards")
def test_new_run_starts_from_an_exported_model(tiny: Path, tmp_path: Path) -> None:
    """As the error for a changed config suggests: `export`, then `train RUN KEY=VALUE model=MODEL sft.steps=0`."""
    run = train_tiny_run(tmp_path / "run", tiny, "steps=1", "sft.steps=0")
    model = tmp_path / "model"
    export_model(resolve_weights(str(run.folder)), model)
    launch.run_training(
        [str(run.folder), "algorithm.learning_rate=1e-4", f"model={model}", "sft.steps=0"], out=tmp_path / "new"
    )
    ((_, trained),) = [(n, e) for n, e in evaluations(run).items() if n.endswith(" rl")]
    base = evaluations(Run.resume(tmp_path / "new"))["000000 base"]
    assert base.task_results == trained.task_results


@pytest.mark.usefixtures("distinct_character_rewards")
def test_train_reports_each_episode_and_the_result_of_each_evaluation(tiny: Path, tmp_path: Path) -> None:
    run, ended, lines = Run.create(tmp_path / "run", tiny_config(tiny, "steps=1")), list[Trajectory](), list[str]()
    starts = list[tuple[str, int]]()

    def report(activity: str, done: int, total: int, metrics: Mapping[str, float]) -> None:
        if not total:
            lines.append(activity)
        elif not done and activity.startswith("evaluate"):
            starts.append((activity, total))

    train(run.config, run, report, on_episode=ended.append)
    played = sum(line.get("rollout/episodes", 0) for line in step_metrics(run))
    assert played >= 6
    assert len(ended) == played + 3 * 2, "those of the step and of three evaluations on two tasks"
    assert starts == [("evaluate base", 2), ("evaluate sft", 2), ("evaluate rl", 2)]
    results = [line for line in lines if "success" in line and "of 2 tasks" in line]
    assert [line.partition(":")[0] for line in results] == ["base", "sft", "rl"]


def test_interrupt_ends_an_evaluation_at_once(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def interrupt_and_sleep(*_: object, **named: object) -> None:
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
        await asyncio.sleep(3600)

    monkeypatch.setattr("understudy.evaluation.runner.play_episodes", interrupt_and_sleep)
    with pytest.raises(KeyboardInterrupt, match=r"\bstep 0\b"):
        train_tiny_run(tmp_path / "run", tiny, "sft.steps=0")
    assert [path.name for path in (tmp_path / "run" / "evaluations").iterdir()] == ["000000 base"]
    assert not list((Run.resume(tmp_path / "run").folder / "evaluations").iterdir()), "it is repeated"


@pytest.mark.slow
@pytest.mark.usefixtures("distinct_character_rewards")
def test_kl_penalty_changes_the_update_and_stores_the_reference(tiny: Path, tmp_path: Path) -> None:
    free, bound = (train_tiny_run(tmp_path / k, tiny, f"algorithm.kl_coef={k}") for k in ("0.0", "0.5"))
    weights = [load_checkpoint_files(run) for run in (free, bound)]
    moved = [
        sum(
            float((w[k] - v).square().sum())
            for k, v in load_checkpoint_files(run, 2).items()
            if k.startswith("master.")
        )
        for run, w in zip((free, bound), weights, strict=True)
    ]
    assert moved[0] > 0
    assert not equal_values(
        {k: v for k, v in weights[0].items() if k.startswith("master.")},
        {k: v for k, v in weights[1].items() if k.startswith("master.")},
    )
    reference = {k.removeprefix("reference."): v for k, v in weights[1].items() if k.startswith("reference.")}
    assert reference, "the reference is in the checkpoint"
    warm = load_checkpoint_files(bound, 2)
    assert all(torch.equal(v, warm[f"master.{k}"]) for k, v in reference.items()), "and it is the warm start"
    assert not any(k.startswith("reference.") for k in weights[0])


@pytest.mark.usefixtures("distinct_character_rewards")
def test_tis_corrects_for_a_biased_sampler(tiny: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """Without the cap the loss has a ratio; with it the ratio is a weight and the update is on policy."""
    original_sample = LocalEngine.sample

    async def biased_sample(self: LocalEngine, *args: Any, **kwargs: Any) -> Completion:
        completion = await original_sample(self, *args, **kwargs)
        return dataclasses.replace(completion, logprobs=[x - 1.0 for x in completion.logprobs])

    monkeypatch.setattr(LocalEngine, "sample", biased_sample)
    trusted, corrected = (
        train_tiny_run(tmp_path / cap, tiny, f"algorithm.tis_cap={cap}", "steps=1", "sft.steps=0", "certify.every=0")
        for cap in ("0", "2")
    )
    (first,), (second,) = step_metrics(trusted), step_metrics(corrected)
    assert first["train/ratio"] == pytest.approx(math.e, rel=1e-3)
    assert second["train/ratio"] == pytest.approx(1.0, abs=1e-5)
    assert second["train/tis_ratio"] == pytest.approx(math.e, rel=1e-3), "and it is said how far they were apart"
    assert second["train/tis_ratio_mse"] == pytest.approx((math.e - 1) ** 2, rel=1e-2)
    assert (second["train/tis_clip_fraction"], second["health/ratio"]) == (1.0, 1.0)
    assert second["train/loss"] != pytest.approx(first["train/loss"])


def test_groups_of_equal_rewards_give_no_update(tiny: Path, tmp_path: Path) -> None:
    """A random model never switches the lamp, so all rewards are 0."""
    run = train_tiny_run(tmp_path / "run", tiny, "sft.steps=0", "steps=2")
    lines = step_metrics(run)
    assert [line["rollout/zero_variance_groups"] for line in lines] == [3, 3]
    assert [line[GROUPS] for line in lines] == [3, 3]
    assert [line["rollout/reward"] for line in lines] == [0.0, 0.0]
    assert all("train/grad_norm" not in line for line in lines)
    before, after = load_checkpoint_files(run, 1), load_checkpoint_files(run, 2)
    assert equal_values(
        {k: v for k, v in before.items() if k != "progress"}, {k: v for k, v in after.items() if k != "progress"}
    )
    assert (before["progress"]["tasks_used"], after["progress"]["tasks_used"]) == (3, 6)
    assert sorted(evaluations(run)) == ["000000 base", "000002 rl"]


@pytest.mark.parametrize("advantage", ["group_mean", "turn"])
def test_teacher_updates_the_model_without_reward_variance(tiny: Path, tmp_path: Path, advantage: str) -> None:
    """The KL penalty applies to every episode, also without reward variance."""
    teacher = make_tiny_model(tmp_path / "teacher", seed=7)
    reference = ("algorithm.kl_coef=1", "algorithm.reference.kind=model", f"algorithm.reference.model={teacher}")
    lines = step_metrics(
        train_tiny_run(
            tmp_path / "run", tiny, "sft.steps=0", "steps=2", f"algorithm.advantage_estimator={advantage}", *reference
        )
    )
    assert [line["step"] for line in lines] == [1, 2]
    assert all(line["rollout/zero_variance_groups"] == line[GROUPS] for line in lines)
    assert all(line["train/kl"] > 0 < line["train/grad_norm"] for line in lines)


@pytest.mark.usefixtures("distinct_character_rewards")
@pytest.mark.parametrize(("lost", "stops"), [(1, False), (3, True)])
def test_run_with_too_many_faults_stops(tiny: Path, tmp_path: Path, lost: int, stops: bool) -> None:
    """Of six episodes, `lost` lose their user; a third may fail."""
    settings = (
        "sft.steps=0",
        "steps=1",
        "limits.max_retries=0",
        "max_fault_rate=0.34",
        "algorithm.max_resampled_groups=0",
    )

    def report(phase: str, done: int, of: int, metrics: Mapping[str, float]) -> None:
        if (phase, done) == ("evaluate base", 2):
            USER_FAULTS.extend([True] * lost)

    USER_FAULTS.clear()
    if not stops:
        run = train_tiny_run(tmp_path / "run", tiny, *settings, report=report)
        (line,) = step_metrics(run)
        assert (line[EPISODES], line["rollout/stop/fault"], line["rollout/fault/user"]) == (6, 1 / 6, 1 / 6)
        assert line["rollout/reward"] > 0.0, "and it is no reward of 0"
        return
    with pytest.raises(RolloutError, match=r"3 of 6\b.*max_fault_rate = 0\.34\b.*user cannot be reached"):
        train_tiny_run(tmp_path / "run", tiny, *settings, report=report)
    assert len(run_episodes(Run(tmp_path / "run", tiny_config(tiny)))) == 6, "they can be looked at"


def test_demonstration_with_reward_below_1_is_rejected(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("understudy.envs.domain.score_episode", lambda *_: Score(reward=0.5))
    message = r"\btrain/0/one/easy/0\b.*\b0\.5\b.*"
    with pytest.raises(TaskError, match=rf"{message}limits\.max_turns = \d+\b.*set limits\.max_turns=\d+$"):
        train_tiny_run(tmp_path / "cut", tiny)
    with pytest.raises(TaskError, match=rf"{message}\b100\b.*set limits\.max_episode_tokens=\d+$"):
        train_tiny_run(tmp_path / "short", tiny, "limits.max_turns=4", "limits.max_episode_tokens=100")
    with pytest.raises(TaskError, match=rf"{message}understudy check"):
        train_tiny_run(tmp_path / "whole", tiny, "limits.max_turns=4")
    assert not list(tmp_path.glob("*/evaluations/*")), "nothing else is played before"


def test_limit_too_small_for_demonstrations_leaves_no_folder(tiny: Path, tmp_path: Path) -> None:
    settings = [f"model={tiny}", *SMALL]
    with pytest.raises(TaskError, match=r"set limits\.max_episode_tokens="):
        launch.run_training([*settings, "limits.max_episode_tokens=10"], out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("distinct_character_rewards")
def test_resumed_run_continues_its_curriculum(tiny: Path, tmp_path: Path) -> None:
    settings = (
        "curriculum.easy_first=true",
        "curriculum.by_success_rate=true",
        "curriculum.min_keep_probability=0.3",
        "curriculum.ema_decay=0.5",
    )
    whole = train_tiny_run(tmp_path / "whole", tiny, *settings)
    assert sum(line["rollout/skipped_tasks"] for line in step_metrics(whole)[2:]) > 0
    assert load_checkpoint_files(whole)["progress"]["bucket_success_rates"]
    played = [episode.difficulty for step in (3, 4, 5) for episode in read_trajectories(episode_path(whole, step))[0]]
    assert played[0] == "easy"
    assert len(set(played)) > 1
    with pytest.raises(KeyboardInterrupt):
        train_tiny_run(tmp_path / "parts", tiny, *settings, report=InterruptAtStep("train", 4))
    resumed = Run.resume(tmp_path / "parts")
    train(resumed.config, resumed, ignore_progress)
    assert run_episodes(resumed) == run_episodes(whole)
    assert load_checkpoint_files(resumed)["progress"] == load_checkpoint_files(whole)["progress"]


def test_episode_limit_beyond_the_context_gives_a_warning() -> None:
    config = TrainConfig(limits=EpisodeLimits(max_episode_tokens=9000))
    assert context_warnings(config, 9000) == []
    (line,) = context_warnings(config, 8192)
    assert re.match(r"limits\.max_episode_tokens = 9000\b.*\b8192\b", line)


def test_each_task_is_generated_once_across_steps(tmp_path: Path) -> None:
    made = []

    class Endless:
        def stream(self, split: Split, seed: int) -> Iterator[Task]:
            for index in itertools.count():
                made.append(index)
                yield make_task(str(index), split, "one", "easy", ["L7"])

    progress = TrainingProgress()
    phase = RLPhase(make_context(tmp_path / "run", TrainConfig(), domain=Endless()), progress)
    found = []
    for _ in range(4):
        tasks = phase.make_task_sampler(0.0)
        found += [next(tasks).id for _ in range(3)]
        progress.tasks_used = tasks.num_drawn
    assert (found, made) == ([str(index) for index in range(12)], list(range(12)))
    progress.tasks_used = 5
    assert next(phase.make_task_sampler(0.0)).id == "5", "where another phase or a checkpoint has set it"


def test_ood_domains_have_their_own_result_table(tiny: Path, tmp_path: Path) -> None:
    others = ("eval.ood_domains=retail,telecom", "eval.ood_tasks=2", "ood_slice.domain_policy=brief")
    run = Run.create(
        tmp_path / "run",
        tiny_config(tiny, "domain=support.tiny_runs:WATTS", "sft.steps=1", "steps=0", *others, *OOD_SLICE),
    )
    result = train(run.config, run, ignore_progress)
    assert [*result.others] == ["ood"]
    names = ["noop", "gold", "base", "sft"]
    assert [row.name for row in result.held_out.rows] == [row.name for row in result.others["ood"].rows] == names
    noop, gold, *_ = (row.result for row in result.others["ood"].rows)
    assert [(r.domain, r.family) for r in gold.task_results] == [("retail", "cancel")] * 2 + [
        ("telecom", "suspend")
    ] * 2
    assert (noop.success_rate.mean, gold.success_rate.mean) == (0.0, 1.0)
    stages = ["000000 base", "000000 base ood", "000001 sft", "000001 sft ood"]
    assert [each.name for each in list_run_evaluations(run.folder)] == stages
    for stage, row in zip(stages[1::2], result.others["ood"].rows[2:], strict=True):
        stored = open_stored_episodes(run.folder, stage)
        earned = [reward for result in row.result.task_results for reward in result.rewards]
        rewards = {number: episode.reward for number, episode in stored.episodes.items()}
        assert sorted(rewards.values()) == sorted(reward for reward in earned if reward is not None)
        failures = find_stored_failures(stored)
        assert sorted(failures) == sorted(number for number, reward in rewards.items() if reward != 1.0)
        assert {failure.domain for failure in failures.values()} <= {"retail", "telecom"}
        report = read_report(run.folder / "evaluations" / stage)
        assert {(each.task, each.seed) for each in report.failures} == {(f.task, f.seed) for f in failures.values()}
        assert {task.id for task in stored.tasks.values()} == {each.task for each in row.result.task_results}


def test_evaluation_of_a_run_has_the_standard_layout(tiny: Path, tmp_path: Path) -> None:
    run = train_tiny_run(tmp_path / "run", tiny, "domain=support.tiny_runs:WATTS", "sft.steps=1", "steps=0")
    folder = run.folder / "evaluations" / "000001 sft"
    assert sorted(path.name for path in folder.iterdir()) == [
        "episodes.jsonl",
        "report.json",
        "report.md",
        "spec.json",
        "tasks.jsonl",
    ]
    assert find_run(folder) == run.folder
    report, spec = read_report(folder), read_spec(folder)
    assert [row.name for row in report.rows] == ["noop", "gold", "step 1"]
    assert spec.checkpoint == str((run.folder / "checkpoints" / "step_000001").resolve())
    again = run_eval(spec, prepare_eval(spec, None, Decimal(0), 64))
    assert asyncio.run(again).rows == report.rows
    (folder / "report.json").unlink()
    with pytest.raises(ConfigError, match=r"understudy train --resume"):
        read_report(folder)


def test_base_evaluation_can_have_fewer_tasks(tiny: Path, tmp_path: Path) -> None:
    settings = ["domain=support.tiny_runs:WATTS", "steps=0", "eval.tasks=3", "eval.base_tasks=1"]
    run = train_tiny_run(tmp_path / "run", tiny, *settings, "sft.steps=1")
    base, sft = read_run_report(run.folder).held_out.agent_rows
    assert [result.task for result in base.result.task_results] == [sft.result.task_results[0].task]
    assert len(sft.result.task_results) == 3
    assert read_spec(run.folder / "evaluations" / "000000 base").config.eval.tasks == 1
    unprepared = train_tiny_run(tmp_path / "rl", tiny, *settings, "sft.steps=0", "steps=1")
    tasks = [len(row.result.task_results) for row in read_run_report(unprepared.folder).held_out.agent_rows]
    assert tasks == [3, 3], "the gain of RL is measured over the base model"


def test_training_domain_is_rejected_as_an_ood_domain(tiny: Path, tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", tiny_config(tiny, "eval.ood_domains=retail,toy:DOMAIN"))
    with pytest.raises(ConfigError, match=r"eval\.ood_domains: .*\btoy\b"):
        train(run.config, run, ignore_progress)


OOD_SLICE = (
    "ood_slice.families=retail/cancel,telecom/suspend",
    "ood_slice.difficulties=easy",
    "ood_slice.tools=find_user,get_order,cancel_order,find_customer,get_line,suspend_line",
)


def episode_path(run: Run, step: int) -> Path:
    return run.folder / "trajectories" / f"step_{step:06}.jsonl"
