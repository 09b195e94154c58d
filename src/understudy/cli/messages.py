"""What commands print: lines such as errors and warnings to stderr, and results to stdout."""

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import TextIO

import typer

_reserved: TextIO | None = None
"""The standard output, while it is reserved for `print_result`."""


@contextlib.contextmanager
def reserve_stdout() -> Iterator[None]:
    """Reserve the standard output for `print_result` in the block. What other code writes to it goes to stderr.

    Other code is what tools print, their processes, and C libraries. So the output of `--json` is JSON alone.
    """
    global _reserved
    before = sys.stdout
    with contextlib.ExitStack() as stack:
        _reserved = before
        if before is sys.__stdout__ and before is not None:
            before.flush()
            descriptor = before.fileno()
            copy = os.dup(descriptor)
            _reserved = stack.enter_context(open(copy, "w", encoding=before.encoding, errors=before.errors))
            os.dup2(2, descriptor)
            stack.callback(os.dup2, copy, descriptor)
        sys.stdout = sys.stderr
        try:
            yield
        finally:
            sys.stdout, _reserved = before, None


def print_result(text: object) -> None:
    """Print the result of a command to the standard output."""
    print(text, file=_reserved or sys.stdout, flush=True)


def print_message(text: str, color: str | None = None) -> None:
    """Print a line to stderr. It has the color only on a terminal, and only if NO_COLOR is not set."""
    typer.secho(text, fg=None if os.environ.get("NO_COLOR") else color, err=True)
