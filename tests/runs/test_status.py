"""Test how a run records its status: while it works, and how it ended."""

import json
import time
from pathlib import Path

import pytest

from understudy.core.errors import ConfigError, RolloutError, RunStoppedError
from understudy.runs.storage import status as statuses
from understudy.runs.storage.locking import folder_lock, is_locked
from understudy.runs.storage.status import STATUS_FILE, StatusRecorder, read_run_status


def written(folder: Path) -> dict[str, object]:
    return dict(json.loads((folder / STATUS_FILE).read_bytes()))


def end_with(folder: Path, error: BaseException) -> tuple[str, str]:
    """Return the state and reason of a run that ends with an error."""
    with pytest.raises(type(error)), StatusRecorder(folder):
        raise error
    found = read_run_status(folder)
    return found.state, found.reason


def test_end_is_recorded_with_its_reason(tmp_path: Path) -> None:
    with StatusRecorder(tmp_path, step=3):
        pass
    assert (read_run_status(tmp_path).state, read_run_status(tmp_path).step) == ("finished", 3)
    assert end_with(tmp_path, KeyboardInterrupt("stopped after step 2")) == ("stopped", "stopped after step 2")
    assert end_with(tmp_path, KeyboardInterrupt()) == ("stopped", "Ctrl-C or SIGTERM")
    assert end_with(tmp_path, RunStoppedError("the limit", "user")) == ("stopped", "the limit")
    assert end_with(tmp_path, RolloutError("the server\nis gone", "engine")) == ("crashed", "the server is gone")
    assert end_with(tmp_path, ConfigError("no such file")) == ("crashed", "no such file")
    assert end_with(tmp_path, ValueError("bad\n value")) == ("crashed", "ValueError: bad value")
    assert end_with(tmp_path, SystemExit(143))[0] == "stopped"


def test_reason_holds_no_secret(tmp_path: Path) -> None:
    with pytest.raises(ConfigError), StatusRecorder(tmp_path):
        raise ConfigError("401 from https://me:word@host/api?api_key=abcdefgh")
    assert (
        json.loads((tmp_path / STATUS_FILE).read_text())["reason"]
        == "401 from https://[login]@host/api?api_key=[secret]"
    )


def test_run_is_running_only_while_its_folder_is_locked(tmp_path: Path) -> None:
    with folder_lock(tmp_path), StatusRecorder(tmp_path):
        assert is_locked(tmp_path)
        assert read_run_status(tmp_path).state == "running"
        killed = (tmp_path / STATUS_FILE).read_text()
    assert is_locked(tmp_path) is False
    (tmp_path / STATUS_FILE).write_text(killed)
    found = read_run_status(tmp_path)
    assert found.state == "crashed"
    assert found.reason


def test_run_on_another_machine_is_running_until_it_is_silent(tmp_path: Path) -> None:
    fresh = {"state": "running", "host": "elsewhere", "written_at": time.time()}
    (tmp_path / STATUS_FILE).write_text(json.dumps(fresh))
    assert read_run_status(tmp_path).state == "running"
    (tmp_path / STATUS_FILE).write_text(json.dumps(fresh | {"written_at": 1.0}))
    assert read_run_status(tmp_path).state == "crashed"


def test_missing_or_damaged_status_is_derived_from_lock_and_result(tmp_path: Path) -> None:
    assert read_run_status(tmp_path).state == "crashed"
    (tmp_path / STATUS_FILE).write_text("{")
    with folder_lock(tmp_path):
        assert read_run_status(tmp_path).state == "running"
    (tmp_path / "result.json").write_text("{}")
    assert read_run_status(tmp_path).state == "finished"


def test_progress_is_written_at_most_once_in_a_period(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statuses, "WRITE_SECONDS", 0.05)
    writes = list[str]()
    real = StatusRecorder._write
    monkeypatch.setattr(StatusRecorder, "_write", lambda self: (writes.append(""), real(self))[1])
    started = time.monotonic()
    with StatusRecorder(tmp_path) as status:
        for done in range(1000):
            status.report("sample", done, 1000, {})
            time.sleep(0.0003)
        until = time.monotonic() + 60
        while written(tmp_path)["done"] != 999 and time.monotonic() < until:
            time.sleep(0.01)
        found = written(tmp_path)
        took = time.monotonic() - started
        status.report("train", 7, 10, {"loss": 1.0})
        status.report("a line of text", 0, 0, {})
        while written(tmp_path)["step"] != 7 and time.monotonic() < until:
            time.sleep(0.01)
        assert written(tmp_path)["activity"] == ""
    assert (found["activity"], found["done"], found["total"], found["step"]) == ("sample", 999, 1000, 0)
    assert time.time() - 120 < float(str(found["activity_started_at"])) < time.time()
    assert len(writes) <= 3 + took / 0.05
    assert read_run_status(tmp_path).step == 7


def test_removed_folder_does_not_break_the_recorder(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    with StatusRecorder(folder):
        (folder / STATUS_FILE).unlink()
        folder.rmdir()
    assert not folder.exists()


def test_lock_test_does_not_stop_another_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The viewer tests the lock at the moment at which a run takes it."""
    import fcntl
    import os

    descriptor = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    monkeypatch.setattr("understudy.runs.storage.locking.time.sleep", lambda _: fcntl.flock(descriptor, fcntl.LOCK_UN))
    with folder_lock(tmp_path):
        assert is_locked(tmp_path)
    os.close(descriptor)
