"""Start, poll and end the tracker processes of a run."""

import contextlib
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from understudy.core.errors import install_hint
from understudy.core.secrets import mask_secrets
from understudy.runs.trackers.config import TrackerName, TrackerRunInfo, TrackingConfig

SHUTDOWN_TIMEOUT = 60.0
"""Seconds that a tracker has at the end of the run to send the remaining records."""


class TrackerProcesses:
    """The tracker processes of a run. `poll` and `close` report each failed tracker once.

    with TrackerProcesses(config.trackers, config.tracking, run.folder, config.model_dump(mode="json")) as trackers:
        ...
        for line in trackers.poll(): print(line)
    """

    def __init__(
        self, names: Sequence[TrackerName], tracking: TrackingConfig, folder: Path, config: Mapping[str, Any]
    ) -> None:
        self._living: dict[str, tuple[subprocess.Popen[bytes], IO[bytes]]] = {}
        self._unstarted: list[str] = []
        for name in dict.fromkeys(names):
            try:
                (folder / "trackers").mkdir(exist_ok=True)
                about = TrackerRunInfo(
                    id=_identity(folder), folder=folder.resolve(), config=dict(config), tracking=tracking
                )
                self._living[name] = _start_process(name, about)
            except OSError as e:
                self._unstarted.append(_dropped(name, str(e)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def poll(self) -> list[str]:
        """Return a line for each tracker that has failed since the last call. The run continues without it."""
        dead = [name for name, (process, _) in self._living.items() if process.poll() is not None]
        unstarted, self._unstarted = self._unstarted, []
        return unstarted + [_dropped(name, self._end(name)) for name in dead]

    def close(self, timeout: float = SHUTDOWN_TIMEOUT) -> list[str]:
        """Let the trackers send the remaining records and end. Return a line for each that failed.

        A tracker that takes longer than `timeout` seconds is killed.
        """
        for process, _ in self._living.values():
            _close_input(process)
        lines = []
        for name, (process, _) in list(self._living.items()):
            try:
                failed, why = process.wait(timeout) != 0, ""
            except subprocess.TimeoutExpired:
                process.kill()
                failed, why = True, f"it did not end within {timeout:g} s"
            reason = self._end(name)
            lines += [_dropped(name, why or reason)] if failed else []
        return lines

    def _end(self, name: str) -> str:
        """Remove a process that has ended, and return the last line of its standard error."""
        process, errors = self._living.pop(name)
        _close_input(process)
        code = process.wait()
        with errors:
            errors.seek(0)
            lines = [line for line in errors.read().decode(errors="replace").splitlines() if line.strip()]
        return lines[-1].strip() if lines else f"it ended with exit code {code}"


def state_file(folder: Path, name: str) -> Path:
    """Return the file that stores the last record sent: its step, and its position among the records of the step."""
    return folder / "trackers" / f"{name}.json"


def _start_process(name: str, about: TrackerRunInfo) -> tuple[subprocess.Popen[bytes], IO[bytes]]:
    errors = tempfile.TemporaryFile()  # noqa: SIM115  it stays open while the process runs
    command = [sys.executable, "-P", "-m", "understudy.runs.trackers", name]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=errors, start_new_session=True
    )
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # `poll` reports a process that has already ended
        process.stdin.write(about.model_dump_json().encode() + b"\n")
        process.stdin.flush()
    return process, errors


def _close_input(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()


def _dropped(name: str, why: str) -> str:
    missing = f"; {install_hint(name)}" if "No module named" in why else ""
    return f"tracker {name} failed; the run continues without it: {mask_secrets(why)}{missing}"


def _identity(folder: Path) -> str:
    """Return the identifier of a run in trackers. It is random, is created once, and has no effect on training."""
    path = folder / "trackers" / "id"
    if not path.exists():
        partial = path.with_name("id.partial")
        partial.write_text(uuid.uuid4().hex[:12], encoding="utf-8")
        partial.replace(path)
    return path.read_text(encoding="utf-8")
