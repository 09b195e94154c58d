"""Ctrl-C gives one line and the exit status 130, wherever the program is."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.program import Call, call

__all__ = ["call"]

IN_EXEC = """
import signal, sys
from understudy import __main__ as program
from understudy.cli import main as commands

def main():
    try:
        exec("signal.raise_signal(signal.SIGINT)")
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        sys.exit(130)

commands.main = main
program.run()
"""
DURING_IMPORTS = """
import signal, sys

class Finder:
    def find_spec(self, name, path, target=None):
        if name == "understudy.cli.data":
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Finder())
from understudy import __main__ as program
program.run()
"""
LINGERING = '''
import threading, time
from understudy import ToolDataset, ToolEpisode, ToolExample
from understudy.core.messages import ToolCall


class Busy(ToolEpisode):
    def work(self) -> str:
        """Work."""
        threading.Thread(target=time.sleep, args=(30,), name="worker").start()
        return "done"

    def reward(self, transcript):
        return float(transcript[-1].content == "Done.")


CALLS = (ToolCall(name="work", arguments={}),)
DATA = ToolDataset("busy", "Work.", [ToolExample(prompt="Go.", answer="Done.", gold_calls=CALLS, split="train")], Busy)
'''


@pytest.mark.parametrize("program", [IN_EXEC, DURING_IMPORTS], ids=["exec", "imports"])
def test_status_is_130_and_not_a_signal(program: str) -> None:
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (130, "")
    assert ended.stderr.count("\n") == 1
    assert "stopped" in ended.stderr


def test_command_without_a_line_of_its_own_gets_one(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("understudy.cli.listing.list_available", interrupt)
    status, out, err = call("list")
    assert (status, out, err) == (130, "", "understudy: stopped\n")


def test_threads_that_tools_leave_behind_are_named_and_end_at_ctrl_c(tmp_path: Path) -> None:
    (tmp_path / "busy.py").write_text(LINGERING)
    command = [sys.executable, "-m", "understudy", "eval", "busy:DATA", "--agent", "gold", "--split", "train"]
    with subprocess.Popen(
        command, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    ) as running:
        assert running.stderr is not None
        lines = iter(running.stderr.readline, "")
        assert any(": waiting for " in line and "worker" in line for line in lines)
        running.send_signal(signal.SIGINT)
        assert running.wait(60) == 130
        assert next(lines) == "understudy: stopped\n"
