"""The Python server: what it does for a model, and that nothing gets out of it."""

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

from escapes import ATTEMPTS, OUTRIGHT_FATAL, PRELUDE, wrapped
from understudy.errors import ConfigError, ToolError
from understudy.mcp.serve import server
from understudy.mcp.servers.offers import Part, offer
from understudy.mcp.servers.python import interpreter_of_environment
from understudy.sandbox import confine, interpreter, landlock, syscalls
from understudy.sandbox.confine import Limits
from understudy.sandbox.interpreter import Interpreter, prove

HELD_BY = {
    *("PermissionError", "OSError", "RuntimeError", "ModuleNotFoundError", "ImportError", "ZipImportError"),
    *("OperationalError", "URLError", "ValueError", "itimer_error"),
}


class Running:
    """An interpreter and the loop that it lives in."""

    def __init__(self, seconds: float = 20.0, limits: Limits | None = None) -> None:
        self.loop = asyncio.new_event_loop()
        self.interpreter = Interpreter(seconds, limits or Limits())

    def run(self, code: str) -> str:
        return self.loop.run_until_complete(self.interpreter.run(code))

    def ended(self, code: str) -> str:
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
def python() -> Iterator[Running]:
    with contextlib.closing(Running()) as running:
        yield running


@dataclass
class Outside:
    """What attempts are made at, and whether they have got there."""

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
def outside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outside]:
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
    yield Outside(folder, victim, listener, reached)
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    victim.kill()
    victim.wait()


@pytest.fixture(scope="module")
def prisoner(outside: Outside) -> Iterator[Running]:
    running = Running()
    assert running.run(outside.prelude) == ""
    with contextlib.closing(running):
        yield running


def test_there_are_enough_attempts() -> None:
    assert len(ATTEMPTS) > 100


@pytest.mark.parametrize("name", ATTEMPTS)
def test_an_attempt_to_escape_is_held(name: str, prisoner: Running, outside: Outside) -> None:
    said = prisoner.run(wrapped(ATTEMPTS[name])).splitlines()[-1]
    assert said.startswith("held: "), said
    assert said.split()[1] in HELD_BY, said
    assert outside.untouched()


REAL = (
    *("files: open", "files: mmap", "files: openat", "files: openat2", "files: symlink", "files: hard link"),
    *("files: truncate by opening to read", "files: truncate by opening for nothing"),
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


@pytest.mark.parametrize("name", REAL)
def test_the_same_attempt_succeeds_where_nothing_holds_it(name: str, tmp_path: Path) -> None:
    """Else it would prove nothing that it fails in the sandbox."""
    (tmp_path / "secret").write_text("the secret")
    (tmp_path / "planted.py").write_text("x = 1")
    with socket.create_server(("127.0.0.1", 0)) as listener, subprocess.Popen(["sleep", "60"]) as victim:
        port = listener.getsockname()[1]
        secret, outside = str(tmp_path / "secret"), str(tmp_path)
        code = PRELUDE.format(secret=secret, victim=victim.pid, port=port, outside=outside)
        code += "signal.signal(signal.SIGALRM, signal.SIG_IGN)\n" + wrapped(ATTEMPTS[name])
        free = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False)
        victim.kill()
    assert free.stdout.splitlines()[-1] == "ESCAPED", free.stdout + free.stderr


@pytest.mark.parametrize("name", OUTRIGHT_FATAL)
def test_calls_in_another_numbering_kill(name: str, python: Running, outside: Outside) -> None:
    python.run(outside.prelude)
    assert "SIGSYS" in python.ended(OUTRIGHT_FATAL[name])


def test_what_is_printed_and_what_stands_last_come_back(python: Running) -> None:
    assert python.run("print('a')\nx = 20\nx + 1") == "a\n21"
    assert python.run("x * 2  # kept") == "40"
    assert python.run("a = 1; a") == "1"
    assert python.run("'é' + chr(8364)") == "'é€'"
    assert python.run("(x +\n 1)") == "21"
    assert python.run("for i in range(2): print(i)") == "0\n1"
    assert python.run("None") == ""


def test_errors_come_back_with_their_line(python: Running) -> None:
    said = python.run("x = 1\n\nx / 0")
    assert "line 3, in <module>\n    x / 0" in said
    assert said.endswith("ZeroDivisionError: division by zero")
    assert "SyntaxError" in python.run("def f(:")
    assert "IndentationError" in python.run("if x:")
    assert "source code string cannot contain null bytes" in python.run("x = '\0'")
    assert "SystemExit: 3" in python.run("raise SystemExit(3)")
    assert python.run("x") == "1"


def test_a_value_is_not_shown_after_an_error(python: Running) -> None:
    assert "5" not in python.run("undefined\n5").splitlines()


def test_classes_can_be_pickled_and_files_kept(python: Running) -> None:
    python.run("import pickle\nclass A:\n    pass\nwith open('a', 'wb') as f: pickle.dump(A(), f)")
    assert python.run("with open('a', 'rb') as f: found = pickle.load(f)\ntype(found).__name__") == "'A'"
    assert [path.name for path in python.folder.iterdir()] == ["a"]


def test_the_same_code_gives_the_same_in_every_interpreter() -> None:
    said = set()
    for _ in range(2):
        with contextlib.closing(Running()) as running:
            said.add(running.run("[hash('a'), list({'x', 'y', 'z', 'w'})]"))
    assert len(said) == 1


def test_two_interpreters_do_not_meet(python: Running) -> None:
    with contextlib.closing(Running()) as other:
        other.run("open('mine', 'w').write('x'); x = 1")
        assert "NameError" in python.run("x")
        assert "PermissionError" in python.run(f"open({str(other.folder / 'mine')!r}).read()")


def test_the_environment_is_empty(python: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_SECRET", "sk-123")
    assert "sk-123" not in python.run("import os; dict(os.environ)")
    assert python.run("import sys; [p for p in sys.path if 'site-packages' in p or 'src' in p]") == "[]"


def test_no_descriptor_is_inherited(python: Running, tmp_path: Path) -> None:
    with (tmp_path / "open").open("w") as file:
        os.set_inheritable(file.fileno(), True)
        found = python.run("import os\nfor n in range(3, 32):\n  try: os.fstat(n); print(n)\n  except OSError: pass")
    assert len(found.split()) == 1  # where requests come from


def test_time_memory_and_output_are_limited() -> None:
    limits = Limits(cpu_seconds=2, memory=256 << 20, file_size=1 << 20, open_files=16)
    with contextlib.closing(Running(60.0, limits)) as small:
        assert "MemoryError" in small.run("x = bytes(10 ** 9)")
        assert "MemoryError" in small.run("x = []\nwhile True: x.append(bytes(10 ** 6))")
        small.run("x = None")
        assert "File too large" in small.run("with open('a', 'wb') as f: f.write(bytes(2 << 20))")
        assert "Too many open files" in small.run("fs = [open('a') for _ in range(100)]")
        assert "2 s of processor time are used up" in small.ended("while True: pass")
        assert "printed more than" in small.ended("while True: print('x' * 10000)")
        assert "characters left out" in small.run("print('x' * 50_000)")


def test_a_call_is_ended_on_time() -> None:
    with contextlib.closing(Running(1.0)) as impatient:
        begin = time.monotonic()
        assert "longer than 1 s" in impatient.ended("import time; time.sleep(600)")
        assert time.monotonic() - begin < 60


def test_the_disk_is_limited(python: Running) -> None:
    assert "more than 200 files" in python.ended("for i in range(5000): open(str(i), 'w').close()")
    assert "64 MB" in python.ended("for i in range(100):\n  with open(str(i), 'wb') as f: f.write(bytes(8 << 20))")
    assert "PermissionError" in python.run("import os; os.mkdir('folder')")


def test_what_is_ended_is_gone_and_said_to_be(python: Running) -> None:
    python.run("x = 1")
    first = python.folder
    assert "variables and files are gone" in python.ended("import os; os._exit(7)")
    assert not first.exists()
    assert python.run("'x' in globals()").splitlines() == [
        "(a new interpreter: variables and files of earlier calls are gone)",
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
def test_a_crash_is_told(code: str, python: Running) -> None:
    assert "begins with a new interpreter" in python.ended(code)
    assert python.run("1").endswith("1")


def test_mischief_with_the_streams_hurts_only_itself(python: Running) -> None:
    assert python.run("import sys; sys.stdout = None") == ""
    assert python.run("sys.stdout = sys.__stdout__; 2") == "2"
    assert "EOF" in python.run("input()")
    with contextlib.closing(Running(1.0)) as impatient:
        assert "longer than" in impatient.ended("import os; os.read(3, 100)")  # it waits for a request of its own


def test_nothing_goes_on_between_calls(python: Running) -> None:
    """A token written by the code itself ends the call, not the code; but the process is stopped."""
    forge = "import gc, os, sys\nt = sys._getframe()\nwhile t.f_back: t = t.f_back\n"
    forge += "f = sys._getframe()\nwhile 'token' not in f.f_locals: f = f.f_back\n"
    forge += "os.write(1, f.f_locals['token'])\nimport time\ntime.sleep(0.2)\nopen('later', 'w').close()"
    python.run(forge)
    time.sleep(0.6)
    assert not (python.folder / "later").exists()


def test_a_caller_who_leaves_ends_the_code(python: Running) -> None:
    async def leave() -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(python.interpreter.run("import time; time.sleep(60)"), 1.0)

    python.loop.run_until_complete(leave())
    assert python.run("1").splitlines()[-1] == "1"


def test_the_process_ends_with_its_server() -> None:
    code = "import asyncio, os\nfrom understudy.sandbox.interpreter import Interpreter, prove\n"
    code += "async def main():\n  i = Interpreter()\n  await i.run('1')\n  print(i._process.pid, flush=True)\n"
    code += "  os.kill(os.getpid(), 9)\nasyncio.run(main())"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.returncode == -signal.SIGKILL
    for _ in range(50):
        if not Path(f"/proc/{int(ended.stdout)}").exists():
            return
        time.sleep(0.1)
    pytest.fail("the process lives on")


def test_a_machine_that_cannot_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(confine.platform, "machine", lambda: "riscv64")
        with pytest.raises(confine.NotConfined, match="needs Linux on x86_64, not Linux riscv64"):
            confine.confine(".", Limits())
    for version in (0, 1, 2):  # those that are there let files be emptied
        with monkeypatch.context() as patched:
            patched.setattr(landlock, "version", lambda _, version=version: version)
            with pytest.raises(confine.NotConfined, match=f"needs Landlock 3, not {version}: a kernel from 6.2"):
                confine.confine(".", Limits())


def test_a_kernel_that_only_says_yes_is_found_out() -> None:
    with pytest.raises(confine.NotConfined, match="does not hold here: files could be reached"):
        confine._prove()


def test_a_refusal_to_begin_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    line = r"^the sandbox cannot be set up: .* is refused \(errno 24\)$"
    with contextlib.closing(Running(limits=Limits(open_files=3))) as few, pytest.raises(ConfigError, match=line):
        few.run("1")
    with pytest.raises(ConfigError, match=line):
        prove(Limits(open_files=3))
    prove()


def test_a_machine_that_is_too_slow_to_begin_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreter, "_STARTING", 0.0)
    line = r"^the sandbox does not begin: it took longer than 0 s$"
    with contextlib.closing(Running()) as slow, pytest.raises(ConfigError, match=line):
        slow.run("1")
    with pytest.raises(ConfigError, match=line):
        prove()
    monkeypatch.setenv("SANDBOX_SECONDS", "0")
    with pytest.raises(ConfigError, match="SANDBOX_SECONDS is '0'; it has to be a number from 1 to 3600"):
        interpreter_of_environment()


def verdict(number: int, *arguments: int, arch: int = 0xC000003E) -> str:
    """What the filter says to a call, by a machine of its own for the four instructions that it is made of."""
    data = struct.pack("<iIQ6Q", number, arch, 0, *(*arguments, 0, 0, 0, 0, 0, 0)[:6])
    steps, place, loaded = syscalls.program(), 0, 0
    while True:
        code, if_true, if_false, operand = steps[place]
        place += 1
        if code == 0x20:  # load a word
            loaded = int.from_bytes(data[operand : operand + 4], "little")
        elif code == 0x06:  # return
            return {0x7FFF0000: "allowed", 0x80000000: "killed", 0x00050001: "refused"}[operand]
        else:  # jump if equal, or if at least
            place += if_true if (loaded == operand if code == 0x15 else loaded >= operand) else if_false


def test_the_filter_lets_through_what_it_names_and_no_more() -> None:
    named = set(syscalls._ALLOWED.values())
    assert len(named) == len(syscalls._ALLOWED)
    allowed = {number for number in range(600) if verdict(number, 1, 99, 1) == "allowed"}
    assert allowed == named
    assert verdict(0, arch=0x40000003) == verdict(0x40000000) == verdict(-1) == "killed"


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
        (204, (0,), "allowed"),  # sched_getaffinity
        (204, (1,), "refused"),
        (302, (0, 7, 0, 1), "allowed"),  # prlimit64: read its own
        (302, (1, 7, 0, 1), "refused"),  # another's
        (302, (0, 7, 1, 0), "refused"),  # write
        (302, (0, 7, 1 << 32, 0), "refused"),  # an address whose lower half is zero
    ],
)
def test_arguments_that_matter_are_looked_at(number: int, arguments: tuple[int, ...], said: str) -> None:
    assert verdict(number, *arguments) == said


def test_the_numbers_are_the_kernels() -> None:
    header = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
    if not header.exists():
        pytest.skip("the kernel's headers are not installed")
    kernel = dict(re.findall(r"#define __NR_(\w+) (\d+)", header.read_text()))
    assert {name: int(kernel[name]) for name in syscalls._ALLOWED} == syscalls._ALLOWED


def test_over_the_protocol() -> None:
    async def talk() -> list[tuple[bool, str]]:
        async with Client(server(offer("python", Part()))) as client:
            codes = ("x = 6 * 7", "x", "import os; os._exit(1)", "'x' in globals()")
            results = [await client.call_tool("execute_python", {"code": code}) for code in codes]
            return [(result.is_error, result.content[0].text) for result in results]

    first, second, third, fourth = asyncio.run(talk())
    assert (first, second) == ((False, "(no output)"), (False, "42"))
    assert third[0]
    assert "begins with a new interpreter" in third[1]
    assert fourth[1].endswith("False")


def test_a_server_that_cannot_hold_does_not_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("understudy.sandbox.interpreter._GUEST", "no.such.module")
    with pytest.raises(ConfigError, match="No module named 'no'"):
        offer("python", Part())
