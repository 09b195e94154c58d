"""Landlock: limit the files that this process can open, also if it runs as root.

Landlock does not cover changes of modes, owners and times, which `syscalls` blocks. Neither blocks reading the size and
dates of a path whose name is known. Source: https://docs.kernel.org/userspace-api/landlock.html
"""

import ctypes
import os
from collections.abc import Iterable

_CREATE, _ADD, _RESTRICT = 444, 445, 446
_VERSION_FLAG, _PATH_BENEATH = 1, 1
WRITE_FILE = 1 << 1
READ_FILE = 1 << 2
READ_DIR = 1 << 3
REMOVE_FILE = 1 << 5
MAKE_REG = 1 << 8
TRUNCATE = 1 << 14
READ_RIGHTS = READ_FILE | READ_DIR
SCRATCH_RIGHTS = READ_RIGHTS | WRITE_FILE | MAKE_REG | TRUNCATE
"""Rights to use files, without creating folders, links, pipes, sockets or devices, and without removing files."""
_OF_FILES = WRITE_FILE | READ_FILE | TRUNCATE
MIN_LANDLOCK_VERSION = 3
"""Oldest usable version. Before it, a process that may read a file can also empty it (O_TRUNC)."""


class _Ruleset(ctypes.Structure):
    _fields_ = [("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scoped", ctypes.c_uint64)]


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32)]


def landlock_version(libc: ctypes.CDLL) -> int:
    """Return the Landlock version of the kernel; 0 if it is missing or disabled."""
    return max(0, int(libc.syscall(_CREATE, None, 0, _VERSION_FLAG)))


def apply_ruleset(libc: ctypes.CDLL, rules: Iterable[tuple[str, int]]) -> None:
    """Restrict this thread to the given rights on files. Raise OSError if that fails.

    Each rule is a path and the rights on it and everything below it. All other file rights that the kernel knows are
    removed, as are TCP, abstract sockets and signals to outside processes (where the kernel's version covers them).
    """
    known = landlock_version(libc)
    rights = (1 << (15 if known < 5 else 16)) - 1
    if known >= 6:
        size = 24
    elif known >= 4:
        size = 16
    else:
        size = 8
    handled = _Ruleset(rights, 0b11, 0b11)
    ruleset = _checked(libc.syscall(_CREATE, ctypes.byref(handled), size, 0), "a Landlock ruleset")
    for path, allowed in rules:
        _allow(libc, ruleset, path, allowed & rights)
    _checked(libc.syscall(_RESTRICT, ruleset, 0), "Landlock")
    os.close(ruleset)


def _allow(libc: ctypes.CDLL, ruleset: int, path: str, allowed: int) -> None:
    parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        rights = allowed if os.path.isdir(path) else allowed & _OF_FILES
        rule = _Beneath(rights, parent)
        _checked(libc.syscall(_ADD, ruleset, _PATH_BENEATH, ctypes.byref(rule), 0), path)
    finally:
        os.close(parent)


def _checked(result: int, what: str) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), what)
    return result
