"""Arguments and options that several verbs take."""

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

TARGET_HELP = (
    "WHAT is a preset, a domain (also module:attribute, mcp:FILE, tau-bench:PATH#NAME, tau2:PATH#NAME, mix:A,B), a "
    "config file, or the folder of a run, a checkpoint or an evaluation. domain=NAME without WHAT is the same as NAME. "
    "If a name is also a path, write ./NAME for the path. Presets, algorithms and config files may follow WHAT; their "
    "keys win. KEY=VALUE sets a key of the config, such as seed=1."
)
"""Help of the argument WHAT, shared by every verb that takes it."""
TargetArguments = Annotated[list[str] | None, typer.Argument(metavar="WHAT|KEY=VALUE", help=TARGET_HELP)]
SettingsArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="CONFIG|KEY=VALUE", help="Configs, and settings, such as seed=1."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


class VerbGroup(TyperGroup):
    """The group of all verbs. It explains KEY=VALUE to users who write a setting as an option, such as `--steps 3`."""

    def invoke(self, ctx: Any) -> Any:
        """Run a verb. Extend the error for an unknown option if the verb takes settings."""
        try:
            return super().invoke(ctx)
        except typer.TyperException as e:
            # By name, because typer does not export the class of this error.
            if type(e).__name__ == "NoSuchOption" and any(
                "KEY=VALUE" in (parameter.metavar or "") for parameter in vars(e)["ctx"].command.params
            ):
                vars(e)["message"] += "; settings of the config are KEY=VALUE without dashes, such as seed=1"
            raise
