"""Tests of the Python server: results of code, limits, and attempts to escape its sandbox."""

import asyncio
import contextlib
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from mcp import Client

from support.escapes import ATTEMPTS, FATAL_CALLS, INSTALLED_PACKAGES, PRELUDE, wrap_attempt
from support.machine import ELSEWHERE, process_ends
from understudy.core.errors import ConfigError, ToolError
from understudy.sources.mcp.server import build_server
from understudy.sources.mcp.servers.definitions import ServerOptions, server_definition
from understudy.sources.mcp.servers.python import interpreter_from_env
from understudy.sources.sandbox import confine, interpreter, landlock, syscalls
from understudy.sources.sandbox.confine import SandboxLimits
from understudy.sources.sandbox.interpreter import Interpreter, verify_sandbox

DENIAL_ERRORS = {
    *("PermissionError", "OSError", "RuntimeError", "ModuleNotFoundError", "ImportError", "ZipImportError"),
    *("OperationalError", "URLError", "ValueError", "itimer_error"),
}


class RunningInterpreter:
    """An interpreter with its event loop."""

    def __init__(self, seconds: float = 20.0, limits: SandboxLimits | None = None) -> None:
        self.loop = asyncio.new_event_loop()
        self.interpreter = Interpreter(seconds, limits or SandboxLimits())

    def run(self, code: str) -> str:
        return self.loop.run_until_complete(self.interpreter.run(code))

    def run_expecting_error(self, code: str) -> str:
        with pytest.raises(ToolError) as caught:
            self.run(code)
        return str(caught.value)

    @property
    def folder(self) -> Path:
        assert self.interpreter._folder
        return self.interpreter._folder

    def close(self) -> None:
        self.loop.run_until_complete(self.interpreter.close())
        self.loop.close()


@pytest.fixture
def python() -> Iterator[RunningInterpreter]:
    with contextlib.closing(RunningInterpreter()) as running:
        yield running


@dataclass
class EscapeTargets:
    """The targets of escape attempts: files, a process and a listening socket."""

    folder: Path
    victim: "subprocess.Popen[bytes]"
    listener: socket.socket
    reached: list[object]

    @property
    def prelude(self) -> str:
        secret = str(self.folder / "secret")
        port = self.listener.getsockname()[1]
        return PRELUDE.format(secret=secret, victim=self.victim.pid, port=port, outside=str(self.folder))

    def untouched(self) -> bool:
        files = {path.name for path in self.folder.iterdir()} == {"secret", "planted.py", "planted.zip", "planted.so"}
        read = (self.folder / "secret").read_text() == "the secret"
        return files and read and self.victim.poll() is None and not self.reached


@pytest.fixture(scope="module")
def escape_targets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EscapeTargets]:
    folder = tmp_path_factory.mktemp("outside")
    (folder / "secret").write_text("the secret")
    (folder / "planted.py").write_text("x = 1")
    (folder / "planted.so").write_bytes(b"\x7fELF")
    with zipfile.ZipFile(folder / "planted.zip", "w") as archive:
        archive.writestr("inside.py", "x = 1")
    victim = subprocess.Popen(["sleep", "600"])
    listener = socket.create_server(("127.0.0.1", 0))
    reached: list[object] = []

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                reached.append(listener.accept())

    threading.Thread(target=accept, daemon=True).start()
    yield EscapeTargets(folder, victim, listener, reached)
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    victim.kill()
    victim.wait()


@pytest.fixture(scope="module")
def prepared_python(escape_targets: EscapeTargets) -> Iterator[RunningInterpreter]:
    running = RunningInterpreter()
    assert running.run(escape_targets.prelude) == ""
    with contextlib.closing(running):
        yield running


def test_escape_attempts_exceed_100() -> None:
    assert len(ATTEMPTS) > 100


@pytest.mark.sweep
@pytest.mark.parametrize("name", ATTEMPTS)
def test_escape_attempt_is_blocked(
    name: str, prepared_python: RunningInterpreter, escape_targets: EscapeTargets
) -> None:
    said = prepared_python.run(wrap_attempt(ATTEMPTS[name])).splitlines()[-1]
    assert said.startswith("prevented: "), said
    assert said.split()[1] in DENIAL_ERRORS, said
    assert escape_targets.untouched()


EFFECTIVE_ATTEMPTS = (
    *("files: open", "files: mmap", "files: openat", "files: openat2", "files: symlink", "files: hard link"),
    *("files: truncate by opening to read", "files: truncate by opening without access"),
    *("files: append", "files: chmod", "files: times", "files: chdir and read", "files: import a planted module"),
    *("files: linecache", "files: read link", "files: unnamed file", "files: sqlite attach", "files: device"),
    *("proc: own memory", "proc: list of processes", "proc: parent's environment", "proc: own descriptors"),
    *("network: connect", "network: unix socket", "network: pair of sockets", "network: listen", "network: datagram"),
    *("processes: fork", "processes: subprocess", "processes: os.system", "processes: thread"),
    *(
        "others: probe",
        "others: pidfd",
        "others: signal by descriptor",
        "others: priority",
        "others: session of another",
    ),
    *("kernel: watch files", "kernel: timer that fires later", "kernel: unnamed memory", "kernel: shared segment"),
)


@pytest.mark.sweep
@pytest.mark.parametrize("name", EFFECTIVE_ATTEMPTS)
def test_escape_attempt_succeeds_outside_sandbox(name: str, tmp_path: Path) -> None:
    """This proves that the sandbox is the reason why the attempt fails there."""
    (tmp_path / "secret").write_text("the secret")
    (tmp_path / "planted.py").write_text("x = 1")
    with socket.create_server(("127.0.0.1", 0)) as listener, subprocess.Popen(["sleep", "60"]) as victim:
        port = listener.getsockname()[1]
        secret, folder = str(tmp_path / "secret"), str(tmp_path)
        code = PRELUDE.format(secret=secret, victim=victim.pid, port=port, outside=folder)
        code += "signal.signal(signal.SIGALRM, signal.SIG_IGN)\n" + wrap_attempt(ATTEMPTS[name])
        free = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False)
        victim.kill()
    assert free.stdout.splitlines()[-1] == "ESCAPED", free.stdout + free.stderr


@pytest.mark.parametrize("name", FATAL_CALLS)
def test_foreign_syscall_abi_kills_process(
    name: str, python: RunningInterpreter, escape_targets: EscapeTargets
) -> None:
    python.run(escape_targets.prelude)
    assert "SIGSYS" in python.run_expecting_error(FATAL_CALLS[name])


def test_output_contains_prints_and_last_value(python: RunningInterpreter) -> None:
    assert python.run("print('a')\nx = 20\nx + 1") == "a\n21"
    assert python.run("x * 2  # kept") == "40"
    assert python.run("a = 1; a") == "1"
    assert python.run("'é' + chr(8364)") == "'é€'"
    assert python.run("(x +\n 1)") == "21"
    assert python.run("for i in range(2): print(i)") == "0\n1"
    assert python.run("None") == ""


def test_errors_are_returned_with_traceback_line(python: RunningInterpreter) -> None:
    said = python.run("x = 1\n\nx / 0")
    assert "line 3, in <module>\n    x / 0" in said
    assert said.endswith("ZeroDivisionError: division by zero")
    assert "SyntaxError" in python.run("def f(:")
    assert "IndentationError" in python.run("if x:")
    assert "source code string cannot contain null bytes" in python.run("x = '\0'")
    assert "SystemExit: 3" in python.run("raise SystemExit(3)")
    assert python.run("x") == "1"


def test_a_value_is_not_shown_after_an_error(python: RunningInterpreter) -> None:
    assert "5" not in python.run("undefined\n5").splitlines()


def test_classes_pickle_and_files_persist_between_calls(python: RunningInterpreter) -> None:
    python.run("import pickle\nclass A:\n    pass\nwith open('a', 'wb') as f: pickle.dump(A(), f)")
    assert python.run("with open('a', 'rb') as f: found = pickle.load(f)\ntype(found).__name__") == "'A'"
    assert python.run("import os; os.listdir('.')") == "['a']"


def test_hash_order_is_equal_in_every_interpreter() -> None:
    said = set()
    for _ in range(2):
        with contextlib.closing(RunningInterpreter()) as running:
            said.add(running.run("[hash('a'), list({'x', 'y', 'z', 'w'})]"))
    assert len(said) == 1


def test_interpreters_are_isolated_from_each_other(python: RunningInterpreter) -> None:
    with contextlib.closing(RunningInterpreter()) as other:
        other.run("open('mine', 'w').write('x'); x = 1")
        assert "NameError" in python.run("x")
        (other.folder / "outside").write_text("x")  # the file of an interpreter without a file system of its own
        assert "PermissionError" in python.run(f"open({str(other.folder / 'outside')!r}).read()")
        assert "Error" in python.run(f"open({str(other.folder / 'mine')!r}).read()")


def test_environment_variables_are_hidden(python: RunningInterpreter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_SECRET", "sk-123")
    assert "sk-123" not in python.run("import os; dict(os.environ)")
    assert python.run("import sys; [p for p in sys.path if 'site-packages' in p or 'src' in p]") == "[]"


def test_file_descriptors_are_not_inherited(python: RunningInterpreter, tmp_path: Path) -> None:
    with (tmp_path / "open").open("w") as file:
        os.set_inheritable(file.fileno(), True)
        found = python.run("import os\nfor n in range(3, 32):\n  try: os.fstat(n); print(n)\n  except OSError: pass")
    assert len(found.split()) == 1  # the pipe of requests


@pytest.mark.slow
def test_time_memory_and_output_are_limited() -> None:
    limits = SandboxLimits(cpu_seconds=2, memory_bytes=256 << 20, max_file_bytes=1 << 20, max_open_files=16)
    with contextlib.closing(RunningInterpreter(60.0, limits)) as small:
        assert "MemoryError" in small.run("x = bytes(10 ** 9)")
        assert "MemoryError" in small.run("x = []\nwhile True: x.append(bytes(10 ** 6))")
        small.run("x = None")
        assert "File too large" in small.run("with open('a', 'wb') as f: f.write(bytes(2 << 20))")
        assert "Too many open files" in small.run("fs = [open('a') for _ in range(100)]")
        assert "its 2 s of CPU time" in small.run_expecting_error("while True: pass")
        assert "printed more than" in small.run_expecting_error("while True: print('x' * 10000)")
        assert "characters left out" in small.run("print('x' * 50_000)")


def test_call_is_stopped_at_timeout() -> None:
    with contextlib.closing(RunningInterpreter(1.0)) as impatient:
        begin = time.monotonic()
        assert "longer than 1 s" in impatient.run_expecting_error("import time; time.sleep(600)")
        assert time.monotonic() - begin < 60


FILL = "for i in range(100):\n  with open(str(i), 'wb') as f: f.write(bytes(8 << 20))"
KEEP = """
import mmap, os
kept = []
try:
  for _ in range(100):
    with open('u', 'w+b') as f:
      f.write(bytes(1 << 20))
      f.flush()
      kept.append(mmap.mmap(f.fileno(), 4096))
    os.unlink('u')
except OSError as e: print(e.errno)
"""
"""Code that removes files of 1 MiB while one page of each is mapped."""


def test_disk_limit_is_a_file_system_of_its_own() -> None:
    """The limit holds for files without a name that are only mapped."""
    limits = SandboxLimits(max_disk_bytes=8 << 20, max_files=20)
    with contextlib.closing(RunningInterpreter(20.0, limits)) as small:
        device = int(small.run("import os; os.stat('.').st_dev"))
        if device == small.folder.stat().st_dev:
            pytest.skip(f"{ELSEWHERE}it has no user namespaces")
        assert small.run(KEEP) == "28"  # ENOSPC
        assert int(small.run("len(kept)")) <= 8
        assert "No space left" in small.run(FILL)
        small.run("for page in kept: page.close()\nfor name in os.listdir('.'): os.unlink(name)")
        assert "No space left" in small.run("for i in range(50): open(str(i), 'w').close()")
        assert small.run("len(os.listdir('.'))") == "20"
        assert "PermissionError" in small.run("os.mkdir('folder')")


def confined_output(folder: Path, code: str) -> str:
    """Return what code prints in a confined process on a machine without user namespaces."""
    script = "import os\nfrom understudy.sources.sandbox import confine\nconfine._mount_scratch = lambda *_: False\n"
    script += "confine.confine(os.getcwd(), confine.SandboxLimits())\n" + code
    command = [sys.executable, "-P", "-B", "-c", script]
    done = subprocess.run(
        command, cwd=folder, env=interpreter._ENVIRONMENT, capture_output=True, text=True, check=False, timeout=60
    )
    return done.stdout + done.stderr


def test_without_namespaces_no_file_can_be_removed(tmp_path: Path) -> None:
    """Every file then has a name, so that the server sees its size."""
    code = "open('a', 'w').close(); open('b', 'w').close()\nfor attempt in ("
    code += "lambda: os.unlink('a'), lambda: os.rename('a', 'b'), lambda: os.replace('a', 'c'),"
    code += " lambda: os.open('.', os.O_TMPFILE | os.O_RDWR)):\n  try: print('done', attempt())\n"
    code += "  except PermissionError: print('refused')"
    assert confined_output(tmp_path, code).split() == ["refused"] * 4


def test_server_measures_files_without_namespaces(python: RunningInterpreter) -> None:
    python.run("1")
    for number in range(9):
        with (python.folder / str(number)).open("wb") as file:
            file.truncate(8 << 20)
    assert "64 MB" in python.run_expecting_error("import time; time.sleep(20)")
    python.run("1")
    for number in range(201):
        (python.folder / str(number)).touch()
    assert "200 files" in python.run_expecting_error("import time; time.sleep(20)")


@pytest.mark.parametrize(
    "code",
    [
        "os.close(1); os.close(2)",
        "r, w = os.pipe(); os.dup2(w, 1); os.dup2(w, 2)",
        "f = open('f', 'w'); os.dup2(f.fileno(), 1); os.dup2(f.fileno(), 2)",
        "sys.stdout.close(); sys.stderr.close(); os.closerange(0, 32)",
        "for number in (2, 15, 24): signal.signal(number, signal.SIG_IGN)\nos.closerange(1, 3)",
    ],
)
@pytest.mark.parametrize("then", ["time.sleep(600)", "while True: pass", ""])
def test_closed_or_replaced_output_ends_the_call(code: str, then: str) -> None:
    with contextlib.closing(RunningInterpreter(120.0)) as running:
        running.run("import os, signal, sys, time")
        begin = time.monotonic()
        assert "starts a new interpreter" in running.run_expecting_error(f"{code}\n{then}")
        assert time.monotonic() - begin < 60
        assert running.run("1").endswith("1")


def test_device_nodes_cannot_be_made(python: RunningInterpreter) -> None:
    """A rename with RENAME_WHITEOUT leaves the device node 0:0, for which Landlock has no rule."""
    code = "import ctypes, os; open('a', 'w').close(); libc = ctypes.CDLL(None, use_errno=True)\n"
    code += "[libc.syscall(316, -100, b'a', -100, b'b', flags) for flags in (1, 2, 4)], sorted(os.listdir('.'))"
    assert python.run(code) == "([-1, -1, -1], ['a'])"


def test_installed_packages_cannot_be_listed(python: RunningInterpreter) -> None:
    python.run("import importlib, os, sysconfig; root = sysconfig.get_path('stdlib')")
    for folder in ("root", repr(str(INSTALLED_PACKAGES))):
        assert "PermissionError" in python.run(f"os.listdir({folder})")
    assert python.run("importlib.invalidate_caches(); import wave, colorsys, json.tool; wave.__name__") == "'wave'"
    assert "'decoder.py'" in python.run("os.listdir(root + '/json')")


def test_own_descriptors_lead_only_to_own_files(python: RunningInterpreter) -> None:
    assert "PermissionError" in python.run("import json, os; os.listdir('/proc/self/fd')")
    assert "PermissionError" in python.run("os.readlink('/proc/self/fd/1')")
    python.run("f = open('a', 'w'); f.write('x'); f.flush(); library = open(json.__file__)")
    assert python.run("open(f'/proc/self/fd/{f.fileno()}').read()") == "'x'"
    assert "PermissionError" in python.run("open(f'/proc/self/fd/{library.fileno()}', 'w')")


def test_restart_after_exit_loses_state_and_says_so(python: RunningInterpreter) -> None:
    python.run("x = 1")
    first = python.folder
    assert "variables and files are lost" in python.run_expecting_error("import os; os._exit(7)")
    assert not first.exists()
    assert python.run("'x' in globals()").splitlines() == [
        "(new interpreter: the variables and files of earlier calls are lost)",
        "False",
    ]
    assert python.run("1") == "1"


@pytest.mark.parametrize(
    "code",
    [
        "import ctypes; ctypes.string_at(0)",
        "import os; os.abort()",
        "import os; os.close(1)",
    ],
)
def test_crash_is_reported_and_interpreter_restarts(code: str, python: RunningInterpreter) -> None:
    assert "starts a new interpreter" in python.run_expecting_error(code)
    assert python.run("1").endswith("1")


def test_stream_tampering_does_not_break_interpreter(python: RunningInterpreter) -> None:
    assert python.run("import sys; sys.stdout = None") == ""
    assert python.run("sys.stdout = sys.__stdout__; 2") == "2"
    assert "EOF" in python.run("input()")
    with contextlib.closing(RunningInterpreter(1.0)) as impatient:
        assert "longer than" in impatient.run_expecting_error(
            "import os; os.read(3, 100)"
        )  # the code reads from the pipe of requests


def test_code_does_not_run_between_calls(python: RunningInterpreter) -> None:
    """Code that writes the end token itself ends the call, and the process is then stopped."""
    forge = "import gc, os, sys\nt = sys._getframe()\nwhile t.f_back: t = t.f_back\n"
    forge += "f = sys._getframe()\nwhile 'token' not in f.f_locals: f = f.f_back\n"
    forge += "os.write(1, f.f_locals['token'])\nwhile True: pass"
    python.run(forge)
    process = python.interpreter._process
    assert process
    deadline = time.monotonic() + 60
    while (state := Path(f"/proc/{process.pid}/stat").read_text().rsplit(") ", 1)[1][0]) != "T":
        assert time.monotonic() < deadline, f"the process is in state {state}"
    time.sleep(0.4)
    assert Path(f"/proc/{process.pid}/stat").read_text().rsplit(") ", 1)[1][0] == "T"  # stopped


def test_cancelled_call_stops_code(python: RunningInterpreter) -> None:
    async def leave() -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(python.interpreter.run("import time; time.sleep(60)"), 1.0)

    python.loop.run_until_complete(leave())
    assert python.run("1").splitlines()[-1] == "1"


def test_sandbox_process_ends_with_server() -> None:
    code = "import asyncio, os\nfrom understudy.sources.sandbox.interpreter import Interpreter, verify_sandbox\n"
    code += "async def main():\n  i = Interpreter()\n  await i.run('1')\n  print(i._process.pid, flush=True)\n"
    code += "  os.kill(os.getpid(), 9)\nasyncio.run(main())"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.returncode == -signal.SIGKILL
    assert process_ends(int(ended.stdout))


def test_unsupported_machine_or_kernel_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(confine.platform, "machine", lambda: "riscv64")
        with pytest.raises(confine.SandboxUnavailable, match=r"x86_64.*riscv64"):
            confine.confine(".", SandboxLimits())
    for version in (0, 1, 2):  # these versions do not restrict truncation of files
        with monkeypatch.context() as patched:
            patched.setattr(landlock, "landlock_version", lambda _, version=version: version)
            with pytest.raises(confine.SandboxUnavailable, match=rf"Landlock 3\b.*\b{version}\b.*6\.2"):
                confine.confine(".", SandboxLimits())


def test_verify_fails_when_sandbox_is_not_enforced() -> None:
    with pytest.raises(confine.SandboxUnavailable, match="files"):
        confine._verify()


def test_start_failure_raises_one_line_error(monkeypatch: pytest.MonkeyPatch) -> None:
    line = r"^[^\n]*\berrno 24\b[^\n]*$"
    with (
        contextlib.closing(RunningInterpreter(limits=SandboxLimits(max_open_files=3))) as few,
        pytest.raises(ConfigError, match=line),
    ):
        few.run("1")
    with pytest.raises(ConfigError, match=line):
        verify_sandbox(SandboxLimits(max_open_files=3))
    verify_sandbox()


def test_start_timeout_raises_one_line_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreter, "_START_TIMEOUT", 0.0)
    line = r"^[^\n]*\b0 s\b[^\n]*$"
    with contextlib.closing(RunningInterpreter()) as slow, pytest.raises(ConfigError, match=line):
        slow.run("1")
    with pytest.raises(ConfigError, match=line):
        verify_sandbox()
    monkeypatch.setenv("SANDBOX_SECONDS", "0")
    with pytest.raises(ConfigError, match=r"SANDBOX_SECONDS\b.*'0'.*\b1 to 3600\b"):
        interpreter_from_env()


def filter_verdict(number: int, *arguments: int, arch: int = 0xC000003E) -> str:
    """Return the filter's action for a system call, by an interpreter of the five BPF instructions it uses."""
    data = struct.pack("<iIQ6Q", number, arch, 0, *(*arguments, 0, 0, 0, 0, 0, 0)[:6])
    steps, place, loaded = syscalls.build_filter(), 0, 0
    while True:
        code, if_true, if_false, operand = steps[place]
        place += 1
        if code == 0x20:  # load a word
            loaded = int.from_bytes(data[operand : operand + 4], "little")
        elif code == 0x45:  # jump if a bit is set
            place += if_true if loaded & operand else if_false
        elif code == 0x06:  # return
            return {0x7FFF0000: "allowed", 0x80000000: "killed", 0x00050001: "refused"}[operand]
        else:  # jump if equal, or if at least
            place += if_true if (loaded == operand if code == 0x15 else loaded >= operand) else if_false


def test_filter_allows_exactly_the_named_syscalls() -> None:
    named = set(syscalls._ALLOWED.values())
    assert len(named) == len(syscalls._ALLOWED)
    allowed = {number for number in range(600) if filter_verdict(number, 1, 99, 1, 0, 1) == "allowed"}
    assert allowed == named
    assert filter_verdict(0, arch=0x40000003) == filter_verdict(0x40000000) == filter_verdict(-1) == "killed"


@pytest.mark.parametrize(
    ("number", "arguments", "said"),
    [
        (16, (1, 0x5401), "allowed"),  # ioctl: is it a terminal
        (16, (1, 0x5412), "refused"),  # TIOCSTI
        (16, (1, 0x8901), "refused"),  # FIOSETOWN
        (72, (1, 4), "allowed"),  # fcntl: F_SETFL
        (72, (1, 1030), "allowed"),  # F_DUPFD_CLOEXEC
        (72, (1, 8), "refused"),  # F_SETOWN
        (72, (1, 15), "refused"),  # F_SETOWN_EX
        (72, (1, 10), "refused"),  # F_SETSIG
        (72, (1, 1031), "refused"),  # F_SETPIPE_SZ
        (257, (-100 & 0xFFFFFFFF, 1, os.O_RDWR | os.O_CREAT), "allowed"),  # openat
        (257, (-100 & 0xFFFFFFFF, 1, os.O_RDWR | os.O_TMPFILE), "refused"),
        (2, (1, os.O_RDWR), "allowed"),  # open
        (2, (1, os.O_RDWR | os.O_TMPFILE), "refused"),
        (316, (1, 1, 1, 1, 0), "allowed"),  # renameat2
        (316, (1, 1, 1, 1, 4), "refused"),  # RENAME_WHITEOUT
        (204, (0,), "allowed"),  # sched_getaffinity
        (204, (1,), "refused"),
        (302, (0, 7, 0, 1), "allowed"),  # prlimit64: read its own
        (302, (1, 7, 0, 1), "refused"),  # another's
        (302, (0, 7, 1, 0), "refused"),  # write
        (302, (0, 7, 1 << 32, 0), "refused"),  # an address whose lower half is zero
    ],
)
def test_filter_checks_syscall_arguments(number: int, arguments: tuple[int, ...], said: str) -> None:
    assert filter_verdict(number, *arguments) == said


def test_syscall_numbers_match_kernel_header() -> None:
    header = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
    if not header.exists():
        pytest.skip(f"{ELSEWHERE}it has no {header}")
    kernel = dict(re.findall(r"#define __NR_(\w+) (\d+)", header.read_text()))
    assert {name: int(kernel[name]) for name in syscalls._ALLOWED} == syscalls._ALLOWED


def test_python_tool_over_mcp_keeps_and_resets_state() -> None:
    async def talk() -> list[tuple[bool, str]]:
        async with Client(build_server(server_definition("python", ServerOptions()))) as client:
            codes = ("x = 6 * 7", "x", "import os; os._exit(1)", "'x' in globals()")
            results = [await client.call_tool("execute_python", {"code": code}) for code in codes]
            return [(result.is_error, result.content[0].text) for result in results]

    first, second, third, fourth = asyncio.run(talk())
    assert (first, second) == ((False, "(no output)"), (False, "42"))
    assert third[0]
    assert "starts a new interpreter" in third[1]
    assert fourth[1].endswith("False")


def test_numpy_is_importable_and_no_other_package(python: RunningInterpreter) -> None:
    pytest.importorskip("numpy")
    assert (
        python.run("import numpy as np; float((np.eye(3) @ np.arange(3.0)).sum() + np.linalg.det(np.eye(2)))") == "4.0"
    )
    assert "PermissionError" in python.run("open(np.__file__.replace('numpy/', 'pydantic/'))")
    assert "ModuleNotFoundError" in python.run("import pydantic")
    assert "PermissionError" in python.run("import os; os.listdir(os.path.dirname(os.path.dirname(np.__file__)))")
    assert "PermissionError" in python.run("open(np.__file__, 'a')")


def test_packages_that_are_not_installed_are_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreter, "PACKAGES", ("numpy", "no_such_package"))
    interpreter._installed_packages.cache_clear()
    assert "no_such_package" not in interpreter._installed_packages()
    interpreter._installed_packages.cache_clear()


def test_server_without_working_sandbox_raises_config_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("understudy.sources.sandbox.interpreter._GUEST", "no.such.module")
    with pytest.raises(ConfigError, match="No module named 'no'"):
        server_definition("python", ServerOptions())
