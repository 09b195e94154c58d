"""Test that the commands of docs/evaluation.md run in order, and that the page covers every cause and option."""

import re
import shlex
import sys
from pathlib import Path

import pytest

from support import pages
from understudy.cli.main import main
from understudy.evaluation.failures.causes import FAILURE_KINDS

FILE = pages.ROOT / "docs" / "evaluation.md"
PAGE = FILE.read_text(encoding="utf-8")
COMMANDS = [line for block in pages.blocks(FILE, language="sh") if not block.unrun for line in block.text.splitlines()]


@pytest.mark.slow
def test_commands_of_the_page_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for command in COMMANDS:
        monkeypatch.setattr(sys, "argv", shlex.split(command))
        with pytest.raises(SystemExit) as stop:
            main()
        assert stop.value.code in (0, None), command
        assert capsys.readouterr().out
    assert len(COMMANDS) == 6
    assert (tmp_path / "logged.json").exists()
    assert "pass@k" in (tmp_path / "hasty.md").read_text()


def test_every_failure_kind_and_eval_option_is_documented(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert set(FAILURE_KINDS) <= set(re.findall(r"`([a-z_]+)`", PAGE))
    monkeypatch.setattr(sys, "argv", ["understudy", "eval", "--help"])
    with pytest.raises(SystemExit):
        main()
    options = set(re.findall(r"(--[a-z-]+)", capsys.readouterr().out))
    assert options - set(re.findall(r"--[a-z-]+", PAGE)) <= {"--help", "--concurrency"}
