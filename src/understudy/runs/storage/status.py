"""The status of a run, `status.json`: whether it runs, what it does now, and how it ended.

The process that trains replaces the file at most once a second while it works, and once more when it ends. A killed
process cannot record its end. So `read_run_status` also tests the lock of the folder, which the system releases.
"""

import contextlib
import json
import platform
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from pydantic import ValidationError

from understudy.core.errors import ConfigError, RolloutError, RunStoppedError, TaskError
from understudy.core.files import atomic_write
from understudy.core.records import Record
from understudy.core.secrets import mask_secrets
from understudy.runs.storage.locking import is_locked

STATUS_FILE = "status.json"
WRITE_SECONDS = 1.0
"""The shortest time between two writes of the file."""
HEARTBEAT_SECONDS = 30.0
"""The longest time between two writes of the file."""
SILENCE_SECONDS = 300.0
"""Time after which a process whose lock cannot be tested is taken for dead."""
MAX_REASON_CHARS = 500
RunState = Literal["running", "stopped", "crashed", "finished"]


class RunStatus(Record):
    """The status of a run."""

    state: RunState
    """`stopped`: by Ctrl-C, SIGTERM, a limit or a health check; `crashed`: by an error, or the process was killed."""
    reason: str = ""
    """Why the run stopped or crashed, in one line."""
    step: int = 0
    """The last finished step."""
    activity: str = ""
    """What the process does, such as `sample` or `evaluate sft`. Empty between two activities."""
    done: int = 0
    """The finished parts of the activity, such as episodes."""
    total: int = 0
    """The parts of the activity."""
    activity_started_at: float = 0.0
    """In seconds since 1970."""
    written_at: float = 0.0
    """In seconds since 1970."""
    host: str = ""
    """The name of the machine."""


class StatusRecorder:
    """Records the status of a run from the start to the end of a `with` block.

    A thread writes the file, so a report takes no time. A failed write is ignored: the run itself writes to the same
    disk and reports the error.
    """

    def __init__(self, folder: Path, step: int = 0) -> None:
        self._file = folder / STATUS_FILE
        self._status = RunStatus(state="running", step=step, host=platform.node())
        self._changed, self._ended = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._write_changes, daemon=True)

    def __enter__(self) -> Self:
        self._write()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ended.set()
        self._changed.set()
        self._thread.join()
        state, reason = _end_of_run(error)
        end = RunStatus(state=state, reason=reason, step=self._status.step, host=self._status.host)
        with contextlib.suppress(OSError):
            atomic_write(self._file, _to_json(end))

    def report(self, activity: str, done: int, total: int, metrics: Mapping[str, float]) -> None:
        """Record a progress report of `train`: a finished step if there are metrics, else parts of an activity.

        A report without a total is a line of text, which is not recorded.
        """
        if not total:
            return
        if metrics:
            self._status = self._status.replace(step=done, activity="", done=0, total=0, activity_started_at=0.0)
        else:
            is_new = activity != self._status.activity
            started = time.time() if is_new else self._status.activity_started_at
            self._status = self._status.replace(activity=activity, done=done, total=total, activity_started_at=started)
        self._changed.set()

    def _write_changes(self) -> None:
        while not self._ended.wait(WRITE_SECONDS):
            self._changed.wait(HEARTBEAT_SECONDS)
            self._changed.clear()
            if not self._ended.is_set():
                self._write()

    def _write(self) -> None:
        """Replace the file without waiting for the disk: after a power cut only the end of a run matters."""
        partial = self._file.with_name(self._file.name + ".partial")
        with contextlib.suppress(OSError):
            partial.write_text(_to_json(self._status), encoding="utf-8")
            partial.replace(self._file)


def read_run_status(folder: Path) -> RunStatus:
    """Return the status of a run.

    A run whose process has ended without a record has crashed. A run without a readable file has finished if it has a
    result; otherwise it runs if its folder is locked.
    """
    locked = is_locked(folder)
    try:
        status = RunStatus.model_validate_json((folder / STATUS_FILE).read_bytes())
    except (OSError, ValidationError) as e:
        if locked:
            return RunStatus(state="running")
        if (folder / "result.json").is_file():
            return RunStatus(state="finished")
        damaged = f"{STATUS_FILE} is damaged" if not isinstance(e, FileNotFoundError) else ""
        return RunStatus(state="crashed", reason=damaged or "no end of the run is recorded")
    if status.state != "running" or locked:
        return status
    is_elsewhere = locked is None or status.host != platform.node()
    if is_elsewhere and time.time() - status.written_at < SILENCE_SECONDS:
        return status
    reason = "the process ended without recording why; it was killed, for example because memory ran out"
    return status.replace(state="crashed", reason=reason)


def _to_json(status: RunStatus) -> str:
    return json.dumps(status.replace(written_at=time.time()).model_dump(), indent=1) + "\n"


def _end_of_run(error: BaseException | None) -> tuple[RunState, str]:
    """Return the state after a run that ended with `error`, and the reason in one line."""
    if error is None:
        return "finished", ""
    text = mask_secrets(" ".join(str(error).split()))[:MAX_REASON_CHARS]
    if isinstance(error, KeyboardInterrupt):
        return "stopped", text or "Ctrl-C or SIGTERM"
    if isinstance(error, SystemExit):
        return "stopped", f"the process was ended with status {text}"
    if isinstance(error, RunStoppedError):
        return "stopped", text
    if isinstance(error, ConfigError | TaskError | RolloutError):
        return "crashed", text
    return "crashed", f"{type(error).__name__}: {text}" if text else type(error).__name__
