"""`understudy new …`: write a small project that runs at once, as a start for the user's own."""

import importlib.util
import keyword
from importlib import resources
from pathlib import Path
from typing import Annotated

import typer

from understudy.algorithms.presets import algorithm_preset_text, algorithm_presets
from understudy.cli.grammar import Options, verb
from understudy.core.errors import ConfigError, did_you_mean
from understudy.core.files import RETRY_HINT, atomic_folder, os_errors_as_config_errors, write_text
from understudy.runs.presets import DEFAULT_PRESET, preset_names, preset_text

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Write a small project that runs at once: your own environment, dataset, reward, user, algorithm or config.",
    context_settings={"help_option_names": ["-h", "--help"]},
)

PLACEHOLDER = "template_name"
"""Stands for the project's name in the names and texts of templates."""
TEMPLATE_SUFFIX = ".tmpl"


class NewOptions(Options):
    """Options of `new`."""

    name: Annotated[str, typer.Argument(metavar="NAME")]
    """The name of the new folder and of its Python module."""


class NewEnvironmentOptions(NewOptions):
    """Options of `new environment`."""

    database: bool = False
    """With a database, simulated users and a policy instead of functions."""


class NewConfigOptions(Options):
    """Options of `new config`."""

    name: Annotated[str, typer.Argument(metavar="NAME")]
    """The name of the new file, without .toml."""
    preset: Annotated[str, typer.Argument(metavar="PRESET")] = ""
    """The preset or algorithm to copy. Default: the one of this name, or `retail_quick`."""


@verb(app)
def environment(options: NewEnvironmentOptions) -> None:
    """Write an environment: functions as tools, examples and a reward."""
    _write_and_report("database" if options.database else "environment", options.name)


@verb(app)
def dataset(options: NewOptions) -> None:
    """Write a dataset: a file of questions and answers, a reward and a tool."""
    _write_and_report("dataset", options.name)


@verb(app)
def mcp(options: NewOptions) -> None:
    """Write an environment of an MCP server: a server, tasks and checks."""
    _write_and_report("mcp", options.name)


@verb(app)
def reward(options: NewOptions) -> None:
    """Write a reward for a domain."""
    _write_and_report("reward", options.name)


@verb(app)
def user(options: NewOptions) -> None:
    """Write a user simulator for a domain."""
    _write_and_report("user", options.name)


@verb(app)
def algorithm(options: NewOptions) -> None:
    """Write an RL algorithm: an advantage estimator and a loss."""
    _write_and_report("algorithm", options.name)


@verb(app)
def config(options: NewConfigOptions) -> None:
    """Write the config file NAME.toml, a copy of a preset."""
    same_name = options.name.removesuffix(".toml")
    preset = options.preset or (same_name if same_name in (*preset_names(), *algorithm_presets()) else DEFAULT_PRESET)
    if preset not in (*preset_names(), *algorithm_presets()):
        raise ConfigError(f"unknown preset {did_you_mean(preset, [*preset_names(), *algorithm_presets()])}")
    path = Path(f"{same_name}.toml")
    if path.exists():
        raise ConfigError(f"{path} already exists; choose another name, or remove it")
    write_text(path, preset_text(preset) if preset in preset_names() else algorithm_preset_text(preset))
    command = f"understudy train {path}" if preset in preset_names() else f"understudy train retail {path}"
    print(f"{path} is a copy of the preset {preset}. Edit it, then: {command}")


def write_project(kind: str, name: str, parent: Path) -> Path:
    """Write the templates of a kind into the new folder `parent/name`, and return the folder.

    Raise ConfigError if the name cannot be that of a module, or is taken.
    """
    folder = parent / name
    for path in (folder, folder.with_suffix(".py")):
        if path.exists():
            raise ConfigError(f"{path} already exists; choose another name, or remove it")
    _validate_module_name(name)
    with os_errors_as_config_errors(folder, RETRY_HINT), atomic_folder(folder) as partial:
        for template in sorted((Path(str(resources.files("understudy.cli"))) / "templates" / kind).iterdir()):
            path = partial / template.name.removesuffix(TEMPLATE_SUFFIX).replace(PLACEHOLDER, name)
            path.write_text(template.read_text(encoding="utf-8").replace(PLACEHOLDER, name), encoding="utf-8")
    return folder


def _write_and_report(kind: str, name: str) -> None:
    folder = write_project(kind, name, Path.cwd())
    commands = (folder / "README.md").read_text(encoding="utf-8").partition("```sh\n")[2].partition("```")[0]
    print(f"The folder {name} has {', '.join(sorted(path.name for path in folder.iterdir()))}. Try it:\n")
    print(f"cd {name}\n{commands}")
    print("README.md says what to change where.")


def _validate_module_name(name: str) -> None:
    if not (name.isidentifier() and name.isascii()) or keyword.iskeyword(name):
        raise ConfigError(f"{name!r} cannot be the name of a Python module; use letters, digits and _, such as my_shop")
    if importlib.util.find_spec(name):
        raise ConfigError(f"a Python module {name!r} is installed already; choose another name")
