"""Run `understudy` in a process of its own, with a deadline."""

import contextlib
import functools
import multiprocessing
import os
import signal
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from tests.faults.child import run_program

DEADLINE_SECONDS = 300.0
"""A run that takes longer hangs."""
OUTPUT_SECONDS = 10.0
"""How long the output is read after a run has ended, if a process that it left behind keeps it open."""
_PRELOADED = (
    "tests.faults.child",
    "understudy.train.loop",
    "understudy.cli.main",
    "understudy.cli.launch",
    "understudy.cli.training_end",
    "understudy.engines.local.engine",
    "understudy.train.planning.fitting",
    "understudy.domains.authoring.task_builder",
    "transformers.models.llama.modeling_llama",
    "tests.faults.warm",
    "numpy.ctypeslib",
    "torch._dynamo",
    "torch.distributed.fsdp",
)
"""Modules that each run needs and that take seconds to load."""


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """How a run of the program ended."""

    exit_code: int | None
    """The exit code, minus the signal that killed it, or None if it was stopped at the deadline."""
    output: str
    """What it printed."""

    @property
    def last_line(self) -> str:
        """The last line that it printed."""
        return (self.output.strip().splitlines() or [""])[-1]

    @property
    def error_lines(self) -> list[str]:
        """The lines that begin as errors of the program do."""
        return [line for line in self.output.splitlines() if line.startswith("understudy: ")]


def run_in_fork(arguments: Sequence[str], folder: Path) -> ProgramResult:
    """Run `understudy ARGUMENTS` in a case's folder, in a process forked from one that has loaded the package."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = _context().Process(target=run_program, args=(tuple(arguments), folder, sender))
    process.start()
    sender.close()
    assert process.pid is not None
    with _Output(receiver) as output:
        process.join(DEADLINE_SECONDS)
        code = None if process.is_alive() else process.exitcode
        _kill_session(process.pid)
        process.join()
    return ProgramResult(code, output.text)


class _Output:
    """Collects what a process prints, until all that hold its end have closed it."""

    def __init__(self, receiver: Connection) -> None:
        self._receiver, self._parts = receiver, list[bytes]()
        self._thread = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> "_Output":
        self._thread.start()
        return self

    def __exit__(self, *ended: object) -> None:
        self._thread.join(OUTPUT_SECONDS)
        self._receiver.close()

    @property
    def text(self) -> str:
        """What was printed so far."""
        return b"".join(self._parts).decode(errors="replace")

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            while part := os.read(self._receiver.fileno(), 1 << 16):
                self._parts.append(part)


def _kill_session(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


@functools.cache
def _context() -> "multiprocessing.context.ForkServerContext":
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(_PRELOADED))
    return context
