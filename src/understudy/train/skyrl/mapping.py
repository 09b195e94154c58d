"""Translation of a run's config to SkyRL's dotted keys and values. This module does not import SkyRL.

`train.engine_support` refuses settings that have no equivalent in SkyRL. docs/archive/cluster.md lists the equivalents
and their differences.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from understudy.core.errors import ConfigError
from understudy.engines.skyrl_config import SkyRLEngineConfig
from understudy.runs.config import TrainConfig

SkyRLKeys = dict[str, Any]

RESERVED_KEYS = (
    "data.",
    "environment.",
    "trainer.algorithm.temperature",
    "trainer.ckpt_",
    "trainer.dump_eval_results",
    "trainer.epochs",
    "trainer.eval_",
    "trainer.export_path",
    "trainer.hf_save_interval",
    "trainer.log_path",
    "trainer.logger",
    "trainer.max_ckpts_to_keep",
    "trainer.max_training_steps",
    "trainer.policy.model.path",
    "trainer.resume_",
    "trainer.seed",
    "trainer.train_batch_size",
    "generator.batched",
    "generator.chat_template",
    "generator.eval_",
    "generator.max_turns",
    "generator.n_samples_per_prompt",
    "generator.sampling_params.",
    "generator.step_wise_trajectories",
    "generator.vision_language_generator",
    "generator.zero_reward_on_non_stop",
    "generator.apply_overlong_filtering",
)
"""Prefixes of SkyRL's keys that understudy sets itself: the run's length and folders, and how episodes are played."""
ADVANTAGES: Mapping[str, SkyRLKeys] = {
    "group_mean": {"advantage_estimator": "grpo", "grpo_norm_by_std": False},
    "grpo": {"advantage_estimator": "grpo", "grpo_norm_by_std": True},
    "rloo": {"advantage_estimator": "rloo"},
    "reinforce_pp": {"advantage_estimator": "grpo", "grpo_norm_by_std": False, "advantage_batch_normalize": True},
    "gae": {"advantage_estimator": "gae"},
}
LOSSES = {"ppo": "regular", "gspo": "gspo", "cispo": "cispo"}


def to_skyrl_keys(config: TrainConfig, model: Path, run: Path, checkpoint: Path | None = None) -> SkyRLKeys:
    """Return SkyRL's config for a run in the folder `run` with the model in the folder `model`.

    `checkpoint` is the folder of the SkyRL checkpoint to resume from. Keys of `engine.trainer` and `engine.generator`
    override those derived from other sections.
    """
    engine = require_skyrl_engine_config(config)
    keys = (
        _run(config, model, run, checkpoint) | _episodes(config, model) | _algorithm(config) | _weights(config, engine)
    )
    if config.algorithm.uses_critic:
        keys |= {"trainer.critic.model.path": keys["trainer.policy.model.path"]}
    return keys | engine.overrides


def require_skyrl_engine_config(config: TrainConfig) -> SkyRLEngineConfig:
    """Return the engine section of a config. Raise ConfigError if its kind is not `skyrl`."""
    if not isinstance(config.engine, SkyRLEngineConfig):
        raise ConfigError(f"engine.kind = {config.engine.kind!r}: training on SkyRL needs engine.kind = 'skyrl'")
    return config.engine


def is_asynchronous(keys: Mapping[str, Any]) -> bool:
    """Return whether SkyRL's asynchronous trainer is used, where generation and training overlap."""
    return bool(keys.get("trainer.fully_async.enabled"))


def _run(config: TrainConfig, model: Path, run: Path, checkpoint: Path | None) -> SkyRLKeys:
    """Return the keys of model, duration and folders.

    SkyRL calls its evaluation and checkpoint hooks after each step. Our hooks decide whether one is due.
    """
    resumed = {"resume_mode": "from_path", "resume_path": str(checkpoint)} if checkpoint else {"resume_mode": "none"}
    keys = {
        "seed": config.seed,
        "policy.model.path": config.model if _on_hub(config.model) else str(model),
        "max_training_steps": max(1, config.steps),
        "epochs": 1,
        "ckpt_path": str(run / "skyrl"),
        "export_path": str(run / "skyrl"),
        "log_path": str(run / "skyrl"),
        "ckpt_interval": 1,
        "hf_save_interval": -1,
        "eval_interval": 1,
        "eval_before_train": True,
        "dump_eval_results": False,
        "print_example_interval": -1,
        "logger": "console",
        **resumed,
    }
    return {**{f"trainer.{key}": value for key, value in keys.items()}, "data.dataloader.num_workers": 0}


def _episodes(config: TrainConfig, model: Path) -> SkyRLKeys:
    """Return the keys of sampling and limits. Our rollout enforces the limits; SkyRL needs them for its validation."""
    sampling, room = config.sampling, config.limits.max_episode_tokens + config.sampling.max_response_tokens
    params = {
        "max_generate_length": sampling.max_response_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k or -1,
        "min_p": sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
        "logprobs": 1,
    }
    engine = "generator.inference_engine"
    return {
        **{f"generator.sampling_params.{key}": value for key, value in params.items()},
        "generator.n_samples_per_prompt": config.algorithm.group_size,
        "generator.max_turns": config.limits.max_turns,
        "generator.max_input_length": config.limits.max_episode_tokens,
        "trainer.max_prompt_length": config.limits.max_episode_tokens,
        f"{engine}.engine_init_kwargs.max_model_len": min(room, max_context_tokens(model)),
        f"{engine}.engine_init_kwargs.logprobs_mode": "processed_logprobs",
    }


def _algorithm(config: TrainConfig) -> SkyRLKeys:
    algorithm = config.algorithm
    in_reward = bool(algorithm.kl_coef) and algorithm.kl_estimator == "k1"
    keys: SkyRLKeys = {
        **ADVANTAGES[algorithm.advantage_estimator],
        "policy_loss_type": "dual_clip" if algorithm.loss.dual_clip else LOSSES[algorithm.loss.kind],
        "loss_reduction": algorithm.loss_aggregation,
        "max_seq_len": config.limits.max_turns * config.sampling.max_response_tokens
        if algorithm.loss_aggregation == "seq_mean_token_sum_norm"
        else None,
        "eps_clip_low": algorithm.loss.clip_low,
        "eps_clip_high": algorithm.loss.clip_high,
        "use_entropy_loss": bool(algorithm.entropy_coef),
        "entropy_loss_coef": algorithm.entropy_coef,
        "cispo.cispo_eps_clip_low": algorithm.loss.clip_low,
        "cispo.cispo_eps_clip_high": algorithm.loss.clip_high,
        "use_kl_in_reward": in_reward,
        "use_kl_loss": bool(algorithm.kl_coef) and not in_reward,
        "kl_estimator_type": algorithm.kl_estimator,
        "kl_loss_coef": algorithm.kl_coef,
        "gamma": algorithm.critic.gamma if algorithm.uses_critic else 1.0,
        "lambd": algorithm.critic.gae_lambda if algorithm.uses_critic else 1.0,
        "value_clip": algorithm.critic.value_clip or None,
    }
    if algorithm.loss.dual_clip:
        keys["clip_ratio_c"] = algorithm.loss.dual_clip
    if algorithm.tis_cap:
        keys["off_policy_correction.tis_ratio_type"] = "token"
        keys["off_policy_correction.token_tis_ratio_clip_high"] = algorithm.tis_cap
    teacher = {"trainer.ref.model.path": algorithm.reference.model} if algorithm.reference.model else {}
    return {**{f"trainer.algorithm.{key}": value for key, value in keys.items()}, **teacher}


def _weights(config: TrainConfig, engine: SkyRLEngineConfig) -> SkyRLKeys:
    """Return the keys of batches, optimizer and adapters."""
    algorithm, optimizer = config.algorithm, engine.optimizer
    part = algorithm.groups_per_batch // algorithm.num_minibatches
    keys: SkyRLKeys = {
        "train_batch_size": algorithm.groups_per_batch,
        "policy_mini_batch_size": part,
        "critic_mini_batch_size": part,
        "update_epochs_per_batch": algorithm.update_epochs,
        "max_tokens_per_microbatch": engine.max_tokens_per_microbatch,
        "gradient_checkpointing": engine.gradient_checkpointing,
        "policy.optimizer_config.lr": algorithm.learning_rate,
        "policy.optimizer_config.num_warmup_steps": algorithm.warmup_steps
        * algorithm.num_minibatches
        * algorithm.update_epochs,
        "policy.optimizer_config.adam_betas": [optimizer.beta1, optimizer.beta2],
        "policy.optimizer_config.weight_decay": optimizer.weight_decay,
        "policy.optimizer_config.max_grad_norm": optimizer.max_grad_norm,
    }
    if engine.finetune == "lora":
        targets = engine.lora.target_modules
        keys |= {
            "policy.model.lora.rank": engine.lora.rank,
            "policy.model.lora.alpha": int(engine.lora.alpha),
            "policy.model.lora.dropout": engine.lora.dropout,
            "policy.model.lora.target_modules": targets[0] if targets == ("all-linear",) else list(targets),
        }
    return {f"trainer.{key}": value for key, value in keys.items()}


def max_context_tokens(model: Path) -> int:
    """Return the model's `max_position_embeddings`: its longest sequence, in tokens."""
    about = json.loads((model / "config.json").read_text(encoding="utf-8"))
    return int(about.get("text_config", about).get("max_position_embeddings", 1 << 30))


def _on_hub(name: str) -> bool:
    """Return whether each machine can download the model by name. Otherwise all machines need its folder."""
    return "/" in name and not Path(os.path.expanduser(name)).exists()
