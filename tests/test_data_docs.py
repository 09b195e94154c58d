"""Every command and every Python block of docs/data.md runs, in their order and in one folder."""

import re
import shlex
from pathlib import Path

import pytest

import pages
from data_kit import address, call, obey, tau, write_tau

FILE = pages.ROOT / "docs" / "data.md"
PAGE = FILE.read_text(encoding="utf-8")
SHELL = [block for block in pages.blocks(FILE, language="sh") if not block.unrun]
COMMANDS = [line for block in SHELL for line in block.text.splitlines()]
BLOCKS = [block.text for block in pages.blocks(FILE, language="python")]


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    write_tau(tmp_path / "tau.json", [address(number) for number in range(10, 30)])
    (tmp_path / "tau.py").write_text(f"TASKS = {[tau(), address(1)]!r}\n")
    obey(COMMANDS)
    assert (tmp_path / "back.jsonl").read_bytes() == (tmp_path / "tasks.jsonl").read_bytes()
    for block in BLOCKS:
        exec(compile(block, "docs/data.md", "exec"), {"__name__": "__main__"})  # noqa: S102
        assert len(capsys.readouterr().out.splitlines()) == 200


def test_every_verb_is_on_the_page() -> None:
    verbs = re.findall(r"^  (\w+) ", call("--help")[1].partition("Commands:")[2], re.MULTILINE)
    elsewhere = {"collect", "export"}  # docs/handover.md
    assert verbs == ["synthesize", "convert", "export", "split", "stats", "validate", "collect"]
    assert {shlex.split(command)[2] for command in COMMANDS} == set(verbs) - elsewhere


def test_the_columns_are_those_of_a_row() -> None:
    from understudy.data.rows import Row

    columns = re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)
    assert columns == list(Row.model_fields)
