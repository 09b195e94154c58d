"""The program `understudy`, which is also `python -m understudy`."""

import atexit
import contextlib
import os
import signal
import sys
import threading
import time
from typing import NoReturn

THREAD_END_SECONDS = 1.0
"""Seconds that threads have to end after the command, before they are named."""


def run() -> None:
    """Run the program. At any time, Ctrl-C gives one line and the exit status 130."""
    try:
        from understudy.cli.main import main
    except KeyboardInterrupt:
        _stop()
    status: object = None
    atexit.register(lambda: _leave(status))  # the first one that is registered is the last one that runs
    try:
        main()
    except SystemExit as e:
        status = e.code
        raise
    finally:
        signal.signal(signal.SIGINT, lambda number, frame: _stop())
        others = [each for each in threading.enumerate() if not each.daemon and each is not threading.main_thread()]
        workers = [each for each in others if "ThreadPoolExecutor" not in each.name]  # idle ones end by themselves
        end = time.monotonic() + THREAD_END_SECONDS
        for worker in workers:
            worker.join(max(0.0, end - time.monotonic()))
        if names := [each.name for each in workers if each.is_alive()]:
            started = f"{len(names)} threads that a tool, user or reward has started: {', '.join(names)[:200]}"
            print(f"understudy: waiting for {started}; Ctrl-C ends them", file=sys.stderr, flush=True)


def _stop() -> NoReturn:
    print("understudy: stopped", file=sys.stderr, flush=True)
    os._exit(130)


def _leave(status: object) -> None:
    """Let the process end with its status: Python itself would end it by a signal if Ctrl-C comes now.

    It also does so if an earlier Ctrl-C came within `exec`, as in the definition of a named tuple.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if status == 130:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        os._exit(130)


if __name__ == "__main__":
    run()
