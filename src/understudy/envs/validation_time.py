"""Find out whether the validation of a JSON value ends, in a process that can be killed.

A schema comes from a server or a file. Its patterns may take exponential time, and its references may lead in a circle.
Neither can be interrupted in a thread. So a schema with such keywords is first tried in another process, which has
`CPU_SECONDS` of processor time for each call, whatever the load of the machine. One process serves all calls. It is
replaced when it was killed, and it ends when this process ends.

The search of a regular expression that a file gives is done there too, with the same limit.

This file is also the program of that process. It imports nothing of the package, so that it starts fast.
"""

import atexit
import contextlib
import json
import os
import re
import selectors
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import Any

CPU_SECONDS = 0.5
_WALL_SECONDS = 60.0  # for a process that does not get the processor
_RECURSION_LIMIT = 700  # fewer calls than Python permits, because the caller's stack is not empty
_SLOW_KEYWORDS = {"pattern", "patternProperties", "uniqueItems", "$ref", "$dynamicRef", "$recursiveRef"}


def find_validation_problem(schema: Mapping[str, Any], value: Any) -> str:
    """Return why the validation of a JSON value does not end or cannot be done, or "". This blocks for a short time.

    The fault is the schema's. Whether the value is valid is not the question.
    """
    if not may_be_slow(schema):
        return ""
    problem: str = _WORKER.ask(json.dumps([schema, value]))
    return problem


def find_matches(pattern: str, text: str) -> list[Any]:
    """Return all matches of a regular expression in a text, as `re.findall`. This blocks for a short time.

    Raise ValueError if the pattern is invalid, or if the search takes more than `CPU_SECONDS`.
    """
    found = _WORKER.ask(json.dumps({"pattern": pattern, "text": text}))
    if isinstance(found, list):
        return found
    raise ValueError(f"the pattern {pattern:.80}: {found}")


def may_be_slow(schema: Mapping[str, Any]) -> bool:
    """Return whether a schema has a keyword whose validation may take longer than linear time."""
    left: list[Any] = [schema]
    while left:
        part = left.pop()
        if isinstance(part, Mapping):
            if not _SLOW_KEYWORDS.isdisjoint(part):
                return True
            left += part.values()
        elif isinstance(part, list | tuple):
            left += part
    return False


class _ValidationWorker:
    """The other process. It is started by the first request, and again after a request that it did not survive."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0  # a fork of this process must not use its pipes

    def ask(self, request: str) -> Any:
        """Return the answer to a request, or why there is none: a text."""
        with self._lock:
            if self._process is None or self._owner != os.getpid() or self._process.poll() is not None:
                self._close()
                self._process, self._owner = self._start(), os.getpid()
            answer = _exchange(self._process, request)
            if answer is not None:
                return answer
            self._process.kill()
            status = self._process.wait()
            self._close()
        if status in (-signal.SIGPROF, -signal.SIGKILL):
            return f"its validation takes more than {CPU_SECONDS:g} s"
        return "its validation fails"

    def stop(self) -> None:
        """End the process, if it runs."""
        if self._process is not None and self._owner == os.getpid():
            self._process.kill()
            self._process.wait()
            self._close()

    def _start(self) -> "subprocess.Popen[bytes]":
        # Ctrl-C reaches only this process, which then ends the other one. With -P, modules beside this file, such as
        # `tools`, are not found by their plain names.
        return subprocess.Popen(
            [sys.executable, "-P", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _close(self) -> None:
        process, self._process = self._process, None
        for pipe in (process.stdin, process.stdout) if process else ():
            if pipe:
                with contextlib.suppress(BrokenPipeError):  # an unsent request is lost
                    pipe.close()


def _exchange(process: "subprocess.Popen[bytes]", request: str) -> Any:
    """Send a request and return the answer, or None if there is none."""
    assert process.stdin
    assert process.stdout
    try:
        process.stdin.write(f"{request}\n".encode())
        process.stdin.flush()
    except BrokenPipeError:
        return None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        line = process.stdout.readline() if selector.select(_WALL_SECONDS) else b""
    return json.loads(line) if line.endswith(b"\n") else None


_WORKER = _ValidationWorker()
atexit.register(_WORKER.stop)


def _serve() -> None:
    """Answer the requests on standard input until it ends. A request that takes too long ends the process."""
    from jsonschema.validators import validator_for
    from referencing import Registry
    from referencing.exceptions import Unresolvable

    sys.setrecursionlimit(_RECURSION_LIMIT)
    for line in sys.stdin:
        request = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)  # its signal ends the process
        answer: Any = ""
        try:
            if isinstance(request, dict):
                answer = re.findall(request["pattern"], request["text"])
            else:
                schema, value = request
                for _ in validator_for(schema)(schema, registry=Registry()).iter_errors(value):
                    pass
        except RecursionError:
            answer = "it refers to itself without end"
        except (re.error, OverflowError) as e:
            answer = f"one of its patterns cannot be read: {e}"
        except Unresolvable:  # the caller meets it too, and says what is missing
            pass
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    _serve()
