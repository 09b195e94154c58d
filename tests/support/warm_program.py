"""The program in a process that is forked from one that has loaded its modules, for tests that run many commands.

python -m support.warm_program SOCKET                 serves until its standard input ends
python support/warm_program.py SOCKET ARGUMENTS       is `understudy ARGUMENTS`, with this process's streams,
                                                      folder and environment
"""

import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
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
    command = [sys.executable, "-m", "support.warm_program", str(socket_path)]
    paths = os.pathsep.join(map(str, (TESTS, ROOT, ROOT / "src")))
    server = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": paths}
    )
    assert server.stdin
    assert server.stdout
    try:
        assert server.stdout.readline(), "the process that loads the program has ended"
        yield f"exec {sys.executable} -IS {Path(__file__).resolve()} {socket_path}"
    finally:
        server.stdin.close()
        server.wait()
        server.stdout.close()


def _serve(path: str) -> None:
    for name in _PRELOADED:
        importlib.import_module(name)
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
    """Run one command in a process of its own, and send its exit code."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    message, streams, _, _ = socket.recv_fds(caller, _MAX_MESSAGE_BYTES, 3)
    child = os.fork()
    if child == 0:
        caller.close()
        _run(json.loads(message), streams)  # does not return
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    caller.sendall(str(code if code >= 0 else 128 - code).encode())
    os._exit(0)


def _run(command: dict[str, object], streams: list[int]) -> None:
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdin, sys.stdout, sys.stderr = (open(n, mode, encoding="utf-8") for n, mode in enumerate(("r", "w", "w")))  # noqa: SIM115
    os.chdir(str(command["folder"]))
    os.environ.clear()
    os.environ.update(command["environment"])  # type: ignore[call-overload]
    sys.path[:0] = [os.getcwd(), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    sys.argv = ["understudy", *command["arguments"]]  # type: ignore[misc]
    runpy.run_module("understudy", run_name="__main__", alter_sys=True)
    sys.exit()


def _call(path: str, arguments: list[str]) -> int:
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(path)
        command = {"arguments": arguments, "folder": os.getcwd(), "environment": dict(os.environ)}
        socket.send_fds(server, [json.dumps(command).encode()], [0, 1, 2])
        return int(server.recv(16) or b"1")


if __name__ == "__main__":
    if __spec__:  # started with -m
        _serve(sys.argv[1])
    else:
        sys.exit(_call(sys.argv[1], sys.argv[2:]))
