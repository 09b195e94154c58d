"""Lines that commands print to stderr, such as errors and warnings."""

import os

import typer


def print_message(text: str, color: str | None = None) -> None:
    """Print a line to stderr. It has the color only on a terminal, and only if NO_COLOR is not set."""
    typer.secho(text, fg=None if os.environ.get("NO_COLOR") else color, err=True)
