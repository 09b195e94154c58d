"""What can be named: domains, models, formats, engines, algorithms and so on, each with a line on what it is."""

import importlib
import inspect
from collections.abc import Mapping

from understudy.algorithms.presets import row_text, rows
from understudy.domains.base import BENCHMARKS, names
from understudy.models import MODELS
from understudy.settings import preset_text, presets

FORMATS = ("chatml", "template", "told")
ENGINES = ("local", "tinker", "skyrl")


def available() -> dict[str, dict[str, str]]:
    """Kind -> name -> one line."""
    return {
        "domains": _modules("domains", names()),
        "benchmarks": {f"{name}:PATH#DOMAIN": _first(_doc(module)) for name, module in BENCHMARKS.items()},
        "models": {name: _first(inspect.getdoc(make)) for name, make in MODELS.items()},
        "formats": _modules("formats", FORMATS),
        "engines": _modules("engines", ENGINES),
        "algorithms": {name: _title(row_text(name)) for name in rows()},
        "presets": {name: _title(preset_text(name)) for name in presets()},
    }


def as_text(found: Mapping[str, Mapping[str, str]]) -> str:
    """The same to read."""
    width = max(len(name) for entries in found.values() for name in entries)
    blocks = (
        [kind, *(f"  {name:<{width}}  {line}" for name, line in entries.items())] for kind, entries in found.items()
    )
    return "\n\n".join("\n".join(block) for block in blocks)


def _modules(package: str, modules: tuple[str, ...] | list[str]) -> dict[str, str]:
    return {name: _first(_doc(f"understudy.{package}.{name}")) for name in modules}


def _doc(module: str) -> str | None:
    return importlib.import_module(module).__doc__


def _title(toml: str) -> str:
    return toml.partition("\n")[0].lstrip("# ")


def _first(text: str | None) -> str:
    return (text or "").strip().partition("\n")[0]
