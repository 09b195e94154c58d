"""Presets: training configs that ship with the package. Each is a TOML file whose first comment line describes it."""

from importlib import resources
from pathlib import Path

DEFAULT_PRESET = "retail_quick"
"""The preset of commands that name neither TARGET nor `domain=`."""


def preset_names() -> list[str]:
    """Return the names of the presets, sorted."""
    return sorted(path.stem for path in _folder().glob("*.toml"))


def preset_text(name: str) -> str:
    """Return the TOML text of a preset."""
    return (_folder() / f"{name}.toml").read_text(encoding="utf-8")


def _folder() -> Path:
    return Path(str(resources.files("understudy.runs.presets")))
