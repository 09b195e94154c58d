"""Test the live view on a pseudo-terminal, and Ctrl-C there. Every wait is for a text or for the end."""

import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from understudy.cli.live import LiveView
from understudy.core.interruption import interruptible
from understudy.runs.config import parse_config
from understudy.runs.run import Run
from understudy.runs.storage.status import read_run_status

pty = pytest.importorskip("pty", reason="this platform has no pseudo-terminals")


class Terminal:
    """The other end of a pseudo-terminal: it reads what the program shows, and types."""

    def __init__(self, master: int) -> None:
        self.master, self.shown = master, ""

    def wait_for(self, pattern: str, after: int = 0) -> int:
        """Read until the pattern is shown. Return where it ends. Fail if the program ends before."""
        while not (found := re.search(pattern, self.shown[after:])):
            assert self.read(), f"ended without {pattern!r}: {self.shown[-2000:]}"
        return after + found.end()

    def read(self) -> bool:
        """Read what is there, or wait for it. Return False at the end."""
        try:
            read = os.read(self.master, 65536)
        except OSError:  # how Linux reports the end of a terminal
            return False
        self.shown += read.decode(errors="replace")
        return bool(read)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run.create(tmp_path / "run", parse_config("", ["domain=toy:DOMAIN", "steps=3", "sft.steps=0"]))


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Terminal, Console]]:
    monkeypatch.setenv("TERM", "xterm")
    master, slave = pty.openpty()
    with open(master, "rb", buffering=0), open(slave, "w") as file:  # numbers of open files
        yield Terminal(master), Console(file=file, width=80)


def test_interrupt_is_answered_on_a_terminal_while_the_step_runs(run: Run, ends: tuple[Terminal, Console]) -> None:
    terminal, console = ends
    with LiveView(run, console) as view, interruptible(view.interrupt) as is_interrupted:
        view.report("sample", 0, 8, {})
        terminal.wait_for("RL step 1/3: playing episodes 0/8")
        view.report("train", 1, 3, {"rollout/success_rate": 0.5, "rollout/groups": 4.0, "time/step_seconds": 80.0})
        shown = terminal.wait_for(r"success .*0\.50 \[0\.15, 0\.85\]")
        os.kill(os.getpid(), signal.SIGINT)
        terminal.wait_for("finishing step 2, about .* Ctrl-C again stops now and keeps no step", shown)
        assert is_interrupted()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    terminal.wait_for(re.escape("\x1b[?25h"))


@pytest.mark.slow
def test_second_ctrl_c_stops_a_run_on_a_terminal(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    pid, master = pty.fork()
    if not pid:
        os.environ |= {"TERM": "xterm"}
        command = [sys.executable, "-m", "understudy", "train", "smoke", "steps=100000", "--out", str(folder)]
        os.execv(sys.executable, command)
    with open(master, "rb", buffering=0):  # the number of an open file
        terminal = Terminal(master)
        shown = terminal.wait_for(r"RL step \d+/100002: playing")
        os.write(master, b"\x03")
        terminal.wait_for("Ctrl-C again stops now and keeps step", shown)
        os.write(master, b"\x03")
        terminal.wait_for(re.escape(f"--resume {folder}"), shown)
        while terminal.read():
            pass
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 130
    assert "Traceback" not in terminal.shown
    assert read_run_status(folder).state == "stopped"
    assert Run.resume(folder).step >= 2
