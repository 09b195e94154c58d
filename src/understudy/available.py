"""What can be named: domains, models, formats, engines and presets, each with a line that says what it is."""

import importlib
import inspect
from collections.abc import Mapping

from understudy.config import preset_text, presets
from understudy.domains.base import names
from understudy.models import MODELS

FORMATS = ("chatml", "template")
ENGINES = ("local",)


def available() -> dict[str, dict[str, str]]:
    """Kind -> name -> one line."""
    return {
        "domains": _modules("domains", names()),
        "models": {name: _first(inspect.getdoc(make)) for name, make in MODELS.items()},
        "formats": _modules("formats", FORMATS),
        "engines": _modules("engines", ENGINES),
        "presets": {name: preset_text(name).partition("\n")[0].lstrip("# ") for name in presets()},
    }


def as_text(found: Mapping[str, Mapping[str, str]]) -> str:
    """The same to read."""
    width = max(len(name) for entries in found.values() for name in entries)
    blocks = (
        [kind, *(f"  {name:<{width}}  {line}" for name, line in entries.items())] for kind, entries in found.items()
    )
    return "\n\n".join("\n".join(block) for block in blocks)


def _modules(package: str, modules: tuple[str, ...] | list[str]) -> dict[str, str]:
    return {name: _first(importlib.import_module(f"understudy.{package}.{name}").__doc__) for name in modules}


def _first(text: str | None) -> str:
    return (text or "").strip().partition("\n")[0]
