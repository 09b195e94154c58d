"""Test folder locks: one process at a time, released when the process ends in any way."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from understudy.cli import launch
from understudy.core.errors import ConfigError
from understudy.runs.config import TrainConfig
from understudy.runs.run import Run
from understudy.runs.storage.locking import folder_lock

LOCK = """
import pathlib, sys
from understudy.runs.storage.locking import folder_lock
with folder_lock(pathlib.Path(sys.argv[1])):
    print("locked", flush=True)
    sys.stdin.read()
"""


def test_lock_is_exclusive_until_the_owner_is_killed(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    command = [sys.executable, "-c", LOCK, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "locked\n"
        with pytest.raises(ConfigError, match=r"new/folder\b"), folder_lock(folder):
            pass
        other.send_signal(signal.SIGKILL)
        other.wait()
    with folder_lock(folder):
        (folder / "kept").touch()
    assert (folder / "kept").exists()


def test_lock_removes_only_empty_folders_that_it_created(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    with folder_lock(tmp_path / "there" / "a" / "b"), folder_lock(tmp_path / "there"):
        assert (tmp_path / "there" / "a" / "b").is_dir()
    assert list((tmp_path / "there").iterdir()) == []
    with pytest.raises(KeyError), folder_lock(tmp_path / "failed"):
        raise KeyError
    assert not (tmp_path / "failed").exists()


def test_lock_of_an_invalid_path_raises_config_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    error = r"file/a\b.*Not a directory"
    with pytest.raises(ConfigError, match=error), folder_lock(tmp_path / "file" / "a"):
        pass


def test_resume_of_a_running_run_is_rejected(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", TrainConfig(domain="toy:DOMAIN", model="tiny"))
    (run.folder / "trajectories" / "step_000009.partial").touch()
    with folder_lock(run.folder), pytest.raises(ConfigError, match=str(run.folder)):
        launch.run_training((), None, run.folder)
    assert (run.folder / "trajectories" / "step_000009.partial").exists(), "nothing of it was dropped"
