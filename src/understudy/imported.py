"""Imported: what a user's own `module:attribute` names. Modules are looked for in the current folder, too."""

import importlib
import sys
from pathlib import Path
from typing import Any

from understudy.errors import ConfigError, nearest


def imported(reference: str) -> Any:
    """The attribute of a module. What is not there is a `ConfigError`; an error of the module's own code propagates.

    The current folder is looked through last, so that no file in it can stand for an installed module.
    """
    module, _, attribute = reference.partition(":")
    if not all(part.isidentifier() for part in [*module.split("."), attribute]):
        raise ConfigError(f"{reference!r} is not of the form module:attribute, such as my_package.my_module:DOMAIN")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as e:
        raise ConfigError(f"no module for {reference!r}: {e}; Python looks in {here} and in PYTHONPATH") from e
    if not hasattr(found, attribute):
        raise ConfigError(f"module {module} has no {nearest(attribute, (n for n in vars(found) if n[0] not in '_@'))}")
    return getattr(found, attribute)
