"""Guest: the process that runs code. It confines itself first, then answers requests until its input ends.

A request is a token of 32 bytes, the length of the code in 8, and the code in UTF-8. What the code prints goes to
standard output as it is printed, then the token, alone the sign that it has ended. The first token comes back when the
process is confined; where it cannot be, the output is the reason.
"""

import ast
import code
import importlib
import json
import linecache
import os
import sys
from types import ModuleType

from understudy.sandbox.confine import Limits, NotConfined, confine, die_with_parent

TOKEN = 32
NAME = "<code>"
_WITH_LIBRARIES = ("bz2", "ctypes", "decimal", "hashlib", "lzma", "sqlite3", "uuid", "xml.parsers.expat", "zlib")
"""Modules that load libraries of the system, which cannot be read any more later; some Pythons lack some."""


class Shell(code.InteractiveInterpreter):
    """Runs code in one namespace, as the prompt of Python does."""

    failed = False

    def run(self, source: str) -> None:
        """Run it, and show the value of an expression that stands last, unless it fails before."""
        self.failed = False
        linecache.cache[NAME] = (len(source), None, source.splitlines(keepends=True), NAME)
        try:
            body, last = _split(source)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return self.showsyntaxerror(NAME)
        try:
            self.runsource(body, NAME, "exec")
            if last and not self.failed:
                self.runsource(last, NAME, "single")
        except SystemExit as e:
            print(f"SystemExit: {e.code}", file=sys.stderr)

    def showtraceback(self) -> None:
        """Show it, and remember that there was one."""
        self.failed = True
        super().showtraceback()


def _split(source: str) -> tuple[str, str]:
    """The code, and the expression that stands last in it, on its own line; empty where there is none."""
    tree = ast.parse(source, NAME)
    last = tree.body[-1] if tree.body else None
    if not isinstance(last, ast.Expr):
        return source, ""
    text = source.encode()
    line_begins = [0]
    for line in text.splitlines(keepends=True):
        line_begins.append(line_begins[-1] + len(line))
    begin = line_begins[last.lineno - 1] + last.col_offset
    return text[:begin].decode(), "\n" * (last.lineno - 1) + text[begin:].decode()


def _preload() -> None:
    for name in _WITH_LIBRARIES:
        try:
            importlib.import_module(name)
        except ImportError:
            continue


def _exactly(descriptor: int, count: int) -> bytes:
    found = b""
    while len(found) < count:
        more = os.read(descriptor, count - len(found))
        if not more:
            sys.exit(0)
        found += more
    return found


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):  # the code put something else there, or closed it
            continue


def main() -> None:
    """The process."""
    die_with_parent()
    requests, nothing = os.dup(0), os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    token = _exactly(requests, TOKEN)
    os.environ.clear()
    os.environ.update(HOME=os.getcwd(), TMPDIR=os.getcwd(), TZ="UTC", LANG="C.UTF-8")
    sys.path[:] = [path for path in sys.path if path.startswith(os.path.dirname(os.__file__))]
    _preload()
    try:
        confine(os.getcwd(), Limits(**json.loads(sys.argv[1])))
    except NotConfined as e:
        sys.exit(str(e))
    sys.argv[:] = [""]
    main_module = ModuleType("__main__")
    sys.modules["__main__"] = main_module
    shell = Shell(vars(main_module))
    while True:
        os.write(1, token)
        token = _exactly(requests, TOKEN)
        source = _exactly(requests, int.from_bytes(_exactly(requests, 8), "big")).decode()
        shell.run(source)
        _flush()


if __name__ == "__main__":
    main()
