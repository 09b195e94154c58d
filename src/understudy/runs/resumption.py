"""Resumption: which config keys a resumed run may change, and how its evaluations are renamed."""

import re
from pathlib import Path

from understudy.core.errors import ConfigError
from understudy.core.settings import config_differences
from understudy.runs.config import TrainConfig
from understudy.runs.endpoints import training_endpoint_names

ENDPOINT_KEYS = (
    "base_url",
    "api_key_var",
    "timeout",
    "max_retries",
    "backoff",
    "max_concurrency",
    "prompt_price",
    "completion_price",
    "cache_dir",
)
"""Keys of an endpoint that a resumed run may change: its address, retries, concurrency, prices and cache."""
MUTABLE_KEYS = (
    "steps",
    "save_every",
    "keep_checkpoints",
    "cost_limit",
    "max_fault_rate",
    "limits.max_step_seconds",
    "health.",
    "certify.stop_on_failure",
    "certify.tolerance_factor",
    "trackers",
    "tracking.",
    "agent_endpoint",
    "eval.failure_judge_endpoint",
    "engine.max_tokens_per_microbatch",
    "engine.gradient_checkpointing",
    "engine.sharding",
    "engine.max_num_seqs",
    "engine.max_draft_rows",
    "engine.threads",
    "engine.collective_timeout",
    "engine.sampler",
    "engine.vllm.",
    "engine.base_url",
    "engine.outage_timeout",
    "engine.timeout",
    "engine.trainer.max_tokens_per_microbatch",
    "engine.trainer.micro_",
    "engine.generator.inference_engine.",
)
"""Prefixes of the keys that a resumed run may change.

Most of them leave the results unchanged except for rounding (memory, saving, the address of a server). Keys of the
sampler change which replies are sampled, but not their probabilities. For `steps` see `validate_resumed_config`.
"""
TRAINED_NAME = "rl"
"""Name of the weights after the last RL step."""
OOD_SET = "ood"
"""Name of the eval set of `eval.ood_domains`. Those of `data.tests` have their names there; that of held-out tasks has
none."""
_ENDPOINT_KEY = re.compile(r"endpoints\.(?P<name>[\w-]+)\.(?P<key>\w+)")
_RL_EVALUATION = re.compile(rf"(?P<step>\d{{6,}}) (?:{TRAINED_NAME}|step \d+)(?P<suffix>(?: \S+)?)")


def validate_resumed_config(folder: Path, stored: TrainConfig, config: TrainConfig, done_steps: int) -> None:
    """Raise ConfigError if `config` changes a key of the stored config that a resumed run must keep.

    `done_steps` counts the steps of all phases up to the checkpoint. The number of RL steps must be at least the
    number done. It cannot change if earlier steps depend on it, for example through the learning rate.
    """
    if changed := fixed_differences(stored, config):
        without = " preferences.steps=0" if stored.preferences.steps else ""
        raise ConfigError(
            f"{folder} was started with another config (stored / given): {'; '.join(changed)}; a resumed run cannot "
            f"change these keys. Start a new run from its weights instead: understudy export {folder} --out MODEL, "
            f"then understudy train {folder} KEY=VALUE model=MODEL sft.steps=0{without}"
        )
    if config.steps != stored.steps and (why := _fixed_steps_reason(config, done_steps - config.steps_before_rl)):
        raise ConfigError(
            f"{folder} was started with steps = {stored.steps}, which cannot change to {config.steps}: {why}"
        )


def fixed_differences(stored: TrainConfig, config: TrainConfig) -> list[str]:
    """Return the keys that a resumed run must keep and whose values differ, each with both values."""
    return [text for text in config_differences(stored, config) if not _is_mutable(text, stored, config)]


def _is_mutable(difference: str, stored: TrainConfig, config: TrainConfig) -> bool:
    """Return whether a resumed run may have this difference. All keys of endpoints not asked in training may change."""
    if match := _ENDPOINT_KEY.match(difference):
        called = {*training_endpoint_names(stored).values(), *training_endpoint_names(config).values()}
        return match["key"] in ENDPOINT_KEYS or match["name"] not in called
    return difference.startswith(MUTABLE_KEYS)


def rl_weights_name(config: TrainConfig, step: int) -> str:
    """Return the name of the weights after an RL step."""
    return TRAINED_NAME if step == config.total_steps else f"step {step}"


def rename_evaluations(folder: Path, config: TrainConfig) -> None:
    """Rename a run's evaluations after its number of steps has changed to that of `config`."""
    for path in list((folder / "evaluations").iterdir()):
        match = _RL_EVALUATION.fullmatch(path.name)
        if match and (step := int(match["step"])) > config.steps_before_rl:
            path.replace(path.with_name(f"{match['step']} {rl_weights_name(config, step)}{match['suffix']}"))


def _fixed_steps_reason(config: TrainConfig, done: int) -> str | None:
    """Return why the number of steps cannot change, or None if it can."""
    if config.engine.kind == "skyrl":
        return "SkyRL plans the data of all steps at the start"
    if config.curriculum.easy_first:
        return "curriculum.easy_first depends on the share of steps done"
    if config.algorithm.min_lr_ratio < 1.0:
        return "with algorithm.min_lr_ratio the learning rate depends on the number of steps"
    return f"{done} steps are done" if done > config.steps else None
