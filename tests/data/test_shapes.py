"""Test the shapes of training rows: the table of docs/conversations.md is read as it says, from every kind of file."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.ipc
import pyarrow.parquet
import pytest

from support.data_kit import run_data_command, write_lines
from understudy.core.errors import ConfigError, TaskError
from understudy.core.items import Item, RowError, items_or_raise
from understudy.core.messages import Message, ToolSpec
from understudy.data.conversations.conversations import read_conversations, read_examples
from understudy.data.conversations.examples import Demonstration, LabeledExample, PreferencePair
from understudy.data.conversations.outcomes import ReadingNotes
from understudy.data.conversations.shapes import SHAPES, find_shape
from understudy.data.tool_examples import load_tool_examples
from understudy.sources.dataset_files import digest_dataset, list_dataset_files
from understudy.sources.readers import require_module
from understudy.sources.task_files.prompt_rows import to_tool_example

PAGE = Path(__file__).parents[2] / "docs" / "conversations.md"
TABLE = [
    (uses, json.loads(row))
    for uses, row in re.findall(r"^\| [^|]+ \| ([A-Za-z, ]+) \| `(\{.*\})` \|$", PAGE.read_text("utf-8"), re.MULTILINE)
]
"""What each row of the page's table is for, and the row."""
KINDS = {"SFT": Demonstration, "DPO": PreferencePair, "KTO": LabeledExample}
HI, HELLO = Message(role="user", content="Hi."), Message(role="assistant", content="Hello.")
NO = Message(role="assistant", content="No.")
ASKED = [{"role": "user", "content": "Hi."}]
ANSWERED = [{"role": "assistant", "content": "Hello."}]


def read_values(path: Path) -> list[Any]:
    return [item.value for item in items_or_raise(read_conversations(path))]


def write_file(path: Path, rows: list[Any]) -> Path:
    """Write rows in the format that the path's suffix names; without one, as `Dataset.save_to_disk` does."""
    if path.suffix == ".jsonl":
        return write_lines(path, rows)
    if path.suffix == ".json":
        path.write_text(json.dumps(rows))
        return path
    table = pyarrow.Table.from_pylist(rows)
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(table, path)
        return path
    path.mkdir(parents=True)
    for name in ("state.json", "dataset_info.json"):
        (path / name).write_text("{}")
    (path / "cache-1a.arrow").write_bytes(b"not read")
    for number in range(2):
        with pyarrow.ipc.new_stream(path / f"data-0000{number}-of-00002.arrow", table.schema) as stream:
            stream.write_table(table.slice(number, 1 if number == 0 else None))
    return path


def test_page_has_an_example_of_each_shape() -> None:
    found = [find_shape(row, ("sft", "dpo", "kto", "reward"))[0].keys for _, row in TABLE]
    assert sorted(found) == sorted(shape.keys for shape in SHAPES)


@pytest.mark.parametrize(("uses", "row"), TABLE)
def test_row_of_each_shape_is_read_for_its_uses_only(tmp_path: Path, uses: str, row: dict[str, Any]) -> None:
    path = write_lines(tmp_path / "rows.jsonl", [row])
    for name, kind in KINDS.items():
        (found,) = read_examples(path, kind)
        if name in uses.split(", "):
            assert isinstance(found, Item)
            assert isinstance(found.value, kind)
        else:
            assert isinstance(found, RowError)
            assert re.search(rf"shapes for {name}: \{{", found.problem)
    if "reward" in uses:
        (example,) = load_tool_examples(path)
        assert (example.prompt, example.answer, example.info) == ("2 + 2?", "4", row)
    else:
        with pytest.raises(TaskError, match=r"rows\.jsonl:1: .*\{question, answer\}"):
            load_tool_examples(path)


@pytest.mark.sweep
@pytest.mark.parametrize("name", ["rows.json", "rows.parquet", "saved", "folder/a.jsonl", "folder/a.parquet"])
@pytest.mark.parametrize("row", [row for uses, row in TABLE if uses != "reward"])
def test_every_kind_of_file_gives_the_same_conversations(tmp_path: Path, name: str, row: dict[str, Any]) -> None:
    folder, _, file = name.rpartition("/")
    (tmp_path / folder).mkdir(exist_ok=True)
    path = write_file(tmp_path / folder / file, [row, row])
    assert read_values(tmp_path / folder if folder else path) == read_values(
        write_lines(tmp_path / "r.jsonl", [row] * 2)
    )


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "Hi.", "chosen": "Hello.", "rejected": "No."},
        {"prompt": ASKED, "chosen": "Hello.", "rejected": "No."},
        {"prompt": "Hi.", "chosen": ANSWERED, "rejected": [ANSWERED[0] | {"content": "No."}]},
        {"prompt": ASKED, "chosen": ANSWERED, "rejected": [ANSWERED[0] | {"content": "No."}]},
        {"chosen": ASKED + ANSWERED, "rejected": [*ASKED, ANSWERED[0] | {"content": "No."}]},
        {"prompt": "Hi.", "chosen": ASKED + ANSWERED, "rejected": [*ASKED, ANSWERED[0] | {"content": "No."}]},
        {"instruction": "Hi.", "input": "", "chosen": "Hello.", "rejected": "No.", "output": None},
    ],
)
def test_preference_pairs_in_all_variants_are_equal(tmp_path: Path, row: dict[str, Any]) -> None:
    assert read_values(write_lines(tmp_path / "r.jsonl", [row])) == [
        PreferencePair(chosen=(HI, HELLO), rejected=(HI, NO))
    ]


def test_messages_of_api_clients_are_read_without_their_extra_columns(tmp_path: Path) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "find", "arguments": "{}"}}
    extra = {"annotations": [], "refusal": None, "audio": None, "name": "bot"}
    messages = [
        *ASKED,
        {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": "Look first.", **extra},
        {"role": "tool", "tool_call_id": "c", "content": "[]"},
        {**ANSWERED[0], "reasoning": "None found.", **extra},
    ]
    (found,) = read_values(write_lines(tmp_path / "r.jsonl", [{"messages": messages}]))
    assert [message.reasoning_content for message in found.messages] == ["", "Look first.", "", "None found."]
    assert [call.name for call in found.messages[1].tool_calls] == ["find"]
    (error,) = read_conversations(
        write_lines(tmp_path / "r.jsonl", [{"messages": [*ASKED, {**ANSWERED[0], "refusal": "I cannot."}]}])
    )
    assert isinstance(error, RowError)
    assert "refusal" in str(error)


@pytest.mark.parametrize(
    "more",
    [
        {"choices": ["3", "4"]},
        {"choices": {"text": ["3", "4"], "label": ["A", "B"]}},
        {"steps": ["2 + 2", "= 4"]},
        {"steps": []},
    ],
)
def test_choices_and_steps_of_a_question_are_no_episode(tmp_path: Path, more: dict[str, Any]) -> None:
    (found,) = read_values(write_lines(tmp_path / "r.jsonl", [{"question": "2 + 2?", "answer": "4", **more}]))
    assert [message.content for message in found.messages] == ["2 + 2?", "4"]


def test_the_prompt_is_imitated_and_not_the_question_that_it_was_made_of(tmp_path: Path) -> None:
    row = {"question": "Hey.", "prompt": [{"role": "system", "content": "Greet."}, *ASKED], "answer": "Hello."}
    (found,) = read_values(write_lines(tmp_path / "r.jsonl", [row]))
    assert found.messages == (Message(role="system", content="Greet."), HI, HELLO)


def test_files_of_a_folder_without_a_split_are_named_or_read(tmp_path: Path) -> None:
    rows = [{"prompt": "Hi.", "completion": "Hello."}]
    for name in ("test", "validation"):
        write_lines(tmp_path / f"{name}.jsonl", rows)
    with pytest.raises(ConfigError, match=r"'train', but test\.jsonl, validation\.jsonl"):
        list_dataset_files(tmp_path)
    write_lines(tmp_path / "airline.jsonl", rows)
    assert [file.name for file in list_dataset_files(tmp_path)] == ["airline.jsonl"]
    write_lines(tmp_path / "train_retail.jsonl", rows)
    assert [file.name for file in list_dataset_files(tmp_path)] == ["train_retail.jsonl"]
    notes = ReadingNotes()
    assert len(list(read_conversations(tmp_path, notes=notes))) == 1
    assert (notes.left_out_files, any("airline.jsonl" in line for line in notes.lines(""))) == (
        ("airline.jsonl",),
        True,
    )


def test_alpaca_history_and_system_come_before_the_instruction(tmp_path: Path) -> None:
    row = {
        "instruction": "Add.",
        "input": "2 + 2",
        "output": "4",
        "system": "Be brief.",
        "history": [["Hi.", "Hello."]],
    }
    (found,) = read_values(write_lines(tmp_path / "r.jsonl", [row]))
    asked = Message(role="user", content="Add.\n2 + 2")
    system = Message(role="system", content="Be brief.")
    assert found.messages == (system, HI, HELLO, asked, Message(role="assistant", content="4"))


@pytest.mark.parametrize(
    "tool",
    [
        {"name": "find"},
        {"name": "find", "description": None, "parameters": None},
        {"type": "function", "function": {"name": "find"}},
        {"type": "function", "name": "find", "strict": True},
    ],
)
def test_tool_needs_only_a_name(tmp_path: Path, tool: dict[str, Any]) -> None:
    row = {"messages": ASKED + ANSWERED, "tools": [tool]}
    (found,) = read_values(write_lines(tmp_path / "r.jsonl", [row]))
    assert found.tools == (ToolSpec(name="find", description="", parameters={"type": "object", "properties": {}}),)


@pytest.mark.parametrize(
    ("row", "shown"),
    [
        (
            {"text": "secret", "score": 1.5, "tags": ["a"], "meta": {}},
            "text: string, score: number, tags: list of string",
        ),
        ({f"k{i}" * 40: None for i in range(12)}, "4 more"),
        ({"a\nb": [[]]}, r"a\\nb: list\}"),
        (["secret"], "list of string"),
        ("secret", "string"),
        ({"prompt": "secret"}, r"\{prompt: string\}"),
    ],
)
def test_unknown_shape_is_described_in_one_line_without_values(tmp_path: Path, row: Any, shown: str) -> None:
    good = {"messages": ASKED + ANSWERED}
    (_, found) = read_examples(write_lines(tmp_path / "rows.jsonl", [good, row]), Demonstration)
    text = str(found)
    assert re.search(rf"rows\.jsonl:2: unknown shape .*{shown}", text)
    assert "shapes for SFT: {conversations} | {choices} | {messages} | " in text
    assert "\n" not in text
    assert "secret" not in text


def test_convert_lists_the_shapes_and_not_every_bad_row(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "rows.jsonl", [{"text": "x"}] * 50)
    code, _, err = run_data_command("convert", path, tmp_path / "out.jsonl")
    assert (code, "rows.jsonl:1: unknown shape {text: string}; shapes for" in err, "50 of 50" in err) == (2, True, True)
    assert err.count("unknown shape") == 20


def test_convert_reads_a_saved_dataset(tmp_path: Path) -> None:
    path = write_file(tmp_path / "saved", [{"prompt": "Hi.", "completion": "Hello."}] * 2)
    assert run_data_command("convert", path, tmp_path / "out.jsonl")[0] == 0
    assert read_values(tmp_path / "out.jsonl") == [Demonstration(messages=(HI, HELLO))] * 2


def test_missing_library_is_an_error_that_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_file(tmp_path / "saved", [{"prompt": "Hi.", "completion": "Hello."}] * 2)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    require_module.cache_clear()
    code, _, err = run_data_command("convert", path, tmp_path / "out.jsonl")
    assert (code, "pyarrow" in err, "understudy-rl[data]" in err) == (2, True, True)


def test_train_split_of_a_folder_is_read(tmp_path: Path) -> None:
    rows = [{"question": "2 + 2?", "answer": "4"}] * 2
    saved = tmp_path / "dict"
    for split in ("test", "train"):
        write_file(saved / split, rows)
    (saved / "dataset_dict.json").write_text("{}")
    assert {file.parent.name for file in list_dataset_files(saved)} == {"train"}
    shards = tmp_path / "shards"
    shards.mkdir()
    for name in ("test-00000-of-00001", "train-00000-of-00002", "train-00001-of-00002"):
        write_file(shards / f"{name}.parquet", rows)
    (shards / "dataset_info.json").write_text("{}")
    assert [file.stem[-14:] for file in list_dataset_files(shards)] == ["00000-of-00002", "00001-of-00002"]
    assert len(read_values(shards)) == 4


def test_folder_without_one_choice_is_an_error(tmp_path: Path) -> None:
    for split in ("a", "b"):
        write_file(tmp_path / "dict" / split, [{"question": "2 + 2?", "answer": "4"}] * 2)
    (tmp_path / "dict" / "dataset_dict.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"'train', but a, b"):
        list_dataset_files(tmp_path / "dict")
    (tmp_path / "hub" / "data").mkdir(parents=True)
    write_lines(tmp_path / "hub" / "data" / "a.jsonl", [{}])
    with pytest.raises(ConfigError, match=r"\.jsonl.*its folders: data"):
        list_dataset_files(tmp_path / "hub")


@pytest.mark.parametrize("name", ["empty.jsonl", "empty.json", "folder"])
def test_path_without_rows_is_an_error(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a.jsonl").write_text("")
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "empty.json").write_text("[]")
    with pytest.raises(ConfigError, match=f"{name} has no rows"):
        list(read_conversations(tmp_path / name))


def test_digest_of_a_folder_covers_each_file(tmp_path: Path) -> None:
    folder = tmp_path / "rows"
    folder.mkdir()
    write_lines(folder / "a.jsonl", [1])
    digests = [digest_dataset(folder)]
    write_lines(folder / "b.jsonl", [1])
    digests.append(digest_dataset(folder))
    write_lines(folder / "b.jsonl", [2])
    digests.append(digest_dataset(folder))
    assert len({*digests, digest_dataset(folder / "a.jsonl")}) == 4


def test_question_with_several_user_messages_is_no_tool_example(tmp_path: Path) -> None:
    rows = [
        {"prompt": [{"role": "system", "content": "Be brief."}, *ASKED], "answer": 4, "id": 7},
        {"prompt": ASKED + ANSWERED + ASKED, "answer": "4"},
    ]
    (example,) = load_tool_examples(write_lines(tmp_path / "good.jsonl", rows[:1]))
    assert (example.domain_policy, example.prompt, example.answer, example.id) == ("Be brief.", "Hi.", "4", "7")
    with pytest.raises(TaskError, match=r"rows\.jsonl:2: prompt: "):
        load_tool_examples(write_lines(tmp_path / "rows.jsonl", rows))


def test_fields_of_a_row_are_those_of_its_example(tmp_path: Path) -> None:
    calls = [{"name": "multiply", "arguments": {"a": 2, "b": 3}}]
    rows = [
        {
            "question": "2 * 3?",
            "answer": 6,
            "split": "Dev",
            "family": "products",
            "gold_calls": calls,
            "system": "Use tools.",
        },
        {"prompt": ASKED, "reward_model": {"ground_truth": "4"}, "extra_info": {"split": "test"}, "difficulty": "hard"},
    ]
    path = write_lines(tmp_path / "rows.jsonl", rows)
    for first, second in (load_tool_examples(path), [to_tool_example(row) for row in rows]):
        assert (first.split, first.family, first.domain_policy) == ("validation", "products", "Use tools.")
        assert [call.arguments for call in first.gold_calls] == [{"a": 2, "b": 3}]
        assert (second.split, second.difficulty, second.answer) == ("test", "hard", "4")
    with pytest.raises(TaskError, match=r"bad\.jsonl:1: gold_calls: 0\b.*'tool'"):
        load_tool_examples(
            write_lines(tmp_path / "bad.jsonl", [{"question": "?", "answer": "", "gold_calls": [{"tool": "f"}]}])
        )


@pytest.mark.parametrize("question", [None, "", " "])
def test_an_example_without_a_question_is_named_as_the_command_line_names_it(
    tmp_path: Path, question: str | None
) -> None:
    with pytest.raises(TaskError, match=r"rows\.jsonl:1: question: the row has no question; give it one"):
        load_tool_examples(write_lines(tmp_path / "rows.jsonl", [{"question": question, "answer": "4"}]))


@pytest.mark.parametrize(
    "calls",
    [
        [{"type": "function", "function": {"name": "multiply", "arguments": '{"a": 2, "b": 3}'}}],
        '[{"name": "multiply", "arguments": {"a": 2, "b": 3}}]',
    ],
)
def test_gold_calls_of_a_row_may_be_calls_of_openai_or_json_text(tmp_path: Path, calls: Any) -> None:
    (example,) = load_tool_examples(write_lines(tmp_path / "rows.jsonl", [{"question": "2 * 3?", "gold_calls": calls}]))
    assert [(call.name, call.arguments) for call in example.gold_calls] == [("multiply", {"a": 2, "b": 3})]
    assert example.answer == ""
    with pytest.raises(TaskError, match=r"bad\.jsonl:1: gold_calls: .*\bmultiply\b.*list"):
        load_tool_examples(write_lines(tmp_path / "bad.jsonl", [{"question": "?", "gold_calls": "multiply"}]))
