"""Algorithms by name: rows of arguments, not code. Each is a TOML file that names its paper; see docs/algorithms.md."""

import tomllib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from understudy.errors import ConfigError, nearest


def rows() -> list[str]:
    """The names of the algorithms that ship with the package."""
    return sorted(path.stem for path in _folder().glob("*.toml"))


def row_text(name: str) -> str:
    """A row as it ships; its first line says what it is. Raises ConfigError for a name that is none."""
    if name not in rows():
        raise ConfigError(f"algorithm.preset: unknown algorithm {nearest(name, rows())}")
    return (_folder() / f"{name}.toml").read_text(encoding="utf-8")


def row(name: str) -> dict[str, Any]:
    """The keys of the section `algorithm` that a row sets."""
    values: dict[str, Any] = tomllib.loads(row_text(name))["algorithm"]
    return values


def laid_over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Two sets of nested keys as one; where both say something, `above` wins."""
    both = {key: value for key, value in above.items() if isinstance(value, Mapping) and key in below}
    return {**below, **above, **{key: laid_over(below[key], value) for key, value in both.items()}}


def _folder() -> Path:
    return Path(str(resources.files("understudy"))) / "presets" / "algorithms"
