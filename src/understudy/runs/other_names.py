"""Names that TRL, verl and others use for keys of the config, each with the keys that it may mean here.

A name with one key can be used for it on the command line. A name with several is an error that lists them.
docs/migration.md explains the differences.
"""

from collections.abc import Mapping

OTHER_NAMES: Mapping[str, tuple[str, ...]] = {
    "adv_estimator": ("algorithm.advantage_estimator",),
    "beta": ("algorithm.kl_coef", "preferences.beta"),
    "clip_ratio": ("algorithm.loss.clip_low", "algorithm.loss.clip_high"),
    "clip_ratio_high": ("algorithm.loss.clip_high",),
    "clip_ratio_low": ("algorithm.loss.clip_low",),
    "epsilon": ("algorithm.loss.clip_low", "algorithm.loss.clip_high"),
    "epsilon_high": ("algorithm.loss.clip_high",),
    "eval_steps": ("eval.every",),
    "gpu_memory_utilization": ("engine.vllm.gpu_memory_utilization",),
    "kl_loss_coef": ("algorithm.kl_coef",),
    "kl_loss_type": ("algorithm.kl_estimator",),
    "logger": ("trackers",),
    "logging_tool": ("trackers",),
    "lora_alpha": ("engine.lora.alpha",),
    "lora_dropout": ("engine.lora.dropout",),
    "lora_r": ("engine.lora.rank",),
    "lora_rank": ("engine.lora.rank",),
    "loss_agg_mode": ("algorithm.loss_aggregation",),
    "loss_type": ("algorithm.preset", "algorithm.loss.kind"),
    "lr": ("algorithm.learning_rate", "sft.learning_rate"),
    "max_completion_length": ("sampling.max_response_tokens", "limits.max_episode_tokens"),
    "max_new_tokens": ("sampling.max_response_tokens",),
    "max_response_length": ("sampling.max_response_tokens", "limits.max_episode_tokens"),
    "max_steps": ("steps",),
    "max_tokens": ("sampling.max_response_tokens", "limits.max_episode_tokens"),
    "model_name": ("model",),
    "model_name_or_path": ("model",),
    "model_path": ("model",),
    "n_samples_per_prompt": ("algorithm.group_size",),
    "num_generations": ("algorithm.group_size",),
    "num_iterations": ("algorithm.update_epochs",),
    "num_trials": ("eval.trials",),
    "ppo_epochs": ("algorithm.update_epochs",),
    "ppo_max_token_len_per_gpu": ("engine.max_tokens_per_microbatch",),
    "report_to": ("trackers",),
    "rollouts_per_example": ("algorithm.group_size",),
    "save_freq": ("save_every",),
    "save_steps": ("save_every",),
    "save_total_limit": ("keep_checkpoints",),
    "test_freq": ("eval.every",),
    "total_training_steps": ("steps",),
    "train_batch_size": ("algorithm.groups_per_batch",),
    "vllm_gpu_memory_utilization": ("engine.vllm.gpu_memory_utilization",),
    "warmup_ratio": ("algorithm.warmup_steps", "sft.warmup_steps"),
}
