"""The run's side of its trackers: it starts them, looks whether they still live, and ends them."""

import contextlib
import os
import re
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from understudy.errors import installation
from understudy.trackers.options import About, Tracker, TrackingConfig

PATIENCE = 60.0
"""Seconds that a tracker has for what is left to be sent when the run ends."""
_SECRET = re.compile("KEY|TOKEN|SECRET|PASSWORD")
_LOGIN = re.compile(r"(?<=//)[^/@\s]+(?=@)")


class Trackers:
    """The processes that follow a run. `look` and `close` give a line for each that failed, once.

    with Trackers(config.trackers, config.tracking, run.folder, config.model_dump(mode="json")) as trackers:
        ...
        for line in trackers.look(): note(line)
    """

    def __init__(
        self, names: Sequence[Tracker], tracking: TrackingConfig, folder: Path, config: Mapping[str, Any]
    ) -> None:
        self._living: dict[str, tuple[subprocess.Popen[bytes], IO[bytes]]] = {}
        self._unstarted: list[str] = []
        for name in dict.fromkeys(names):
            try:
                (folder / "trackers").mkdir(exist_ok=True)
                about = About(id=_identity(folder), folder=folder.resolve(), config=dict(config), tracking=tracking)
                self._living[name] = _start(name, about)
            except OSError as e:
                self._unstarted.append(_dropped(name, str(e)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def look(self) -> list[str]:
        """A line for each tracker that has died since; it is dropped, and the run goes on without it."""
        dead = [name for name, (process, _) in self._living.items() if process.poll() is not None]
        unstarted, self._unstarted = self._unstarted, []
        return unstarted + [_dropped(name, self._end(name)) for name in dead]

    def close(self, patience: float = PATIENCE) -> list[str]:
        """Have the trackers send what is left, and end; one that takes longer than `patience` seconds is killed."""
        for process, _ in self._living.values():
            _close_input(process)
        lines = []
        for name, (process, _) in list(self._living.items()):
            try:
                failed, why = process.wait(patience) != 0, ""
            except subprocess.TimeoutExpired:
                process.kill()
                failed, why = True, f"it has not ended within {patience:g} s"
            said = self._end(name)
            lines += [_dropped(name, why or said)] if failed else []
        return lines

    def _end(self, name: str) -> str:
        """Forget a process that has ended; the last line that it said."""
        process, errors = self._living.pop(name)
        _close_input(process)
        code = process.wait()
        with errors:
            errors.seek(0)
            said = [line for line in errors.read().decode(errors="replace").splitlines() if line.strip()]
        return said[-1].strip() if said else f"it ended with {code}"


def state_file(folder: Path, name: str) -> Path:
    """How far a tracker has got: the last step that it has sent."""
    return folder / "trackers" / f"{name}.json"


def without_secrets(text: str) -> str:
    """A text without what the environment calls a key, and without the login of an address."""
    for name, value in os.environ.items():
        if _SECRET.search(name.upper()) and len(value) >= 6:
            text = text.replace(value, f"[{name}]")
    return _LOGIN.sub("[login]", text)


def _start(name: str, about: About) -> tuple[subprocess.Popen[bytes], IO[bytes]]:
    errors = tempfile.TemporaryFile()  # noqa: SIM115  it is open as long as the process lives
    command = [sys.executable, "-P", "-m", "understudy.trackers", name]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=errors, start_new_session=True
    )
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # one that has died already is told of by `look`
        process.stdin.write(about.model_dump_json().encode() + b"\n")
        process.stdin.flush()
    return process, errors


def _close_input(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()


def _dropped(name: str, why: str) -> str:
    missing = f"; {installation(name)}" if "No module named" in why else ""
    return f"tracker {name} is dropped, the run goes on without it: {without_secrets(why)}{missing}"


def _identity(folder: Path) -> str:
    """What trackers know a run by. It is drawn once, and is no part of the run's numbers."""
    path = folder / "trackers" / "id"
    if not path.exists():
        partial = path.with_name("id.partial")
        partial.write_text(uuid.uuid4().hex[:12], encoding="utf-8")
        partial.replace(path)
    return path.read_text(encoding="utf-8")
