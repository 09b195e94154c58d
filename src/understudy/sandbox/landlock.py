"""Landlock: which files this process can open, whoever runs it; root is held too.

What is not handled by Landlock (looking at the size and dates of a path whose name is known, changing modes, owners and
times) is for `syscalls` to refuse, except for the looking. Source: https://docs.kernel.org/userspace-api/landlock.html
"""

import ctypes
import os
from collections.abc import Iterable

_CREATE, _ADD, _RESTRICT = 444, 445, 446
_VERSION_FLAG, _PATH_BENEATH = 1, 1
WRITE_FILE, READ_FILE, READ_DIR, REMOVE_FILE, MAKE_REG, TRUNCATE = 1 << 1, 1 << 2, 1 << 3, 1 << 5, 1 << 8, 1 << 14
READ = READ_FILE | READ_DIR
SCRATCH = READ | WRITE_FILE | REMOVE_FILE | MAKE_REG | TRUNCATE
"""Files, but no folders, links, pipes, sockets or devices."""
_OF_FILES = WRITE_FILE | READ_FILE | TRUNCATE
OLDEST = 3
"""The version from which TRUNCATE can be taken: before it, who may open a file to read can empty it (O_TRUNC)."""


class _Ruleset(ctypes.Structure):
    _fields_ = [("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scoped", ctypes.c_uint64)]


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32)]


def version(libc: ctypes.CDLL) -> int:
    """The version of the kernel's Landlock; 0 where there is none, or where it is off."""
    return max(0, int(libc.syscall(_CREATE, None, 0, _VERSION_FLAG)))


def restrict(libc: ctypes.CDLL, rules: Iterable[tuple[str, int]]) -> None:
    """Leave this thread these paths, each with what may be done beneath it. An `OSError` where that fails.

    All rights that the kernel knows are taken, and with them TCP, abstract sockets, and signals to processes outside.
    """
    known = version(libc)
    rights = (1 << (15 if known < 5 else 16)) - 1
    size = 24 if known >= 6 else 16 if known >= 4 else 8
    wanted = _Ruleset(rights, 0b11, 0b11)
    ruleset = _checked(libc.syscall(_CREATE, ctypes.byref(wanted), size, 0), "a Landlock ruleset")
    for path, allowed in rules:
        _allow(libc, ruleset, path, allowed & rights)
    _checked(libc.syscall(_RESTRICT, ruleset, 0), "Landlock")
    os.close(ruleset)


def _allow(libc: ctypes.CDLL, ruleset: int, path: str, allowed: int) -> None:
    parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        held = allowed if os.path.isdir(path) else allowed & _OF_FILES
        rule = _Beneath(held, parent)
        _checked(libc.syscall(_ADD, ruleset, _PATH_BENEATH, ctypes.byref(rule), 0), path)
    finally:
        os.close(parent)


def _checked(result: int, what: str) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), what)
    return result
