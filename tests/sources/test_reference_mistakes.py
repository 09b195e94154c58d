"""Test references that name something else than a source of tasks, and a tool that returns a coroutine."""

import warnings
from pathlib import Path

import pytest

from understudy.core.errors import ConfigError, TaskError
from understudy.core.items import RowError
from understudy.envs.tools import render_result
from understudy.sources.readers import explain_suffix, read_rows
from understudy.sources.references import load_reference
from understudy.sources.task_files.prompt_rows import rename_hint
from understudy.sources.tool_dataset import ToolDataset, ToolEpisode, ToolExample, answer_notes

MODULE = "def make():\n    return 1\n\nNUMBER = 3\n"


@pytest.mark.parametrize(
    ("reference", "remedy"),
    [
        ("mistaken_source.py:NUMBER", "'mistaken_source:NUMBER'"),
        ("mistaken_source:make", "SOURCE = make(...)"),
        ("mistaken_source:NUMBER", "ToolDataset or a Domain"),
    ],
)
def test_wrong_reference_says_what_to_write(
    reference: str, remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mistaken_source.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError) as raised:
        load_reference(reference)
    assert remedy in str(raised.value)


@pytest.mark.parametrize("nested", [False, True])
def test_forgotten_await_names_the_coroutine_without_a_warning(nested: bool) -> None:
    async def look_up() -> int:
        return 1

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        value = look_up()
        with pytest.raises(TypeError, match=r"await .*look_up"):
            render_result("get", {"found": value} if nested else value)


@pytest.mark.parametrize(
    ("name", "text", "remedy"),
    [
        ("rows.jsonl", "{'question': 'a', 'answer': 'b'}\n", "json.dumps"),
        ("rows.jsonl", '{"question": "a", "answer": "b"},\n', "remove the comma"),
        ("rows.jsonl", '{"question": "a", "answer": NaN}\n', "write null"),
    ],
)
def test_line_that_is_no_json_says_what_it_is(name: str, text: str, remedy: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    (error,) = read_rows(tmp_path / name)
    assert isinstance(error, RowError)
    assert remedy in error.problem


def test_suffix_that_no_reader_has_says_what_to_do() -> None:
    assert "rename it to .csv" in explain_suffix(Path("rows.tsv"), [".csv", ".json"])


def test_columns_of_instructions_are_renamed() -> None:
    assert rename_hint({"input": "a", "output": "b"}) == "rename input to question, output to answer"


def test_marked_final_answer_and_name_of_a_policy_file_are_named() -> None:
    (note,) = answer_notes([("row 1", ToolExample(prompt="a", answer="6*7\n#### 42"))])
    assert "'#### 42'" in note
    assert "rpartition" in note
    with pytest.raises(TaskError, match=r"policy\.md.*read_text"):
        ToolDataset("sums", "policy.md", [ToolExample(prompt="a")], ToolEpisode)
