"""Import of `module:attribute` references that users give. The current folder is searched too."""

import importlib
import sys
from pathlib import Path
from typing import Any

from understudy.core.errors import ConfigError, did_you_mean


def import_object(reference: str) -> Any:
    """Return the attribute that `module:attribute` names.

    The current folder is searched last, so that no file in it can shadow an installed module. Raise ConfigError if the
    module or the attribute does not exist. Errors raised by the module's own code propagate.
    """
    module, _, attribute = reference.partition(":")
    if not all(part.isidentifier() for part in [*module.split("."), attribute]):
        raise ConfigError(f"{reference!r} is not of the form module:attribute, such as my_package.my_module:DOMAIN")
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.append(folder)
    try:
        imported = importlib.import_module(module)
    except ModuleNotFoundError as e:
        raise ConfigError(f"no module for {reference!r}: {e}; Python searches {folder} and PYTHONPATH") from e
    if not hasattr(imported, attribute):
        public_names = [name for name in vars(imported) if name[0] not in "_@"]  # pytest adds names that begin with @
        raise ConfigError(f"module {module} has no {did_you_mean(attribute, public_names)}")
    return getattr(imported, attribute)
