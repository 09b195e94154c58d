"""A run's config as SkyRL's: dotted keys and values, or why there are none. Needs no SkyRL.

What SkyRL has no equal to is refused, so that no setting is passed over in silence. docs/cluster.md has the table, and
says where an equal differs in a detail.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from understudy.algorithms.options import Critic
from understudy.config import Algorithm, CertifyConfig, TrainConfig
from understudy.engines.local.config import LocalConfig
from understudy.errors import ConfigError

Keys = dict[str, Any]

OURS = (
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
"""What SkyRL's keys begin with that say what a run is, where it is kept and how its episodes are played."""
CPU: Keys = {
    "trainer.placement.colocate_all": False,
    "trainer.placement.colocate_policy_ref": False,
    "trainer.flash_attn": False,
    "trainer.remove_microbatch_padding": False,
    "trainer.bf16": False,
    "trainer.enable_ray_gpu_monitor": False,
    "trainer.use_expandable_segments": False,
    "generator.inference_engine.model_dtype": "float32",
    "generator.inference_engine.enable_ray_prometheus_stats": False,
}
"""What workers on a CPU cannot do without."""
_ADVANTAGES: Mapping[str, Keys] = {
    "group": {"advantage_estimator": "grpo", "grpo_norm_by_std": False},
    "group_std": {"advantage_estimator": "grpo", "grpo_norm_by_std": True},
    "leave_one_out": {"advantage_estimator": "rloo"},
    "batch_std": {"advantage_estimator": "grpo", "grpo_norm_by_std": False, "advantage_batch_normalize": True},
    "gae": {"advantage_estimator": "gae"},
}
_LOSSES = {"policy": "regular", "gspo": "gspo", "cispo": "cispo"}
_REDUCTIONS = {"token": "token_mean", "sequence": "sequence_mean", "constant": "seq_mean_token_sum_norm"}


def skyrl_keys(config: TrainConfig, model: Path, run: Path, checkpoint: Path | None = None) -> Keys:
    """SkyRL's config for a run of this model in this folder, gone on with from a checkpoint where there is one.

    What is said under `skyrl` goes before what other sections come to. Raises ConfigError for what SkyRL cannot do.
    """
    given = config.skyrl.keys
    for key in given:
        if key.startswith(OURS):
            raise ConfigError(
                f"skyrl.{key}: this is not SkyRL's to decide; the other sections, such as algorithm, sampling, limits, "
                "eval and save_every, say what a run is, and its folder is where it is kept"
            )
    for key, value, reason in _unequal(config):
        raise ConfigError(f"{key} = {value!r}: engine.kind='skyrl' has no equal to it: {reason}")
    found = _run(config, model, run, checkpoint) | _episodes(config, model) | _algorithm(config) | _weights(config)
    if config.skyrl.workers == "cpu":
        found |= CPU
    if config.algorithm.valued:
        found |= {"trainer.critic.model.path": found["trainer.policy.model.path"]}
    return found | given


def asynchronous(keys: Mapping[str, Any]) -> bool:
    """Whether generation and training are to overlap."""
    return bool(keys.get("trainer.fully_async.enabled"))


def _run(config: TrainConfig, model: Path, run: Path, checkpoint: Path | None) -> Keys:
    """What is trained for how long, and where it is kept; evaluations and checkpoints are decided here each step."""
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


def _episodes(config: TrainConfig, model: Path) -> Keys:
    """How episodes are sampled. The limits are held by our rollout; SkyRL is told of them for its checks."""
    sampling, room = config.sampling, config.limits.max_tokens + config.sampling.max_tokens
    params = {
        "max_generate_length": sampling.max_tokens,
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
        "generator.max_input_length": config.limits.max_tokens,
        "trainer.max_prompt_length": config.limits.max_tokens,
        f"{engine}.engine_init_kwargs.max_model_len": min(room, context(model)),
        f"{engine}.engine_init_kwargs.logprobs_mode": "processed_logprobs",
    }


def _algorithm(config: TrainConfig) -> Keys:
    algorithm = config.algorithm
    in_reward = bool(algorithm.kl_coefficient) and algorithm.kl_kind == "k1"
    keys: Keys = {
        **_ADVANTAGES[algorithm.advantage],
        "policy_loss_type": _LOSSES[algorithm.loss.kind],
        "loss_reduction": _REDUCTIONS[algorithm.per],
        "max_seq_len": config.limits.max_turns * config.sampling.max_tokens if algorithm.per == "constant" else None,
        "eps_clip_low": algorithm.loss.clip_low,
        "eps_clip_high": algorithm.loss.clip_high,
        "cispo.cispo_eps_clip_low": algorithm.loss.clip_low,
        "cispo.cispo_eps_clip_high": algorithm.loss.clip_high,
        "use_kl_in_reward": in_reward,
        "use_kl_loss": bool(algorithm.kl_coefficient) and not in_reward,
        "kl_estimator_type": algorithm.kl_kind,
        "kl_loss_coef": algorithm.kl_coefficient,
        "gamma": algorithm.critic.gamma if algorithm.valued else 1.0,
        "lambd": algorithm.critic.lam if algorithm.valued else 1.0,
        "value_clip": algorithm.critic.clip or None,
    }
    if algorithm.importance_cap:
        keys["off_policy_correction.tis_ratio_type"] = "token"
        keys["off_policy_correction.token_tis_ratio_clip_high"] = algorithm.importance_cap
    teacher = {"trainer.ref.model.path": algorithm.reference.model} if algorithm.reference.model else {}
    return {**{f"trainer.algorithm.{key}": value for key, value in keys.items()}, **teacher}


def _weights(config: TrainConfig) -> Keys:
    """Batches, optimizer and adapters."""
    algorithm, engine, optimizer = config.algorithm, config.engine, config.engine.optimizer
    part = algorithm.tasks_per_step // algorithm.updates_per_step
    keys: Keys = {
        "train_batch_size": algorithm.tasks_per_step,
        "policy_mini_batch_size": part,
        "critic_mini_batch_size": part,
        "update_epochs_per_batch": algorithm.epochs,
        "max_tokens_per_microbatch": engine.tokens_per_microbatch,
        "gradient_checkpointing": engine.checkpointing,
        "policy.optimizer_config.lr": algorithm.learning_rate,
        "policy.optimizer_config.num_warmup_steps": algorithm.warmup * algorithm.updates_per_step * algorithm.epochs,
        "policy.optimizer_config.adam_betas": [optimizer.beta1, optimizer.beta2],
        "policy.optimizer_config.weight_decay": optimizer.weight_decay,
        "policy.optimizer_config.max_grad_norm": optimizer.max_grad_norm,
    }
    if engine.finetune == "lora":
        targets = engine.lora.targets
        keys |= {
            "policy.model.lora.rank": engine.lora.rank,
            "policy.model.lora.alpha": int(engine.lora.alpha),
            "policy.model.lora.dropout": engine.lora.dropout,
            "policy.model.lora.target_modules": targets[0] if targets == ("all-linear",) else list(targets),
        }
    return {f"trainer.{key}": value for key, value in keys.items()}


def context(model: Path) -> int:
    """The longest sequence that the model's positions allow, in tokens."""
    about = json.loads((model / "config.json").read_text(encoding="utf-8"))
    return int(about.get("text_config", about).get("max_position_embeddings", 1 << 30))


def _on_hub(name: str) -> bool:
    """Whether each machine can fetch the model by its name; others are folders that all have to see."""
    return "/" in name and not Path(name).expanduser().exists()


def _unequal(config: TrainConfig) -> Iterator[tuple[str, object, str]]:
    """What is set that SkyRL has no equal to: key, value, reason."""
    if config.sft.steps:
        yield "sft.steps", config.sft.steps, "train a warm start by engine.kind='local' first, name its export as model"
    if config.preferences.steps:
        yield "preferences.steps", config.preferences.steps, "learn preferences by engine.kind='local' first"
    if config.steps < 1:
        yield "steps", config.steps, "without a step there is nothing for it to do; set it above 0"
    if config.sampling.temperature == 0:
        yield "sampling.temperature", 0.0, "its loss divides by it; set it above 0"
    if config.certify != CertifyConfig():
        yield "certify", config.certify.model_dump(), "it compares log-probabilities itself, each step; leave it out"
    yield from _unequal_algorithm(config.algorithm, config.skyrl.keys)
    yield from _unequal_engine(config.engine, config.skyrl.workers)
    if asynchronous(config.skyrl.keys):
        yield from _unequal_when_asynchronous(config)


def _unequal_algorithm(algorithm: Algorithm, given: Mapping[str, Any]) -> Iterator[tuple[str, object, str]]:
    if algorithm.advantage not in _ADVANTAGES:
        yield "algorithm.advantage", algorithm.advantage, f"it has {', '.join(_ADVANTAGES)}"
    if algorithm.loss.kind not in _LOSSES:
        yield "algorithm.loss.kind", algorithm.loss.kind, f"it has {', '.join(_LOSSES)}, or its own by skyrl.trainer"
    if algorithm.reference.kind == "ema":
        yield "algorithm.reference.kind", "ema", "its reference stays as it is, or is renewed at each epoch"
    if algorithm.decay < 1.0:
        reason = "its learning rate stays, or follows skyrl.trainer.policy.optimizer_config.scheduler"
        yield "algorithm.decay", algorithm.decay, reason
    if algorithm.tasks_per_step % algorithm.updates_per_step:
        yield (
            "algorithm.updates_per_step",
            algorithm.updates_per_step,
            f"it divides a step by tasks, and tasks_per_step = {algorithm.tasks_per_step} is no multiple of it",
        )
    critic, usual = algorithm.critic, Critic()
    for name in ("step", "whiten", "learning_rate", "coefficient", "warmup") if algorithm.valued else ():
        if getattr(critic, name) != getattr(usual, name):
            reason = "its critic is a model of its own; see skyrl.trainer.critic.optimizer_config"
            yield f"algorithm.critic.{name}", getattr(critic, name), reason
    if algorithm.refill and "trainer.algorithm.dynamic_sampling.type" in given:
        yield "algorithm.refill", algorithm.refill, "dynamic_sampling replaces groups as well; set one of both"


def _unequal_engine(engine: LocalConfig, workers: str) -> Iterator[tuple[str, object, str]]:
    if engine.finetune == "qlora":
        yield "engine.finetune", "qlora", "it has lora and full"
    if engine.finetune == "lora" and workers == "cpu":
        yield "engine.finetune", "lora", "skyrl.workers='cpu' trains all weights; set engine.finetune=full"
    if engine.checkpointing and workers == "cpu":
        yield "engine.checkpointing", True, "skyrl.workers='cpu' keeps all activations; leave it out"
    if engine.finetune == "full" and not engine.train_embeddings:
        yield "engine.train_embeddings", False, "it trains all weights, embeddings too; set it to true"
    if engine.finetune == "lora" and engine.lora.alpha != int(engine.lora.alpha):
        yield "engine.lora.alpha", engine.lora.alpha, "it takes whole numbers"


def _unequal_when_asynchronous(config: TrainConfig) -> Iterator[tuple[str, object, str]]:
    if config.algorithm.refill:
        reason = "groups are played apart; set it to 0, and skyrl.trainer.fully_async.sample_full_batch for the same"
        yield "algorithm.refill", config.algorithm.refill, reason
    if config.curriculum.difficulty or config.curriculum.success:
        yield "curriculum", config.curriculum.model_dump(), "tasks are drawn before it is known what became of others"
    if config.algorithm.updates_per_step > 1:
        yield "algorithm.updates_per_step", config.algorithm.updates_per_step, "each step is one update; set it to 1"
