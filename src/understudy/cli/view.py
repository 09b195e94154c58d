"""`understudy view`: a web page of runs and evaluations, as a local server or a file; or text or JSON."""

import json
import os
import sys
import webbrowser
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from understudy.cli.messages import print_message
from understudy.core.errors import ConfigError

DEFAULT_PORT = 7788
"""The default port, if it is free."""


def view(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="RUN", help="The folder of a run or an evaluation, or a folder that contains some."),
    ],
    port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, help=f"The port of the page; 0 means a free one. Default: {DEFAULT_PORT} if free."
        ),
    ] = None,
    browser: Annotated[
        bool | None, typer.Option("--open/--no-open", help="Open a browser. Default: only on a desktop.")
    ] = None,
    export: Annotated[Path | None, typer.Option(help="Write the page to an HTML file that works offline.")] = None,
    text: Annotated[bool, typer.Option("--text", help="Print a run or an evaluation as text.")] = False,
    step: Annotated[int | None, typer.Option(help="Print an episode of this training step as text.")] = None,
    episode: Annotated[int | None, typer.Option(help="Print the episode with this number as text, from 1.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON: everything on the page except episodes.")
    ] = False,
) -> None:
    """Show runs and evaluations on a local web page, until Ctrl-C.

    The page has curves, results and episodes. --text, --step and --episode print text instead.
    """
    of_a_server = {"--port": port, "--open": browser}
    if text or step is not None or episode is not None:
        beside = {"--export": export, "--json": as_json or None, **of_a_server}
        _validate_unused_options("--text, --step and --episode", beside)
        return print("\n\n".join(_as_text(run, step, episode) for run in paths))
    from understudy.viewer import export as exports
    from understudy.viewer.library import RunLibrary

    library = RunLibrary(paths)
    if as_json:
        _validate_unused_options("--json", {"--export": export, **of_a_server})
        answers = exports.collect_answers(library)
        return print(json.dumps({where: json.loads(answer) for where, answer in answers.items()}, indent=1))
    if export:
        _validate_unused_options("--export", of_a_server)
        for line in exports.export_page(library, export):
            print_message(line, "yellow")
        return print(f"{export} opens in any browser")
    from understudy.viewer.server import serve_viewer

    def ready(address: str) -> None:
        typer.echo(f"{address} shows {', '.join(map(str, paths))}. Press Ctrl-C to stop.", err=True)
        if _has_desktop() if browser is None else browser:
            webbrowser.open(address)

    serve_viewer(library, [DEFAULT_PORT, 0] if port is None else [port], ready)


def _validate_unused_options(way: str, beside: Mapping[str, object]) -> None:
    """Raise ConfigError if an option has no effect beside the others."""
    for option, value in beside.items():
        if value is not None:
            raise ConfigError(f"{option} has no effect beside {way}; leave it out")


def _as_text(folder: Path, step: int | None, episode: int | None) -> str:
    from understudy.evaluation import explain_stored as why
    from understudy.evaluation import report
    from understudy.viewer import run_text
    from understudy.viewer.library import is_evaluation

    if step is not None or episode is not None:
        return run_text.format_run(folder, step, episode)
    if is_evaluation(folder):
        unfinished = report.format_unfinished(folder)
        return f"{folder}: {unfinished}" if unfinished else report.read_report(folder).format_table()
    return "\n\n".join(filter(None, [run_text.format_run(folder), why.format_failures(folder)]))


def _has_desktop() -> bool:
    """Return whether the machine has a desktop: not over SSH, and with a display."""
    if "SSH_CONNECTION" in os.environ or not sys.stderr.isatty():
        return False
    return sys.platform in ("darwin", "win32") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
