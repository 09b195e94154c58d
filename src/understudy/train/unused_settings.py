"""Settings that cannot have an effect in a run. They are named at its start, and in a dry run."""

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from understudy.engines.models import find_model
from understudy.runs.config import TrainConfig
from understudy.runs.trackers.config import is_tracker_installed
from understudy.sources.task_files.files import is_task_file
from understudy.train.planning.memory import read_model_shape

_MAX_NAMED = 3
"""Settings that a line names."""


class _Unused(NamedTuple):
    """A setting, or a section of settings, and when it has no effect."""

    key: str
    applies: Callable[[TrainConfig], object]
    reason: str


def _reads_files(config: TrainConfig) -> bool:
    names = [config.domain] if isinstance(config.domain, str) else config.domain
    return bool(config.data.train) or any(is_task_file(part) for name in names for part in name.split(","))


def _has_no_model_user(config: TrainConfig) -> bool:
    return config.user.kind in ("scripted", "instruction", "human") or ":" in config.user.kind


def _pads_rows(config: TrainConfig) -> bool:
    engine = config.engine
    return engine.kind == "local" and read_model_shape(find_model(config.model)).is_padded(engine.export_engine_config)


_NO_FILES = "the run reads no file of tasks"
_NO_RL = "steps = 0"
_NO_TRAINING = "no phase has steps"
_RL_CHECKS = (
    *("max_ratio_error", "max_ratio_rmse", "max_clip_fraction", "max_approx_kl", "min_entropy_ratio"),
    *("max_zero_variance_groups", "min_noop_margin", "max_empty_replies", "max_malformed_replies"),
    *("min_tool_call_ratio", "max_length_drift", "max_faults", "min_initial_success"),
)
"""Thresholds of checks of RL steps."""
UNUSED_SETTINGS: Sequence[_Unused] = (
    _Unused(
        "agent.variables",
        lambda c: not (c.agent.command or c.agent.python),
        "agent.command and agent.python are empty",
    ),
    _Unused("agent.reward", lambda c: not c.agent.name, "agent names no program"),
    _Unused("agent.constraints", lambda c: not c.agent.name, "agent names no program"),
    _Unused("agent.max_seconds", lambda c: not c.agent.name, "agent names no program"),
    _Unused("agent.concurrency", lambda c: not c.agent.name, "agent names no program"),
    _Unused("data.sources", lambda c: not _reads_files(c), _NO_FILES),
    _Unused("data.reward", lambda c: not _reads_files(c), _NO_FILES),
    _Unused("data.compare_calls", lambda c: not _reads_files(c), _NO_FILES),
    _Unused("data.require_reads", lambda c: not _reads_files(c), _NO_FILES),
    _Unused("ood_slice", lambda c: not c.eval.ood_domains, "eval.ood_domains is empty"),
    _Unused("eval.ood_tasks", lambda c: not c.eval.ood_domains, "eval.ood_domains is empty"),
    _Unused("eval.every", lambda c: not c.steps, _NO_RL),
    _Unused("engine.lora", lambda c: c.engine.finetune == "full", "engine.finetune = 'full'"),
    _Unused("engine.train_embeddings", lambda c: c.engine.uses_lora, "engine.finetune trains adapters only"),
    *(
        _Unused(f"engine.{key}", lambda c: not c.total_steps, _NO_TRAINING)
        for key in (
            *("optimizer", "gradient_checkpointing", "max_tokens_per_microbatch", "trainable_layers"),
            "train_control_tokens",
        )
    ),
    _Unused(
        "engine.max_draft_rows",
        lambda c: c.engine.export_engine_config.sampler == "vllm",
        "engine.sampler = 'vllm' has its own speculation",
    ),
    _Unused("engine.max_draft_rows", _pads_rows, "the model's rows are padded, which has no speculation"),
    *(
        _Unused(
            f"engine.vllm.{key}",
            lambda c: c.engine.export_engine_config.vllm.base_url,
            "engine.vllm.base_url names a running server",
        )
        for key in ("python", "server_args")
    ),
    _Unused(
        "engine.vllm.start_timeout",
        lambda c: c.engine.export_engine_config.vllm.in_process,
        "engine.vllm.in_process starts no server",
    ),
    _Unused("engine.vllm", lambda c: c.engine.export_engine_config.sampler == "torch", "engine.sampler = 'torch'"),
    _Unused("sampling.top_p", lambda c: c.steps and c.sampling.temperature == 0, "sampling.temperature = 0"),
    _Unused("sampling.top_k", lambda c: c.steps and c.sampling.temperature == 0, "sampling.temperature = 0"),
    _Unused("sampling.min_p", lambda c: c.steps and c.sampling.temperature == 0, "sampling.temperature = 0"),
    _Unused(
        "sampling.keep_sampling_mask",
        lambda c: (
            c.steps
            and not c.sampling.replace(keep_sampling_mask=True).records_masks
            and (c.agent.constraints == "off" or not c.sampling.temperature)
        ),
        "sampling.top_p, top_k and min_p keep all tokens",
    ),
    _Unused(
        "sampling.keep_sampling_mask", lambda c: c.steps and c.engine.kind != "local", "engine.kind is not 'local'"
    ),
    _Unused("user.max_attempts", _has_no_model_user, "no model plays the user"),
    _Unused("user.endpoint", _has_no_model_user, "no model plays the user"),
    _Unused("sft.learning_rate", lambda c: not c.sft.steps, "sft.steps = 0"),
    _Unused("sft.batch_size", lambda c: not c.sft.steps, "sft.steps = 0"),
    _Unused("sft.warmup_steps", lambda c: not c.sft.steps, "sft.steps = 0"),
    _Unused("sft.num_demonstrations", lambda c: not c.sft.steps, "sft.steps = 0"),
    _Unused("sft.min_reward", lambda c: not c.sft.dataset_file, "sft.dataset_file is empty"),
    _Unused("preferences", lambda c: not c.preferences.steps, "preferences.steps = 0"),
    _Unused(
        "preferences.undesirable_weight",
        lambda c: c.preferences.steps > 0 and c.preferences.kind != "kto",
        "only preferences.kind = 'kto' weighs conversations by their label",
    ),
    _Unused("curriculum", lambda c: not c.steps, _NO_RL),
    _Unused(
        "curriculum.ramp_fraction",
        lambda c: c.steps and not c.curriculum.easy_first,
        "curriculum.easy_first = False",
    ),
    _Unused(
        "curriculum.min_keep_probability",
        lambda c: c.steps and not c.curriculum.by_success_rate,
        "curriculum.by_success_rate = False",
    ),
    _Unused(
        "curriculum.ema_decay",
        lambda c: c.steps and not c.curriculum.by_success_rate,
        "curriculum.by_success_rate = False",
    ),
    _Unused("certify", lambda c: not c.steps, _NO_RL),
    _Unused("certify.episodes", lambda c: c.steps and not c.certify.every, "certify.every = 0"),
    _Unused("certify.tolerance_factor", lambda c: c.steps and not c.certify.every, "certify.every = 0"),
    _Unused("certify.stop_on_failure", lambda c: c.steps and not c.certify.every, "certify.every = 0"),
    _Unused("tracking", lambda c: not c.trackers, "trackers is empty"),
    _Unused(
        "algorithm.critic",
        lambda c: c.steps and not c.algorithm.uses_critic,
        "only algorithm.advantage_estimator = 'gae' has a critic",
    ),
    _Unused(
        "algorithm.turn",
        lambda c: c.steps and c.algorithm.advantage_estimator != "turn",
        "only algorithm.advantage_estimator = 'turn' has advantages of turns",
    ),
    _Unused(
        "algorithm.loss.clip_low",
        lambda c: c.steps and c.algorithm.loss.kind == "nll",
        "algorithm.loss.kind = 'nll' clips nothing",
    ),
    _Unused(
        "algorithm.loss.clip_high",
        lambda c: c.steps and c.algorithm.loss.kind == "nll",
        "algorithm.loss.kind = 'nll' clips nothing",
    ),
    _Unused(
        "algorithm.loss.target_kl",
        lambda c: c.steps and c.algorithm.loss.target_kl > 0 and c.algorithm.num_optimizer_steps == 1,
        "a step with one minibatch and one epoch skips none",
    ),
    _Unused(
        "algorithm.max_resampled_groups",
        lambda c: (
            c.steps and c.algorithm.advantage_estimator in ("gae", "zero") and c.algorithm.max_resampled_groups > 0
        ),
        "algorithm.advantage_estimator = 'gae' and 'zero' train on groups of equal rewards too",
    ),
    _Unused("algorithm.kl_estimator", lambda c: c.steps and not c.algorithm.kl_coef, "algorithm.kl_coef = 0"),
    _Unused(
        "algorithm.reference.sync_steps",
        lambda c: c.steps and c.algorithm.reference.kind != "ema",
        "only algorithm.reference.kind = 'ema' is updated",
    ),
    _Unused(
        "algorithm.reference.ema_decay",
        lambda c: c.steps and c.algorithm.reference.kind != "ema",
        "only algorithm.reference.kind = 'ema' is updated",
    ),
    _Unused(
        "algorithm.shaping.judge_endpoint",
        lambda c: c.steps and not c.algorithm.shaping.judge_weight,
        "algorithm.shaping.judge_weight = 0; set it too",
    ),
    _Unused(
        "algorithm.overlong.penalty",
        lambda c: c.steps and not c.algorithm.overlong.buffer_fraction,
        "algorithm.overlong.buffer_fraction = 0",
    ),
    _Unused("algorithm", lambda c: not c.steps, _NO_RL),
    *(_Unused(f"health.{key}", lambda c: not c.steps, _NO_RL) for key in _RL_CHECKS),
    _Unused("health.max_sft_loss_ratio", lambda c: not c.sft.steps, "sft.steps = 0"),
    *(
        _Unused(
            f"health.{key}",
            lambda c: c.steps and c.engine.kind != "skyrl" and c.algorithm.num_optimizer_steps == 1,
            "with one minibatch and one epoch the policy is the one that sampled",
        )
        for key in ("max_clip_fraction", "max_approx_kl")
    ),
    *(
        _Unused(f"health.{key}", lambda c: not c.total_steps, _NO_TRAINING)
        for key in ("window", "stop_on", "max_grad_norm_spike", "max_recomputation")
    ),
)


def unused_settings(config: TrainConfig, prefix: str = "") -> Iterator[str]:
    """Yield a line about the settings that differ from their defaults and cannot have an effect in this run.

    `prefix`, such as `data.`, leaves out all others.
    """
    for key, applies, reason in UNUSED_SETTINGS:
        if key.startswith(prefix) and (changed := _changed_settings(config, key)) and applies(config):
            more = f" and {len(changed) - _MAX_NAMED} more" if len(changed) > _MAX_NAMED else ""
            yield f"{', '.join(changed[:_MAX_NAMED])}{more}: no effect, since {reason}"
    if prefix:
        return
    phases = {"algorithm": config.steps, "sft": config.sft.steps, "preferences": config.preferences.steps}
    for name, steps in phases.items():
        section = getattr(config, name)
        if "warmup_steps" in section.model_fields_set and 0 < steps < section.warmup_steps:
            yield (
                f"{name}.warmup_steps = {section.warmup_steps}, but the phase has {steps} steps: the learning rate "
                f"stays below {name}.learning_rate"
            )
    if os.environ.get("WANDB_API_KEY") and "wandb" not in config.trackers and not is_tracker_installed("wandb"):
        yield "WANDB_API_KEY is set, but wandb is not installed: nothing is logged there; run pip install wandb"


def _changed_settings(config: TrainConfig, key: str) -> list[str]:
    """Return `key = value` of each setting of a section, or of the single one, that differs from its default.

    Engines have different keys. One that this engine lacks has not changed.
    """
    *path, name = key.split(".")
    section: Any = config
    for part in path:
        section = getattr(section, part, None)
        if section is None:
            return []
    return [*_named_values(key, section.model_dump(include={name}, exclude_defaults=True).get(name))]


def _named_values(key: str, changed: Any) -> Iterator[str]:
    if isinstance(changed, dict):
        for inner, value in changed.items():
            yield from _named_values(f"{key}.{inner}", value)
    elif changed is not None:
        yield f"{key} = {changed!r}"
