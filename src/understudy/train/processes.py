"""Start the processes of one run on this machine, monitor them, and end them together.

`torchrun --standalone` can also start a run (docs/gpus.md). But it turns every exit code into 1, prints about 40 lines
after an error or Ctrl-C, and takes seconds to start.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType

PARENT_VARIABLE = "UNDERSTUDY_PARENT"
BRIEF_VARIABLE = "UNDERSTUDY_BRIEF"
"""If set, a run is one of several seeds, and ends without the tables that follow for all."""
TEMP_FOLDER_VARIABLE = "UNDERSTUDY_TEMP_FOLDER"
"""The variable with the path of a temporary folder, removed when all processes have ended."""
POLL_SECONDS = 0.1  # seconds between checks of the processes
GRACE_SECONDS = 3.0  # seconds that the other processes get to end on their own after the first failure
TERMINATED_STATUS = 128 + signal.SIGTERM
"""The exit status of a process that was ended by SIGTERM."""
STOPPED_STATUSES = (128 + signal.SIGINT, TERMINATED_STATUS)
"""The exit statuses of a process that stopped because it was asked to."""
CHECKPOINT_SECONDS = 600.0  # seconds that rank 0 gets to write its checkpoint after another process has stopped
SHUTDOWN_SECONDS = 20.0  # seconds from SIGTERM to SIGKILL


def run_processes(command: Sequence[str], num_processes: int) -> int:
    """Run a command in `num_processes` processes. Return the status of rank 0, which alone writes to this terminal.

    If one fails, all are ended. SIGINT and SIGTERM are sent to all.
    """
    with tempfile.TemporaryDirectory(prefix="understudy-") as folder:
        logs = [Path(folder, f"{rank}.log") for rank in range(num_processes)]
        processes: list[subprocess.Popen[bytes]] = []
        with _forward_signals(processes):
            port = _free_port()
            for rank in range(num_processes):
                processes.append(_start(command, rank, num_processes, port, logs[rank]))
            failed = _watch(processes)
            _end(processes)
        return _exit_status(processes, failed, logs)


def run_process(command: Sequence[str], variables: Mapping[str, str]) -> int:
    """Run a command in a process with this terminal, which ends with this one. Return its status.

    `variables` are added to its environment.

    SIGINT and SIGTERM are sent to it, and this process waits until it has handled them.
    """
    processes: list[subprocess.Popen[bytes]] = []
    with _forward_signals(processes):
        environment = os.environ | variables | {PARENT_VARIABLE: str(os.getpid())}
        processes.append(subprocess.Popen(command, env=environment, start_new_session=True))
        status = processes[0].wait()
    return status if status >= 0 else 128 - status


def exit_with_parent() -> None:
    """End this process when its parent has ended, even if the parent was killed."""
    if parent := int(os.environ.pop(PARENT_VARIABLE, "0")):
        threading.Thread(target=_watch_parent, args=(parent,), daemon=True).start()


def _watch_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1.0)
    os.kill(os.getpid(), signal.SIGKILL)


def _start(command: Sequence[str], rank: int, count: int, port: int, log: Path) -> "subprocess.Popen[bytes]":
    place: dict[str, object] = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}
    place |= {"MASTER_PORT": port, PARENT_VARIABLE: os.getpid(), TEMP_FOLDER_VARIABLE: log.parent}
    threads = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // count))}
    environment = threads | os.environ | {"MASTER_ADDR": "127.0.0.1"} | {k: str(v) for k, v in place.items()}
    # In a new session, so that Ctrl-C at the terminal reaches a process only once, through this launcher.
    if rank == 0:
        return subprocess.Popen(command, env=environment, start_new_session=True)
    with log.open("wb") as output:
        return subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=output, start_new_session=True
        )


def _watch(process_group: Sequence["subprocess.Popen[bytes]"]) -> int | None:
    """Wait for the processes. Return the rank of the first that fails, or None if all succeed or were stopped.

    When a signal has stopped the others, rank 0 still writes the checkpoint.
    """
    latest = float("inf")
    while True:
        ended = [process.poll() for process in process_group]
        failed = next((rank for rank, status in enumerate(ended) if status and status not in STOPPED_STATUSES), None)
        if failed is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process_group[0].wait(GRACE_SECONDS)
            return failed
        if any(ended):
            latest = min(latest, time.monotonic() + CHECKPOINT_SECONDS)
        if None not in ended or ended[0] or time.monotonic() > latest:
            return None
        time.sleep(POLL_SECONDS)


def _end(process_group: Sequence["subprocess.Popen[bytes]"]) -> None:
    """End the processes that still run. The first SIGTERM asks a process to stop, the second stops it at once.

    A process that was suspended handles SIGTERM after SIGCONT.
    """
    for number, patience in (
        (signal.SIGTERM, GRACE_SECONDS),
        (signal.SIGTERM, SHUTDOWN_SECONDS),
        (signal.SIGKILL, None),
    ):
        running = [process for process in process_group if process.poll() is None]
        for process in running:
            process.send_signal(number)
            process.send_signal(signal.SIGCONT)
        until = time.monotonic() + (patience or 0.0)
        for process in running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(None if patience is None else max(0.0, until - time.monotonic()))


def _exit_status(process_group: Sequence["subprocess.Popen[bytes]"], failed: int | None, logs: Sequence[Path]) -> int:
    """Return the exit status. Print why a rank other than 0 failed; rank 0 has printed its own error."""
    first = process_group[0].returncode
    if failed is None:
        return first if first >= 0 else 128 - first
    status = process_group[failed].returncode
    if status > 0 and first > 0 and first not in STOPPED_STATUSES:
        return first
    how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
    log = logs[failed].read_text(encoding="utf-8", errors="replace").strip() if failed else ""
    print(f"understudy: process {failed + 1} of {len(process_group)} {how}{': ' if log else ''}{log}", file=sys.stderr)
    return status if status > 0 else 128 - status


@contextlib.contextmanager
def _forward_signals(process_group: Sequence["subprocess.Popen[bytes]"]) -> Iterator[None]:
    """Forward SIGINT and SIGTERM to the processes."""

    def pass_on(number: int, frame: FrameType | None) -> None:
        for process in process_group:
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
