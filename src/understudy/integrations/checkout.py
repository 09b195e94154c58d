"""A checkout of somebody's repository: its modules imported from where they lie.

A package's top module often imports all that its own agents need, model clients first. `bare` stands in for such a
package without running its top module, so that the submodules with data and tools can be imported alone.
"""

import importlib
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from understudy.errors import ConfigError, nearest


def locate(reference: str, benchmark: str, domains: str) -> tuple[Path, str]:
    """`PATH#domain` as the checkout and the domain's name, of those that have a folder in `PATH/domains`."""
    path, sharp, name = reference.rpartition("#")
    if not sharp or not path:
        raise ConfigError(f"{benchmark}:{reference} is not of the form {benchmark}:PATH#domain")
    if not (Path(path).expanduser() / domains).is_dir():
        raise ConfigError(f"{path} is no checkout of {benchmark}: it has no folder {domains}")
    root = Path(path).expanduser().resolve()
    known = [folder.name for folder in (root / domains).iterdir() if (folder / "__init__.py").is_file()]
    if name not in known:
        raise ConfigError(f"{benchmark} has no domain {nearest(name, known)}")
    return root, name


def bare(name: str, folder: Path) -> None:
    """Make the package `name` importable from `folder` without running its `__init__`, unless that has been run."""
    known = sys.modules.get(name)
    if known is None:
        module = ModuleType(name)
        module.__path__ = [str(folder)]
        module.__spec__ = ModuleSpec(name, None, is_package=True)
        module.__spec__.submodule_search_locations = module.__path__
        sys.modules[name] = module
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)
    elif str(folder) not in [str(Path(path).resolve()) for path in known.__path__]:
        raise ConfigError(
            f"{name} is loaded already, from {[*known.__path__]}: one checkout of it a process, not {folder}"
        )


def load(name: str) -> ModuleType:
    """A module of the checkout; what it lacks is a `ConfigError` that says what to install, or what Python this is."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as e:
        raise ConfigError(f"{name} needs the module {e.name}; install it, such as by: pip install {_package(e)}") from e
    except (ImportError, SyntaxError) as e:
        version = ".".join(map(str, sys.version_info[:3]))
        raise ConfigError(f"{name} does not load in this Python, {version}; see what its README requires: {e}") from e


def _package(error: ModuleNotFoundError) -> str:
    """The name on PyPI of the module that is missing, where it is another one."""
    others = {"dotenv": "python-dotenv", "yaml": "PyYAML", "docstring_parser": "docstring-parser"}
    top = (error.name or "").partition(".")[0]
    return others.get(top, top)
