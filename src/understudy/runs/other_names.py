"""Names that SkyRL, TRL, verl and others use for keys of the config.

A name with one key can be used for it on the command line. A name with several is an error that lists them.
`runs.conversions` has the names whose values are converted. For other names, an error says which key comes closest, or
why there is none. docs/migration.md and docs/from_skyrl_and_mcp.md explain the differences.
"""

from collections.abc import Mapping

from understudy.core.settings import OtherNames


def _split(names_of_keys: Mapping[str, str]) -> dict[str, str]:
    """Return a mapping from each of the names that are written in one text to the key, or the reason."""
    return {name: key for key, names in names_of_keys.items() for name in names.split()}


_NAMES_OF_KEYS = {
    "engine.vllm.start_timeout": "vllm_server_timeout",
    "engine.vllm.base_url": "vllm_server_base_url",
    "engine.gradient_checkpointing": "actor_rollout_ref.model.enable_gradient_checkpointing",
    "engine.optimizer.weight_decay": "actor_rollout_ref.actor.optim.weight_decay",
    "algorithm.warmup_steps": "actor_rollout_ref.actor.optim.lr_warmup_steps",
    "algorithm.advantage_estimator": "adv_estimator",
    "algorithm.critic.gae_lambda": "lam lambd lambda_gae",
    "algorithm.critic.gamma": "algorithm.gamma",
    "algorithm.critic.value_clip": "cliprange_value value_clip_range critic.cliprange_value",
    "algorithm.critic.vf_coef": "value_loss_coef value_loss_coefficient",
    "algorithm.entropy_coef": "entropy_coeff entropy_coefficient entropy_loss_coef",
    "algorithm.group_size": "n_samples_per_prompt num_generations rollouts_per_example actor_rollout_ref.rollout.n",
    "algorithm.groups_per_batch": "train_batch_size",
    "algorithm.kl_coef": "kl_loss_coef kl_penalty kl_penalty_coef kl_weight algorithm.kl_ctrl.kl_coef",
    "algorithm.kl_estimator": "kl_estimator_type kl_loss_type",
    "algorithm.learning_rate": (
        "trainer.policy.optimizer_config.lr actor_rollout_ref.actor.optim.lr optimization.learning_rate"
    ),
    "algorithm.loss.clip_high": "clip_ratio_high epsilon_high eps_clip_high",
    "algorithm.loss.clip_low": "clip_ratio_low eps_clip_low",
    "algorithm.loss.dual_clip": "clip_ratio_c delta",
    "algorithm.loss.kind": "policy_loss_type ppo_loss_type",
    "algorithm.loss_aggregation": "loss_agg_mode loss_reduction",
    "algorithm.preset": "algorithm.name",
    "algorithm.update_epochs": "num_iterations ppo_epochs update_epochs_per_batch",
    "data.tests.": "data.test_data. test_data.",
    "data.train": "train_data train_files data_path",
    "data.validation": "val_data val_files validation_data_path",
    "engine.finetune": "finetune.mode",
    "engine.lora.alpha": "lora_alpha",
    "engine.lora.dropout": "lora_dropout",
    "engine.lora.rank": "lora_r lora_rank r",
    "engine.max_tokens_per_microbatch": "ppo_max_token_len_per_gpu",
    "engine.optimizer.beta1": "adam_beta1",
    "engine.optimizer.beta2": "adam_beta2",
    "engine.optimizer.eps": "adam_epsilon",
    "engine.optimizer.max_grad_norm": "gradient_clip gradient_clipping_value actor_rollout_ref.actor.grad_clip",
    "engine.sampler": "rollout.backend actor_rollout_ref.rollout.name",
    "engine.vllm.gpu_memory_utilization": "vllm_gpu_memory_utilization",
    "engine.vllm.max_model_len": "vllm_max_model_length",
    "epochs": "max_epochs num_epochs num_train_epochs total_epochs",
    "eval.every": "eval_interval eval_steps test_freq",
    "eval.split": "task_split_name",
    "eval.temperature": (
        "eval_sampling_params.temperature generator.eval_sampling_params.temperature "
        "actor_rollout_ref.rollout.val_kwargs.temperature"
    ),
    "eval.trials": "eval_n_samples_per_prompt num_trials num_generations_eval actor_rollout_ref.rollout.val_kwargs.n",
    "keep_checkpoints": "max_ckpts_to_keep save_total_limit",
    "limits.max_episode_tokens": "max_input_length max_total_length",
    "limits.max_turns": (
        "max_episode_length max_steps_per_episode actor_rollout_ref.rollout.multi_turn.max_assistant_turns"
    ),
    "model": (
        "model.name model_name model_name_or_path model_path trainer.policy.model.path actor_rollout_ref.model.path"
    ),
    "sampling.max_response_tokens": "max_generate_length max_new_tokens",
    "sampling.stop": "stop_sequences",
    "sampling.temperature": "generator.sampling_params.temperature generation.temperature rollout.temperature",
    "save_every": "ckpt_interval save_freq save_frequency save_steps",
    "steps": "max_steps total_training_steps",
    "trackers": "logger logging_tool report_to",
    "tracking.name": "run_name trainer.experiment_name experiment_name",
    "tracking.project": "project_name",
    "user.kind": "user_strategy",
}
_AMBIGUOUS_NAMES: Mapping[str, tuple[str, ...]] = {
    "beta": ("algorithm.kl_coef", "preferences.beta"),
    "clip_ratio": ("algorithm.loss.clip_low", "algorithm.loss.clip_high"),
    "epsilon": ("algorithm.loss.clip_low", "algorithm.loss.clip_high"),
    "lr": ("algorithm.learning_rate", "sft.learning_rate"),
    "max_completion_length": ("sampling.max_response_tokens", "limits.max_episode_tokens"),
    "max_response_length": ("sampling.max_response_tokens", "limits.max_episode_tokens"),
    "max_tokens": ("sampling.max_response_tokens", "limits.max_episode_tokens"),
    "warmup_ratio": ("algorithm.warmup_steps", "sft.warmup_steps"),
}
OTHER_VALUES: Mapping[str, Mapping[str, str]] = {
    "algorithm.kl_estimator": {"low_var_kl": "k3", "mse": "k2"},
    "algorithm.loss.kind": {"regular": "ppo", "dual_clip": "ppo"},
    "algorithm.loss_aggregation": {
        "token-mean": "token_mean",
        "seq-mean-token-mean": "sequence_mean",
        "seq-mean-token-sum-norm": "seq_mean_token_sum_norm",
    },
    "engine.sampler": {"hf": "torch"},
    "eval.every": {"-1": "0"},
    "keep_checkpoints": {"-1": "0"},
    "sampling.top_k": {"-1": "0"},
    "save_every": {"-1": "0"},
    "trackers": {"none": "[]"},
}
"""Values of other libraries, and what they are here, by key."""

_MICROBATCHES = "engine.max_tokens_per_microbatch bounds the memory of a pass and changes no gradient; leave this out"
_REWARD_PARTS = (
    "there is none, on purpose: a reward for lengths, words or numbers of calls can be earned without solving the "
    "task; algorithm.shaping.progress_weight rewards reached parts of the task"
)
_NORMALIZED = (
    "algorithm.advantage_estimator decides: grpo divides by the deviation of the group, reinforce_pp by that of the "
    "batch, group_mean by none"
)
_TARGET_KL_ONLY = (
    "there is none: algorithm.kl_coef is fixed; algorithm.loss.target_kl ends the update of a step, and health.stop_on "
    "the run"
)
_IN_THE_LOSS = (
    "algorithm.kl_estimator decides: k1 is in the reward, k2 and k3 are in the loss, and algorithm.kl_coef=0 turns the "
    "penalty off"
)
_OVERLONG = (
    "there is none: a truncated episode is a failure, and algorithm.overlong.buffer_fraction lowers the reward of long "
    "ones"
)
_ALWAYS = "packing, prefix caching and concurrent sampling are always on; leave it out"
_JUDGE = (
    "algorithm.shaping.judge_weight and judge_endpoint give a bonus to failed episodes by another judge and another "
    "formula"
)
_FOLDER = "a run is one folder with checkpoints and model; give --out FOLDER"
_RESUME = "resume with: understudy train --resume RUN"
_TOOLS = "the TOML file of the MCP environment says it (docs/mcp.md); slice.tools chooses tools by name"

_REWARD = "data.reward=module:function names the one reward; a function of several rewards returns their weighted sum"
_OWN_TOOLS = "pass functions as tools=[…] of a ToolDataset (docs/own_tools.md); slice.tools chooses tools by name"
_ADVANTAGE_WEIGHTS = (
    "algorithm.tis_cap is the cap of importance weights of tokens, 0 turns them off; there is no other form"
)
_OWN_LOSS = "there is none; algorithm.loss.kind=module:attribute is a loss of your own (docs/extending.md)"
_ALL_LOGGED = "all episodes are stored in the run's folder, and understudy view shows them; leave it out"
_VLLM_URL = "engine.vllm.base_url=URL names a running server; without it, one is started"
_FITTED = "memory is fitted to the machine at the start; engine.sharding=fsdp shards an update over processes"
_NAMED_TASKS = "TARGET or data.train and data.validation name the tasks (docs/data.md)"
_TEMPLATE = "the chat template of the model's folder is called as it is; [format] has what can be set"

_NAMES_OF_REASONS = {
    _REWARD: (
        "reward_funcs reward_weights reward_processing_classes multi_objective_aggregation reward_manager reward_model "
        "reward_model. custom_reward_function custom_reward_function. data.reward_fn_key"
    ),
    _OWN_TOOLS: "tools data.tools actor_rollout_ref.rollout.multi_turn.tool_config_path",
    "pass a subclass of ToolEpisode to a ToolDataset (docs/own_tools.md)": "environment_factory rollout_func",
    "limits.max_turns is the number of replies, one more than that of replies with calls": (
        "max_tool_calling_iterations"
    ),
    "limits.max_turns bounds the agent's replies; the user simulator ends the conversation": (
        "actor_rollout_ref.rollout.multi_turn.max_user_turns"
    ),
    "algorithm.loss.kind decides: ppo has ratios of tokens, and gspo of sequences": "importance_sampling_level",
    "algorithm.loss.kind decides: ppo, gspo, cispo, nll, or a function of your own (docs/extending.md)": (
        "actor_rollout_ref.actor.policy_loss actor_rollout_ref.actor.policy_loss."
    ),
    _OWN_LOSS: (
        "sapo_temperature_neg sapo_temperature_pos vespo_k_pos vespo_lambda_pos vespo_k_neg vespo_lambda_neg "
        "top_entropy_quantile off_policy_mask_threshold use_bias_correction_kl"
    ),
    _ADVANTAGE_WEIGHTS: (
        "vllm_importance_sampling_correction vllm_importance_sampling_mode vllm_importance_sampling_cap "
        "algorithm.rollout_correction algorithm.rollout_correction."
    ),
    "algorithm.reference.kind=ema turns it on; leave this out": "sync_ref_model",
    "algorithm.reference.ema_decay is 1 minus it": "ref_model_mixup_alpha",
    "algorithm.groups_per_batch x algorithm.group_size episodes are sampled for a step": "generation_batch_size",
    "algorithm.num_minibatches is the number of optimizer steps for the episodes of a step": "steps_per_generation",
    _ALL_LOGGED: (
        "log_completions num_completions_to_print log_unique_prompts log_completions_hub_repo logging_steps "
        "logging_strategy logging_first_step"
    ),
    _VLLM_URL: "vllm_server_host vllm_server_port vllm_group_port",
    _FITTED: (
        "ds3_gather_for_generation vllm_enable_sleep_mode fsdp use_liger_kernel use_liger_loss torch_compile "
        "actor_rollout_ref.actor.use_dynamic_bsz actor_rollout_ref.model.use_remove_padding "
        "actor_rollout_ref.actor.fsdp_config. actor_rollout_ref.ref. actor_rollout_ref.actor.strategy "
        "actor_rollout_ref.actor.ulysses_sequence_parallel_size "
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu"
    ),
    _NAMED_TASKS: (
        "train_dataset eval_dataset dataset_name dataset_config dataset_train_split remove_unused_columns "
        "shuffle_dataset data.shuffle data.prompt_key data.return_raw_chat data.filter_overlong_prompts "
        "data.truncation"
    ),
    _TEMPLATE: "chat_template_kwargs processing_class actor_rollout_ref.rollout.multi_turn.format",
    "engine.sampler and the keys of [sampling] decide": (
        "generation_kwargs use_transformers_paged cache_implementation vllm_model_impl vllm_structured_outputs_regex "
        "vllm_guided_decoding_regex actor_rollout_ref.rollout.mode actor_rollout_ref.rollout.multi_turn.enable"
    ),
    "there is none: weights are read in engine.dtype, and the optimizer is AdamW": (
        "optimizers model_init_kwargs disable_dropout cast_lm_head_to_fp32 torch_dtype attn_implementation optim "
        "optim_args tf32"
    ),
    "engine.finetune=lora and the keys of [engine.lora] decide": "peft_config use_peft lora_task_type",
    "engine.device decides": "use_cpu no_cuda",
    "engine.collective_timeout is it": "ddp_timeout actor_rollout_ref.nccl_timeout",
    "there is none: trackers, health.stop_on and a loop of your own (docs/extending.md) take their place": "callbacks",
    "no data loader is used; leave it out": "dataloader_num_workers dataloader_pin_memory",
    "seed is the one seed": "data_seed",
    "save_every and keep_checkpoints decide; with eval.split=validation the best one is kept too": (
        "save_strategy load_best_model_at_end metric_for_best_model"
    ),
    "eval.every decides": "eval_strategy do_eval do_train per_device_eval_batch_size",
    "there is none; understudy export writes a folder for Hugging Face": (
        "push_to_hub hub_model_id hub_strategy hub_token"
    ),
    "algorithm.max_resampled_groups decides: it replaces groups of equal rewards": (
        "algorithm.filter_groups algorithm.filter_groups."
    ),
    "the keys of the critic are those of algorithm.critic": "critic critic.",
    "there is none: docs/migration.md has a table of keys": "actor_rollout_ref actor_rollout_ref.",
    _MICROBATCHES: (
        "gradient_accumulation_steps micro_train_batch_size_per_gpu micro_forward_batch_size_per_gpu "
        "per_device_train_batch_size ppo_micro_batch_size_per_gpu"
    ),
    _REWARD_PARTS: (
        "early_termination_reward turn_completion_bonus turn_penalty_weight turn_penalty success_bonus "
        "incomplete_episode_penalty episode_timeout_penalty reasoning_quality_weight tool_efficiency_weight "
        "task_completion_weight reasoning_coherence_weight final_answer_quality_weight tool_selection_accuracy_weight "
        "tool_parameter_accuracy_weight tool_sequence_efficiency_weight correct_tool_bonus incorrect_tool_penalty "
        "unnecessary_tool_penalty tool_error_penalty turn_level_rewards"
    ),
    "there is none: no action is forced, so that each trained token was sampled by the policy": (
        "min_unforced_tokens min_unforced_tokens_per_step min_unforced_fraction_per_step force_rate rl_mode"
    ),
    _NORMALIZED: (
        "normalize_reward normalize_rewards normalize_advantages advantage_batch_normalize reward_normalization "
        "algorithm.norm_adv_by_std_in_grpo "
        "grpo_norm_by_std scale_rewards advantage_type"
    ),
    "there is none: rewards are from 0 to 1 already": (
        "reward_scaling reward_clipping_value reward_clipping_enabled reward_normalization_eps"
    ),
    _TARGET_KL_ONLY: (
        "adaptive_kl adaptive_kl_beta adaptive_kl_penalty kl_target kl_tolerance kl_hard_cap emergency_kl_threshold "
        "target_kl_divergence kl_penalty_warmup_steps"
    ),
    _IN_THE_LOSS: "use_kl_loss use_kl_in_reward init_kl_coef use_abs_kl",
    "algorithm.entropy_coef above 0 turns it on; leave this out": "use_entropy_loss",
    "there is none: algorithm.entropy_coef is constant": "entropy_decay min_entropy entropy_schedule",
    _OVERLONG: (
        "mask_truncated_completions zero_reward_on_non_stop zero_reward_on_length_threshold "
        "max_assistant_response_tokens apply_overlong_filtering"
    ),
    "there is none: prompts are never cut or left out; limits.max_episode_tokens bounds the whole episode": (
        "max_prompt_length"
    ),
    "algorithm.min_lr_ratio: the rate falls linearly to this share of the peak, and is constant with 1": (
        "lr_scheduler_type lr_scheduler_kwargs lr_schedule scheduler policy_lr_schedule lr_scheduler.type"
    ),
    "steps is their number in all; give steps=EPOCHS x STEPS_PER_EPOCH in place of epochs": "steps_per_epoch",
    "it is the model of the endpoint that user.endpoint names, such as endpoints.default.model=gpt-4o": (
        "user_model user_llm"
    ),
    "it is --agent api with the model of an endpoint, as in --agent api endpoints.default.model=gpt-4o": "agent_llm",
    "it is sampling.temperature and sampling.max_response_tokens": "agent_llm_args user_llm_args",
    "there is none: slice.families, slice.difficulties and eval.tasks choose tasks; understudy play TARGET --task ID "
    "plays one": "task_ids",
    "there is none: a tool's error is its result; limits.max_turns ends an episode": "max_errors",
    "TARGET names the tasks, such as understudy eval retail": "task_set_name",
    "resume an evaluation with: understudy eval --resume EVALUATION": "auto_resume",
    "it is the address of that endpoint, such as endpoints.default.base_url=https://api.openai.com/v1 with "
    "endpoints.default.api_key_var=OPENAI_API_KEY": "user_provider",
    _JUDGE: "TAXONOMY_FEEDBACK TAXONOMY_ALPHA",
    "no key: the format of calls follows from the model's template, and all formats are parsed": (
        "use_native_tool_calling tool_call_parser use_conversation_multi_turn"
    ),
    "TARGET names the environment, such as understudy train retail": "env_class",
    "engine.max_num_seqs bounds the concurrent episodes; leave this out": (
        "eval_batch_size max_env_workers num_envs num_workers rollout_parallel_envs rollout_batch_size "
        "max_episodes_per_update episodes_per_update rollout.batch_size"
    ),
    "algorithm.num_minibatches is their number, not their size": "minibatch_size rollout.minibatch_size",
    "the base model is always evaluated first; eval.base_tasks bounds its tasks": (
        "eval_before_train eval_on_start trainer.val_before_train"
    ),
    _FOLDER: "output_dir logging_dir overwrite_output_dir ckpt_path export_path default_local_dir log_path",
    _RESUME: "resume_mode resume_path load_checkpoint resume_from_checkpoint",
    "the model is written at the end; understudy export writes that of a checkpoint": "hf_save_interval",
    _ALWAYS: ("use_sample_packing async_engine enable_prefix_caching return_token_logprobs"),
    "the critic is a head on the policy and has its minibatches": "critic_mini_batch_size",
    "algorithm.tis_cap is the cap of importance weights; 0 turns them off": (
        "importance_sampling_clip use_importance_sampling"
    ),
    "algorithm.critic.learning_rate, which is that of a head alone, so their value does not fit": (
        "trainer.critic.optimizer_config.lr critic.optim.lr"
    ),
    "it is --num-processes N of understudy train, or engine.vllm.server_args=--tensor-parallel-size,N for vLLM": (
        "inference_engine_tensor_parallel_size num_inference_engines n_gpus_per_node vllm_tensor_parallel_size "
        "actor_rollout_ref.rollout.tensor_model_parallel_size trainer.nnodes"
    ),
    "there is none: replies are drawn from token probabilities and not by beam search": (
        "length_penalty early_stopping do_sample num_beams"
    ),
    "it is eval.temperature; other filters are those of [sampling]": (
        "generator.eval_sampling_params.top_p generator.eval_sampling_params.top_k "
        "generator.eval_sampling_params.min_p generator.eval_sampling_params.max_generate_length"
    ),
    "engine.gradient_checkpointing turns it on; leave this out": (
        "gradient_checkpointing_use_reentrant gradient_checkpointing_kwargs"
    ),
    "engine.sharding=fsdp shards an update over processes": "deepspeed deepspeed_config fsdp_config",
    "there is one way to play episodes; leave this out": "rollout_strategy",
    "engine.dtype; auto is bfloat16 where the device has it": "bf16 fp16 model_dtype model.dtype mixed_precision",
    "engine.finetune decides: full, lora or qlora": (
        "use_lora lora.enabled lora_mode.enabled full_finetune_mode.enabled load_in_8bit"
    ),
    "engine.sampler decides: auto, torch or vllm": "vllm.enabled use_vllm generator.backend",
    "give it to vLLM as engine.vllm.server_args": "enforce_eager max_num_batched_tokens enable_chunked_prefill",
    "there is none: code of a model is never executed": "trust_remote_code",
    _TOOLS: (
        "rollout.tools.allow_list rollout.tools.timeout_seconds rollout.tools.retry_attempts tools.allow_list "
        "allow_list"
    ),
    "there is none in the local engine; engine.kind=skyrl gives [engine.trainer] and [engine.generator] to SkyRL": (
        "trainer. generator. trainer generator"
    ),
    "there is none: TARGET and the keys of [data] name the tasks and their environment": "environment. environment",
}
_NAMES_OF_SECTIONS = {
    "actor_rollout_ref.actor": (
        "clip_ratio clip_ratio_c clip_ratio_high clip_ratio_low entropy_coeff kl_loss_coef kl_loss_type loss_agg_mode "
        "ppo_epochs ppo_max_token_len_per_gpu ppo_micro_batch_size_per_gpu ppo_mini_batch_size use_kl_loss"
    ),
    "actor_rollout_ref.model": "lora_alpha lora_rank target_modules",
    "actor_rollout_ref.rollout": "enforce_eager gpu_memory_utilization max_model_len temperature top_k top_p",
    "algorithm": "adv_estimator kl_weight lam use_kl_in_reward",
    "data": (
        "max_prompt_length max_response_length retail_val_data train_batch_size train_data train_files val_data "
        "val_files"
    ),
    "environment": "env_class",
    "environment.skyrl_gym": "max_env_workers",
    "environment.skyrl_gym.tau_bench": (
        "TAXONOMY_ALPHA TAXONOMY_FEEDBACK max_turns use_native_tool_calling user_model user_provider user_strategy"
    ),
    "generation": "do_sample early_stopping length_penalty max_new_tokens repetition_penalty top_k top_p",
    "generator": (
        "async_engine backend enable_chunked_prefill enable_prefix_caching enforce_eager eval_n_samples_per_prompt "
        "gpu_memory_utilization inference_engine_tensor_parallel_size max_assistant_response_tokens max_input_length "
        "max_model_len max_num_batched_tokens max_num_seqs max_turns model_dtype n_samples_per_prompt "
        "num_inference_engines use_conversation_multi_turn use_native_tool_calling zero_reward_on_length_threshold "
        "zero_reward_on_non_stop"
    ),
    "generator.sampling_params": (
        "frequency_penalty max_generate_length min_p presence_penalty repetition_penalty top_k top_p"
    ),
    "grpo": (
        "adaptive_kl clip_ratio entropy_coef gamma kl_coef lambda_gae normalize_advantages target_kl value_loss_coef"
    ),
    "lora": "alpha dropout r target_modules",
    "lora_mode": "alpha dropout gradient_checkpointing per_device_train_batch_size r rank target_modules",
    "multi_turn": "incomplete_episode_penalty max_turns success_bonus turn_penalty",
    "optimization": "gradient_accumulation_steps gradient_clip",
    "optimizer": "adam_beta1 adam_beta2 adam_epsilon",
    "quantization": "load_in_4bit load_in_8bit",
    "reward_shaping": "reasoning_quality_weight task_completion_weight tool_efficiency_weight turn_penalty_weight",
    "rollout": "max_episodes_per_update max_new_tokens max_steps_per_episode num_envs num_workers top_p",
    "trainer": (
        "bf16 ckpt_interval ckpt_path critic_mini_batch_size default_local_dir epochs eval_batch_size "
        "eval_before_train eval_interval export_path gradient_checkpointing gradient_checkpointing_use_reentrant "
        "hf_save_interval "
        "load_checkpoint logger max_ckpts_to_keep max_prompt_length micro_forward_batch_size_per_gpu "
        "micro_train_batch_size_per_gpu n_gpus_per_node policy_mini_batch_size project_name resume_mode resume_path "
        "run_name save_freq seed target_modules test_freq total_epochs total_training_steps train_batch_size "
        "update_epochs_per_batch use_sample_packing"
    ),
    "trainer.algorithm": (
        "advantage_batch_normalize advantage_estimator entropy_loss_coef eps_clip_high eps_clip_low gamma "
        "grpo_norm_by_std init_kl_coef kl_estimator_type kl_loss_coef kl_target lambd loss_reduction normalize_reward "
        "policy_loss_type ppo_loss_type "
        "use_abs_kl use_entropy_loss use_kl_estimator_k3 use_kl_in_reward use_kl_loss value_clip"
    ),
    "trainer.policy.model": "lora_alpha lora_dropout lora_rank",
    "trainer.policy.model.lora": "alpha dropout rank target_modules",
    "trainer.policy.optimizer_config": "adam_betas max_grad_norm num_warmup_steps scheduler weight_decay",
    "training": "max_epochs save_frequency steps_per_epoch",
    "vllm": "enforce_eager gpu_memory_utilization max_model_len trust_remote_code",
}
"""Dotted sections of other libraries, and their names that mean the same without the section."""

_CONVERTED_NAMES = (
    "adam_betas load_in_4bit trainer.algorithm.clip_ratio_c policy_mini_batch_size ppo_mini_batch_size "
    "num_warmup_steps ref_policy_ema_alpha reference_ema_decay ref_policy_update_frequency "
    "reference_update_interval retail_val_data trainer.ref.model.path use_kl_estimator_k3 "
    "ref_model_sync_steps loss_type vllm_mode"
)
OTHER_NAMES = OtherNames(
    keys={**{name: (key,) for name, key in _split(_NAMES_OF_KEYS).items()}, **_AMBIGUOUS_NAMES},
    reasons=_split(_NAMES_OF_REASONS),
    converted=_CONVERTED_NAMES.split(),
    sections={section: names.split() for section, names in _NAMES_OF_SECTIONS.items()},
)
