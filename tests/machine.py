"""What tests need of the machine that they run on."""

import os
import shutil
import time

import psutil

from venvs import told

ELSEWHERE = "not for this machine: "
"""How a reason begins for which a test may be left out wherever it is run: another processor, another system."""


def program(*names: str, package: str) -> str:
    """Where the first of these programs is; where none is, Debian's packages are installed, if root is asked."""
    found = next(filter(None, map(shutil.which, names)), None)
    if not found and shutil.which("apt-get") and os.geteuid() == 0:
        told("apt-get", "update", "-q")
        told("apt-get", "install", "-y", "-q", "--no-install-recommends", *package.split())
        found = next(filter(None, map(shutil.which, names)), None)
    if not found:
        raise RuntimeError(f"this test needs {names[0]}: install it (Debian: apt-get install {package})")
    return found


def ends(process: int, within: float = 60.0) -> bool:
    """Whether a process ends in so many seconds; that it is collected is up to process 1, which may not care."""
    until = time.monotonic() + within
    while time.monotonic() < until:
        try:
            if psutil.Process(process).status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.02)
    return False
