"""Processes: the crew of one run, started together, watched, and ended together."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

PARENT = "UNDERSTUDY_PARENT"
SHADOWS = "UNDERSTUDY_SHADOWS"
"""Names a folder that is removed when all have ended, for what is of no use then."""
TICK = 0.1  # seconds between looks at the processes
GRACE = 3.0  # seconds in which the others may end for the reason that the first one ended for
ENDED = 128 + signal.SIGTERM
"""The status of a process that was asked to end."""
SHUTDOWN = 20.0  # seconds from the request to end until a process is killed


def run_together(command: Sequence[str], count: int) -> int:
    """Run a command as a crew of `count`; the exit status of its first process, which alone writes to this terminal.

    Where one fails, all are ended. Ctrl-C, and a request to end, go to all.
    """
    with tempfile.TemporaryDirectory(prefix="understudy-") as folder:
        logs = [Path(folder, f"{rank}.log") for rank in range(count)]
        crew: list[subprocess.Popen[bytes]] = []
        with _passing_on(crew):
            port = _free_port()
            for rank in range(count):
                crew.append(_start(command, rank, count, port, logs[rank]))
            failed = _watch(crew)
            _end(crew)
        return _verdict(crew, failed, logs)


def leash() -> None:
    """End this process when the one that started it is gone, even where that was killed."""
    if parent := int(os.environ.pop(PARENT, "0")):
        threading.Thread(target=_leash, args=(parent,), daemon=True).start()


def _leash(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1.0)
    os.kill(os.getpid(), signal.SIGKILL)


def _start(command: Sequence[str], rank: int, count: int, port: int, log: Path) -> "subprocess.Popen[bytes]":
    place: dict[str, object] = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}
    place |= {"MASTER_PORT": port, PARENT: os.getpid(), SHADOWS: log.parent}
    threads = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // count))}
    environment = threads | os.environ | {"MASTER_ADDR": "127.0.0.1"} | {k: str(v) for k, v in place.items()}
    # In a session of its own, so that Ctrl-C at the terminal comes from here, and once.
    if rank == 0:
        return subprocess.Popen(command, env=environment, start_new_session=True)
    with log.open("wb") as output:
        return subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=output, start_new_session=True
        )


def _watch(crew: Sequence["subprocess.Popen[bytes]"]) -> int | None:
    """Wait until all have ended well, or one has not: its number."""
    while True:
        ended = [process.poll() for process in crew]
        failed = next((rank for rank, status in enumerate(ended) if status), None)
        if failed is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                crew[0].wait(GRACE)
            return failed
        if None not in ended:
            return None
        time.sleep(TICK)


def _end(crew: Sequence["subprocess.Popen[bytes]"]) -> None:
    """End those that still run."""
    for number, patience in ((signal.SIGTERM, SHUTDOWN), (signal.SIGKILL, None)):
        running = [process for process in crew if process.poll() is None]
        for process in running:
            process.send_signal(number)
        until = time.monotonic() + (patience or 0.0)
        for process in running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(None if patience is None else max(0.0, until - time.monotonic()))


def _verdict(crew: Sequence["subprocess.Popen[bytes]"], failed: int | None, logs: Sequence[Path]) -> int:
    """The status to end with. What another than the first process died of is said here; the first has said it."""
    if failed is None:
        return 0
    first, status = crew[0].returncode, crew[failed].returncode
    if status > 0 and first > 0 and first != ENDED:
        return first
    how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
    said = logs[failed].read_text(encoding="utf-8", errors="replace").strip() if failed else ""
    print(f"understudy: process {failed + 1} of {len(crew)} {how}{': ' if said else ''}{said}", file=sys.stderr)
    return status if status > 0 else 128 - status


@contextlib.contextmanager
def _passing_on(crew: Sequence["subprocess.Popen[bytes]"]) -> Iterator[None]:
    """Signals that ask this process to end go to the crew instead."""

    def pass_on(number: int, frame: FrameType | None) -> None:
        for process in crew:
            if process.poll() is None:
                process.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
