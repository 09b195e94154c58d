"""Confinement of the current process to computation. It is irreversible, and it is tested after it is applied.

The order matters: steps that open files come before Landlock, and steps that need other syscalls before the filter.
"""

import ctypes
import os
import platform
import resource
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from understudy.sources.sandbox import landlock, syscalls

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_CAPBSET_DROP = 24
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT = 47
_CLONE_NEWNS = 0x20000
_CLONE_NEWUSER = 0x10000000
_MS_NOSUID = 2
_MS_NODEV = 4
_PR_CAP_AMBIENT_CLEAR_ALL = 4
_CAPSET = 126
_CAPABILITY_VERSION_3 = 0x20080522
_SIGKILL = 9
_ZONES = "/usr/share/zoneinfo"


class SandboxUnavailable(Exception):
    """Error if this machine cannot confine a process. The text says what is missing."""


@dataclass(frozen=True)
class SandboxLimits:
    """Resource limits of one interpreter."""

    cpu_seconds: int = 60
    """CPU seconds, summed over all calls."""
    memory_bytes: int = 512 << 20
    """Bytes of address space."""
    max_file_bytes: int = 8 << 20
    """Bytes of one file."""
    max_open_files: int = 32
    max_files: int = 200
    max_disk_bytes: int = 64 << 20
    """Bytes of all files, also of removed ones that are still open or mapped."""


def die_with_parent() -> None:
    """Make the kernel kill this process when its parent ends."""
    _libc().prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)


def confine(scratch: str, limits: SandboxLimits, readable: Sequence[str] = ()) -> None:
    """Confine this process: it can compute, read Python's library and the paths `readable`, and use files in `scratch`.

    Raise `SandboxUnavailable` if this machine cannot do that. Import modules from outside Python's library before this
    call.
    """
    if platform.system() != "Linux" or platform.machine() != syscalls.MACHINE:
        raise SandboxUnavailable(
            f"the sandbox needs Linux on {syscalls.MACHINE}, not {platform.system()} {platform.machine()}"
        )
    libc = _libc()
    if (version := landlock.landlock_version(libc)) < landlock.MIN_LANDLOCK_VERSION:
        raise SandboxUnavailable(
            f"the sandbox needs Landlock {landlock.MIN_LANDLOCK_VERSION}, not {version}; use Linux 6.2 or newer with "
            "Landlock enabled"
        )
    try:
        rights = landlock.SCRATCH_RIGHTS
        if _mount_scratch(libc, scratch, limits):
            rights |= landlock.REMOVE_FILE  # elsewhere a removed file that is mapped could not be counted
        _limit(limits)
        _drop_privileges(libc)
        packages = ((path, landlock.READ_RIGHTS) for path in readable)
        landlock.apply_ruleset(libc, [(scratch, rights), *_library(), *packages])
        syscalls.install_filter(libc)
    except OSError as e:
        raise SandboxUnavailable(
            f"the sandbox cannot be set up: {e.filename or e.strerror} is refused (errno {e.errno})"
        ) from e
    _verify()


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _mount_scratch(libc: ctypes.CDLL, scratch: str, limits: SandboxLimits) -> bool:
    """Mount a file system of limited size on the scratch folder, for this process only.

    Return whether that is possible. It needs a user namespace, which some kernels and many containers refuse.
    """
    user, group = os.getuid(), os.getgid()
    if libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNS):
        return False
    die_with_parent()  # new credentials reset it
    try:
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
                file.write(text)
    except OSError:
        return False
    # One more node is the folder itself.
    options = f"size={limits.max_disk_bytes},nr_inodes={limits.max_files + 1},mode=700".encode()
    if libc.mount(b"understudy", os.fsencode(scratch), b"tmpfs", _MS_NOSUID | _MS_NODEV, options):
        return False
    os.chdir(scratch)
    return True


def _limit(limits: SandboxLimits) -> None:
    for kind, most in (
        (resource.RLIMIT_CPU, limits.cpu_seconds),
        (resource.RLIMIT_AS, limits.memory_bytes),
        (resource.RLIMIT_FSIZE, limits.max_file_bytes),
        (resource.RLIMIT_NOFILE, limits.max_open_files),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
    ):
        resource.setrlimit(kind, (most, most))


def _drop_privileges(libc: ctypes.CDLL) -> None:
    """Drop every capability and prevent new ones, so that root has no more rights than another user."""
    libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    for capability in range(64):
        libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)  # fails for non-root users, who have no capabilities
    header, nothing = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0), (ctypes.c_uint32 * 6)()
    if libc.syscall(_CAPSET, ctypes.byref(header), ctypes.byref(nothing)):
        raise OSError(ctypes.get_errno(), "dropping capabilities")
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "no_new_privs")


def _library() -> Iterator[tuple[str, int]]:
    """Yield readable paths and their rights: Python's library without site-packages, and the time zones.

    The library's own folder is not listed, because the right would include site-packages.
    """
    for root in {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}:
        if os.path.isdir(root):
            others = (entry for entry in os.scandir(root) if entry.name not in ("site-packages", "dist-packages"))
            yield from ((entry.path, landlock.READ_RIGHTS) for entry in others)
    if os.path.isdir(_ZONES):
        yield _ZONES, landlock.READ_RIGHTS


def _verify() -> None:
    """Try operations that must fail. Raise `SandboxUnavailable` if one succeeds: the kernel may ignore the rules."""
    for what, attempt in (("files", _read_outside), ("network", _make_socket), ("processes", _fork)):
        try:
            attempt()
        except PermissionError:
            continue
        raise SandboxUnavailable(f"the sandbox is not effective on this machine: {what} could be reached")


def _read_outside() -> None:
    os.close(os.open("/", os.O_RDONLY))


def _make_socket() -> None:
    _raise_on_error(_libc().socket(1, 1, 0))


def _fork() -> None:
    if os.fork() == 0:
        os._exit(0)


def _raise_on_error(result: int) -> None:
    if result < 0:
        raise OSError(ctypes.get_errno(), "refused")
