"""Arguments and options that several verbs take."""

import difflib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

if TYPE_CHECKING:
    from understudy.envs.task_source import TaskSource

TARGET_HELP = (
    "TARGET is a preset, a domain (also module:attribute, mcp:FILE, tau-bench:PATH#NAME, tau2:PATH#NAME, "
    "hf:OWNER/NAME, mix:A,B), a file or folder of tasks, a config file, or the folder of a run, a checkpoint or an "
    "evaluation. domain=NAME without TARGET is the same as NAME. If a name is also a path, write ./NAME for the path. "
    "Presets, algorithms and config files may follow TARGET; their keys win. KEY=VALUE sets a key of the config, such "
    "as seed=1."
)
"""Help of the argument TARGET, shared by every verb that takes it."""
TargetArguments = Annotated[list[str] | None, typer.Argument(metavar="TARGET|KEY=VALUE", help=TARGET_HELP)]
SettingsArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="CONFIG|KEY=VALUE", help="Configs, and settings, such as seed=1."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def print_file_summaries(source: "TaskSource") -> None:
    """Print to stderr what was read from files of tasks, and what was refused."""
    from understudy.envs.task_source import list_file_summaries

    for summary in list_file_summaries(source):
        for line in summary.lines():
            typer.echo(line, err=True)


_OTHER_OPTIONS = {
    **dict.fromkeys(("limit", "max_samples", "num_examples", "num_tasks", "samples"), "--tasks"),
    "repeat": "--trials",
    **dict.fromkeys(("max_connections", "max_concurrency", "max_concurrent", "num_concurrent"), "--concurrency"),
    **dict.fromkeys(("output_path", "output_dir", "log_dir", "save_to"), "--out"),
}
"""Options of inspect_ai, lm-eval, verifiers and tau-bench, and the option that means the same here."""


class SettingsCommand(TyperCommand):
    """A verb that takes settings. It also takes them as options: `--steps 3` is steps=3, and `--config FILE` is FILE.

    If the first argument is a model, `--model NAME` is that argument.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments. Extend the error for an unknown option."""
        try:
            return super().parse_args(ctx, self._with_settings(args))
        except typer.TyperException as e:
            if type(e).__name__ == "NoSuchOption":  # by name, because typer does not export this class
                option = vars(e)["option_name"].removeprefix("--").replace("-", "_")
                own = {name for parameter in self.params for name in parameter.opts}
                if (same := _OTHER_OPTIONS.get(option)) in own:
                    vars(e)["message"] += f"; it is {same} here"
                else:
                    example = _similar_setting(option)
                    vars(e)["message"] += f"; settings of the config are KEY=VALUE, such as {example}=1"
            raise

    def _with_settings(self, args: Sequence[str]) -> list[str]:
        """Return the arguments, with each option that is a key of the config as KEY=VALUE."""
        own = {name for parameter in self.params for name in parameter.opts}
        first = next((each.metavar or "" for each in self.params if each.param_type_name == "argument"), "")
        found: list[str] = []
        rest = list(args)
        while rest:
            word = rest.pop(0)
            option, equals, value = word.partition("=")
            key = option.removeprefix("--").replace("-", "_")
            if word == "--":
                return [*found, word, *rest]
            if not option.startswith("--") or option in own or not _is_setting(key) or not (equals or rest):
                found.append(word)
                continue
            value = value if equals else rest.pop(0)
            if key == "model" and first in ("MODEL", "CHECKPOINT"):
                found.insert(0, value)
            else:
                found.append(value if key == "config" else f"{key}={value}")
        return found


def _similar_setting(name: str) -> str:
    from understudy.runs.config import TrainConfig

    return next(iter(difflib.get_close_matches(name, TrainConfig.model_fields, n=1)), "seed")


def _is_setting(key: str) -> bool:
    from understudy.core.settings import matching_keys
    from understudy.runs.config import TrainConfig

    return key == "config" or key.partition(".")[0] in TrainConfig.model_fields or bool(matching_keys(TrainConfig, key))
