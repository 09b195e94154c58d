"""Presets: training configs that ship with the package. Each is a TOML file whose first comment line describes it."""

from importlib import resources
from pathlib import Path
from types import MappingProxyType

DEFAULT_PRESET = "retail_quick"
"""The preset of commands that name neither TARGET nor `domain=`."""

MODEL_PARAMETERS = MappingProxyType({"smollm2-135m": 134_515_008, "Qwen/Qwen2.5-3B-Instruct": 3_085_938_688})
"""The size of each model that a preset was made for. The model of `smoke` learns nothing, so it has none."""


def preset_names() -> list[str]:
    """Return the names of the presets, sorted."""
    return sorted(path.stem for path in _folder().glob("*.toml"))


def preset_text(name: str) -> str:
    """Return the TOML text of a preset."""
    return (_folder() / f"{name}.toml").read_text(encoding="utf-8")


def _folder() -> Path:
    return Path(str(resources.files("understudy.runs.presets")))
