"""Requirements of tests on the machine."""

import os
import shutil
import time
from collections.abc import Sequence

import psutil

from support.venvs import locked, run_command
from understudy.engines.models import cache_folder

ALL_TESTS = "UNDERSTUDY_ALL_TESTS"
"""Environment variable that CI sets. All requirements of the tests are then installed, so a skipped test is a
failure.
"""
ELSEWHERE = "not for this machine: "
"""Prefix of the reasons for which a test may be skipped everywhere: another processor or another operating system."""


def find_program(*names: str, package: str) -> str:
    """Return the path of the first installed program. If there is none, install Debian's packages, if the user is
    root.
    """
    found = _first(names)
    if not found and shutil.which("apt-get") and os.geteuid() == 0:
        with locked(cache_folder() / "apt"):
            if not _first(names):
                # In a session of its own, apt-get ends its work if the tests are interrupted.
                own, wait = {"start_new_session": True}, "-oDPkg::Lock::Timeout=900"
                run_command("apt-get", wait, "update", "-q", **own)
                run_command("apt-get", wait, "install", "-y", "-q", "--no-install-recommends", *package.split(), **own)
        found = _first(names)
    if not found:
        raise RuntimeError(f"{names[0]} is not installed; install it (Debian: apt-get install {package})")
    return found


def _first(names: Sequence[str]) -> str | None:
    return next(filter(None, map(shutil.which, names)), None)


def process_ends(process: int, within: float = 60.0) -> bool:
    """Return whether a process ends within so many seconds. A zombie counts as ended, because process 1 may never
    reap it.
    """
    until = time.monotonic() + within
    while time.monotonic() < until:
        try:
            if psutil.Process(process).status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.02)
    return False
