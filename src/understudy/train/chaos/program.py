"""Run `understudy` in a process of its own, with a deadline, and kill it or one of its ranks if a cell says so."""

import contextlib
import functools
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from understudy.train.chaos.child import run_program
from understudy.train.chaos.injection import FaultInjector

DEADLINE_SECONDS = 120.0
"""A run that takes longer hangs."""
POLL_SECONDS = 0.01
MAX_KILL_DELAY = 0.3
"""The longest time in seconds between the step after which a process is killed and its end."""
_PRELOADED = (
    "understudy.train.chaos.child",
    "understudy.train.loop",
    "understudy.cli.main",
    "understudy.engines.local.engine",
    "understudy.train.planning.fitting",
    "understudy.envs.authoring.task_builder",
    "transformers.models.llama.modeling_llama",
    "torch._dynamo",
    "torch.distributed.fsdp",
)
"""Modules that each run needs and that take seconds to load."""
Killer = Callable[[int], None]
"""Called with the id of the run's first process while it runs."""


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


def run_in_fork(arguments: Sequence[str], folder: Path, killer: Killer) -> ProgramResult:
    """Run `understudy ARGUMENTS` in a cell's folder, in a process forked from one that has loaded the package."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = _context().Process(target=run_program, args=(tuple(arguments), folder, sender))
    process.start()
    sender.close()
    assert process.pid is not None
    with _Output(receiver) as output:
        until = time.monotonic() + DEADLINE_SECONDS
        while process.is_alive() and time.monotonic() < until:
            killer(process.pid)
            process.join(POLL_SECONDS)
        code = None if process.is_alive() else process.exitcode
        _kill_session(process.pid)
        process.join()
    return ProgramResult(code, output.text)


def run_in_ranks(arguments: Sequence[str], folder: Path, processes: int, killer: Killer) -> ProgramResult:
    """Run `understudy ARGUMENTS --num-processes N` in a cell's folder."""
    command = [sys.executable, "-m", "understudy", *arguments, "--num-processes", str(processes)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )
    assert process.stdout is not None
    with _Output(Connection(os.dup(process.stdout.fileno()), writable=False)) as output, process.stdout:
        until = time.monotonic() + DEADLINE_SECONDS
        while process.poll() is None and time.monotonic() < until:
            killer(process.pid)
            time.sleep(POLL_SECONDS)
        code = process.poll()
        _kill_session(process.pid)
        process.wait()
    return ProgramResult(code, output.text)


class ProcessKiller:
    """Kills the run's process, or one of its ranks, within a moment after the step that the plan names."""

    def __init__(self, folder: Path, rank: int | None = None) -> None:
        self._injector, self._rank = FaultInjector(folder), rank
        self._delay = random.Random(self._injector.plan.seed).uniform(0, MAX_KILL_DELAY)
        self._begun = 0.0
        self._killed = False

    def __call__(self, pid: int) -> None:
        """Kill the run of process `pid` if its time has come."""
        if self._killed or not self._injector.has_begun():
            return
        self._begun = self._begun or time.monotonic()
        if time.monotonic() - self._begun >= self._delay:
            self._injector.find_fault(self._injector.plan.party, "kill")
            self._killed = True
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid if self._rank is None else find_rank(pid, self._rank), signal.SIGKILL)


def find_rank(launcher: int, rank: int) -> int:
    """Return the process id of a rank of a run that was started by `launcher`."""
    wanted = f"RANK={rank}".encode()
    for child in Path(f"/proc/{launcher}/task/{launcher}/children").read_text(encoding="ascii").split():
        if wanted in Path(f"/proc/{child}/environ").read_bytes().split(b"\0"):
            return int(child)
    raise ProcessLookupError(f"{launcher} has no rank {rank}")


class _Output:
    """Collects what a process prints, until all that hold its end have closed it."""

    def __init__(self, receiver: Connection) -> None:
        self._receiver, self._parts = receiver, list[bytes]()
        self._thread = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> "_Output":
        self._thread.start()
        return self

    def __exit__(self, *ended: object) -> None:
        self._thread.join(1.0)
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
