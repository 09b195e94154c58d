"""A folder that a process writes to is nobody else's, until that has ended, however it has."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from understudy import launch
from understudy.config import TrainConfig
from understudy.errors import ConfigError
from understudy.hold import held
from understudy.run import Run

HOLD = """
import pathlib, sys
from understudy.hold import held
with held(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_one_process_at_a_time(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    command = [sys.executable, "-c", HOLD, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(ConfigError, match=r"another process is writing to .*folder; end that one"), held(folder):
            pass
        other.send_signal(signal.SIGKILL)
        other.wait()
    with held(folder):
        (folder / "kept").touch()
    assert (folder / "kept").exists()


def test_what_stays_empty_is_removed_and_what_was_there_is_not(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    with held(tmp_path / "there" / "a" / "b"), held(tmp_path / "there"):
        assert (tmp_path / "there" / "a" / "b").is_dir()
    assert list((tmp_path / "there").iterdir()) == []
    with pytest.raises(KeyError), held(tmp_path / "failed"):
        raise KeyError
    assert not (tmp_path / "failed").exists()


def test_what_cannot_be_a_folder_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    said = r"file/a is no folder that can be written \(Not a directory\)"
    with pytest.raises(ConfigError, match=said), held(tmp_path / "file" / "a"):
        pass


def test_a_run_that_goes_on_is_not_gone_on_with_by_another(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", TrainConfig(domain="toy:DOMAIN", model="tiny"))
    (run.folder / "trajectories" / "step_000009.partial").touch()
    with held(run.folder), pytest.raises(ConfigError, match="another process is writing to"):
        launch.train((), None, run.folder)
    assert (run.folder / "trajectories" / "step_000009.partial").exists(), "nothing of it was dropped"
