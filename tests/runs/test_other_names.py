"""Settings with names of other libraries: keys, conversions, reasons, notes of a run, and YAML configs."""

import shlex
from pathlib import Path
from typing import Any

import pytest

from support.program import Call, call
from understudy.core.errors import ConfigError
from understudy.core.settings import find_field
from understudy.runs.config import TrainConfig, load_config, parse_config
from understudy.runs.conversions import CONVERSIONS, describe_other_names, translate
from understudy.runs.foreign_configs import explain_yaml
from understudy.runs.other_names import OTHER_NAMES, OTHER_VALUES
from understudy.runs.targets import resolve

__all__ = ["call"]


def value_of(config: TrainConfig, key: str) -> Any:
    found: Any = config
    for name in key.split("."):
        found = found[name] if isinstance(found, dict) else getattr(found, name)
    return found


def error_of(*settings: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_config("", settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("setting", "key", "value"),
    [
        ("trainer.train_batch_size=32", "algorithm.groups_per_batch", 32),
        ("trainer.seed=3", "seed", 3),
        ("trainer.epochs=2", "epochs", 2.0),
        ("update_epochs_per_batch=2", "algorithm.update_epochs", 2),
        ("trainer.algorithm.eps_clip_low=0.1", "algorithm.loss.clip_low", 0.1),
        ("eps_clip_high=0.3", "algorithm.loss.clip_high", 0.3),
        ("kl_penalty_coef=0.01", "algorithm.kl_coef", 0.01),
        ("algorithm.kl_weight=0.05", "algorithm.kl_coef", 0.05),
        ("grpo.lambda_gae=0.9", "algorithm.critic.gae_lambda", 0.9),
        ("trainer.algorithm.lambd=0.9", "algorithm.critic.gae_lambda", 0.9),
        ("value_loss_coef=0.5", "algorithm.critic.vf_coef", 0.5),
        ("loss_reduction=sequence_mean", "algorithm.loss_aggregation", "sequence_mean"),
        ("actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean", "algorithm.loss_aggregation", "sequence_mean"),
        ("kl_loss_type=low_var_kl", "algorithm.kl_estimator", "k3"),
        ("trainer.policy.optimizer_config.lr=1e-6", "algorithm.learning_rate", 1e-6),
        ("trainer.policy.optimizer_config.max_grad_norm=0.5", "engine.optimizer.max_grad_norm", 0.5),
        ("gradient_clip=0.5", "engine.optimizer.max_grad_norm", 0.5),
        ("adam_epsilon=1e-5", "engine.optimizer.eps", 1e-5),
        ("adam_betas=[0.8, 0.95]", "engine.optimizer.beta2", 0.95),
        ("load_in_4bit=true", "engine.finetune", "qlora"),
        ("finetune.mode=lora", "engine.finetune", "lora"),
        ("rollout.backend=hf", "engine.sampler", "torch"),
        ("r=16", "engine.lora.rank", 16),
        ("max_epochs=3", "epochs", 3.0),
        ("max_steps_per_episode=8", "limits.max_turns", 8),
        ("generator.sampling_params.max_generate_length=64", "sampling.max_response_tokens", 64),
        ("generator.sampling_params.temperature=0.8", "sampling.temperature", 0.8),
        ("generator.sampling_params.top_k=-1", "sampling.top_k", 0),
        ("generator.sampling_params.frequency_penalty=0.5", "sampling.frequency_penalty", 0.5),
        ("generator.eval_sampling_params.temperature=0.5", "eval.temperature", 0.5),
        ("+generator.max_model_len=18024", "engine.vllm.max_model_len", 18024),
        ("generator.max_input_length=16384", "limits.max_episode_tokens", 16384),
        ("trainer.eval_interval=-1", "eval.every", 0),
        ("trainer.max_ckpts_to_keep=-1", "keep_checkpoints", 0),
        ("environment.skyrl_gym.tau_bench.user_strategy=llm", "user.kind", "llm"),
        ("data.train_data=['a.parquet']", "data.train", ("a.parquet",)),
        ("data.test_data.retail=r.parquet", "data.tests.retail", "r.parquet"),
        ("data.retail_val_data=['v.parquet']", "data.tests.retail_validation", "v.parquet"),
        ("ref_policy_update_frequency=20", "algorithm.reference.sync_steps", 20),
        ("reference_ema_decay=0.9", "algorithm.reference.kind", "ema"),
        ("trainer.ref.model.path=org/teacher", "algorithm.reference.model", "org/teacher"),
        ("use_kl_estimator_k3=true", "algorithm.kl_estimator", "k3"),
        ("delta=4.0", "algorithm.loss.dual_clip", 4.0),
        ("vllm_mode=colocate", "engine.vllm.in_process", True),
        ("vllm_server_base_url=http://a:1", "engine.vllm.base_url", "http://a:1"),
        ("ref_model_sync_steps=9", "algorithm.reference.sync_steps", 9),
        ("actor_rollout_ref.rollout.multi_turn.max_assistant_turns=5", "limits.max_turns", 5),
        ("actor_rollout_ref.model.lora_rank=8", "engine.lora.rank", 8),
        ("num-samples-per-prompt=4", "", None),
        ("max-new-tokens=64", "sampling.max_response_tokens", 64),
    ],
)
def test_name_of_another_library_sets_the_key(setting: str, key: str, value: object) -> None:
    if not key:
        assert "num-samples-per-prompt" in error_of(setting)
        return
    assert value_of(parse_config("", [setting]), key) == value


def test_size_of_a_minibatch_becomes_their_number_and_optimizer_steps_rl_steps() -> None:
    sizes = ["trainer.policy_mini_batch_size=4", "trainer.train_batch_size=32", "trainer.update_epochs_per_batch=2"]
    algorithm = parse_config("", [*sizes, "trainer.policy.optimizer_config.num_warmup_steps=200"]).algorithm
    assert (algorithm.num_minibatches, algorithm.warmup_steps) == (8, 13)
    assert parse_config("", ["groups_per_batch=8", "ppo_mini_batch_size=4"]).algorithm.num_minibatches == 2


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        (
            ["policy_mini_batch_size=4"],
            ["'policy_mini_batch_size': 4", "algorithm.num_minibatches", "train_batch_size"],
        ),
        (["train_batch_size=6", "policy_mini_batch_size=4"], ["algorithm.groups_per_batch = 6 / 4"]),
        (["num_warmup_steps=200"], ["algorithm.warmup_steps", "algorithm.num_minibatches"]),
        (["train_batch_size=8", "policy_mini_batch_size=0"], ["'policy_mini_batch_size': 0"]),
        (["data.retail_val_data=[a,b]"], ["'data.retail_val_data': ", "data.tests.NAME=FILE"]),
        (["adam_betas=0.9"], ["'adam_betas': 0.9", "two numbers"]),
        (["load_in_4bit=maybe"], ["'load_in_4bit': maybe", "true, false"]),
        (["trainer.algorithm.clip_ratio_c=3"], ["policy_loss_type=dual_clip", "algorithm.loss.dual_clip"]),
    ],
)
def test_value_that_cannot_be_converted_is_explained(settings: list[str], names: list[str]) -> None:
    error = error_of(*settings)
    assert [name for name in names if name not in error] == []


def test_misspelled_name_of_a_section_is_corrected() -> None:
    assert "did you mean trainer.policy_mini_batch_size" in error_of("trainer.polcy_mini_batch_size=4")


def test_dual_clip_of_skyrl_needs_its_loss() -> None:
    given = ["trainer.algorithm.clip_ratio_c=3.0", "trainer.algorithm.policy_loss_type=dual_clip"]
    assert parse_config("", given).algorithm.loss.dual_clip == 3.0
    assert parse_config("", ["clip_ratio_c=3.0"]).algorithm.loss.dual_clip == 3.0
    assert parse_config("", ["policy_loss_type=regular"]).algorithm.loss.kind == "ppo"


def test_reference_of_the_same_model_is_the_default() -> None:
    given = ["trainer.ref.model.path='org/m'", "trainer.policy.model.path=org/m"]
    config = parse_config("", given)
    assert (config.model, config.algorithm.reference.kind) == ("org/m", "frozen")


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("normalize_reward=true", "algorithm.advantage_estimator"),
        ("trainer.algorithm.use_kl_loss=true", "algorithm.kl_estimator"),
        ("adaptive_kl=true", "algorithm.loss.target_kl"),
        ("lr_scheduler_type=cosine", "algorithm.min_lr_ratio"),
        ("gradient_accumulation_steps=8", "engine.max_tokens_per_microbatch"),
        ("zero_reward_on_non_stop=false", "algorithm.overlong.buffer_fraction"),
        ("user_model=gpt-4o", "endpoints.default.model"),
        ("user_llm=gpt-4o", "endpoints.default.model"),
        ("agent_llm=gpt-4o", "--agent api"),
        ("agent-llm=gpt-4o", "--agent api"),
        ("task_ids=1", "slice.families"),
        ("TAXONOMY_ALPHA=0.5", "algorithm.shaping.judge_weight"),
        ("early_termination_reward=0.1", "on purpose"),
        ("min_unforced_tokens=16", "no action is forced"),
        ("trainer.placement.colocate_all=true", "engine.kind=skyrl"),
        ("environment.other=1", "TARGET"),
        ("reward_funcs=rewards:reward", "data.reward"),
        ("reward_weights=[1,2]", "data.reward"),
        ("custom_reward_function.path=r.py", "data.reward"),
        ("tools=t:add", "tools=.*ToolDataset"),
        ("data.tools=t:add", "tools=.*ToolDataset"),
        ("max_tool_calling_iterations=4", "limits.max_turns"),
        ("vllm_mode=server", "engine.vllm.base_url"),
        ("loss_type=dapo", "algorithm.loss_aggregation=token_mean; algorithm.preset=dapo"),
        ("loss_type=grpo", "algorithm.loss_aggregation=sequence_mean; algorithm.preset=grpo"),
        ("loss_type=sapo", "docs/extending.md"),
        ("top_entropy_quantile=0.2", "algorithm.loss.kind"),
        ("actor_rollout_ref.actor.strategy=fsdp2", "engine.sharding"),
        ("actor_rollout_ref.actor.whatever=1", "docs/migration.md"),
        ("actor_rollout_ref.actor.clip_ratio=0.2", "algorithm.loss.clip_low or algorithm.loss.clip_high"),
        ("data.max_response_length=512", "sampling.max_response_tokens or limits.max_episode_tokens"),
        ("algorithm.rollout_correction.rollout_is_threshold=2", "algorithm.tis_cap"),
    ],
)
def test_name_without_a_key_is_explained(setting: str, reason: str, call: Call) -> None:
    name = setting.partition("=")[0]
    with pytest.raises(ConfigError, match=rf"unknown key '{name}': .*{reason}"):
        parse_config("", [setting])
    code, _, err = call("train", "retail", "--dry-run", setting)
    assert (code, name in err) == (2, True)


def test_all_reasons_are_in_one_error_and_a_file_gets_them_too(tmp_path: Path) -> None:
    error = error_of("adaptive_kl=true", "seed=1", "normalize_reward=true", "kl_hard_cap=3")
    assert "'adaptive_kl', 'kl_hard_cap': " in error
    assert "'normalize_reward': " in error
    assert error.count("algorithm.loss.target_kl") == 1
    (tmp_path / "my.toml").write_text("[trainer]\nepochs = 3\n")
    with pytest.raises(ConfigError, match=r"my\.toml: unknown key 'trainer': .*engine\.kind=skyrl"):
        load_config(tmp_path / "my.toml")


def test_dotted_names_are_known_exactly() -> None:
    assert parse_config("", ["trainer.epochs=2"]).epochs == 2
    for name in ("trainer.learning_rate", "other.epochs", "trainer.algorithm.epochs"):
        with pytest.raises(ConfigError, match=f"'({name}|other)'"):
            parse_config("", [f"{name}=2"])


def test_tables_name_keys_and_conversions() -> None:
    assert [*OTHER_NAMES.converted] == [*CONVERSIONS]
    assert not {*OTHER_NAMES.keys} & {*OTHER_NAMES.reasons}
    assert not {*OTHER_NAMES.converted} & {*OTHER_NAMES.keys, *OTHER_NAMES.reasons}
    for key in OTHER_VALUES:
        assert find_field(TrainConfig, key)[1], key
    for section, names in OTHER_NAMES.sections.items():
        for name in names:
            known = find_field(TrainConfig, f"{section}.{name}")[1] or OTHER_NAMES.find_reason(f"{section}.{name}")
            is_ambiguous = len(OTHER_NAMES.find_keys(name)) > 1
            assert known or is_ambiguous or name in (*CONVERSIONS, "temperature"), (section, name)


def test_short_and_own_names_are_not_translated() -> None:
    assert translate(TrainConfig, ["group_size=4", "seed=1", "endpoints.a-b.model=m"]) == [
        "algorithm.group_size=4",
        "seed=1",
        "endpoints.a-b.model=m",
    ]
    assert describe_other_names(TrainConfig, ["group_size=4", "seed=1"]) == ""


def test_notes_say_what_names_of_other_libraries_became(call: Call, tmp_path: Path) -> None:
    given = ["n_samples_per_prompt=4", "train_batch_size=8", "policy_mini_batch_size=4", "trainer.epochs=0"]
    line = describe_other_names(TrainConfig, given)
    for text in (
        "n_samples_per_prompt=4 is algorithm.group_size=4",
        "policy_mini_batch_size=4 is algorithm.num_minibatches=2",
        "trainer.epochs=0 is epochs=0",
    ):
        assert text in line
    dry = ("train", "retail_quick", "--dry-run", "model=tiny", "limits.max_episode_tokens=14000", "eval.tasks=1")
    code, out, err = call(*dry, "--n-samples-per-prompt", "4")
    assert (code, "n-samples-per-prompt=4 is algorithm.group_size=4" in out) == (0, True), err


def test_yaml_config_is_explained_by_the_settings_to_give(tmp_path: Path) -> None:
    path = tmp_path / "their.yaml"
    path.write_text(
        "trainer:\n  epochs: 50\n  train_batch_size: 8\n  policy_mini_batch_size: 4\n  use_sample_packing: false\n"
        "  ckpt_path: ${oc.env:HOME}/x\n  algorithm: {eps_clip_low: 0.1}\n"
        "data:\n  train_data: [a b.parquet]\n  test_data: {retail: r.parquet}\n"
        "generator:\n  sampling_params: {top_k: -1}\n"
    )
    with pytest.raises(ConfigError) as caught:
        resolve([str(path)])
    text = str(caught.value)
    assert "\n" not in text
    settings = shlex.split(text.partition(" are here: ")[2].partition("; ")[0])
    config = parse_config("", settings)
    assert (config.epochs, config.algorithm.num_minibatches, config.algorithm.loss.clip_low) == (50, 2, 0.1)
    assert (config.data.train, config.data.tests) == (("a b.parquet",), {"retail": "r.parquet"})
    assert text.endswith("KEY=VALUE: trainer.use_sample_packing")
    with pytest.raises(ConfigError, match=r"their\.yaml: a YAML config"):
        resolve(["retail", str(path)])


@pytest.mark.parametrize("text", ["a: [", "- 1\n- 2\n", "", "x: &a [*a]\n"])
def test_yaml_without_settings_is_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.yml"
    path.write_text(text)
    assert "\n" not in explain_yaml(path)
    assert explain_yaml(path).startswith(f"{path}: a YAML config")


@pytest.mark.parametrize("key", ["algorithm.loss.kind", "algorithm.loss_aggregation", "algorithm.advantage_estimator"])
def test_algorithm_as_a_value_names_the_preset(key: str) -> None:
    assert "algorithm.preset=dapo" in error_of(f"{key}=dapo")
