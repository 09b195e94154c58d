"""The program in a process that is forked from one that has loaded its modules, for tests that run many commands.

python warm_program.py serve SOCKET MODULES             loads the modules, and serves until its standard input ends
python warm_program.py call SOCKET PROGRAM ARGUMENTS    runs a module or the file of a program, with this process's
                                                        streams, folder and environment

Only the standard library is imported here, so another environment's Python can run this file.
"""

import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
_PRELOADED = (
    "understudy.train.loop",
    "understudy.cli.main",
    "understudy.cli.launch",
    "understudy.engines.local.engine",
    "transformers.models.llama.modeling_llama",
    "tests.faults.warm",
)
_MAX_MESSAGE_BYTES = 1 << 20


@contextmanager
def warm_program(socket_path: Path) -> Iterator[str]:
    """Yield the shell command of the program, without arguments."""
    paths = os.pathsep.join(map(str, (TESTS, ROOT, ROOT / "src")))
    with warm_python(socket_path, sys.executable, _PRELOADED, os.environ | {"PYTHONPATH": paths}) as command:
        yield f"{command} understudy"


@contextmanager
def warm_python(
    socket_path: Path, python: str, modules: Sequence[str], environment: Mapping[str, str]
) -> Iterator[str]:
    """Load modules in a process of `python`. Yield the shell command that forks it, without program and arguments."""
    command = [python, "-P", __file__, "serve", str(socket_path), *modules]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
    assert server.stdin
    assert server.stdout
    try:
        while (line := server.stdout.readline()) != b"ready\n":
            assert line, "the process that loads the program has ended"
        yield f"exec {sys.executable} -IS {Path(__file__).resolve()} call {socket_path}"
    finally:
        server.stdin.close()
        server.wait()
        server.stdout.close()


def _serve(path: str, modules: Sequence[str]) -> None:
    for name in modules:
        importlib.import_module(name)
    gc.freeze()  # a collection in a forked process would copy all that is loaded
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that answer
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        print("ready", flush=True)
        while server in select.select([server, sys.stdin], [], [])[0]:
            caller, _ = server.accept()
            if os.fork() == 0:
                server.close()
                _answer(caller)
            caller.close()


def _answer(caller: socket.socket) -> None:
    """Run one command in a process of its own, and send its exit code. If the caller is killed, end the command."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    message, streams, _, _ = socket.recv_fds(caller, _MAX_MESSAGE_BYTES, 3)
    child = os.fork()
    if child == 0:
        caller.close()
        _run(json.loads(message), streams)  # does not return
    threading.Thread(target=_end_with_caller, args=(caller, child), daemon=True).start()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with contextlib.suppress(BrokenPipeError):
        caller.sendall(str(code if code >= 0 else 128 - code).encode())
    os._exit(0)


def _end_with_caller(caller: socket.socket, child: int) -> None:
    caller.recv(1)  # returns when the caller has ended, because a caller sends nothing else
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGTERM)


def _run(command: dict[str, object], streams: list[int]) -> None:
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdin, sys.stdout, sys.stderr = (open(n, mode, encoding="utf-8") for n, mode in enumerate(("r", "w", "w")))  # noqa: SIM115
    os.chdir(str(command["folder"]))
    os.environ.clear()
    os.environ.update(command["environment"])  # type: ignore[call-overload]
    sys.path[:0] = [os.getcwd(), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    sys.argv = list(command["arguments"])  # type: ignore[call-overload]
    if sys.argv[0].endswith(".py"):
        runpy.run_path(sys.argv[0], run_name="__main__")
    else:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    sys.exit()


def _call(path: str, arguments: list[str]) -> int:
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(path)
        command = {"arguments": arguments, "folder": os.getcwd(), "environment": dict(os.environ)}
        socket.send_fds(server, [json.dumps(command).encode()], [0, 1, 2])
        return int(server.recv(16) or b"1")


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        _serve(sys.argv[2], sys.argv[3:])
    else:
        sys.exit(_call(sys.argv[2], sys.argv[3:]))
