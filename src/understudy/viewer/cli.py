"""`understudy view`: the page on a server of this machine, as a file, or a run as text."""

import json
import os
import sys
import webbrowser
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from understudy.errors import ConfigError

PORT = 7788
"""Where the page is while that is free, so that one finds it again."""


def view(
    what: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Runs, evaluations, or folders of such, side by side.")
    ],
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help=f"0 takes a free one; {PORT} or a free one if not given.")
    ] = None,
    browser: Annotated[
        bool | None, typer.Option("--open/--no-open", help="Open a browser; where there is a desktop if not given.")
    ] = None,
    export: Annotated[Path | None, typer.Option(help="Write it all to an HTML file that opens offline.")] = None,
    text: Annotated[bool, typer.Option("--text", help="Print a run or an evaluation as text.")] = False,
    step: Annotated[int | None, typer.Option(help="Print an episode of this step as text.")] = None,
    episode: Annotated[int | None, typer.Option(help="Print this episode of the step as text, from 1.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON: all that the page shows but the episodes.")
    ] = False,
) -> None:
    """Look at runs: curves, results, episodes. A page in a browser, until Ctrl-C; also as a file, as text, as JSON."""
    of_a_server = {"--port": port, "--open": browser}
    if text or step is not None or episode is not None:
        beside = {"--export": export, "--json": as_json or None, **of_a_server}
        _refuse("--text, --step and --episode", beside)
        return print("\n\n".join(_as_text(run, step, episode) for run in what))
    from understudy.viewer import export as exports
    from understudy.viewer.library import Library

    library = Library(what)
    if as_json:
        _refuse("--json", {"--export": export, **of_a_server})
        answers = exports.answers(library)
        return print(json.dumps({where: json.loads(answer) for where, answer in answers.items()}, indent=1))
    if export:
        _refuse("--export", of_a_server)
        for line in exports.export(library, export):
            typer.secho(line, fg="yellow", err=True)
        return print(f"{export} opens in any browser")
    from understudy.viewer.server import serve

    def ready(address: str) -> None:
        typer.echo(f"{address} shows {', '.join(map(str, what))}; Ctrl-C ends it", err=True)
        if _has_desktop() if browser is None else browser:
            webbrowser.open(address)

    serve(library, [PORT, 0] if port is None else [port], ready)


def _refuse(way: str, beside: Mapping[str, object]) -> None:
    """Options that would do nothing where it is looked at in this way are not taken."""
    for option, value in beside.items():
        if value is not None:
            raise ConfigError(f"{option} has no effect beside {way}; leave it out")


def _as_text(folder: Path, step: int | None, episode: int | None) -> str:
    from understudy import outcome, view
    from understudy.assess import why
    from understudy.viewer.library import is_evaluation

    if step is not None or episode is not None:
        return view.view(folder, step, episode)
    if is_evaluation(folder):
        return outcome.as_text(outcome.read(folder))
    return "\n\n".join(filter(None, [view.view(folder), why.as_text(folder)]))


def _has_desktop() -> bool:
    """Whether a browser that opens would be seen: not over SSH, and not one that runs in the terminal."""
    if "SSH_CONNECTION" in os.environ or not sys.stderr.isatty():
        return False
    return sys.platform in ("darwin", "win32") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
