"""Tests of the algorithm presets, training with each of them, the critic, update epochs and the overlong penalty."""

import dataclasses
import math
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from support.groups import make_group
from support.paths import ROOT
from support.tiny_runs import (
    InterruptAtStep,
    equal_values,
    ignore_progress,
    load_checkpoint_files,
    make_episodes,
    score_distinct_characters,
    step_metrics,
    tiny_config,
    train_tiny_run,
)
from understudy.algorithms import losses
from understudy.algorithms.batch import Batch, collate
from understudy.algorithms.config import CriticConfig, LossConfig
from understudy.algorithms.presets import algorithm_preset_text, algorithm_presets, load_algorithm_preset
from understudy.core.errors import ConfigError
from understudy.core.settings import dump_toml, merge_nested
from understudy.engines.interface import Completion
from understudy.engines.local.engine import LocalEngine
from understudy.engines.models import make_tiny_model
from understudy.runs.agents import open_model
from understudy.runs.config import AlgorithmConfig, TrainConfig, load_config, parse_config
from understudy.runs.presets import preset_names
from understudy.runs.run import Run
from understudy.train.loop import train
from understudy.train.phases.rl import collate_groups, compute_advantages, make_minibatches
from understudy.train.selection import trainable_groups

DOCS = ROOT / "docs" / "algorithms.md"
TOY = (
    "domain=support.tiny_runs:WATTS",
    "sampling.max_response_tokens=8",
    "limits.max_turns=1",
    "save_every=0",
    "eval.tasks=6",
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def varied_rewards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the reward by one that differs between the episodes of an untrained model."""
    monkeypatch.setattr("understudy.envs.domain.score_episode", score_distinct_characters)


def test_presets_set_the_same_keys_and_are_documented() -> None:
    """With equal keys, a preset leaves no value of a preset chosen before it. Only PPO sets keys of the critic."""

    def dotted_keys(values: Mapping[str, Any], path: str = "") -> set[str]:
        found = (dotted_keys(v, f"{path}{k}.") if isinstance(v, dict) else {path + k} for k, v in values.items())
        return set().union(*found)

    assert algorithm_presets() == ["cispo", "dapo", "dr_grpo", "grpo", "gspo", "ppo", "reinforce_pp", "rft", "rloo"]
    sets = {
        name: {key for key in dotted_keys(load_algorithm_preset(name)) if not key.startswith("critic.")}
        for name in algorithm_presets()
    }
    assert len({frozenset(found) for found in sets.values()}) == 1
    assert {name for name in algorithm_presets() if "critic" in load_algorithm_preset(name)} == {"ppo"}
    page = DOCS.read_text(encoding="utf-8")
    for name in algorithm_presets():
        assert algorithm_preset_text(name).startswith("# ")
        assert f"`{name}`" in page


@pytest.mark.parametrize("name", algorithm_presets())
def test_algorithm_preset_combines_with_any_config_preset(name: str) -> None:
    for preset in preset_names():
        chosen = load_config(preset, [f"algorithm.preset={name}"])
        assert merge_nested(chosen.algorithm.model_dump(), load_algorithm_preset(name)) == chosen.algorithm.model_dump()
        assert parse_config(dump_toml(chosen)) == chosen
        plain = load_config(preset)
        assert chosen.replace(algorithm=plain.algorithm) == plain, "nothing but the algorithm"


def test_explicit_keys_override_the_algorithm_preset() -> None:
    file = "[algorithm]\npreset = 'dapo'\nmax_resampled_groups = 1\n[algorithm.loss]\nclip_low = 0.1"
    written = parse_config(file).algorithm
    assert (written.advantage_estimator, written.max_resampled_groups, written.loss) == (
        "grpo",
        1,
        LossConfig(clip_low=0.1, clip_high=0.28),
    )
    given = parse_config(file, ["algorithm.loss.clip_high=0.3", "algorithm.preset=gspo"]).algorithm
    assert (given.preset, given.max_resampled_groups) == ("gspo", 0), "chosen later than the file was written"
    assert given.loss == LossConfig(kind="gspo", clip_low=3e-4, clip_high=0.3)
    assert parse_config(file, ["algorithm.preset="]).algorithm.advantage_estimator == "group_mean"
    assert AlgorithmConfig(preset="ppo", critic=CriticConfig(gamma=0.9)).critic.gamma == 0.9
    assert AlgorithmConfig(preset="ppo").uses_critic


def test_unknown_algorithm_preset_error_suggests_the_nearest() -> None:
    for text, overrides in (("[algorithm]\npreset = 'drgrpo'", ()), ("", ("algorithm.preset=drgrpo",))):
        with pytest.raises(ConfigError, match=r"algorithm\.preset: .*'drgrpo'.*'dr_grpo'"):
            parse_config(text, overrides)


@pytest.fixture(scope="module")
def sft_model(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that succeeds in about half of the episodes, after four steps of SFT."""
    sft = ("sft.steps=4", "sft.batch_size=4", "sft.num_demonstrations=8", "sft.learning_rate=1e-2", "steps=0")
    return train_tiny_run(tmp_path_factory.mktemp("warm") / "run", tiny, *TOY, *sft).folder / "model"


@pytest.mark.slow
@pytest.mark.parametrize("given", [*(f"preset={name}" for name in algorithm_presets()), "advantage_estimator=turn"])
def test_algorithm_learns_and_its_first_minibatch_is_on_policy(
    sft_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    update, firsts = LocalEngine.update, list[dict[str, float]]()

    async def recording_update(
        self: LocalEngine, steps: Sequence[Batch], loss: LossConfig, rate: float, *more: Any
    ) -> dict[str, float]:
        now, first = (await self.compute_logprobs(steps[0])).logprobs, steps[0]
        assert first.advantages is not None
        _, found = losses.compute_loss(loss, now, first.logprobs, first.advantages, first.mask)
        firsts.append({key: float(value / first.mask.sum()) for key, value in found.items()})
        return await update(self, steps, loss, rate, *more)

    monkeypatch.setattr(LocalEngine, "update", recording_update)
    chosen = load_config("retail_easy", [f"algorithm.{given}"]).algorithm
    rate = (
        3e-3 if chosen.update_epochs * chosen.num_minibatches == 1 else 1.5e-3
    )  # several updates move the weights further
    learning = ("sft.steps=0", "steps=16", f"algorithm.learning_rate={rate}", f"algorithm.{given}")
    groups = ("algorithm.groups_per_batch=2", "algorithm.group_size=20", "algorithm.max_resampled_groups=2")
    run = Run.create(
        tmp_path / "run", tiny_config(sft_model, *TOY, *learning, *groups, "eval.trials=20", "certify.every=0")
    )
    rates = {
        stage: found.success_rate.mean
        for stage, found in train(run.config, run, ignore_progress).held_out.results.items()
    }
    assert 0.2 < rates["base"] < 0.7
    assert rates["rl"] > 0.85
    assert len(firsts) > 6, "all but the steps whose groups teach nothing"
    for first in firsts if chosen.loss.kind != "nll" else ():  # the NLL loss has no ratio
        assert first["ratio"] == pytest.approx(1.0, abs=1e-5)
        assert first["clip_fraction"] == 0.0


@pytest.mark.usefixtures("varied_rewards")
def test_gspo_clips_nothing_under_sampler_noise(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clip range of GSPO is a hundredth of the bfloat16 gap between sampler and trainer."""
    original_sample, noise = LocalEngine.sample, random.Random(0)

    async def sample_with_noise(self: LocalEngine, *args: Any, **kwargs: Any) -> Completion:
        completion = await original_sample(self, *args, **kwargs)
        return dataclasses.replace(completion, logprobs=[x + noise.gauss(0.0, 0.05) for x in completion.logprobs])

    monkeypatch.setattr(LocalEngine, "sample", sample_with_noise)
    settings = ("sft.steps=0", "steps=1", "certify.every=0", "algorithm.preset=gspo", "algorithm.num_minibatches=1")
    trusted, own = (
        step_metrics(train_tiny_run(tmp_path / name, tiny, *settings, *beside))[0]
        for name, beside in (("trusted", ("algorithm.tis_cap=0",)), ("own", ()))
    )
    assert trusted["train/clip_fraction"] > 0.2
    assert own["train/clip_fraction"] == 0.0
    assert 0.03 < own["train/tis_ratio_mse"] ** 0.5 < 0.08


@pytest.mark.usefixtures("varied_rewards")
def test_learning_rate_decays_to_min_lr_ratio_at_the_last_step(tiny: Path, tmp_path: Path) -> None:
    settings = ("sft.steps=0", "steps=3", "certify.every=0", "algorithm.warmup_steps=1", "algorithm.min_lr_ratio=0.1")
    lines = step_metrics(train_tiny_run(tmp_path / "run", tiny, *settings, "algorithm.learning_rate=1e-3"))
    assert [line["train/learning_rate"] for line in lines[-3:]] == pytest.approx([1e-3, 5.5e-4, 1e-4])


PPO = ("algorithm.preset=ppo", "algorithm.update_epochs=2", "sft.steps=1")


@pytest.mark.slow
@pytest.mark.usefixtures("varied_rewards")
def test_run_with_critic_resumes_to_the_same_weights(tiny: Path, tmp_path: Path) -> None:
    """The run includes a critic warm-up, which trains the value head and not the policy."""
    settings = (
        *PPO,
        "algorithm.critic.warmup_steps=1",
        "algorithm.critic.action_level=turn",
        "steps=3",
        "algorithm.warmup_steps=2",
    )
    whole = train_tiny_run(tmp_path / "whole", tiny, *settings)
    lines = step_metrics(whole)[1:]
    assert [line["train/learning_rate"] for line in lines] == pytest.approx([0.0, 5e-4, 1e-3])
    assert ["train/loss" in line for line in lines] == [False, True, True]
    assert all({"train/value_mse", "train/value_loss", "train/explained_variance"} <= line.keys() for line in lines)
    assert lines[-1]["train/value_mse"] < lines[0]["train/value_mse"]
    assert all(line["rollout/groups"] == 2 for line in lines), "every group teaches, and none is replaced"
    start, held, moved = (load_checkpoint_files(whole, step) for step in (1, 2, 3))

    def policy(tensors: Mapping[str, Any]) -> dict[str, Any]:
        return {name: x for name, x in tensors.items() if name.startswith("master.")}

    assert equal_values(policy(held), policy(start))
    assert not equal_values(policy(moved), policy(held))
    assert held["critic.master.weight"].any()
    assert not torch.equal(moved["critic.master.weight"], held["critic.master.weight"])

    with pytest.raises(KeyboardInterrupt, match=r"\bstep 3\b"):
        train_tiny_run(tmp_path / "parts", tiny, *settings, report=InterruptAtStep("train", 3))
    resumed = Run.resume(tmp_path / "parts")
    train(resumed.config, resumed, ignore_progress)
    assert step_metrics(resumed) == step_metrics(whole)
    assert equal_values(load_checkpoint_files(resumed), load_checkpoint_files(whole))


@pytest.mark.usefixtures("varied_rewards")
def test_policy_trained_with_critic_is_exported_without_it(tiny: Path, tmp_path: Path) -> None:
    run = train_tiny_run(tmp_path / "run", tiny, *PPO, "steps=1", "algorithm.group_size=1")
    assert step_metrics(run)[-1]["rollout/episodes"] == 2, "groups of one"
    engine, _ = open_model(run.config, run.last_checkpoint)
    engine.export(tmp_path / "model")
    trained, exported = (
        load_file(folder / "model.safetensors") for folder in (run.folder / "model", tmp_path / "model")
    )
    assert equal_values(trained, exported)


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        (PPO, r"algorithm\.advantage_estimator = 'gae'.*SimpleNamespace"),
        (("algorithm.kl_coef=0.1",), r"SimpleNamespace.*algorithm\.kl_coef"),
    ],
)
def test_run_is_rejected_when_engine_lacks_critic_or_reference(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: tuple[str, ...], key: str
) -> None:
    monkeypatch.setattr("understudy.train.loop.open_engine", lambda *_, **__: SimpleNamespace(close=lambda: None))
    with pytest.raises(ConfigError, match=key):
        train_tiny_run(tmp_path / "run", tiny, *settings, "sft.steps=0")
    assert not list((tmp_path / "run" / "evaluations").iterdir())


def batch_with_values(*settings: str) -> tuple[Batch, TrainConfig]:
    """Return a batch and its config: two episodes of two tokens with values 1/4 and 1/2; the second earns 1."""
    chosen = parse_config(
        "", ["algorithm.advantage_estimator=gae", "algorithm.critic.whiten_advantages=false", *settings]
    )
    batch = collate(make_episodes(0.0, 1.0)).select([0, 1])
    mask = batch.mask & (torch.arange(batch.mask.shape[1]) < 3)
    values = torch.tensor([[0.0, 0.25, 0.5, 0.0]] * 2)
    return dataclasses.replace(batch, mask=mask, values=values), chosen


def test_critic_advantages_and_returns_match_hand_computed_values() -> None:
    batch, chosen = batch_with_values("algorithm.critic.gamma=0.5", "algorithm.critic.gae_lambda=0.5")
    found = compute_advantages(batch, chosen)
    assert found.advantages is not None
    assert found.returns is not None
    assert found.advantages[:, 1:3].tolist() == [[0.25 - 0.25 - 0.125, -0.5], [0.25 - 0.25 + 0.125, 0.5]]
    assert torch.equal(found.returns, found.advantages + batch.values)  # type: ignore[operator]
    (part,) = make_minibatches(found, 1, chosen)
    assert part.value_weights is not None
    assert part.value_weights.tolist() == [[0, 0.25, 0.25, 0]] * 2
    turn = chosen.replace(
        algorithm=chosen.algorithm.replace(critic=CriticConfig(action_level="turn", gamma=0.5, whiten_advantages=False))
    )
    found = compute_advantages(batch, turn)
    assert found.advantages is not None
    assert found.advantages[:, 1:3].tolist() == [[-0.25, -0.25], [0.75, 0.75]]
    (part,) = make_minibatches(found, 1, turn)
    assert part.value_weights is not None
    assert part.value_weights.tolist() == [[0, 0.5, 0, 0]] * 2, "a reply is asked for once"
    white = compute_advantages(batch, chosen.replace(algorithm=chosen.algorithm.replace(critic=CriticConfig())))
    assert white.advantages is not None
    assert float(white.advantages[batch.mask].mean()) == pytest.approx(0.0, abs=1e-6)
    assert float(white.advantages[batch.mask].std()) == pytest.approx(1.0, abs=1e-5)


def test_entropy_bonus_is_part_of_the_advantages_of_groups_without_variance_too() -> None:
    settings = ("algorithm.advantage_estimator=grpo", "algorithm.entropy_coef=0.1")
    batch, config = batch_with_values(*settings)
    plain = compute_advantages(batch, config.replace(algorithm=config.algorithm.replace(entropy_coef=0.0)))
    with_bonus = compute_advantages(batch, config)
    assert plain.advantages is not None
    assert with_bonus.advantages is not None
    torch.testing.assert_close(with_bonus.advantages - plain.advantages, -0.1 * batch.logprobs * batch.mask)
    equal = make_group(make_episodes(1.0, 1.0))
    assert trainable_groups([equal], config.algorithm.replace(entropy_coef=0.0)) == []
    assert [len(group.episodes) for group in trainable_groups([equal], config.algorithm)] == [2]


K3_GRADIENT = 1 - math.exp(-2)


@pytest.mark.parametrize(
    ("kind", "first", "second", "value"),
    [("k1", -0.4, -0.2, -0.4), ("k2", -0.2, -0.2, 0.0), ("k3", -0.1 * K3_GRADIENT, -0.1 * K3_GRADIENT, 0.0)],
)
def test_k1_penalty_enters_the_reward_and_k2_and_k3_the_loss(
    kind: str, first: float, second: float, value: float
) -> None:
    """With log ratios of 2 and a coefficient of 0.1. As a reward, the penalty of token 2 also counts for token 1."""
    settings = ("algorithm.critic.gae_lambda=1", "algorithm.kl_coef=0.1", f"algorithm.kl_estimator={kind}")
    batch, chosen = batch_with_values(*settings)
    free = compute_advantages(batch, chosen)
    bound = compute_advantages(batch.replace(ref_logprobs=batch.logprobs - 2.0), chosen)
    assert free.advantages is not None
    assert bound.advantages is not None
    assert free.returns is not None
    assert bound.returns is not None
    assert (bound.advantages - free.advantages)[0, 1:3].tolist() == pytest.approx([first, second])
    assert float((bound.returns - free.returns)[0, 1]) == pytest.approx(value)


def test_each_epoch_covers_all_rows_in_different_minibatches() -> None:
    batch = collate(make_episodes(*[0.0, 1.0] * 6), [i // 4 for i in range(12)])
    chosen = parse_config("", ["algorithm.update_epochs=3"])
    batch = compute_advantages(batch, chosen)

    def rows_of(parts: Sequence[Batch]) -> list[list[int]]:
        return [part.lengths.tolist() for part in parts]  # a row is identified by its length

    parts = make_minibatches(batch, 2, chosen, seed=1)
    assert len(parts) == 6
    assert rows_of(parts)[:2] == rows_of(make_minibatches(batch, 2, chosen.replace(algorithm=AlgorithmConfig())))
    epochs = [rows_of(parts)[i : i + 2] for i in (0, 2, 4)]
    assert all(sorted(one + other) == batch.lengths.tolist() for one, other in epochs)
    assert len({tuple(map(tuple, epoch)) for epoch in epochs}) == 3
    assert all(sorted(part.group_ids.tolist()) == [0, 0, 1, 1, 2, 2] for part in parts), "each has some of every group"
    assert rows_of(make_minibatches(batch, 2, chosen, seed=1)) == rows_of(parts)
    assert rows_of(make_minibatches(batch, 2, chosen, seed=2))[2:] != rows_of(parts)[2:]


def test_overlong_episodes_are_penalized() -> None:
    """Episodes of 4 and 5 tokens, limit 5: the penalty grows to 0.5 over the last 2.5 tokens."""
    settings = (
        "limits.max_episode_tokens=5",
        "algorithm.overlong.buffer_fraction=0.5",
        "algorithm.overlong.penalty=0.5",
    )
    groups = [make_group(make_episodes(1.0, 1.0, tokens=3))]
    batch = collate_groups(groups, parse_config("", settings))
    assert batch.lengths.tolist() == [4, 5]
    assert batch.rewards.tolist() == pytest.approx([1.0 - 0.5 * 1.5 / 2.5, 0.5])
    found = compute_advantages(batch, parse_config("", settings))
    assert found.advantages is not None
    assert found.advantages[:, 1].tolist() == pytest.approx([0.1, -0.1])
    assert collate_groups(groups, parse_config("", settings[:1])).rewards.tolist() == [1.0, 1.0]
