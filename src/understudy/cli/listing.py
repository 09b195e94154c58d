"""List domains, models, formats, engines, algorithms and presets, each with one line."""

import importlib
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path

from understudy.algorithms.presets import algorithm_preset_text, algorithm_presets
from understudy.engines.models import MODELS
from understudy.envs.sources import BENCHMARK_MODULES, list_domains
from understudy.runs.presets import preset_names, preset_text

FORMATS = ("chatml", "template", "prompted_tools")
ENGINES = {"local": "engines.local", "tinker": "engines.tinker", "skyrl": "train.skyrl"}


def list_available() -> dict[str, dict[str, str]]:
    """Return one line for each name, by kind."""
    return {
        "domains": _modules("envs.domains", list_domains()),
        "benchmarks": {f"{name}:PATH#DOMAIN": _first(_doc(module)) for name, module in BENCHMARK_MODULES.items()},
        "models": {name: _model_text(find_folder) for name, find_folder in MODELS.items()},
        "formats": _modules("formats", FORMATS),
        "engines": {name: _first(_doc(f"understudy.{module}")) for name, module in ENGINES.items()},
        "algorithms": {name: _title(algorithm_preset_text(name)) for name in algorithm_presets()},
        "presets": {name: _title(preset_text(name)) for name in preset_names()},
    }


def format_available(found: Mapping[str, Mapping[str, str]]) -> str:
    """Format the list as text."""
    width = max(len(name) for entries in found.values() for name in entries)
    blocks = (
        [kind, *(f"  {name:<{width}}  {line}" for name, line in entries.items())] for kind, entries in found.items()
    )
    return "\n\n".join("\n".join(block) for block in blocks)


def _modules(package: str, modules: tuple[str, ...] | list[str]) -> dict[str, str]:
    return {name: _first(_doc(f"understudy.{package}.{name}")) for name in modules}


def _model_text(find_folder: Callable[[], Path]) -> str:
    text = _first(inspect.getdoc(find_folder)).removeprefix("Return the folder of ")
    return text[:1].upper() + text[1:]


def _doc(module: str) -> str | None:
    return importlib.import_module(module).__doc__


def _title(toml: str) -> str:
    return toml.partition("\n")[0].lstrip("# ")


def _first(text: str | None) -> str:
    return (text or "").strip().partition("\n")[0]
