"""Algorithm presets: TOML files that set the config section `algorithm` (see docs/algorithms.md)."""

import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

from understudy.core.errors import ConfigError, did_you_mean


def algorithm_presets() -> list[str]:
    """Return the names of all algorithm presets, sorted."""
    return sorted(path.stem for path in _folder().glob("*.toml"))


def algorithm_preset_text(name: str) -> str:
    """Return the TOML text of a preset; its first line is a summary. Raise ConfigError if the name is unknown."""
    if name not in algorithm_presets():
        raise ConfigError(f"algorithm.preset: unknown algorithm {did_you_mean(name, algorithm_presets())}")
    return (_folder() / f"{name}.toml").read_text(encoding="utf-8")


def load_algorithm_preset(name: str) -> dict[str, Any]:
    """Return the keys of the section `algorithm` that a preset sets. Raise ConfigError if the name is unknown."""
    values: dict[str, Any] = tomllib.loads(algorithm_preset_text(name))["algorithm"]
    return values


def _folder() -> Path:
    return Path(str(resources.files("understudy.algorithms.presets")))
