"""Test process groups: ranks, starting, watching, and stopping the processes of a run."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from support.machine import process_ends
from understudy.core.errors import ConfigError
from understudy.engines.process_group import SINGLE_PROCESS, ProcessGroup, RankInfo, init_rank
from understudy.train import processes
from understudy.train.processes import run_processes

SECOND_RANK = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "3"}
TIMEOUT_SECONDS = 60


def run_python(code: str, count: int = 2) -> int:
    """Run `code` in `count` processes; `rank` is defined in it."""
    return run_processes([sys.executable, "-c", f"import os, sys, time\nrank = int(os.environ['RANK'])\n{code}"], count)


@pytest.fixture(autouse=True)
def shorten_grace_period(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "GRACE_SECONDS", 1.0)


def test_single_process_is_a_group_of_one() -> None:
    assert (
        SINGLE_PROCESS.rank,
        SINGLE_PROCESS.world_size,
        SINGLE_PROCESS.all_gather("a"),
        SINGLE_PROCESS.shard([3, 4]),
        SINGLE_PROCESS.all_gather_shards([3, 4]),
    ) == (
        0,
        1,
        ["a"],
        [3, 4],
        [3, 4],
    )


def test_gathered_shards_are_in_order() -> None:
    class ThirdRank(ProcessGroup):
        rank, world_size = 2, 3

        def all_gather(self, value: object) -> list[object]:
            return [[0, 30], [10, 40], value]

    assert ThirdRank().shard([0, 1, 2, 3, 4]) == [2]
    assert ThirdRank().all_gather_shards([20]) == [0, 10, 20, 30, 40]


@pytest.mark.parametrize("environment", [{}, {"WORLD_SIZE": "8"}, {"RANK": "0", "WORLD_SIZE": "1"}])
def test_init_rank_without_other_processes(environment: dict[str, str]) -> None:
    before = dict(environment)
    assert init_rank(environment) == RankInfo(0, 1)
    assert environment == before


@pytest.mark.parametrize(("visible", "own"), [(None, "1"), ("4,6,7", "6"), ("GPU-a,GPU-b", "GPU-b"), ("", "")])
def test_init_rank_selects_the_gpu_of_the_local_rank(visible: str | None, own: str) -> None:
    environment = SECOND_RANK if visible is None else SECOND_RANK | {"CUDA_VISIBLE_DEVICES": visible}
    environment = dict(environment)
    assert init_rank(environment) == RankInfo(1, 3)
    assert environment["CUDA_VISIBLE_DEVICES"] == own


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"LOCAL_RANK": "x"}, "LOCAL_RANK"),
        ({"LOCAL_WORLD_SIZE": "2"}, r"\b3\b"),
        ({"CUDA_VISIBLE_DEVICES": "0"}, r"CUDA_VISIBLE_DEVICES.*\b1\b.*\b2\b"),
        ({"ACCELERATE_USE_DEEPSPEED": "true"}, "DeepSpeed"),
        ({"ACCELERATE_USE_FSDP": "true"}, r"engine\.sharding=fsdp"),
        ({"ACCELERATE_MIXED_PRECISION": "bf16"}, r"engine\.dtype"),
    ],
)
def test_init_rank_rejects_invalid_environment(settings: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        init_rank(SECOND_RANK | settings)


def test_only_rank_0_output_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    assert (
        run_python("print(rank, os.environ['WORLD_SIZE'], os.environ['MASTER_ADDR']); print('err', file=sys.stderr)", 3)
        == 0
    )
    assert capfd.readouterr() == ("0 3 127.0.0.1\n", "err\n")


def test_failing_rank_stops_all_and_prints_its_error(capfd: pytest.CaptureFixture[str]) -> None:
    started = time.monotonic()
    assert run_python("sys.exit('no such thing') if rank else time.sleep(600)") == 1
    assert time.monotonic() - started < TIMEOUT_SECONDS
    assert re.match(r"understudy: .*\b2 of 2\b.*\b1\b.*: no such thing\n$", capfd.readouterr().err)


def test_killed_rank_stops_all(capfd: pytest.CaptureFixture[str]) -> None:
    assert run_python("os.kill(os.getpid(), 9) if rank == 1 else time.sleep(600)", 3) == 128 + 9
    assert re.match(r"understudy: .*\b2 of 3\b.*\b9\b.*\n$", capfd.readouterr().err)
    assert run_python("time.sleep(600) if rank else os.kill(os.getpid(), 9)") == 128 + 9
    assert re.match(r"understudy: .*\b1 of 2\b.*\b9\b.*\n$", capfd.readouterr().err)


def test_error_of_all_ranks_is_printed_once(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(processes, "GRACE_SECONDS", TIMEOUT_SECONDS)  # a busy machine may start them far apart
    assert run_python("time.sleep(0.5 * (1 - rank)); print('no such model', file=sys.stderr); sys.exit(2)") == 2
    assert capfd.readouterr().err == "no such model\n"


def test_rank_that_ignores_sigterm_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "SHUTDOWN_SECONDS", 0.5)
    ignore_sigterm = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    assert run_python(f"{ignore_sigterm}\nsys.exit(3) if rank else time.sleep(600)") == 3


def test_suspended_rank_is_ended_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(processes, "SHUTDOWN_SECONDS", TIMEOUT_SECONDS)
    started = time.monotonic()
    suspend = f"import signal; open({str(tmp_path / 'on')!r}, 'w').close(); os.kill(os.getpid(), signal.SIGSTOP)"
    fail = f"while not os.path.exists({str(tmp_path / 'on')!r}): time.sleep(0.01)\nsys.exit(3)"
    assert run_python(f"if rank:\n {suspend}\n{fail}") == 3
    assert time.monotonic() - started < TIMEOUT_SECONDS


class FakeProcess:
    """A process whose status at each poll is given; it keeps the last one."""

    def __init__(self, *statuses: int | None) -> None:
        self._statuses = list(statuses)

    @property
    def returncode(self) -> int | None:
        return self._statuses[0]

    def poll(self) -> int | None:
        return self._statuses.pop(0) if len(self._statuses) > 1 else self._statuses[0]

    def wait(self, timeout: float | None = None) -> int | None:
        raise AssertionError("rank 0 gets no deadline while it writes its checkpoint")


@pytest.mark.parametrize("status", processes.STOPPED_STATUSES)
def test_rank_0_writes_its_checkpoint_after_the_others_have_stopped(
    status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "POLL_SECONDS", 0.0)
    first, second = FakeProcess(*[None] * 50, status), FakeProcess(None, status)
    group: Any = [first, second]
    assert processes._watch(group) is None
    assert first.returncode == status
    assert processes._exit_status(group, None, []) == status


def test_rank_0_that_never_stops_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(processes, "CHECKPOINT_SECONDS", 0.0)
    group: Any = [FakeProcess(None), FakeProcess(128 + signal.SIGTERM)]
    assert processes._watch(group) is None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_are_forwarded_to_all_ranks(number: signal.Signals, tmp_path: Path) -> None:
    code = (
        "import os, signal, sys, time\n"
        f"def heard(number, frame): open({str(tmp_path)!r} + '/' + os.environ['RANK'], 'w').close(); sys.exit(130)\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"  # which ends a slow rank after the first has ended
        f"signal.signal({int(number)}, heard)\n"
        f"open({str(tmp_path)!r} + '/ready' + os.environ['RANK'], 'w').close()\n"
        "time.sleep(600)"
    )
    command = [sys.executable, "-c", code]
    starter = (
        f"import sys; from understudy.train.processes import run_processes; sys.exit(run_processes({command!r}, 2))"
    )
    with subprocess.Popen([sys.executable, "-c", starter]) as process:
        _wait_until(lambda: len(list(tmp_path.glob("ready*"))) == 2)
        process.send_signal(number)
        assert process.wait(TIMEOUT_SECONDS) == 130
    assert {path.name for path in tmp_path.iterdir()} == {"ready0", "ready1", "0", "1"}


def test_ranks_exit_with_their_parent(tmp_path: Path) -> None:
    code = (
        "import os, time; from understudy.train.processes import exit_with_parent; exit_with_parent()\n"
        f"open({str(tmp_path)!r} + '/' + str(os.getpid()), 'w').close(); time.sleep(600)"
    )
    command = [sys.executable, "-c", code]
    starter = (
        f"import sys; from understudy.train.processes import run_processes; sys.exit(run_processes({command!r}, 2))"
    )
    with subprocess.Popen([sys.executable, "-c", starter]) as process:
        _wait_until(lambda: len(list(tmp_path.iterdir())) == 2)
        process.kill()
    assert all(process_ends(int(path.name)) for path in tmp_path.iterdir())


def _wait_until(done: object) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not done():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_settings_are_validated_before_processes_start() -> None:
    from understudy.cli.launch import launch_processes

    with pytest.raises(ConfigError, match=r"'algorithm\.group_size'"):
        launch_processes(2, ["algorithm.group_sise=3"])
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SECOND_RANK.items():
            patch.setitem(os.environ, name, value)
        patch.setitem(os.environ, "CUDA_VISIBLE_DEVICES", "")
        with pytest.raises(ConfigError, match="--num-processes 2"):
            launch_processes(2)
