"""Import modules from a checkout of another repository.

A package's top module often imports what its agents need, such as clients of model APIs. `register_package` makes the
package importable without running its top module, so that its data and tools can be imported alone.
"""

import importlib
import os
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from understudy.core.errors import ConfigError, did_you_mean


def locate_domain(reference: str, benchmark: str, domains: str) -> tuple[Path, str]:
    """Split `PATH#domain` into the checkout and the domain's name. The domain must have a folder in `PATH/domains`."""
    path, name = reference.rpartition("#")[::2] if "#" in reference else (reference, "")
    if not path or not (Path(os.path.expanduser(path)) / domains).is_dir():
        problem = f"{path or reference} is not a checkout of {benchmark}: it has no folder {domains}"
        raise ConfigError(f"{problem}; write {benchmark}:PATH#domain")
    root = Path(os.path.expanduser(path)).resolve()
    known = sorted(folder.name for folder in (root / domains).iterdir() if (folder / "__init__.py").is_file())
    if not name:
        raise ConfigError(f"{benchmark}:{path} names no domain; write {benchmark}:{path}#{' or #'.join(known)}")
    if name not in known:
        raise ConfigError(f"{benchmark} has no domain {did_you_mean(name, known)}")
    return root, name


def register_package(name: str, folder: Path) -> None:
    """Make the package `name` importable from `folder` without running its `__init__`, unless already imported."""
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
        return
    paths = [*getattr(known, "__path__", (getattr(known, "__file__", None) or name,))]  # a module has no __path__
    if str(folder) not in [str(Path(path).resolve()) for path in paths]:
        raise ConfigError(
            f"{name} is already loaded from {', '.join(paths)}; a process loads only one {name}, so load {folder} in "
            "another process"
        )


def import_submodule(name: str) -> ModuleType:
    """Import a module of the checkout. Raise `ConfigError` if a dependency or a newer Python is missing."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as e:
        raise ConfigError(f"{name} needs the module {e.name}; install it with: pip install {_package(e)}") from e
    except (ImportError, SyntaxError) as e:
        version = ".".join(map(str, sys.version_info[:3]))
        raise ConfigError(f"{name} does not load in Python {version}: {e}; see the requirements in its README") from e


def _package(error: ModuleNotFoundError) -> str:
    """Return the PyPI name of the missing module."""
    others = {"dotenv": "python-dotenv", "yaml": "PyYAML", "docstring_parser": "docstring-parser"}
    top = (error.name or "").partition(".")[0]
    return others.get(top, top)
