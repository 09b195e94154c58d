"""Test `read_rows`: every file type gives the same values, lazily, and errors name their location."""

import gc
import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.ipc
import pyarrow.parquet
import pytest

from support.data_kit import write_lines, write_tau_tasks
from understudy.core.errors import ConfigError, TaskError
from understudy.core.items import Item, RowError, items_or_raise
from understudy.sources.readers import read_rows, require_module

VALUES = [{"a": 1, "b": [True, None, "x\u2028y"]}, {"a": -2, "b": [1.5]}, {"a": 3, "b": []}]
PYTHON_SOURCE = """
from somewhere import Task, Action
import os; os.abort()
OTHER = [1]
OTHER += [2]
TASKS_TRAIN: list = [
    Task(a=1, b=[True, None, "x\\u2028y"]),
    {"a": -2, "b": (1.5,)},
    Task(
        a=3,
        b=[],
    ),
]
print(len(TASKS_TRAIN), TASKS_TRAIN[0], TASKS_TRAIN.index(3))
"""


_PADDED = pyarrow.struct(
    [("b", pyarrow.int64()), ("c", pyarrow.list_(pyarrow.struct([("d", pyarrow.int64()), ("e", pyarrow.int64())])))]
)


def values(path: Path) -> list[Any]:
    return [item.value for item in items_or_raise(read_rows(path))]


def problems(path: Path) -> list[str]:
    return [str(item).replace(str(path), "FILE") for item in read_rows(path) if isinstance(item, RowError)]


def test_all_file_types_give_the_same_values(tmp_path: Path) -> None:
    for name, text in (
        ("a.json", json.dumps(VALUES)),
        ("b.json", json.dumps({"made": "2025", "more": {"tasks": 1}, "tasks": VALUES})),
        ("c.json", json.dumps({"dependent_dataset": VALUES})),
        ("d.jsonl", "".join(json.dumps(value, ensure_ascii=False) + "\n" for value in VALUES)),
        ("e.py", PYTHON_SOURCE),
    ):
        (tmp_path / name).write_text(text, encoding="utf-8")
        assert values(tmp_path / name) == VALUES, name


def test_parquet_is_read_across_row_groups(tmp_path: Path) -> None:
    rows = [{"a": i, "b": {"c": str(i)}} for i in range(2500)]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet", row_group_size=700)
    assert values(tmp_path / "a.parquet") == rows
    assert [item.location for item in read_rows(tmp_path / "a.parquet")][-1].endswith("a.parquet: row 2500")


def test_arrow_stream_is_read_like_parquet_without_padding(tmp_path: Path) -> None:
    rows = [{"a": {"b": 1, "c": None}}, {"a": {"c": [{"d": None, "e": 2}]}}, {"a": None}]
    table = pyarrow.Table.from_pylist(rows, pyarrow.schema([("a", _PADDED)]))
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    with pyarrow.ipc.new_stream(tmp_path / "a.arrow", table.schema) as stream:
        stream.write_table(table, max_chunksize=2)
    for name in ("a.parquet", "a.arrow"):
        assert values(tmp_path / name) == [{"a": {"b": 1}}, {"a": {"c": [{"e": 2}]}}, {"a": None}]
        assert [item.location for item in read_rows(tmp_path / name)][-1].endswith(f"{name}: row 3")


def test_object_without_a_list_of_rows_is_one_row(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text('{"task_id": 3, "messages": [{"role": "user"}]}')
    assert list(read_rows(path)) == [Item(str(path), {"task_id": 3, "messages": [{"role": "user"}]})]


def test_digits_in_a_text_may_be_many(tmp_path: Path) -> None:
    (path := tmp_path / "t.json").write_text(json.dumps([{'a\\"b': "1" * 9000}]))
    assert [item.value for item in read_rows(path) if isinstance(item, Item)] == [{'a\\"b': "1" * 9000}]


def test_items_carry_their_location(tmp_path: Path) -> None:
    (tmp_path / "e.py").write_text(PYTHON_SOURCE)
    assert [item.location.removeprefix(str(tmp_path)) for item in read_rows(tmp_path / "e.py")] == [
        "/e.py:7",
        "/e.py:8",
        "/e.py:9",
    ]
    path = write_tau_tasks(tmp_path / "t.json", [1, 2])
    assert [item.location for item in read_rows(path)] == [f"{path}: tasks[0]", f"{path}: tasks[1]"]
    path = write_lines(tmp_path / "t.jsonl", [1, 2])
    assert [item.location for item in read_rows(path)] == [f"{path}:1", f"{path}:2"]


def test_reading_continues_after_a_bad_line(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(b'{"a": 1}\n{"a": \n\n{"a": NaN}\n"\xff"\n{"a": 2}')
    assert [item.value for item in read_rows(path) if isinstance(item, Item)] == [{"a": 1}, {"a": 2}]
    found = problems(path)
    assert [problem.partition(": ")[0] for problem in found] == ["FILE:2", "FILE:3", "FILE:4", "FILE:5"]
    with pytest.raises(TaskError, match=r"t\.jsonl:2: "):
        list(items_or_raise(read_rows(path)))


@pytest.mark.parametrize("name", ["t.jsonl", "t.json", "t.py"])
def test_a_byte_order_mark_is_ignored(tmp_path: Path, name: str) -> None:
    text = {"t.jsonl": '{"a": 1}\n{"a": 2}', "t.json": '[{"a": 1}, {"a": 2}]', "t.py": "TASKS = [Task(a=1), Task(a=2)]"}
    (tmp_path / name).write_text(text[name], encoding="utf-8-sig")
    assert values(tmp_path / name) == [{"a": 1}, {"a": 2}]


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b'{"a": 1}\n\n', []),
        (b'{"a": 1}\r\n\r\n \n', []),
        (b"\n\n", []),
        (b"\xef\xbb\xbf", []),
        (b'\n\n{"a": 1}\n', ["FILE:1: an empty line", "FILE:2: an empty line"]),
    ],
)
def test_only_empty_lines_at_the_end_are_ignored(tmp_path: Path, content: bytes, found: list[str]) -> None:
    (tmp_path / "t.jsonl").write_bytes(content)
    assert problems(tmp_path / "t.jsonl") == found


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"tasks": [{"a": 1}, {"a": ', "FILE: tasks[1]: "),
        ('[{"a": 1}, {]]', "FILE: [1]: "),
        ('{"tasks": [{"a": 1}]} trailing', "FILE: tasks[1]: "),
    ],
)
def test_truncated_json_gives_the_items_before_the_error(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "t.json").write_text(text)
    first, second = read_rows(tmp_path / "t.json")
    assert isinstance(first, Item)
    assert first.value == {"a": 1}
    assert str(second).replace(str(tmp_path / "t.json"), "FILE").startswith(problem)


@pytest.mark.parametrize(
    ("element", "problem"),
    [
        ("Task(a=open('x'))", "open('x')"),
        ("Task(a=f'{x}')", "f'{x}'"),
        ("Task(a=x)", "x"),
        ("Task(1)", "Task(1)"),
        ("tau.Task(a=1)", "tau.Task(a=1)"),
        ("Task(**x)", "**"),
        ("{1: 2}", ":3: "),
        ("{**x}", ":3: "),
        ("[y for y in x]", "[y for y in x]"),
        ("1 + 1", "1 + 1"),
        ("1" + " + 1" * 900, ":3: "),
        ("b'x'", "b'x'"),
        ("lambda: 0", "lambda: 0"),
    ],
)
def test_python_file_is_parsed_and_never_executed(tmp_path: Path, element: str, problem: str) -> None:
    (tmp_path / "t.py").write_text(f"x = 1\nTASKS = [\n{element},\nTask(a=1)]\n")
    bad, good = read_rows(tmp_path / "t.py")
    assert isinstance(good, Item)
    assert good.value == {"a": 1}
    assert str(bad).startswith(f"{tmp_path / 't.py'}:3: ")
    assert problem in str(bad)


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("t.py", "TASKS = [", "t.py"),
        ("t.py", "TASKS = [\0]", "t.py"),
        ("t.py", "TASKS = " + "-" * 3000 + "1", "t.py"),
        ("t.py", "TASKS = " + "[" * 500 + "]" * 500, "t.py"),
        ("t.py", "OTHERS = []", "TASKS"),
        ("t.py", "TASKS = []\nTASKS_TEST = []", "TASKS, TASKS_TEST"),
        ("t.py", "\nTASKS = make()", "t.py:2: TASKS"),
        ("t.py", "TASKS = [1]\nTASKS += [2]", "t.py:2: TASKS"),
        ("t.py", "TASKS = [1]\nif x:\n    TASKS.append(2)", "t.py:3: TASKS"),
        ("t.py", "TASKS = [1]\nTASKS[0] = 2", "t.py:2: TASKS"),
        ("t.json", "{", "t.json"),
        ("t.json", '{"tasks": {"a": []}}', "'tasks'"),
        ("t.txt", "a,b", ".parquet"),
        ("t.json", '{"a": 1}\n{"a": 2}\n', ".jsonl"),
        ("none.json", None, "none.json"),
    ],
)
def test_unreadable_file_raises_config_error_in_one_line(
    tmp_path: Path, name: str, text: str | None, problem: str
) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError) as error:
        list(read_rows(tmp_path / name))
    assert problem in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_invalid_binary_file_gives_a_row_error(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"t.{suffix}"
    path.write_bytes(b"PAR1 this is none PAR1")
    (problem,) = problems(path)
    assert problem.startswith("FILE: row 1: not ")


def test_missing_library_error_names_the_install_command() -> None:
    with pytest.raises(ConfigError, match=r"\bx\b.*no_such_library.*pip install 'understudy-rl\[data\]'"):
        require_module("no_such_library", "reading x")


def large_rows(count: int) -> Iterator[dict[str, Any]]:
    return ({"number": i, "text": "x" * 2000} for i in range(count))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["t.json", "t.jsonl", "t.parquet"])
def test_reading_uses_bounded_memory(tmp_path: Path, name: str) -> None:
    """Read 20 MB of values in less than 8 MB of Python memory."""
    path = tmp_path / name
    if name == "t.parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(large_rows(10_000))), path, row_group_size=1000)
    else:
        (write_tau_tasks if name == "t.json" else write_lines)(path, large_rows(10_000))
    gc.collect()
    tracemalloc.start()
    assert sum(item.value["number"] for item in items_or_raise(read_rows(path))) == sum(range(10_000))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8_000_000


def test_reading_is_lazy(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"a": 1}\nbroken')
    assert next(items_or_raise(read_rows(path))).value == {"a": 1}


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_cells_of_csv_are_texts_nulls_and_json(tmp_path: Path, separator: str) -> None:
    path = tmp_path / "t.csv"
    lines = [["id", "text", "listed"], ["007", '"two\nlines"', ""], ["8", "", '"[{""a"": 1}]"'], ["9", "[no", "true"]]
    path.write_text("\n".join(map(separator.join, lines)) + "\n", encoding="utf-8-sig")
    assert values(path) == [
        {"id": "007", "text": "two\nlines", "listed": None},
        {"id": "8", "text": None, "listed": [{"a": 1}]},
        {"id": "9", "text": "[no", "listed": "true"},
    ]


@pytest.mark.parametrize("name", ["t.jsonl", "t.json", "t.parquet", "t.csv"])
def test_the_index_of_pandas_is_no_column(tmp_path: Path, name: str) -> None:
    row, index = {"question": "2 + 2?"}, {"__index_level_0__": 7}
    path = tmp_path / name
    if path.suffix == ".csv":
        path.write_text(",question\n7,2 + 2?\n")
    elif path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row | index]), path)
    else:
        path.write_text(json.dumps([row | index] if path.suffix == ".json" else row | index))
    assert values(path) == [row]


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("question,answer,answer\na,1,9\n")
    with pytest.raises(ConfigError, match="'answer'"):
        values(tmp_path / "t.csv")


def test_a_line_of_csv_with_too_many_cells_is_an_error_with_its_row(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("question,answer\na,b\n1, 2 and 3,6\nc,d\n")
    found = list(read_rows(path))
    assert [isinstance(each, RowError) for each in found] == [False, True, False]
    assert found[1].location == f"{path}: row 2"


def test_csv_that_is_not_utf_8_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(b"question\ncaf\xe9\n")
    (problem,) = problems(tmp_path / "t.csv")
    assert "UTF-8" in str(problem)


def test_integers_of_any_size_and_floats_keep_their_type(tmp_path: Path) -> None:
    row = {"large": 123456789012345678901234567890, "whole": 1, "floats": [1.0, 1e5, {"x": 0.1}]}
    (tmp_path / "a.json").write_text(json.dumps([row, {"after": 1}]))
    first, second = items_or_raise(read_rows(tmp_path / "a.json"))
    assert (first.value, second.value) == (row, {"after": 1})
    assert [type(x) for x in first.value["floats"][:2]] == [float, float]
