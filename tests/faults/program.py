"""Run a program in a process of its own with a deadline, forked from one that has loaded what takes seconds to load."""

import contextlib
import functools
import multiprocessing
import os
import runpy
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

DEADLINE_SECONDS = 300.0
"""A run that takes longer hangs."""
OUTPUT_SECONDS = 10.0
"""How long the output is read after a run has ended, if a process that it left behind keeps it open."""
_PRELOADED = (
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


def run_in_fork(program: Callable[[], object], folder: Path) -> ProgramResult:
    """Call `program` in a process whose working folder is `folder`, which is also the first on its import path."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = _context().Process(target=_run_program, args=(program, folder, sender))
    process.start()
    sender.close()
    assert process.pid is not None
    with _Output(receiver) as output:
        process.join(DEADLINE_SECONDS)
        code = None if process.is_alive() else process.exitcode
        _kill_session(process.pid)
        process.join()
    return ProgramResult(code, output.text)


def run_module(name: str, *arguments: str) -> None:
    """Run a module as `python -m` does."""
    sys.argv = [name, *arguments]
    runpy.run_module(name, run_name="__main__", alter_sys=True)


def _run_program(program: Callable[[], object], folder: Path, output: Connection) -> None:
    os.setsid()
    os.chdir(folder)
    for descriptor in (1, 2):
        os.dup2(output.fileno(), descriptor)
    output.close()
    # The inherited streams may have been opened for a file. To reconfigure one, Python would then seek in the pipe.
    sys.stdout, sys.stderr = (open(descriptor, "w", encoding="utf-8", closefd=False) for descriptor in (1, 2))  # noqa: SIM115
    sys.path.insert(0, str(folder))
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)  # for the processes that it starts
    program()


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
