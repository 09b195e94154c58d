"""Confine: take from this process all that computing does not need. It cannot be undone, and it is tried out.

Order counts: what opens files comes before Landlock, what needs any other syscall before the filter.
"""

import ctypes
import os
import platform
import resource
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass

from understudy.sandbox import landlock, syscalls

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT = 1, 4, 24, 38, 47
_PR_CAP_AMBIENT_CLEAR_ALL, _CAPSET, _CAPABILITY_VERSION_3, _SIGKILL = 4, 126, 0x20080522, 9
_ZONES = "/usr/share/zoneinfo"


class NotConfined(Exception):
    """This machine cannot hold a process as it has to be held; the text says what is missing."""


@dataclass(frozen=True)
class Limits:
    """What one interpreter may use."""

    cpu_seconds: int = 60
    """Processor time in all its calls."""
    memory: int = 512 << 20
    """Bytes of address space."""
    file_size: int = 8 << 20
    """Bytes of one file."""
    open_files: int = 32


def die_with_parent() -> None:
    """End when the process that started this one ends."""
    _libc().prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)


def confine(scratch: str, limits: Limits) -> None:
    """Hold this process: it can compute, read Python's library, and use files in `scratch`. `NotConfined` if it cannot.

    What has to be imported from outside Python's library is imported before.
    """
    if platform.system() != "Linux" or platform.machine() != syscalls.MACHINE:
        raise NotConfined(
            f"the sandbox needs Linux on {syscalls.MACHINE}, not {platform.system()} {platform.machine()}"
        )
    libc = _libc()
    if (found := landlock.version(libc)) < landlock.OLDEST:
        raise NotConfined(
            f"the sandbox needs Landlock {landlock.OLDEST}, not {found}: a kernel from 6.2 on that has it switched on"
        )
    try:
        _limit(limits)
        _drop_privileges(libc)
        landlock.restrict(libc, [(scratch, landlock.SCRATCH), *_library()])
        syscalls.install(libc)
    except OSError as e:
        raise NotConfined(
            f"the sandbox cannot be set up: {e.filename or e.strerror} is refused (errno {e.errno})"
        ) from e
    _prove()


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _limit(limits: Limits) -> None:
    for kind, most in (
        (resource.RLIMIT_CPU, limits.cpu_seconds),
        (resource.RLIMIT_AS, limits.memory),
        (resource.RLIMIT_FSIZE, limits.file_size),
        (resource.RLIMIT_NOFILE, limits.open_files),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
    ):
        resource.setrlimit(kind, (most, most))


def _drop_privileges(libc: ctypes.CDLL) -> None:
    """Lose every capability, and the way to any: root without them is a user like any other."""
    libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    for capability in range(64):
        libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)  # refused to all but root, who alone has any
    header, nothing = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0), (ctypes.c_uint32 * 6)()
    if libc.syscall(_CAPSET, ctypes.byref(header), ctypes.byref(nothing)):
        raise OSError(ctypes.get_errno(), "dropping capabilities")
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "no_new_privs")


def _library() -> Iterator[tuple[str, int]]:
    """Python's own library to read, but not what was installed into it; and the time zones."""
    for root in {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}:
        if os.path.isdir(root):
            yield root, landlock.READ_DIR  # imports list it
            others = (entry for entry in os.scandir(root) if entry.name not in ("site-packages", "dist-packages"))
            yield from ((entry.path, landlock.READ) for entry in others)
    if os.path.isdir(_ZONES):
        yield _ZONES, landlock.READ


def _prove() -> None:
    """Try what has to be refused: a kernel that only says yes is not one that holds."""
    for what, attempt in (("files", _read_outside), ("network", _make_socket), ("processes", _fork)):
        try:
            attempt()
        except PermissionError:
            continue
        raise NotConfined(f"the sandbox does not hold here: {what} could be reached")


def _read_outside() -> None:
    os.close(os.open("/", os.O_RDONLY))


def _make_socket() -> None:
    _called(_libc().socket(1, 1, 0))


def _fork() -> None:
    if os.fork() == 0:
        os._exit(0)


def _called(result: int) -> None:
    if result < 0:
        raise OSError(ctypes.get_errno(), "refused")
