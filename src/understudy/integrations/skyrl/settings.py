"""SkyRL's own config, made and checked by SkyRL, in the one version that this is written for."""

import json
from collections.abc import Mapping
from importlib import metadata
from typing import Any

from understudy.errors import ConfigError
from understudy.integrations.skyrl.python import mend

VERSION = "0.3.0"


def installed() -> None:
    """SkyRL is there, in its version, and can be imported; else a ConfigError."""
    try:
        found = metadata.version("skyrl")
    except metadata.PackageNotFoundError as e:
        text = "which is not installed in this Python; docs/cluster.md says how to make an environment for it"
        raise ConfigError(f"engine.kind = 'skyrl' needs skyrl {VERSION}, {text}") from e
    if found != VERSION:
        raise ConfigError(
            f"engine.kind = 'skyrl' is written for skyrl {VERSION}, and this is {found}; install that one"
        )
    mend()


def validated(keys: Mapping[str, Any]) -> Any:
    """SkyRL's `SkyRLTrainConfig` of these keys. What SkyRL does not take is a ConfigError with its own words."""
    installed()
    from skyrl.train.config import SkyRLTrainConfig
    from skyrl.train.utils import validate_cfg

    try:
        config = SkyRLTrainConfig.from_cli_overrides([f"{key}={_written(value)}" for key, value in keys.items()])
        validate_cfg(config)
    except (ValueError, TypeError, AssertionError, NotImplementedError) as e:
        raise ConfigError(f"skyrl {VERSION} does not take this config: {str(e) or type(e).__name__}") from e
    if config.trainer.fully_async.enabled:
        _refuse_overlap(config.trainer)
    return config


def _written(value: object) -> str:
    """A value as OmegaConf reads it; TOML has no null, and no option of SkyRL's is the text."""
    return json.dumps(None if value == "null" else value)


def _refuse_overlap(trainer: Any) -> None:
    """What SkyRL's asynchronous trainer does not take, which it would say only once all workers are up."""
    from skyrl.backends.skyrl_train.utils.ppo_utils import LOSSES_WITH_OLD_LOGPROBS

    least, workers = trainer.policy_mini_batch_size, trainer.fully_async.num_parallel_generation_workers
    most = least * (trainer.fully_async.max_staleness_steps + 1)
    old = sorted(str(loss) for loss in LOSSES_WITH_OLD_LOGPROBS)
    for wrong, text in (
        (
            not least <= workers <= most,
            f"fully_async.num_parallel_generation_workers={workers} is not {least} to {most}",
        ),
        (trainer.placement.colocate_all, "placement.colocate_all is not false: engines need GPUs of their own"),
        (trainer.algorithm.policy_loss_type in old, "algorithm.policy_loss_type is not rollout_is or dppo"),
        (trainer.algorithm.dynamic_sampling.type, "algorithm.dynamic_sampling.type is set: see sample_full_batch"),
        (
            trainer.fully_async.sample_full_batch and not trainer.algorithm.zero_variance_filter,
            "algorithm.zero_variance_filter is not true: fully_async.sample_full_batch goes by it",
        ),
    ):
        if wrong:
            raise ConfigError(f"skyrl.trainer.fully_async.enabled = true, and skyrl.trainer.{text}")
