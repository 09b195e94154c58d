"""Guest: the process that runs code. It confines itself, then answers requests until its input ends.

A request is a token of 32 bytes, the length of the code in 8 bytes (big-endian), and the code in UTF-8. The output of
the code goes to standard output, followed by the token, which marks the end. The first token is returned when the
process is confined. If it cannot be confined, the output is the reason.
"""

import ast
import code
import ctypes
import importlib
import importlib.util
import json
import linecache
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import FileFinder, ModuleSpec
from types import ModuleType

from understudy.sources.sandbox.confine import SandboxLimits, SandboxUnavailable, confine, die_with_parent

TOKEN_BYTES = 32
CODE_FILENAME = "<code>"
_WITH_LIBRARIES = ("bz2", "ctypes", "decimal", "hashlib", "lzma", "sqlite3", "uuid", "xml.parsers.expat", "zlib")
"""Modules that load system libraries, which cannot be read after confinement. Some Python builds lack some of them."""


class CodeRunner(code.InteractiveInterpreter):
    """Runs code in one namespace, like Python's interactive prompt."""

    failed = False

    def run(self, source: str) -> None:
        """Run the code, and print the value of a final expression if nothing failed before it."""
        self.failed = False
        linecache.cache[CODE_FILENAME] = (len(source), None, source.splitlines(keepends=True), CODE_FILENAME)
        try:
            body, last = _split(source)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return self.showsyntaxerror(CODE_FILENAME)
        try:
            self.runsource(body, CODE_FILENAME, "exec")
            if last and not self.failed:
                self.runsource(last, CODE_FILENAME, "single")
        except SystemExit as e:
            print(f"SystemExit: {e.code}", file=sys.stderr)

    def showtraceback(self) -> None:
        """Print the traceback, and set `failed`."""
        self.failed = True
        super().showtraceback()


def _split(source: str) -> tuple[str, str]:
    """Return the code without its final expression, and that expression, or "" if the code has none.

    Newlines before the expression preserve its line number.
    """
    tree = ast.parse(source, CODE_FILENAME)
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


def _list_library() -> None:
    """List the folders of Python's library, which cannot be listed after confinement, for all later imports."""
    for path in sys.path:
        finder = sys.path_importer_cache.get(path)
        if isinstance(finder, FileFinder):
            finder.find_spec("no_such_module")  # lists the folder
            finder.invalidate_caches = lambda: None  # type: ignore[method-assign]


class PackageFinder:
    """Finder of the packages at the given paths. No other file of their folder is found or readable."""

    def __init__(self, packages: Mapping[str, str]) -> None:
        self._packages = packages

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        """Return the specification of one of the packages, or None for other modules."""
        origin = self._packages.get(name)
        return importlib.util.spec_from_file_location(name, origin) if origin and path is None else None


def _readable_paths(packages: Mapping[str, str]) -> list[str]:
    """Return the files and folders of the packages, with the folders of the libraries that wheels add."""
    paths = [origin.removesuffix(f"{os.sep}__init__.py") for origin in packages.values()]
    return [path for each in paths for path in (each, f"{each}.libs") if os.path.exists(path)]


def _preload_system_libraries() -> None:
    """Load the system libraries of compiled packages, which cannot be read after confinement."""
    for name in ("libstdc++.so.6", "libgcc_s.so.1", "libm.so.6", "librt.so.1", "libdl.so.2", "libpthread.so.0"):
        try:
            ctypes.CDLL(name)
        except OSError:
            continue


def _read_exactly(descriptor: int, count: int) -> bytes:
    data = b""
    while len(data) < count:
        chunk = os.read(descriptor, count - len(data))
        if not chunk:
            sys.exit(0)
        data += chunk
    return data


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):  # the code replaced or closed the stream
            continue


def main() -> None:
    """Run the guest process."""
    die_with_parent()
    requests = os.dup(0)
    devnull = os.open(os.devnull, os.O_RDONLY)
    os.dup2(devnull, 0)
    os.close(devnull)
    token = _read_exactly(requests, TOKEN_BYTES)
    os.environ.clear()
    os.environ.update(HOME=os.getcwd(), TMPDIR=os.getcwd(), TZ="UTC", LANG="C.UTF-8")
    os.environ.update(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")  # threads are refused
    packages = json.loads(sys.argv[2])
    sys.path[:] = [path for path in sys.path if path.startswith(os.path.dirname(os.__file__))]
    _preload()
    _list_library()
    if packages:
        _preload_system_libraries()
        sys.meta_path.append(PackageFinder(packages))
    try:
        confine(os.getcwd(), SandboxLimits(**json.loads(sys.argv[1])), _readable_paths(packages))
    except SandboxUnavailable as e:
        sys.exit(str(e))
    sys.argv[:] = [""]
    main_module = ModuleType("__main__")
    sys.modules["__main__"] = main_module
    runner = CodeRunner(vars(main_module))
    while True:
        os.write(1, token)
        token = _read_exactly(requests, TOKEN_BYTES)
        source = _read_exactly(requests, int.from_bytes(_read_exactly(requests, 8), "big")).decode()
        runner.run(source)
        _flush()


if __name__ == "__main__":
    main()
