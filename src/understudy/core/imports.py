"""Import of `module:attribute` references that users give. The current folder is searched too."""

import importlib
import inspect
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from understudy.core.errors import ConfigError, TaskError, did_you_mean
from understudy.core.foreign_names import explain_field
from understudy.core.user_code import describe_exception, locate_exception

_WRONG_ARGUMENT = re.compile(r"(\w+)\.__init__\(\) got an unexpected keyword argument '(\w+)'")


def import_object(reference: str, wanted: type = object) -> Any:
    """Return the attribute that `module:attribute` names. An error suggests attributes of the type `wanted`, if any.

    The current folder is searched last, so that no file in it can shadow an installed module. Raise ConfigError if the
    module or the attribute does not exist, or if the module's own code raises an exception. An exception of a module
    of this package is a bug and propagates.
    """
    module, _, attribute = reference.partition(":")
    if not all(part.isidentifier() for part in [*module.split("."), attribute]):
        example = "my_package.my_module:DOMAIN"
        if re.fullmatch(r"\w+(\.py)?", reference):
            name = reference.removesuffix(".py")
            example = f"{name}:NAME, where {name}.py defines NAME"
        raise ConfigError(f"{reference!r} is not of the form module:attribute, such as {example}")
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.append(folder)
    imported = _import_module(module, reference, folder)
    if not hasattr(imported, attribute):
        public = [name for name in vars(imported) if name[0] not in "_@"]  # pytest adds names that begin with @
        names = [name for name in public if isinstance(getattr(imported, name), wanted)]
        raise ConfigError(f"module {module} has no {did_you_mean(attribute, names or public)}")
    return getattr(imported, attribute)


def _import_module(module: str, reference: str, folder: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except (ConfigError, TaskError) as e:
        raise type(e)(f"{e} ({locate_exception(e)})") from e
    except SystemExit as e:
        raise ConfigError(
            f"{reference!r} cannot be imported: it calls sys.exit ({locate_exception(e)}); call it under "
            '`if __name__ == "__main__":`'
        ) from e
    except Exception as e:
        if isinstance(e, ModuleNotFoundError) and e.name and f"{module}.".startswith(f"{e.name}."):
            if module.endswith(".py"):
                named = f"{module.removesuffix('.py')}:{reference.partition(':')[2]}"
                raise ConfigError(f"{reference!r} names a file; did you mean {named!r}?") from e
            raise ConfigError(f"no module for {reference!r}: {e}; Python searches {folder} and PYTHONPATH") from e
        if module.partition(".")[0] == "understudy":
            raise
        what, where = describe_exception(e) + _hint(e), locate_exception(e)
        if isinstance(e, SyntaxError) and e.filename:
            what, where = f"{type(e).__name__}: {e.msg}", f"{Path(e.filename).name}:{e.lineno}"
        raise ConfigError(f"{reference!r} cannot be imported: {what} ({where})") from e


def _hint(error: Exception) -> str:
    """Return what to write in place of a wrong argument of a class of the public API."""
    public, text = sys.modules["understudy"], str(error)
    if "BaseModel.__init__() takes 1 positional argument" in text:
        return "; give the fields of a record by name, such as prompt=…"
    found = _WRONG_ARGUMENT.match(text)
    if found and found[1] in public.__all__:
        parameters = inspect.signature(getattr(public, found[1])).parameters
        return f"; {explain_field(found[1], found[2], parameters)}"
    return ""
