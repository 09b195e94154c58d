"""Building and validation of SkyRL's own config. One version of SkyRL is supported."""

import json
from collections.abc import Mapping
from importlib import metadata
from typing import Any

from understudy.core.errors import ConfigError
from understudy.train.skyrl.compat import patch_typed_dict

SKYRL_VERSION = "0.3.0"


def validate_installation() -> None:
    """Raise ConfigError if SkyRL is missing or has another version. Apply the patch that its import needs."""
    try:
        version = metadata.version("skyrl")
    except metadata.PackageNotFoundError as e:
        text = "which this Python does not have; docs/cluster.md shows how to install it"
        raise ConfigError(f"engine.kind = 'skyrl' needs skyrl {SKYRL_VERSION}, {text}") from e
    if version != SKYRL_VERSION:
        raise ConfigError(
            f"engine.kind = 'skyrl' needs skyrl {SKYRL_VERSION}, found {version}; install skyrl=={SKYRL_VERSION}"
        )
    patch_typed_dict()


def build_skyrl_config(keys: Mapping[str, Any]) -> Any:
    """Return SkyRL's `SkyRLTrainConfig` with these keys. Raise ConfigError with SkyRL's message if it refuses them."""
    validate_installation()
    from skyrl.train.config import SkyRLTrainConfig
    from skyrl.train.utils import validate_cfg

    try:
        config = SkyRLTrainConfig.from_cli_overrides([f"{key}={_written(value)}" for key, value in keys.items()])
        validate_cfg(config)
    except (ValueError, TypeError, AssertionError, NotImplementedError) as e:
        raise ConfigError(f"skyrl {SKYRL_VERSION} refuses this config: {str(e) or type(e).__name__}") from e
    if config.trainer.fully_async.enabled:
        _validate_async(config.trainer)
    return config


def _written(value: object) -> str:
    """Return a value as text for OmegaConf. TOML has no null, so the string "null" stands for it."""
    return json.dumps(None if value == "null" else value)


def _validate_async(trainer: Any) -> None:
    """Raise ConfigError for settings that SkyRL's asynchronous trainer refuses, but only after all workers started."""
    from skyrl.backends.skyrl_train.utils.ppo_utils import LOSSES_WITH_OLD_LOGPROBS

    least, workers = trainer.policy_mini_batch_size, trainer.fully_async.num_parallel_generation_workers
    most = least * (trainer.fully_async.max_staleness_steps + 1)
    old = sorted(str(loss) for loss in LOSSES_WITH_OLD_LOGPROBS)
    for wrong, text in (
        (
            not least <= workers <= most,
            f"fully_async.num_parallel_generation_workers = {workers} must be {least} to {most}",
        ),
        (trainer.placement.colocate_all, "placement.colocate_all must be false, because engines need their own GPUs"),
        (
            trainer.algorithm.policy_loss_type in old,
            f"algorithm.policy_loss_type = {trainer.algorithm.policy_loss_type!r} must be rollout_is or dppo",
        ),
        (
            trainer.algorithm.dynamic_sampling.type,
            "algorithm.dynamic_sampling.type must not be set; use engine.trainer.fully_async.sample_full_batch",
        ),
        (
            trainer.fully_async.sample_full_batch and not trainer.algorithm.zero_variance_filter,
            "algorithm.zero_variance_filter must be true, because fully_async.sample_full_batch needs it",
        ),
    ):
        if wrong:
            raise ConfigError(f"with engine.trainer.fully_async.enabled = true, engine.trainer.{text}")
