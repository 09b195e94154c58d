"""Tests of the log of a run."""

import logging
from pathlib import Path

import pytest

from support.disk import limited_file_size
from understudy.runs.storage.run_log import LOG_FILE, RunLog


def lines(folder: Path) -> list[str]:
    """Return the lines of the log without their times."""
    return [line.split(" ", 2)[2] for line in (folder / LOG_FILE).read_text().splitlines()]


def log_everything(folder: Path, debug: bool) -> None:
    with RunLog(folder, debug) as log:
        log.report("replies are sampled by PyTorch", 0, 0, {})
        log.report("sample", 3, 8, {})
        log.report("train", 1, 2, {"rollout/reward": 0.25, "train/loss": 1.5, "rollout/turns": 3.0})
        logging.getLogger("understudy.rollouts.rollout").debug("task t")
        logging.getLogger("httpx2").error("Authorization: Bearer secret")


def test_log_has_lines_and_steps_and_no_other_library(tmp_path: Path) -> None:
    log_everything(tmp_path, debug=False)
    assert lines(tmp_path) == [
        "INFO replies are sampled by PyTorch",
        "INFO step 1/2 rollout/reward=0.25 train/loss=1.5",
    ]


def test_debug_adds_parts_of_activities_and_episodes(tmp_path: Path) -> None:
    log_everything(tmp_path, debug=True)
    assert [line for line in lines(tmp_path) if line.startswith("DEBUG")] == ["DEBUG sample 3/8", "DEBUG task t"]
    level = logging.getLogger("understudy").level
    assert level == logging.NOTSET, "the level is restored"


@pytest.mark.parametrize("debug", [False, True])
def test_error_that_ends_the_run_is_the_last_line_and_its_traceback_needs_debug(tmp_path: Path, debug: bool) -> None:
    with pytest.raises(ZeroDivisionError), RunLog(tmp_path, debug):
        print(1 / 0)
    text = (tmp_path / LOG_FILE).read_text()
    assert "ERROR ZeroDivisionError: division by zero" in text
    assert ("Traceback" in text) == debug


def test_log_on_a_lost_disk_does_not_end_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with RunLog(tmp_path / "missing") as log:
        log.report("text", 0, 0, {})
    assert capsys.readouterr().err == ""


def test_log_holds_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_SERVICE_TOKEN", "open-sesame")
    with RunLog(tmp_path) as log:
        log.report("401 for open-sesame at https://me:word@host/api?api_key=abcdefgh", 0, 0, {})
    assert lines(tmp_path) == ["INFO 401 for [MY_SERVICE_TOKEN] at https://[login]@host/api?api_key=[secret]"]


def test_full_disk_ends_the_log_and_not_the_run(tmp_path: Path) -> None:
    with RunLog(tmp_path) as log:
        log.report("a line", 0, 0, {})
        with limited_file_size(10):
            log.report("another line that does not fit", 0, 0, {})
            log.__exit__(None, None, None)
    assert "a line" in (tmp_path / LOG_FILE).read_text()
