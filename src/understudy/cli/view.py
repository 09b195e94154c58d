"""`understudy view`: a web page of runs and evaluations, as a local server or a file; or text or JSON."""

import json
import os
import sys
import webbrowser
from pathlib import Path
from typing import Annotated

import typer
from pydantic import Field

from understudy.cli.grammar import Options, validate_unused_options
from understudy.cli.messages import print_message, print_result
from understudy.core.errors import ConfigError

DEFAULT_PORT = 7788
"""The default port, if it is free."""
_OF_A_SERVER = ("port", "browser")


class ViewOptions(Options):
    """Options of `view`."""

    paths: Annotated[tuple[Path, ...], typer.Argument(metavar="RUN")]
    """The folder of a run or an evaluation, a folder that contains some, or the log of a server."""
    port: int | None = Field(default=None, ge=0, le=65535)
    """The port of the page; 0 means a free one. Default: 7788 if free."""
    browser: Annotated[bool | None, typer.Option("--open/--no-open")] = None
    """Open a browser. Default: only on a desktop."""
    export: Path | None = None
    """Write the page to an HTML file that works offline."""
    text: bool = False
    """Print a run or an evaluation as text."""
    step: int | None = None
    """Print an episode of this training step as text."""
    episode: int | None = None
    """Print the episode of a run or an evaluation with this number as text, from 1."""
    as_json: Annotated[bool, typer.Option("--json")] = False
    """Print JSON: everything on the page except episodes."""


def view(options: ViewOptions) -> None:
    """Show runs and evaluations on a local web page, until Ctrl-C.

    The page has curves, results and episodes. --text, --step and --episode print text instead.
    """
    if options.text or options.step is not None or options.episode is not None:
        validate_unused_options(options, ("export", "as_json", *_OF_A_SERVER), "--text, --step and --episode")
        return print("\n\n".join(_as_text(run, options.step, options.episode) for run in options.paths))
    from understudy.evaluation.request_logs import is_request_log, open_request_log
    from understudy.viewer import export as exports
    from understudy.viewer.library import RunLibrary

    library = RunLibrary([open_request_log(path) if is_request_log(path) else path for path in options.paths])
    if options.as_json:
        validate_unused_options(options, ("export", *_OF_A_SERVER), "--json")
        answers = exports.collect_answers(library)
        return print_result(json.dumps({where: json.loads(answer) for where, answer in answers.items()}, indent=1))
    if options.export:
        validate_unused_options(options, _OF_A_SERVER, "--export")
        for line in exports.export_page(library, options.export):
            print_message(line, "yellow")
        runs, evaluations = len(library.runs()), len(library.evaluations())
        size = options.export.stat().st_size / 1e6
        holds = f"runs: {runs}, evaluations: {evaluations}, with their episodes"
        return print(f"{options.export} ({size:.1f} MB; {holds}) opens in any browser")
    from understudy.viewer.server import serve_viewer

    def ready(address: str) -> None:
        typer.echo(f"{address} shows {', '.join(map(str, options.paths))}. Press Ctrl-C to stop.", err=True)
        if _has_desktop() if options.browser is None else options.browser:
            webbrowser.open(address)

    serve_viewer(library, [DEFAULT_PORT, 0] if options.port is None else [options.port], ready)


def _as_text(folder: Path, step: int | None, episode: int | None) -> str:
    from understudy.evaluation import explain_stored as why
    from understudy.evaluation.reports.files import format_unfinished, is_evaluation, read_report
    from understudy.evaluation.reports.text import report_to_text
    from understudy.evaluation.request_logs import is_request_log, open_request_log
    from understudy.runs.run import is_run_folder
    from understudy.viewer import run_text
    from understudy.viewer.library import RunLibrary

    is_log = is_request_log(folder)
    folder = open_request_log(folder) if is_log else folder
    if folder.is_dir() and not (is_run_folder(folder) or is_evaluation(folder)):
        library = RunLibrary([folder])  # which refuses a folder without runs
        first = next(iter([*library.runs().values(), *library.evaluations().values()]))
        raise ConfigError(f"{folder} contains runs or evaluations; give one, such as {folder / first.name}")
    if is_evaluation(folder):
        if step is not None:
            raise ConfigError(
                f"{folder} is an evaluation, which has no training steps; leave out --step, or give a run"
            )
        if episode is not None:
            return run_text.format_episode(_evaluation_episodes(folder), episode)
        if is_log:
            return run_text.list_episodes(_evaluation_episodes(folder))
        unfinished = format_unfinished(folder)
        return f"{folder}: {unfinished}" if unfinished else report_to_text(read_report(folder))
    if step is not None or episode is not None:
        return run_text.format_run(folder, step, episode)
    return "\n\n".join(filter(None, [run_text.format_run(folder), why.format_failures(folder)]))


def _evaluation_episodes(path: Path) -> Path:
    """Return the file of an evaluation's episodes. Raise ConfigError if `path` is a report in a file of its own."""
    from understudy.runs.storage.episode_store import EPISODES_FILE

    file = path / EPISODES_FILE
    if not file.is_file():
        raise ConfigError(f"{path} is a report without episodes; give the folder that eval --out has written, or a run")
    return file


def _has_desktop() -> bool:
    """Return whether the machine has a desktop: not over SSH, and with a display."""
    if "SSH_CONNECTION" in os.environ or not sys.stderr.isatty():
        return False
    return sys.platform in ("darwin", "win32") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
