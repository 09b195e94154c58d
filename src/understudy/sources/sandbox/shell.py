"""Shell commands in a file system of their own, by `unshare` of Linux: not as strict as `Interpreter`.

A command sees the programs of this machine (`/usr`, `/bin`, `/lib`), which it cannot change, and the files of its
episode, but no other file, no variable and no process. Files persist between commands, processes do not. Time and
output are limited; memory and disk are not.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import tempfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from understudy.core.errors import ConfigError, ToolError
from understudy.sources.sandbox.interpreter import MAX_OUTPUT_BYTES, decode_output

SYSTEM_FOLDERS = ("usr", "bin", "sbin", "lib", "lib32", "lib64")
"""Folders of this machine that commands read."""
_DEVICES = ("null", "zero", "full", "random", "urandom")
_ETC_FILES = ("passwd", "group", "hosts", "resolv.conf", "nsswitch.conf", "ld.so.cache", "localtime")
_ETC_FOLDERS = ("alternatives", "ssl", "ca-certificates")
RESERVED_FOLDERS = (*SYSTEM_FOLDERS, "dev", "proc", "etc")
"""Folders in which an episode has no files of its own."""
VARIABLES: Mapping[str, str] = {
    "HOME": "/root",
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG": "C.UTF-8",
}
_SETUP_FAILED = 97
_SCRIPT = """
fail() { exit 97; }
mount --rbind "$1" "$1" || fail
cd "$1" || fail
for path in dev etc; do mount --rbind "$path" "$path" || fail; done
for path in $2; do
    mount --rbind "/$path" "$path" || fail
    mount -o remount,bind,ro "$path" || fail
done
for path in $3; do mount --bind "/$path" "$path" || fail; done
mount -t proc proc proc || fail
pivot_root . . || fail
umount -l . || fail
cd / || fail
shift 3
exec unshare --user --map-root-user --mount "$@"
"""
"""Makes the folder `$1` the root, with the folders `$2` of this machine and its devices `$3`. The inner `unshare` gives
up the right to unmount them."""


class Shell:
    """A file system, and the commands in it."""

    def __init__(self, has_network: bool, variables: Mapping[str, str]) -> None:
        self._has_network, self._variables = has_network, {**VARIABLES, **variables}
        self.root = Path(tempfile.mkdtemp(prefix="understudy-"))
        """The folder on this machine that commands see as `/`. Follow no link in it after a command has run."""
        found = [path for path in SYSTEM_FOLDERS if Path("/", path).exists()]
        mounted = [path for path in found if not Path("/", path).is_symlink()]
        mounted += [f"etc/{path}" for path in _ETC_FOLDERS if Path("/etc", path).is_dir()]
        for path in (*mounted, "dev", "etc", "proc", "root", "tmp"):
            (self.root / path).mkdir(parents=True, exist_ok=True)
        for path in {*found} - {*mounted}:
            (self.root / path).symlink_to(os.readlink(f"/{path}"))
        for path in _DEVICES:
            (self.root / "dev" / path).touch()
        for path in _ETC_FILES:
            with contextlib.suppress(FileNotFoundError):
                shutil.copyfile(f"/etc/{path}", self.root / "etc" / path)
        self._mounts = " ".join(mounted), " ".join(f"dev/{path}" for path in _DEVICES)

    def place(self, path: PurePosixPath) -> Path:
        """Return where the absolute path is on this machine. Raise ConfigError for a path of `RESERVED_FOLDERS`."""
        parts = path.parts[1:]
        if not path.is_absolute() or ".." in parts or (parts and parts[0] in RESERVED_FOLDERS):
            raise ConfigError(f"{path} is no path that an episode may write")
        return self.root.joinpath(*parts)

    async def run(self, command: str, folder: str, seconds: float) -> tuple[int, str]:
        """Return the exit status and the output of a command. Raise ToolError if it is stopped, or cannot start."""
        network = () if self._has_network else ("--net",)
        inner = ("bash", "-c", 'cd "$1" && eval "$2"', "bash", folder, command)
        process = await asyncio.create_subprocess_exec(
            *("unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "--kill-child", *network),
            *("bash", "-c", _SCRIPT, "bash", str(self.root), *self._mounts, *inner),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=self._variables,
            start_new_session=True,
        )
        try:
            output = await asyncio.wait_for(_read(process), seconds)
        except TimeoutError as e:
            raise ToolError(f"the command ran longer than {seconds:g} s and was stopped") from e
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        if output is None:
            raise ToolError(f"the command printed more than {MAX_OUTPUT_BYTES:,} bytes and was stopped; print less")
        assert process.returncode is not None
        if process.returncode == _SETUP_FAILED:
            raise ToolError(f"the command does not start: {decode_output(output)}")
        return process.returncode, decode_output(output)

    def close(self) -> None:
        """Remove the files."""
        shutil.rmtree(self.root, ignore_errors=True)


async def require_shell() -> None:
    """Raise ConfigError if commands cannot be isolated on this machine."""
    if not shutil.which("unshare"):
        raise ConfigError("shell commands need the program unshare of Linux (util-linux), which is missing")
    shell = Shell(has_network=False, variables={})
    try:
        await shell.run("true", "/", 30.0)
    except ToolError as e:
        raise ConfigError(f"shell commands cannot be isolated on this machine, which needs user namespaces: {e}") from e
    finally:
        shell.close()


async def _read(process: asyncio.subprocess.Process) -> bytes | None:
    """Return the output, or None if it is too long."""
    assert process.stdout
    output = bytearray()
    while more := await process.stdout.read(65536):
        output += more
        if len(output) > MAX_OUTPUT_BYTES:
            return None
    await process.wait()
    return bytes(output)
