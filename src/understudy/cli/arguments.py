"""Arguments and options that several verbs take."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from understudy.envs.task_source import TaskSource
    from understudy.runs.config import TrainConfig

TARGET_HELP = (
    "TARGET is a preset, a domain (also module:attribute, mcp:FILE, openenv:URL, verifiers:PYTHON#NAME, "
    "nemo-gym:URL#ROWS, harbor:FOLDER#run=local, bfcl:PATH#CATEGORY, sopbench:PATH#NAME, tau-bench:PATH#NAME, "
    "tau2:PATH#NAME, hf:OWNER/NAME, mix:A,B), a file or folder of tasks, a config file, or the "
    "folder of a run, a checkpoint or an evaluation. domain=NAME without TARGET is the same as NAME, and "
    "data.train=FILE the same as FILE. If a name is also a path, write ./NAME for the path. Presets, algorithms and "
    "config files may follow TARGET; their keys win. KEY=VALUE, or --KEY VALUE, sets a key of the config, such as "
    "seed=1."
)
"""Help of the argument TARGET, shared by every verb that takes it."""
TargetWords = Annotated[tuple[str, ...], typer.Argument(metavar="TARGET|KEY=VALUE", help=TARGET_HELP)]
SettingWords = Annotated[
    tuple[str, ...], typer.Argument(metavar="CONFIG|KEY=VALUE", help="Configs, and settings, such as seed=1.")
]
SplitName = Literal["train", "validation", "test"]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
MarkdownOption = Annotated[Path | None, typer.Option("--markdown", help="Write the result as Markdown to this file.")]
ModelArgument = Annotated[
    str,
    typer.Argument(metavar="MODEL", help="A model of `understudy list`, a folder, or owner/model on Hugging Face."),
]


def print_unused_data_settings(config: "TrainConfig") -> None:
    """Print to stderr which keys of [data] have no effect."""
    from understudy.train.unused_settings import unused_settings

    for line in unused_settings(config, "data."):
        typer.echo(line, err=True)


def print_file_summaries(source: "TaskSource") -> None:
    """Print to stderr what was read from files of tasks, and what was refused."""
    from understudy.envs.task_source import list_file_summaries

    for summary in list_file_summaries(source):
        for line in summary.lines():
            typer.echo(line, err=True)
