"""What tools print, close or replace does not change the output of a command."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

HOSTILE = '''
import io, os, subprocess, sys
from understudy import ToolDataset, ToolEpisode, ToolExample
from understudy.core.messages import ToolCall

print("the module prints")


class Loud(ToolEpisode):
    def say(self, how: str) -> str:
        """Say a word."""
        print("the tool prints " * 1000)
        if how == "descriptor":
            os.write(1, b"written\\n")
        if how == "process":
            subprocess.run(["echo", "echoed"], check=True)
        if how == "close":
            sys.stdout.close()
            sys.stderr.close()
        if how == "replace":
            sys.stdout, sys.stderr = io.StringIO(), io.StringIO()
        if how == "none":
            sys.stdout = sys.stderr = None
        if how == "closed":
            sys.stdout = sys.stderr = io.StringIO()
            sys.stdout.close()
        return "said"

    def reward(self, transcript):
        return float(transcript[-1].content == "Done.")


WAYS = ("print", "descriptor", "process", "close", "replace", "none", "closed")
CALLS = {how: (ToolCall(name="say", arguments={"how": how}),) for how in WAYS}
DATA = ToolDataset("loud", "Speak.", [
    ToolExample(prompt=how, answer="Done.", gold_calls=CALLS[how], split="train") for how in WAYS
], Loud)
'''


def understudy(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "understudy", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize(
    "words", [("check", "loud:DATA"), ("eval", "loud:DATA", "--agent", "gold", "--split", "train")]
)
def test_output_of_tools_leaves_json_alone(words: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "loud.py").write_text(HOSTILE)
    ended = understudy(tmp_path, *words, "--json")
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert json.loads(ended.stdout)
    assert "Traceback" not in ended.stderr
    for text in ("the module prints", "written", "echoed"):
        assert text in ended.stderr


def test_tools_that_close_or_replace_the_streams_leave_the_result(tmp_path: Path) -> None:
    (tmp_path / "loud.py").write_text(HOSTILE)
    ended = understudy(tmp_path, "check", "loud:DATA")
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert ended.stdout.rstrip().splitlines()[-2].startswith("sound: ")
    assert "Traceback" not in ended.stderr
