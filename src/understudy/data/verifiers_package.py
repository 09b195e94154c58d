"""Writes a source of tasks as an installable environment of verifiers 0.4, which this Python plays.

verifiers loads an environment by the module's `__all__`: its taskset, and the harness that plays it.
"""

import importlib.util
import keyword
import sys
from importlib import resources
from pathlib import Path

from understudy.core.errors import ConfigError
from understudy.data.conversations.export import create_output_folder
from understudy.sources.loading import load_source

_TEMPLATE = "verifiers_environment.py.tmpl"
_PYPROJECT = """\
[project]
name = "{distribution}"
version = "0.1.0"
description = "Tasks of {source}, played by understudy."
requires-python = ">=3.11"
dependencies = ["verifiers>=0.4,<0.5"]

[build-system]
requires = ["setuptools>=61"]
build-backend = "setuptools.build_meta"

[tool.setuptools]
py-modules = ["{module}"]
"""


def write_verifiers_package(source: str, out: Path) -> None:
    """Write the package of a source to the new folder `out`, whose name is that of the environment.

    Raise ConfigError if the source cannot be loaded, or if the name cannot be that of a module.
    """
    module = out.name.replace("-", "_").lower()
    if not module.isascii() or not module.isidentifier() or keyword.iskeyword(module):
        raise ConfigError(f"{out.name!r} cannot be the name of an environment; use letters, digits and _")
    if importlib.util.find_spec(module):
        raise ConfigError(f"a Python module {module!r} is installed already; choose another name")
    load_source(source)
    text = (resources.files("understudy.data") / _TEMPLATE).read_text(encoding="utf-8")
    values = {"PYTHON": sys.executable, "FOLDER": str(Path.cwd()), "SOURCE": source}
    for name, value in values.items():
        text = text.replace(f"str = {name}\n", f"str = {value!r}\n")
    with create_output_folder(out) as folder:
        (folder / f"{module}.py").write_text(text, encoding="utf-8")
        project = _PYPROJECT.format(distribution=module.replace("_", "-"), source=source, module=module)
        (folder / "pyproject.toml").write_text(project, encoding="utf-8")
