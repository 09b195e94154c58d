"""Syscalls: a seccomp filter that allows only the syscalls that one Python thread needs for computation.

No allowed call opens a socket, starts a process, thread or program, sends a signal, inspects another process, mounts,
or changes the mode, owner or time of a file. A blocked call fails with EPERM; a call in another architecture's
numbering kills the process. Sources: seccomp(2), prctl(2), and Linux's arch/x86/entry/syscalls/syscall_64.tbl.
"""

import ctypes
import errno
from collections.abc import Iterator, Sequence

MACHINE = "x86_64"
"""The only architecture that the syscall numbers below are valid for."""

_ALLOWED = {
    # Bytes, files and folders; Landlock limits the paths.
    "read": 0, "write": 1, "open": 2, "close": 3, "stat": 4, "fstat": 5, "lstat": 6, "poll": 7, "lseek": 8,
    "pread64": 17, "pwrite64": 18, "readv": 19, "writev": 20, "pipe": 22, "select": 23, "dup": 32, "dup2": 33,
    "fsync": 74, "fdatasync": 75, "ftruncate": 77, "getdents": 78, "getcwd": 79, "rename": 82, "unlink": 87,
    "getdents64": 217, "openat": 257, "newfstatat": 262, "unlinkat": 263, "renameat": 264, "pselect6": 270,
    "ppoll": 271, "dup3": 292, "pipe2": 293, "statx": 332,
    # Memory of the process itself.
    "mmap": 9, "mprotect": 10, "munmap": 11, "brk": 12, "mremap": 25, "madvise": 28, "futex": 202,
    # Signal handlers, time, ids and exit of the process itself.
    "rt_sigaction": 13, "rt_sigprocmask": 14, "rt_sigreturn": 15, "sigaltstack": 131, "restart_syscall": 219,
    "sched_yield": 24, "nanosleep": 35, "gettimeofday": 96, "getrusage": 98, "times": 100, "time": 201,
    "clock_gettime": 228, "clock_getres": 229, "clock_nanosleep": 230, "getrandom": 318,
    "getpid": 39, "uname": 63, "getuid": 102, "getgid": 104, "geteuid": 107, "getegid": 108, "gettid": 186,
    "exit": 60, "exit_group": 231,
}  # fmt: skip
_IOCTL = 16
_FCNTL = 72
_GET_AFFINITY = 204
_PRLIMIT = 302
_RENAMEAT2 = 316
_ONLY: tuple[tuple[int, Sequence[tuple[int, Sequence[int]]]], ...] = (
    # Syscall number, then `(offset, allowed values)` of each checked argument. 64-bit arguments take two entries.
    # TCGETS (is it a terminal), TIOCGWINSZ, FIONREAD, FIOCLEX, FIONCLEX; not TIOCSTI, not FIOSETOWN.
    (_IOCTL, ((8, (0x5401, 0x5413, 0x541B, 0x5451, 0x5450)),)),
    # F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, locks, F_DUPFD_CLOEXEC; F_SETOWN and F_SETSIG would send signals.
    (_FCNTL, ((8, (0, 1, 2, 3, 4, 5, 6, 7, 1030)),)),
    (_GET_AFFINITY, ((0, (0,)),)),  # own process only
    (_PRLIMIT, ((0, (0,)), (16, (0,)), (20, (0,)))),  # own process only, read only
    (_RENAMEAT2, ((32, (0,)),)),  # without flags: RENAME_WHITEOUT makes a device node, which Landlock does not block
)

_OPEN_FLAGS = {2: 8, 257: 16}
"""Offset of the flags among the arguments of open and openat."""
_TMPFILE = 0x400000
"""Bit of O_TMPFILE, a file without a name, whose size the server could not see."""

_LOAD = 0x20
_JUMP_EQUAL = 0x15
_JUMP_FROM = 0x35
_JUMP_BITS = 0x45
_RETURN = 0x06
_ALLOW, _KILL_PROCESS, _REFUSE = 0x7FFF0000, 0x80000000, 0x00050000 | errno.EPERM
_AUDIT_ARCH_X86_64, _X32_BIT = 0xC000003E, 0x40000000
_NUMBER, _ARCH, _ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data
_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2

Instruction = tuple[int, int, int, int]
"""`struct sock_filter`: code, jump if true, jump if false, operand."""


class _Filter(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint16), ("jt", ctypes.c_uint8), ("jf", ctypes.c_uint8), ("k", ctypes.c_uint32)]


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_uint16), ("filter", ctypes.POINTER(_Filter))]


def build_filter() -> list[Instruction]:
    """Return the filter program. A return follows each test, so that every jump is short (offsets have 8 bits)."""
    return [
        (_LOAD, 0, 0, _ARCH),
        (_JUMP_EQUAL, 1, 0, _AUDIT_ARCH_X86_64),
        (_RETURN, 0, 0, _KILL_PROCESS),
        (_LOAD, 0, 0, _NUMBER),
        (_JUMP_FROM, 0, 1, _X32_BIT),
        (_RETURN, 0, 0, _KILL_PROCESS),
        *(step for number, offset in _OPEN_FLAGS.items() for step in _without_bit(number, offset, _TMPFILE)),
        *(step for number in _ALLOWED.values() for step in _if_equal(number)),
        *(step for number, arguments in _ONLY for step in _with_arguments(number, arguments)),
        (_RETURN, 0, 0, _REFUSE),
    ]


def _if_equal(value: int) -> Iterator[Instruction]:
    yield _JUMP_EQUAL, 0, 1, value
    yield _RETURN, 0, 0, _ALLOW


def _without_bit(number: int, offset: int, bit: int) -> list[Instruction]:
    """Return instructions that block a call if an argument has a bit, and otherwise leave the number loaded."""
    return [
        (_JUMP_EQUAL, 0, 4, number),
        (_LOAD, 0, 0, _ARGUMENTS + offset),
        (_JUMP_BITS, 0, 1, bit),
        (_RETURN, 0, 0, _REFUSE),
        (_LOAD, 0, 0, _NUMBER),
    ]


def _with_arguments(number: int, arguments: Sequence[tuple[int, Sequence[int]]]) -> list[Instruction]:
    """Return instructions that allow a call if all checked arguments have an allowed value, else block it."""
    tests: list[Instruction] = []
    for offset, values in arguments:
        tests.append((_LOAD, 0, 0, _ARGUMENTS + offset))
        tests += [(_JUMP_EQUAL, len(values) - place, 0, value) for place, value in enumerate(values)]
        tests.append((_RETURN, 0, 0, _REFUSE))
    tests.append((_RETURN, 0, 0, _ALLOW))
    return [(_JUMP_EQUAL, 0, len(tests), number), *tests]


def install_filter(libc: ctypes.CDLL) -> None:
    """Install the filter on this thread, irreversibly. The thread needs no_new_privs. Raise OSError if that fails."""
    steps = build_filter()
    filters = (_Filter * len(steps))(*(_Filter(*step) for step in steps))
    whole = _Program(len(steps), filters)
    if libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(whole), 0, 0):
        raise OSError(ctypes.get_errno(), "seccomp")
