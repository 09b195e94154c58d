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
        config = SkyRLTrainConfig.from_cli_overrides([f"{key}={json.dumps(value)}" for key, value in keys.items()])
        validate_cfg(config)
    except (ValueError, TypeError, AssertionError, NotImplementedError) as e:
        raise ConfigError(f"skyrl {VERSION} does not take this config: {str(e) or type(e).__name__}") from e
    return config
