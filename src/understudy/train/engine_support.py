"""The settings of a run that its engine cannot honour: one function for each `engine.kind`.

Every setting is honoured, or refused before the run starts. docs/archive/cluster.md lists the refused ones.
"""

from collections.abc import Iterator

from understudy.algorithms.config import CriticConfig
from understudy.engines.local.config import OptimizerConfig
from understudy.engines.skyrl_config import SkyRLEngineConfig
from understudy.engines.tinker import capabilities
from understudy.engines.tinker.config import TinkerEngineConfig
from understudy.engines.unsupported import UnsupportedSetting
from understudy.runs.config import AlgorithmConfig, CertifyConfig, TrainConfig
from understudy.train.skyrl.mapping import ADVANTAGES, LOSSES, RESERVED_KEYS, is_asynchronous


def unsupported_settings(config: TrainConfig) -> list[UnsupportedSetting]:
    """Return the settings that the config's engine cannot honour. A local engine honours all but a few of programs."""
    return [*_unsupported_with_programs(config), *_unsupported_by_engine(config)]


def _unsupported_with_programs(config: TrainConfig) -> Iterator[UnsupportedSetting]:
    if not config.agent.name or not config.steps:
        return
    if config.algorithm.uses_critic:
        reason = "with a program, an episode may have several token sequences, and a critic needs one; choose 'grpo'"
        yield UnsupportedSetting("algorithm.advantage_estimator", config.algorithm.advantage_estimator, reason)
    if isinstance(config.engine, SkyRLEngineConfig):
        yield UnsupportedSetting(
            "agent", config.agent.name, "SkyRL's trainer plays no programs; set engine.kind='local'"
        )


def _unsupported_by_engine(config: TrainConfig) -> list[UnsupportedSetting]:
    if isinstance(config.engine, TinkerEngineConfig):
        return list(_unsupported_by_tinker(config, config.engine))
    if isinstance(config.engine, SkyRLEngineConfig):
        return list(_unsupported_by_skyrl(config, config.engine))
    return []


def _unsupported_by_tinker(config: TrainConfig, engine: TinkerEngineConfig) -> Iterator[UnsupportedSetting]:
    """Yield the settings that a server of the Tinker API cannot honour."""
    yield from capabilities.unsupported_by_server(engine)
    yield from capabilities.unsupported_sampling(config.sampling, "sampling")
    yield from capabilities.unsupported_sampling(config.sampling.replace(temperature=config.eval.temperature), "eval")
    if config.algorithm.uses_critic:
        reason = (
            "the Tinker API cannot train a critic; choose an estimator that compares the episodes of a group, such as "
            "'grpo'"
        )
        yield UnsupportedSetting("algorithm.advantage_estimator", config.algorithm.advantage_estimator, reason)
    if config.algorithm.kl_coef:
        yield from capabilities.unsupported_reference(config.algorithm.reference)
    num_phases = sum(count > 0 for count in (config.sft.steps, config.preferences.steps, config.steps))
    able = capabilities.SERVER_CAPABILITIES.get(engine.server_kind)
    if num_phases > 1 and able and not able.sets_adam_betas:
        reason = (
            "this server cannot reset the optimizer's moments between SFT, preferences and RL; set sft.steps=0 and "
            "preferences.steps=0"
        )
        yield UnsupportedSetting("engine.server_kind", engine.server_kind, reason)


def _unsupported_by_skyrl(config: TrainConfig, engine: SkyRLEngineConfig) -> Iterator[UnsupportedSetting]:
    """Yield the settings without an equivalent in SkyRL, and the keys of SkyRL that other sections determine."""
    for key, value in engine.overrides.items():
        if key.startswith(RESERVED_KEYS):
            reason = "other sections (such as algorithm, sampling, limits, eval) or the run's folder determine it"
            yield UnsupportedSetting(f"engine.{key}", value, f"{reason}; leave it out")
    if config.sft.steps:
        reason = "SkyRL has no SFT; run it with engine.kind='local' and name its export as model"
        yield UnsupportedSetting("sft.steps", config.sft.steps, reason)
    if config.preferences.steps:
        reason = "SkyRL has no DPO or KTO; run it with engine.kind='local' and name its export as model"
        yield UnsupportedSetting("preferences.steps", config.preferences.steps, reason)
    if config.steps < 1:
        yield UnsupportedSetting("steps", config.steps, "SkyRL needs at least one step; set it above 0")
    if config.sampling.temperature == 0:
        yield UnsupportedSetting("sampling.temperature", 0.0, "SkyRL's loss divides by it; set it above 0")
    if config.certify != CertifyConfig():
        reason = "SkyRL compares log-probabilities itself in each step; leave it out"
        yield UnsupportedSetting("certify", config.certify.model_dump(), reason)
    if engine.finetune == "lora" and engine.lora.alpha != int(engine.lora.alpha):
        yield UnsupportedSetting("engine.lora.alpha", engine.lora.alpha, "SkyRL accepts only whole numbers; round it")
    yield from _unsupported_algorithm(config.algorithm, engine)
    if is_asynchronous(engine.overrides):
        yield from _unsupported_when_asynchronous(config)


def _unsupported_algorithm(algorithm: AlgorithmConfig, engine: SkyRLEngineConfig) -> Iterator[UnsupportedSetting]:
    if algorithm.advantage_estimator not in ADVANTAGES:
        reason = f"SkyRL does not have it; choose one of {', '.join(ADVANTAGES)}"
        yield UnsupportedSetting("algorithm.advantage_estimator", algorithm.advantage_estimator, reason)
    if algorithm.loss.kind not in LOSSES:
        reason = (
            f"SkyRL does not have it; choose one of {', '.join(LOSSES)}, or set "
            "engine.trainer.algorithm.policy_loss_type"
        )
        yield UnsupportedSetting("algorithm.loss.kind", algorithm.loss.kind, reason)
    if algorithm.loss.target_kl:
        reason = "SkyRL cannot end an update early; set it to 0"
        yield UnsupportedSetting("algorithm.loss.target_kl", algorithm.loss.target_kl, reason)
    if engine.optimizer.eps != OptimizerConfig().eps:
        reason = "SkyRL's optimizer has a fixed one; leave it out"
        yield UnsupportedSetting("engine.optimizer.eps", engine.optimizer.eps, reason)
    if algorithm.reference.kind == "ema":
        reason = "SkyRL has no moving average as reference; set it to frozen"
        yield UnsupportedSetting("algorithm.reference.kind", "ema", reason)
    if algorithm.min_lr_ratio < 1.0:
        reason = "SkyRL has its own schedule; set it to 1 and choose engine.trainer.policy.optimizer_config.scheduler"
        yield UnsupportedSetting("algorithm.min_lr_ratio", algorithm.min_lr_ratio, reason)
    if algorithm.max_trained_episodes:
        reason = "SkyRL trains on all episodes of a step; set it to 0"
        yield UnsupportedSetting("algorithm.max_trained_episodes", algorithm.max_trained_episodes, reason)
    if algorithm.groups_per_batch % algorithm.num_minibatches:
        reason = (
            "SkyRL divides the groups of a step evenly; choose a divisor of algorithm.groups_per_batch = "
            f"{algorithm.groups_per_batch}"
        )
        yield UnsupportedSetting("algorithm.num_minibatches", algorithm.num_minibatches, reason)
    names = ("action_level", "whiten_advantages", "learning_rate", "vf_coef", "warmup_steps")
    for name in names if algorithm.uses_critic else ():
        value = getattr(algorithm.critic, name)
        if value != getattr(CriticConfig(), name):
            reason = "SkyRL's critic is a separate model; set engine.trainer.critic, and leave this out"
            yield UnsupportedSetting(f"algorithm.critic.{name}", value, reason)
    if algorithm.max_resampled_groups and "trainer.algorithm.dynamic_sampling.type" in engine.overrides:
        reason = "engine.trainer.algorithm.dynamic_sampling replaces groups as well; set only one of them"
        yield UnsupportedSetting("algorithm.max_resampled_groups", algorithm.max_resampled_groups, reason)


def _unsupported_when_asynchronous(config: TrainConfig) -> Iterator[UnsupportedSetting]:
    if config.algorithm.max_resampled_groups:
        reason = (
            "with engine.trainer.fully_async each group is played on its own; set it to 0 and "
            "engine.trainer.fully_async.sample_full_batch=true, which also replaces groups"
        )
        yield UnsupportedSetting("algorithm.max_resampled_groups", config.algorithm.max_resampled_groups, reason)
    if config.curriculum.easy_first or config.curriculum.by_success_rate:
        reason = "with engine.trainer.fully_async tasks are drawn before earlier results are known; leave it out"
        yield UnsupportedSetting("curriculum", config.curriculum.model_dump(), reason)
    if config.algorithm.num_minibatches > 1:
        reason = "with engine.trainer.fully_async each step is one update; set it to 1"
        yield UnsupportedSetting("algorithm.num_minibatches", config.algorithm.num_minibatches, reason)
