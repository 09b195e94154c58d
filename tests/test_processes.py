"""Processes of a crew: where each stands, and how they are started, watched and ended together."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from machine import ends
from understudy import processes
from understudy.crew import ALONE, Crew, Place, take_place
from understudy.errors import ConfigError
from understudy.processes import run_together

SECOND = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "3"}
PATIENCE = 60


def run(code: str, count: int = 2) -> int:
    """Each process runs the code, in which `rank` is its number."""
    return run_together([sys.executable, "-c", f"import os, sys, time\nrank = int(os.environ['RANK'])\n{code}"], count)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "GRACE", 1.0)


# ---- where each stands ----


def test_a_process_alone_is_a_crew_of_one() -> None:
    assert (ALONE.rank, ALONE.size, ALONE.gather("a"), ALONE.share([3, 4]), ALONE.joined([3, 4])) == (
        0,
        1,
        ["a"],
        [3, 4],
        [3, 4],
    )


def test_shares_of_a_crew_come_together_in_order() -> None:
    class Third(Crew):
        rank, size = 2, 3

        def gather(self, value: object) -> list[object]:
            return [[0, 30], [10, 40], value]

    assert Third().share([0, 1, 2, 3, 4]) == [2]
    assert Third().joined([20]) == [0, 10, 20, 30, 40]


@pytest.mark.parametrize("environment", [{}, {"WORLD_SIZE": "8"}, {"RANK": "0", "WORLD_SIZE": "1"}])
def test_without_others_a_process_is_alone(environment: dict[str, str]) -> None:
    before = dict(environment)
    assert take_place(environment) == Place(0, 1)
    assert environment == before


@pytest.mark.parametrize(("visible", "own"), [(None, "1"), ("4,6,7", "6"), ("GPU-a,GPU-b", "GPU-b"), ("", "")])
def test_each_process_has_the_gpu_of_its_number(visible: str | None, own: str) -> None:
    environment = SECOND if visible is None else SECOND | {"CUDA_VISIBLE_DEVICES": visible}
    environment = dict(environment)
    assert take_place(environment) == Place(1, 3)
    assert environment["CUDA_VISIBLE_DEVICES"] == own


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"LOCAL_RANK": "x"}, "not all are numbers"),
        ({"LOCAL_WORLD_SIZE": "2"}, "3 processes on several machines"),
        ({"CUDA_VISIBLE_DEVICES": "0"}, "names 1 GPUs, too few for process 2"),
        ({"ACCELERATE_USE_DEEPSPEED": "true"}, "DeepSpeed's optimizer is not the one that trains here"),
        ({"ACCELERATE_USE_FSDP": "true"}, "set engine.sharding=fsdp"),
        ({"ACCELERATE_MIXED_PRECISION": "bf16"}, "engine.dtype says the precision"),
    ],
)
def test_what_no_crew_can_be_is_said(settings: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        take_place(SECOND | settings)


# ---- together ----


def test_only_the_first_process_is_heard(capfd: pytest.CaptureFixture[str]) -> None:
    assert (
        run("print(rank, os.environ['WORLD_SIZE'], os.environ['MASTER_ADDR']); print('err', file=sys.stderr)", 3) == 0
    )
    assert capfd.readouterr() == ("0 3 127.0.0.1\n", "err\n")


def test_one_that_fails_ends_all_and_is_heard(capfd: pytest.CaptureFixture[str]) -> None:
    started = time.monotonic()
    assert run("sys.exit('no such thing') if rank else time.sleep(600)") == 1
    assert time.monotonic() - started < PATIENCE
    assert capfd.readouterr().err == "understudy: process 2 of 2 ended with status 1: no such thing\n"


def test_one_that_is_killed_ends_all(capfd: pytest.CaptureFixture[str]) -> None:
    assert run("os.kill(os.getpid(), 9) if rank == 1 else time.sleep(600)", 3) == 128 + 9
    assert capfd.readouterr().err == "understudy: process 2 of 3 was killed by signal 9\n"
    assert run("time.sleep(600) if rank else os.kill(os.getpid(), 9)") == 128 + 9
    assert capfd.readouterr().err == "understudy: process 1 of 2 was killed by signal 9\n"


def test_what_all_fail_of_is_said_once(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(processes, "GRACE", PATIENCE)  # a busy machine may start one long after the other
    assert run("time.sleep(0.5 * (1 - rank)); print('no such model', file=sys.stderr); sys.exit(2)") == 2
    assert capfd.readouterr().err == "no such model\n"


def test_one_that_does_not_end_when_asked_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "SHUTDOWN", 0.5)
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    assert run(f"{deaf}\nsys.exit(3) if rank else time.sleep(600)") == 3


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_go_to_all(number: signal.Signals, tmp_path: Path) -> None:
    code = (
        "import os, signal, sys, time\n"
        f"def heard(number, frame): open({str(tmp_path)!r} + '/' + os.environ['RANK'], 'w').close(); sys.exit(130)\n"
        f"signal.signal({int(number)}, heard)\n"
        f"open({str(tmp_path)!r} + '/ready' + os.environ['RANK'], 'w').close()\n"
        "time.sleep(600)"
    )
    command = [sys.executable, "-c", code]
    starter = f"import sys; from understudy.processes import run_together; sys.exit(run_together({command!r}, 2))"
    with subprocess.Popen([sys.executable, "-c", starter]) as process:
        _until(lambda: len(list(tmp_path.glob("ready*"))) == 2)
        process.send_signal(number)
        assert process.wait(PATIENCE) == 130
    assert {path.name for path in tmp_path.iterdir()} == {"ready0", "ready1", "0", "1"}


def test_no_process_outlives_the_one_that_started_it(tmp_path: Path) -> None:
    code = (
        "import os, time; from understudy.processes import leash; leash()\n"
        f"open({str(tmp_path)!r} + '/' + str(os.getpid()), 'w').close(); time.sleep(600)"
    )
    command = [sys.executable, "-c", code]
    starter = f"import sys; from understudy.processes import run_together; sys.exit(run_together({command!r}, 2))"
    with subprocess.Popen([sys.executable, "-c", starter]) as process:
        _until(lambda: len(list(tmp_path.iterdir())) == 2)
        process.kill()
    assert all(ends(int(path.name)) for path in tmp_path.iterdir())


def _until(done: object) -> None:
    until = time.monotonic() + PATIENCE
    while not done():  # type: ignore[operator]
        assert time.monotonic() < until
        time.sleep(0.1)


def test_settings_are_read_before_anything_is_started() -> None:
    from understudy.launch import train_together

    with pytest.raises(ConfigError, match=r"did you mean 'algorithm\.group_size'"):
        train_together(2, ["algorithm.group_sise=3"])
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SECOND.items():
            patch.setitem(os.environ, name, value)
        patch.setitem(os.environ, "CUDA_VISIBLE_DEVICES", "")
        with pytest.raises(ConfigError, match="--processes 2: this is a process of several already"):
            train_together(2)
