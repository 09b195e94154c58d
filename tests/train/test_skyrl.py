"""Tests of the SkyRL mapping of configs, episodes, metrics and sampling, without SkyRL."""

import ast
import asyncio
import inspect
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from support.branching import split_episode
from support.contexts import make_context
from support.groups import make_group
from support.paths import ROOT
from understudy.algorithms.batch import Batch, collate
from understudy.algorithms.config import LossConfig, OverlongConfig
from understudy.core.errors import ConfigError, RolloutError
from understudy.core.messages import Message
from understudy.core.settings import dump_toml
from understudy.core.tasks import Score
from understudy.core.trajectory import StopReason, Trajectory
from understudy.engines.interface import SamplingParams
from understudy.engines.local.config import LocalEngineConfig, LoraConfig
from understudy.engines.local.engine import LocalEngine
from understudy.engines.models import make_tiny_model
from understudy.engines.unsupported import raise_unsupported
from understudy.formats import FormatTokenizer
from understudy.rollouts.agent import TURN_SEED_STRIDE
from understudy.runs.agents import open_model
from understudy.runs.config import (
    parse_config,
)
from understudy.runs.run import MODEL_FOLDER, Run, read_metrics
from understudy.train import engine_support
from understudy.train.engine_support import unsupported_settings
from understudy.train.skyrl.generator_output import group_rewards, to_generator_output
from understudy.train.skyrl.mapping import to_skyrl_keys
from understudy.train.skyrl.placeholder_dataset import PlaceholderDataset
from understudy.train.skyrl.sampler import SkyRLSampler
from understudy.train.skyrl.tracking import TrackingAdapter, translate_metrics
from understudy.train.state import TrainingProgress

SKYRL = ("engine.kind=skyrl", "sft.steps=0", "algorithm.max_resampled_groups=0")
ALGORITHM = "trainer.algorithm."
ON_CPU = LocalEngineConfig(device="cpu", dtype="float32", train_embeddings=True)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"))


def skyrl_keys(model: Path, *settings: str) -> dict[str, Any]:
    config = parse_config("", [f"model={model}", *SKYRL, *settings])
    return to_skyrl_keys(config, model, Path("/runs/one"))


def test_step_that_stops_the_run_writes_train_and_eval_metrics(tmp_path: Path) -> None:
    config = parse_config("", ["health.stop_on=zero_variance_groups", "health.window=1"])
    context = make_context(tmp_path / "run", config)
    journal = TrackingAdapter(context, TrainingProgress())
    failed = Trajectory("t", score=Score(reward=0.0), stop_reason=StopReason.DONE)
    journal.add_groups([make_group([failed, failed])], 1)
    journal.log_step(1, {})
    journal.log_eval(1, {"eval/toy/success_rate": 0.5})
    with pytest.raises(RolloutError, match=r"health\.stop_on .*\bzero_variance_groups\b"):
        journal.log({}, 1, commit=True)
    (line,) = read_metrics(context.run.folder)
    assert (line["step"], line["health/zero_variance_groups"], line["eval/toy/success_rate"]) == (1, 1.0, 0.5)


def test_overrides_as_tables_or_dotted_keys_round_trip(tmp_path: Path) -> None:
    text = "[engine.trainer.placement]\ncolocate_all = true\n[engine.generator]\ninference_engine.num_engines = 8\n"
    config = parse_config(f'[engine]\nkind = "skyrl"\n{text}', ["engine.trainer.placement.colocate_all=false"])
    keys = {"trainer.placement.colocate_all": False, "generator.inference_engine.num_engines": 8}
    assert config.engine.overrides == keys
    assert parse_config(dump_toml(config)) == config


@pytest.mark.parametrize("override", ["engine.trainer=3", "engine.experiment.x=3", "engine.data.x=3"])
def test_invalid_override_keys_are_rejected(override: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(override.partition("=")[0].removesuffix(".x"))):
        parse_config("", ["engine.kind=skyrl", override])


def test_resume_accepts_other_inference_engines_but_not_another_loss(tmp_path: Path) -> None:
    config = parse_config("", [*SKYRL])
    run = Run.create(tmp_path / "run", config)
    engines = parse_config("", [*SKYRL, "engine.generator.inference_engine.num_engines=2"])
    assert Run.resume(run.folder, engines).config == engines
    other = parse_config("", [*SKYRL, "engine.trainer.algorithm.policy_loss_type=dppo"])
    with pytest.raises(ConfigError, match=r"engine\.trainer\.algorithm\.policy_loss_type: None and 'dppo'"):
        Run.resume(run.folder, other)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (("algorithm.advantage_estimator=grpo",), {"advantage_estimator": "grpo", "grpo_norm_by_std": True}),
        (("algorithm.advantage_estimator=group_mean",), {"advantage_estimator": "grpo", "grpo_norm_by_std": False}),
        (("algorithm.advantage_estimator=rloo",), {"advantage_estimator": "rloo"}),
        (
            ("algorithm.advantage_estimator=reinforce_pp",),
            {"advantage_batch_normalize": True, "grpo_norm_by_std": False},
        ),
        (
            ("algorithm.advantage_estimator=gae", "algorithm.critic.gae_lambda=0.9", "algorithm.critic.value_clip=0"),
            {"advantage_estimator": "gae", "lambd": 0.9, "gamma": 1.0, "value_clip": None},
        ),
        (("algorithm.loss.kind=gspo", "algorithm.loss_aggregation=sequence_mean"), {"policy_loss_type": "gspo"}),
        (
            ("algorithm.loss.kind=cispo", "algorithm.loss.clip_low=1", "algorithm.loss.clip_high=4"),
            {"policy_loss_type": "cispo", "cispo.cispo_eps_clip_low": 1.0, "cispo.cispo_eps_clip_high": 4.0},
        ),
        (("algorithm.loss.clip_high=0.28",), {"policy_loss_type": "regular", "eps_clip_high": 0.28}),
        (("algorithm.loss_aggregation=token_mean",), {"loss_reduction": "token_mean", "max_seq_len": None}),
        (("algorithm.loss_aggregation=sequence_mean",), {"loss_reduction": "sequence_mean"}),
        (
            (
                "algorithm.loss_aggregation=seq_mean_token_sum_norm",
                "limits.max_turns=4",
                "sampling.max_response_tokens=100",
            ),
            {"loss_reduction": "seq_mean_token_sum_norm", "max_seq_len": 400},
        ),
        (("algorithm.kl_coef=0",), {"use_kl_loss": False, "use_kl_in_reward": False}),
        ((), {"use_entropy_loss": False, "policy_loss_type": "regular"}),
        (("algorithm.entropy_coef=0.01",), {"use_entropy_loss": True, "entropy_loss_coef": 0.01}),
        (("algorithm.loss.dual_clip=3",), {"policy_loss_type": "dual_clip", "clip_ratio_c": 3.0}),
        (
            ("algorithm.kl_coef=0.04", "algorithm.kl_estimator=k3"),
            {"use_kl_loss": True, "use_kl_in_reward": False, "kl_loss_coef": 0.04, "kl_estimator_type": "k3"},
        ),
        (
            ("algorithm.kl_coef=0.02", "algorithm.kl_estimator=k1"),
            {"use_kl_loss": False, "use_kl_in_reward": True, "kl_estimator_type": "k1"},
        ),
        (
            ("algorithm.tis_cap=2",),
            {"off_policy_correction.tis_ratio_type": "token", "off_policy_correction.token_tis_ratio_clip_high": 2.0},
        ),
    ],
)
def test_algorithm_settings_map_to_skyrl_keys(tiny: Path, settings: tuple[str, ...], expected: dict[str, Any]) -> None:
    found = skyrl_keys(tiny, *settings)
    assert {name: found[ALGORITHM + name] for name in expected} == expected


def test_batch_optimizer_and_lora_settings_map_to_skyrl_keys(tiny: Path) -> None:
    steps = (
        "algorithm.groups_per_batch=8",
        "algorithm.num_minibatches=4",
        "algorithm.update_epochs=2",
        "algorithm.warmup_steps=3",
    )
    adapters = ("engine.finetune=lora", "engine.lora.rank=16", "engine.lora.target_modules=q_proj,v_proj")
    found = skyrl_keys(tiny, *steps, *adapters, "algorithm.group_size=5", "engine.optimizer.beta2=0.95")
    assert found["trainer.train_batch_size"] == 8
    assert found["trainer.policy_mini_batch_size"] == 2
    assert found["trainer.update_epochs_per_batch"] == 2
    assert found["trainer.policy.optimizer_config.num_warmup_steps"] == 3 * 4 * 2
    assert found["trainer.policy.optimizer_config.adam_betas"] == [0.9, 0.95]
    assert found["generator.n_samples_per_prompt"] == 5
    assert found["trainer.policy.model.lora.rank"] == 16
    assert found["trainer.policy.model.lora.target_modules"] == ["q_proj", "v_proj"]
    everywhere = skyrl_keys(tiny, "engine.finetune=lora", "engine.lora.target_modules=all-linear")
    assert everywhere["trainer.policy.model.lora.target_modules"] == "all-linear"


def test_critic_and_teacher_have_their_own_model_paths(tiny: Path) -> None:
    assert "trainer.critic.model.path" not in skyrl_keys(tiny)
    assert skyrl_keys(tiny, "algorithm.advantage_estimator=gae")["trainer.critic.model.path"] == str(tiny)
    teacher = ("algorithm.kl_coef=1", "algorithm.reference.kind=model", "algorithm.reference.model=a/b")
    assert skyrl_keys(tiny, *teacher)["trainer.ref.model.path"] == "a/b"


def test_max_model_len_is_limited_by_episodes_and_model(tiny: Path) -> None:
    longest = "generator.inference_engine.engine_init_kwargs.max_model_len"
    assert skyrl_keys(tiny, "limits.max_episode_tokens=1000", "sampling.max_response_tokens=64")[longest] == 1064
    assert skyrl_keys(tiny, "limits.max_episode_tokens=40000")[longest] == 32768


def test_explicit_overrides_replace_mapped_keys(tiny: Path) -> None:
    given = "engine.trainer.algorithm.policy_loss_type=rollout_is"
    assert skyrl_keys(tiny, given)[ALGORITHM + "policy_loss_type"] == "rollout_is"


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        (("sft.steps=3",), "sft.steps"),
        (("steps=0",), "steps"),
        (("sampling.temperature=0",), "sampling.temperature"),
        (("certify.every=2",), "certify"),
        (("algorithm.advantage_estimator=success_indicator",), "algorithm.advantage_estimator"),
        (("algorithm.loss.kind=nll",), "algorithm.loss.kind"),
        (("algorithm.kl_coef=1", "algorithm.reference.kind=ema"), "algorithm.reference.kind"),
        (("algorithm.min_lr_ratio=0.1",), "algorithm.min_lr_ratio"),
        (("algorithm.loss.target_kl=0.1",), "algorithm.loss.target_kl"),
        (("engine.optimizer.eps=1e-5",), "engine.optimizer.eps"),
        (("algorithm.max_trained_episodes=4",), "algorithm.max_trained_episodes"),
        (("algorithm.groups_per_batch=6", "algorithm.num_minibatches=4"), "algorithm.num_minibatches"),
        (("algorithm.advantage_estimator=gae", "algorithm.critic.action_level=turn"), "algorithm.critic.action_level"),
        (("algorithm.advantage_estimator=gae", "algorithm.critic.warmup_steps=2"), "algorithm.critic.warmup_steps"),
        (
            ("algorithm.max_resampled_groups=2", "engine.trainer.algorithm.dynamic_sampling.type=filter"),
            "algorithm.max_resampled_groups",
        ),
        (("engine.finetune=lora", "engine.lora.alpha=1.5"), "engine.lora.alpha"),
        (
            ("algorithm.max_resampled_groups=1", "engine.trainer.fully_async.enabled=true"),
            "algorithm.max_resampled_groups",
        ),
        (("curriculum.by_success_rate=true", "engine.trainer.fully_async.enabled=true"), "curriculum"),
        (("engine.trainer.ckpt_path=/tmp",), "engine.trainer.ckpt_path"),
        (("engine.generator.n_samples_per_prompt=2",), "engine.generator.n_samples_per_prompt"),
    ],
)
def test_settings_without_skyrl_equivalent_are_rejected(tiny: Path, settings: tuple[str, ...], name: str) -> None:
    found = unsupported_settings(parse_config("", [f"model={tiny}", *SKYRL, *settings]))
    assert [each.key for each in found] == [name]
    assert str(found[0]).startswith(f"{name} = ")
    with pytest.raises(ConfigError, match=re.escape(f"{name} = ")):
        raise_unsupported(found)


def test_docs_list_all_rejected_settings() -> None:
    page = (ROOT / "docs" / "archive" / "cluster.md").read_text(encoding="utf-8")
    refused = page.partition("refused, each with the reason")[2].partition("\n\nAn episode")[0]
    tree = ast.parse(inspect.getsource(engine_support))
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and "tinker" not in node.name]
    yields = [node.value for function in functions for node in ast.walk(function) if isinstance(node, ast.Yield)]
    keys = [value.args[0] for value in yields if isinstance(value, ast.Call)]
    names = {ast.literal_eval(key) for key in keys if isinstance(key, ast.Constant)}
    assert len(names) > 12
    assert [name for name in sorted(names) if not re.search(rf"[`\[]{re.escape(name)}\b", refused)] == []


def test_each_algorithm_preset_is_mapped_or_rejected(tiny: Path) -> None:
    for name in ("grpo", "dr_grpo", "dapo", "gspo", "cispo", "rloo", "reinforce_pp", "ppo"):
        updates = ("algorithm.groups_per_batch=8", f"algorithm.preset={name}")
        assert skyrl_keys(tiny, *updates)[ALGORITHM + "advantage_estimator"]
    (found, *_) = unsupported_settings(parse_config("", [*SKYRL, "algorithm.preset=rft"]))
    assert (found.key, found.value) == ("algorithm.advantage_estimator", "success_indicator")


def episode(*turns: tuple[int, int], reward: float | None = 1.0, stop: StopReason = StopReason.DONE) -> Trajectory:
    """Return an episode of turns (prompt tokens, sampled tokens) with prompt ids from 100 and sampled ids from 200."""
    trajectory, shown, sampled = Trajectory("t", seed=7), 100, 200
    for before, after in turns:
        trajectory.observe([], range(shown, shown + before))
        tokens = list(range(sampled, sampled + after))
        trajectory.act(Message(role="assistant"), tokens, [-0.5 * token for token in tokens])
        shown, sampled = shown + before, sampled + after
    trajectory.score, trajectory.stop_reason = (Score(reward=reward) if reward is not None else None), stop
    return trajectory


def test_generator_output_has_prompts_replies_masks_and_logprobs() -> None:
    rows = to_generator_output([make_group([episode((3, 2), (2, 1))])], [[0.25]], [0])
    assert rows["prompt_token_ids"] == [[100, 101, 102]]
    assert rows["response_ids"] == [[200, 201, 103, 104, 202]]
    assert rows["loss_masks"] == [[1, 1, 0, 0, 1]]
    assert rows["rollout_logprobs"] == [[-100.0, -100.5, 0.0, 0.0, -101.0]]
    assert rows["rewards"] == [0.25]
    assert rows["stop_reasons"] == ["stop"]


def test_messages_after_the_last_reply_are_dropped() -> None:
    cut = episode((3, 2), stop=StopReason.MAX_TURNS)
    cut.observe([], [150, 151])
    rows = to_generator_output([make_group([cut])], [[0.0]], [0])
    assert rows["response_ids"] == [[200, 201]]
    assert rows["stop_reasons"] == ["length"]


def test_each_sequence_of_an_episode_is_a_step_of_its_trajectory() -> None:
    split, single = split_episode(episode((3, 2), (2, 1)), [1, 1]), episode((3, 2))
    rows = to_generator_output([make_group([split, single])], [[1.0, 0.0]], ["a", "b"])
    assert rows["prompt_token_ids"] == [[100, 101, 102], [100, 101, 102, 200, 201, 103, 104], [100, 101, 102]]
    assert rows["response_ids"] == [[200, 201], [202], [200, 201]]
    assert rows["loss_masks"] == [[1, 1], [1], [1, 1]]
    assert (rows["rewards"], rows["trajectory_ids"]) == ([1.0, 1.0, 0.0], ["a", "a", "b"])
    assert rows["is_last_step"] == [False, True, True]
    assert to_generator_output([make_group([single])], [[1.0]], ["a"])["is_last_step"] is None


def test_faulty_episode_is_masked_and_gets_the_mean_reward() -> None:
    failed = episode((3, 2), reward=None, stop=StopReason.FAULT)
    group = make_group([episode((3, 2), reward=1.0), failed, episode((3, 2), reward=0.0)])
    rewards = group_rewards(group, OverlongConfig(), 100)
    assert rewards == [1.0, 0.5, 0.0]
    rows = to_generator_output([group], [rewards], range(3))
    assert rows["loss_masks"] == [[1, 1], [0, 0], [1, 1]]


def test_episode_without_a_reply_becomes_a_masked_row() -> None:
    nothing, shown = (
        Trajectory("t", stop_reason=StopReason.FAULT),
        Trajectory("t", tokens=[5, 6], mask=[False] * 2, logprobs=[0.0] * 2),
    )
    rows = to_generator_output([make_group([nothing, shown])], [[0.0, 0.0]], range(2))
    assert rows["prompt_token_ids"] == [[0], [5]]
    assert rows["response_ids"] == [[0], [5]]
    assert rows["loss_masks"] == [[0], [0]]


def test_overlong_penalty_is_subtracted_from_rewards() -> None:
    group = make_group([episode((1, 3)), episode((1, 1))])
    assert group_rewards(group, OverlongConfig(buffer_fraction=0.5, penalty=0.25), 4) == [0.75, 1.0]


def test_placeholder_dataset_yields_each_slot_in_order() -> None:
    slots = PlaceholderDataset(3)
    rows = slots.collate_fn([slots[place] for place in (2, 0, 1)])
    assert [row["env_extras"]["slot"] for row in rows] == [0, 1, 2], "in order, whatever place the loader draws"
    with pytest.raises(IndexError):
        slots[3]


def test_skyrl_metric_names_are_translated() -> None:
    theirs = {
        "policy/grad_norm": 2,
        "policy/policy_entropy": 0.5,
        "generate/avg_num_tokens": 3.0,
        "reward/avg_raw_reward": 1,
    }
    assert translate_metrics({**theirs, "timing/step": 4.0, "timing/fwd_logprobs": 5.0, "text": "no number"}) == {
        "train/grad_norm": 2.0,
        "train/entropy": 0.5,
        "train/generate/avg_num_tokens": 3.0,
        "rollout/reward/avg_raw_reward": 1.0,
        "time/step_seconds": 4.0,
        "time/fwd_logprobs": 5.0,
    }


def test_minibatch_logprob_diff_is_the_fallback_metric() -> None:
    instead = {f"policy/minibatch_rollout_logprobs_abs_diff_{name}": 0.5 for name in ("mean", "max")}
    assert translate_metrics(instead) == {"certify/logprob_diff_mean": 0.5, "certify/logprob_diff_max": 0.5}
    both = translate_metrics(instead | {"policy/rollout_train_logprobs_abs_diff_mean": 0.25})
    assert (both["certify/logprob_diff_mean"], both["certify/logprob_diff_max"]) == (0.25, 0.5)


def batch() -> Batch:
    episodes = [episode((3, 4), (2, 5)), episode((4, 6))]
    return collate(episodes, [0, 1]).replace(advantages=torch.ones(2, 14), logprobs=torch.full((2, 14), -5.0))


def logprobs_of(engine: Any) -> torch.Tensor:
    return asyncio.run(engine.compute_logprobs(batch())).logprobs


def open_checkpoint(model: Path, checkpoint: Path, *settings: str) -> Any:
    stored = dump_toml(parse_config("", [f"model={model}", *SKYRL]))
    local = ("engine.kind=local", "engine.device=cpu", "engine.dtype=float32")
    return open_model(parse_config(stored, [*local, *settings]), checkpoint)[0]


def test_checkpoint_with_a_full_model_is_opened(tiny: Path, tmp_path: Path) -> None:
    other = make_tiny_model(tmp_path / "step" / MODEL_FOLDER, seed=1)
    found = logprobs_of(open_checkpoint(tiny, tmp_path / "step"))
    assert torch.equal(found, logprobs_of(LocalEngine(other, ON_CPU)))
    assert not torch.allclose(found, logprobs_of(LocalEngine(tiny, ON_CPU)))


def test_checkpoint_with_adapters_is_opened_on_the_base_model(tiny: Path, tmp_path: Path) -> None:
    trained = LocalEngine(tiny, ON_CPU.replace(finetune="lora", lora=LoraConfig(rank=4, alpha=8)))
    before = logprobs_of(trained)
    asyncio.run(trained.update([batch()], LossConfig(), 1e-2))
    (tmp_path / "step" / MODEL_FOLDER).mkdir(parents=True)
    trained.export(tmp_path / "step" / MODEL_FOLDER)
    lora = ("engine.finetune=lora", "engine.lora.alpha=8")
    found = logprobs_of(open_checkpoint(tiny, tmp_path / "step", *lora, "engine.lora.rank=4"))
    assert torch.allclose(found, logprobs_of(trained), atol=1e-5)
    assert not torch.allclose(found, before, atol=1e-3)
    for others in (("engine.lora.rank=8",), ("engine.lora.rank=4", "engine.lora.target_modules=q_proj")):
        with pytest.raises(ConfigError, match="adapter"):
            open_checkpoint(tiny, tmp_path / "step", *lora, *others)


class EngineUnavailable(Exception):
    pass


class FakeClient:
    """An inference client with scripted replies that records its requests."""

    weight_version = 3

    def __init__(self, reply: Callable[[], dict[str, Any]]) -> None:
        self.reply, self.requests, self.finished = reply, list[tuple[dict[str, Any], str | None]](), list[str]()

    async def generate(self, input_batch: dict[str, Any], model: str | None = None) -> dict[str, Any]:
        self.requests.append((input_batch, model))
        return self.reply()

    async def finish_session(self, session_id: str) -> None:
        self.finished.append(session_id)


def reply_with(tokens: list[int], logprobs: list[float] | None) -> Callable[[], dict[str, Any]]:
    return lambda: {"response_ids": [tokens], "response_logprobs": None if logprobs is None else [logprobs]}


def make_sampler(
    tiny: Path, reply: Callable[[], dict[str, Any]], context: int = 100
) -> tuple[SkyRLSampler, FakeClient]:
    made = SkyRLSampler(lambda: FormatTokenizer.load(tiny / "tokenizer.json"), (EngineUnavailable,))
    client = FakeClient(reply)
    made.client, made.max_context_tokens, made.model, made.vocab_size = client, context, "policy", 264
    return made, client


def test_sampler_sends_token_ids_and_returns_tokens_with_logprobs(tiny: Path) -> None:
    made, client = make_sampler(tiny, reply_with([65, 258], [-0.1, -0.2]))
    found = asyncio.run(
        made.sample([1, 2], SamplingParams(max_response_tokens=9, top_k=4), 7 * TURN_SEED_STRIDE + 5, {258, 256})
    )
    assert (found.tokens, found.logprobs, found.finish_reason, found.weights_version) == (
        [65, 258],
        [-0.1, -0.2],
        "stop",
        3,
    )
    ((request, model),) = client.requests
    assert model == "policy"
    assert request["prompt_token_ids"] == [[1, 2]]
    params = request["sampling_params"]
    assert (params["max_tokens"], params["top_k"], params["seed"]) == (9, 4, 7 * TURN_SEED_STRIDE + 5)
    assert (params["stop_token_ids"], params["ignore_eos"], params["logprobs"]) == ([256, 258], True, 0)


def test_replies_of_an_episode_share_one_session(tiny: Path) -> None:
    made, client = make_sampler(tiny, reply_with([65], [-0.1]))
    for turn in (0, 1):
        asyncio.run(made.sample([1], SamplingParams(), 7 * TURN_SEED_STRIDE + turn))
    asyncio.run(made.sample([1], SamplingParams(), 8 * TURN_SEED_STRIDE))
    sessions = [requests["session_ids"][0] for requests, _ in client.requests]
    assert sessions[0] == sessions[1] != sessions[2]
    asyncio.run(made.finish_sessions([7]))
    assert client.finished == sessions[:1]


def test_replies_are_limited_by_context_and_cut_at_stop_strings(tiny: Path) -> None:
    made, client = make_sampler(tiny, reply_with(list(b"abcd"), [-1.0] * 4), context=14)
    found = asyncio.run(made.sample([1] * 10, SamplingParams(max_response_tokens=9, stop=("bc",)), 0))
    assert client.requests[0][0]["sampling_params"]["max_tokens"] == 4
    assert (bytes(found.tokens), found.logprobs, found.finish_reason) == (b"abc", [-1.0] * 3, "stop")
    assert asyncio.run(made.sample([1] * 14, SamplingParams(), 0)).context_full
    assert len(client.requests) == 1, "what has no room is not asked for"


def test_cache_salt_is_the_weights_version(tiny: Path) -> None:
    made, client = make_sampler(tiny, reply_with([65], [-0.1]))
    made.salted = True
    asyncio.run(made.sample([1], SamplingParams(), 0))
    assert client.requests[0][0]["cache_salt"] == "3"


@pytest.mark.parametrize(
    ("tokens", "logprobs"),
    [
        ([65], None),
        ([65, 66], [-0.1]),
        ([], []),
        ([264], [-0.1]),
        ([-1], [-0.1]),
        ([65.0], [-0.1]),
        (None, None),
        *(([65], [bad]) for bad in (math.nan, math.inf, -math.inf, -9999.0, 1.0, None, "-0.1", True)),
    ],
)
def test_malformed_reply_is_an_engine_fault(tiny: Path, tokens: list[int], logprobs: Any) -> None:
    made, _ = make_sampler(tiny, reply_with(tokens, logprobs))
    with pytest.raises(RolloutError) as caught:
        asyncio.run(made.sample([1], SamplingParams(), 0))
    assert caught.value.fault == "engine"


@pytest.mark.parametrize(
    "reply", [{}, {"response_ids": []}, {"response_ids": [[65]], "response_logprobs": []}, None, []]
)
def test_answer_without_a_reply_is_an_engine_fault(tiny: Path, reply: Any) -> None:
    made, _ = make_sampler(tiny, lambda: reply)
    with pytest.raises(RolloutError) as caught:
        asyncio.run(made.sample([1], SamplingParams(), 0))
    assert caught.value.fault == "engine"


def test_unavailable_engine_is_an_engine_fault(tiny: Path) -> None:
    def raise_unavailable() -> dict[str, Any]:
        raise EngineUnavailable("connection refused")

    made, _ = make_sampler(tiny, raise_unavailable)
    with pytest.raises(RolloutError, match="connection refused") as caught:
        asyncio.run(made.sample([1], SamplingParams(), 0))
    assert caught.value.fault == "engine"
