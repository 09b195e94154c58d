"""Tests of the settings that cannot have an effect in a run: each key of the config is known to the table or always
used, and each entry of the table gives a line exactly if its setting is changed.
"""

from collections.abc import Iterator

import pytest
from pydantic import BaseModel

from understudy.core.errors import ConfigError
from understudy.core.event_loop import run_async
from understudy.engines.local.config import LocalEngineConfig
from understudy.runs.config import TrainConfig, parse_config
from understudy.train.preparation import prepare_run
from understudy.train.unused_settings import UNUSED_SETTINGS, unused_settings

ALWAYS_USED = {
    *("domain", "data.train", "data.validation", "data.tests", "slice", "reward", "model", "seed", "steps", "epochs"),
    *("save_every", "keep_checkpoints", "max_fault_rate", "cost_limit", "allow_noop_solvable", "endpoints"),
    *("agent.command", "agent.function", "agent.url", "agent.python"),
    *("agent_endpoint", "eval.failure_judge_endpoint"),  # of `understudy eval RUN`, which reads the config of the run
    *("sampling.max_response_tokens", "sampling.temperature", "sampling.repetition_penalty", "sampling.stop"),
    *("sampling.frequency_penalty", "sampling.presence_penalty", "format", "user.kind", "trackers"),
    *("sft.steps", "sft.dataset_file", "eval.split", "eval.tasks", "eval.base_tasks", "eval.trials"),
    *("eval.temperature", "eval.seed", "eval.ood_domains"),
    *("limits.max_turns", "limits.max_episode_tokens", "limits.max_message_chars", "limits.max_retries"),
    *(
        "limits.max_invalid_replies",
        "limits.max_step_seconds",
        "engine",
        "engine.kind",
        "engine.finetune",
        "engine.max_num_seqs",
        "engine.device",
    ),
    *("engine.sampler", "engine.dtype", "engine.threads", "engine.batching"),
    *("engine.sharding", "engine.collective_timeout"),  # the number of processes is no key
}
"""Keys and sections that have an effect in every run, or whose values that have none are refused."""
CASES = {
    "agent.variables=A": "agent.command=python",
    "agent.reward=m:f": "agent.command=python",
    "agent.constraints=mask": "agent.command=python",
    "agent.max_seconds=9": "agent.command=python",
    "agent.concurrency=9": "agent.command=python",
    "data.sources=toy:DOMAIN": "data.train=rows.jsonl",
    "data.reward=m:f": "domain=rows.jsonl",
    "data.compare_calls=true": "domain=rows.jsonl",
    "data.require_reads=true": "domain=rows.jsonl",
    "ood_slice.families=status": "eval.ood_domains=retail",
    "eval.ood_tasks=3": "eval.ood_domains=retail",
    "eval.every=2": "steps=4",
    "engine.lora.rank=3": "engine.finetune=lora",
    "engine.train_embeddings=true": "engine.finetune=full",
    "engine.vllm.max_model_len=4096": "engine.sampler=auto",
    "engine.optimizer.beta1=0.8": "steps=4",
    "engine.gradient_checkpointing=true": "steps=4",
    "engine.max_tokens_per_microbatch=99": "steps=4",
    "engine.trainable_layers=1": "sft.steps=4",
    "engine.train_control_tokens=all": "sft.steps=4",
    "engine.max_draft_rows=9": "engine.sampler=torch",
    "engine.vllm.python=python": "engine.vllm.base_url=",
    "engine.vllm.server_args=--seed": "engine.vllm.base_url=",
    "engine.vllm.start_timeout=9": "engine.vllm.in_process=false",
    "health.max_sft_loss_ratio=0.5": "sft.steps=4",
    "health.window=2": "steps=4",
    "health.stop_on=entropy": "steps=4",
    "health.max_grad_norm_spike=9": "steps=4",
    "health.max_recomputation=9": "steps=4",
    "health.max_clip_fraction=0.2": "algorithm.update_epochs=2",
    "health.max_approx_kl=0.2": "algorithm.num_minibatches=2",
    **dict.fromkeys(
        (
            *("health.max_ratio_error=0.2", "health.max_ratio_rmse=0.2", "health.min_entropy_ratio=0.2"),
            *("health.max_zero_variance_groups=0.2", "health.min_noop_margin=0.2", "health.max_empty_replies=0.2"),
            *("health.max_malformed_replies=0.2", "health.min_tool_call_ratio=0.2", "health.max_length_drift=3"),
            *("health.max_faults=0.2", "health.min_initial_success=0.2"),
        ),
        "steps=4",
    ),
    "sampling.top_p=0.9": "sampling.temperature=1",
    "sampling.top_k=9": "sampling.temperature=1",
    "sampling.min_p=0.2": "sampling.temperature=1",
    "sampling.keep_sampling_mask=false": "sampling.min_p=0.2",
    "user.max_attempts=5": "user.kind=llm",
    "user.endpoint=other": "user.kind=llm",
    "sft.learning_rate=0.1": "sft.steps=2",
    "sft.batch_size=3": "sft.steps=2",
    "sft.warmup_steps=1": "sft.steps=2",
    "sft.num_demonstrations=7": "sft.steps=2",
    "sft.min_reward=0.2": "sft.dataset_file=rows.jsonl",
    "preferences.beta=0.3": "preferences.steps=2",
    "preferences.undesirable_weight=0.5": "preferences.kind=kto",
    "curriculum.ramp_fraction=0.2": "curriculum.easy_first=true",
    "curriculum.min_keep_probability=0.2": "curriculum.by_success_rate=true",
    "curriculum.ema_decay=0.2": "curriculum.by_success_rate=true",
    "certify.episodes=7": "certify.every=2",
    "certify.tolerance_factor=2": "certify.every=2",
    "certify.stop_on_failure=false": "certify.every=2",
    "tracking.project=mine": "trackers=tensorboard",
    "algorithm.critic.gamma=0.9": "algorithm.advantage_estimator=gae",
    "algorithm.turn.gae_lambda=0.5": "algorithm.advantage_estimator=turn",
    "algorithm.loss.clip_low=0.1": "algorithm.loss.kind=ppo",
    "algorithm.loss.clip_high=0.1": "algorithm.loss.kind=ppo",
    "algorithm.loss.target_kl=0.1": "algorithm.update_epochs=2",
    "algorithm.max_resampled_groups=9": "algorithm.advantage_estimator=grpo",
    "algorithm.kl_estimator=k3": "algorithm.kl_coef=0.1",
    "algorithm.reference.sync_steps=2": "algorithm.reference.kind=ema",
    "algorithm.reference.ema_decay=0.2": "algorithm.reference.kind=ema",
    "algorithm.shaping.judge_endpoint=other": "algorithm.shaping.judge_weight=0.2",
    "algorithm.overlong.penalty=0.2": "algorithm.overlong.buffer_fraction=0.2",
    "algorithm.group_size=4": "steps=4",
    "curriculum.easy_first=true": "steps=4",
    "certify.every=2": "steps=4",
}
"""A setting without effect, and a setting with which it has one."""
NEEDED = {
    "sampling": ["sampling.temperature=0"],
    "sampling.keep_sampling_mask": ["sampling.min_p=0"],
    "sft": ["sft.steps=0"],
    "preferences.undesirable_weight": ["preferences.steps=1"],
    "eval.every": ["steps=0"],
    "algorithm.group_size": ["steps=0"],
    "curriculum.easy_first": ["steps=0"],
    "certify.every": ["steps=0"],
    "certify": ["certify.every=0"],
    "engine.vllm": ["engine.sampler=torch"],
    "engine.vllm.python": ["engine.vllm.base_url=http://x"],
    "engine.vllm.server_args": ["engine.vllm.base_url=http://x"],
    "engine.vllm.start_timeout": ["engine.vllm.in_process=true"],
    "engine.optimizer": ["steps=0", "sft.steps=0"],
    "engine.gradient_checkpointing": ["steps=0", "sft.steps=0"],
    "engine.max_tokens_per_microbatch": ["steps=0", "sft.steps=0"],
    "engine.trainable_layers": ["steps=0", "sft.steps=0"],
    "engine.train_control_tokens": ["steps=0", "sft.steps=0"],
    "engine.max_draft_rows": ["engine.sampler=vllm"],
    "health": ["steps=0", "sft.steps=0"],
    "health.max_clip_fraction": ["algorithm.update_epochs=1"],
    "health.max_approx_kl": ["algorithm.update_epochs=1"],
    "engine.train_embeddings": ["engine.finetune=lora"],
    "algorithm.loss.clip_low": ["algorithm.loss.kind=nll"],
    "algorithm.loss.clip_high": ["algorithm.loss.kind=nll"],
    "algorithm.max_resampled_groups": ["algorithm.advantage_estimator=gae"],
}


def keys(section: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in section.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from keys(field.annotation, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def config(*settings: str) -> TrainConfig:
    return parse_config("", ["domain=toy:DOMAIN", "model=tiny", "steps=4", *settings])


def lines(key: str, *settings: str) -> list[str]:
    return [line for line in unused_settings(config(*settings)) if f"{key} = " in line]


def needed(key: str) -> list[str]:
    """Return the settings under which a key has no effect. The defaults suffice for most."""
    parts = key.split(".")
    names = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
    return next((NEEDED[name] for name in names if name in NEEDED), [])


def test_masks_of_constraints_are_an_effect_of_keeping_masks() -> None:
    key, program = "sampling.keep_sampling_mask", ("agent.command=python", "sampling.keep_sampling_mask=false")
    assert lines(key, *program)
    assert not lines(key, *program, "agent.constraints=mask")
    assert lines(key, *program, "agent.constraints=mask", "sampling.temperature=0")


def test_every_key_is_in_the_table_or_always_used() -> None:
    table = {entry.key for entry in UNUSED_SETTINGS}
    assert not table & ALWAYS_USED
    for key in [*keys(TrainConfig), *keys(LocalEngineConfig, "engine.")]:
        parts = key.split(".")
        prefixes = {".".join(parts[:count]) for count in range(1, len(parts) + 1)} - {"engine"} | {key}
        assert prefixes & (table | ALWAYS_USED), key
    cases = {case.partition("=")[0] for case in CASES}
    for key in table:
        assert any(case == key or case.startswith(f"{key}.") for case in cases), f"{key} has no case"


@pytest.mark.parametrize("setting", CASES)
def test_a_setting_without_effect_is_named(setting: str) -> None:
    key = setting.partition("=")[0]
    (line,) = lines(key, *needed(key), setting)
    assert "no effect" in line
    with_effect = [each for each in needed(key) if each.partition("=")[0] != CASES[setting].partition("=")[0]]
    assert lines(key, *with_effect, setting, CASES[setting]) == []
    assert lines(key, *needed(key)) == [], "the default is not named"


def test_a_warmup_that_is_longer_than_its_phase_is_named() -> None:
    assert lines("algorithm.warmup_steps", "algorithm.warmup_steps=50")
    assert lines("sft.warmup_steps", "sft.steps=2", "sft.warmup_steps=3")
    assert not lines("algorithm.warmup_steps", "algorithm.warmup_steps=4")


@pytest.mark.parametrize(
    ("settings", "is_named"), [(["engine.batching=padded"], True), (["engine.batching=packed"], False), ([], False)]
)
def test_speculation_of_padded_rows_is_named(settings: list[str], is_named: bool) -> None:
    assert bool(lines("engine.max_draft_rows", "engine.max_draft_rows=9", *settings)) == is_named


@pytest.mark.parametrize("kind", ["skyrl", "tinker"])
def test_keys_that_an_engine_lacks_are_not_changed(kind: str) -> None:
    lines = list(unused_settings(parse_config("", [f"engine.kind={kind}", "agent.concurrency=9"])))
    assert any("agent.concurrency = 9" in line for line in lines)


def test_a_key_of_a_tracker_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "key")
    monkeypatch.setattr("understudy.train.unused_settings.is_tracker_installed", lambda _: False)
    assert any("WANDB_API_KEY" in line for line in unused_settings(config()))
    monkeypatch.setattr("understudy.train.unused_settings.is_tracker_installed", lambda _: True)
    assert not any("WANDB_API_KEY" in line for line in unused_settings(config()))


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("agent_endpoint=foo", "agent_endpoint = 'foo'"),
        ("eval.failure_judge_endpoint=foo", "eval.failure_judge_endpoint = 'foo'"),
        ("algorithm.shaping.judge_endpoint=foo", "algorithm.shaping.judge_endpoint = 'foo'.*endpoints.foo.base_url"),
        ("user.endpoint=foo", "user.endpoint = 'foo'.*endpoints.foo.base_url"),
        ("data.reward=nothing:foo", "nothing"),
    ],
)
def test_names_of_things_that_do_not_exist_are_refused(setting: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        run_async(prepare_run(config(setting)))
