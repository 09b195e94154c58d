"""Reading: every kind of file gives the same values, one at a time, and what is wrong is named by its place."""

import gc
import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from data_kit import write_lines, write_tau
from understudy.data.items import Bad, Item, strict
from understudy.data.read import needed, read
from understudy.errors import ConfigError, TaskError

VALUES = [{"a": 1, "b": [True, None, "x\u2028y"]}, {"a": -2, "b": [1.5]}, {"a": 3, "b": []}]
PYTHON = """
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


def values(path: Path) -> list[Any]:
    return [item.value for item in strict(read(path))]


def problems(path: Path) -> list[str]:
    return [str(item).replace(str(path), "FILE") for item in read(path) if isinstance(item, Bad)]


def test_every_kind_of_file_gives_the_same(tmp_path: Path) -> None:
    for name, text in (
        ("a.json", json.dumps(VALUES)),
        ("b.json", json.dumps({"made": "2025", "more": {"tasks": 1}, "tasks": VALUES})),
        ("c.json", json.dumps({"dependent_dataset": VALUES})),
        ("d.jsonl", "".join(json.dumps(value, ensure_ascii=False) + "\n" for value in VALUES)),
        ("e.py", PYTHON),
    ):
        (tmp_path / name).write_text(text, encoding="utf-8")
        assert values(tmp_path / name) == VALUES, name


def test_parquet(tmp_path: Path) -> None:
    rows = [{"a": i, "b": {"c": str(i)}} for i in range(2500)]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet", row_group_size=700)
    assert values(tmp_path / "a.parquet") == rows
    assert [item.where for item in read(tmp_path / "a.parquet")][-1].endswith("a.parquet: row 2500")


def test_places(tmp_path: Path) -> None:
    (tmp_path / "e.py").write_text(PYTHON)
    assert [item.where.removeprefix(str(tmp_path)) for item in read(tmp_path / "e.py")] == [
        "/e.py:7",
        "/e.py:8",
        "/e.py:9",
    ]
    path = write_tau(tmp_path / "t.json", [1, 2])
    assert [item.where for item in read(path)] == [f"{path}: tasks[0]", f"{path}: tasks[1]"]
    path = write_lines(tmp_path / "t.jsonl", [1, 2])
    assert [item.where for item in read(path)] == [f"{path}:1", f"{path}:2"]


def test_a_bad_line_does_not_end_the_file(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(b'{"a": 1}\n{"a": \n\n{"a": NaN}\n"\xff"\n{"a": 2}')
    assert [item.value for item in read(path) if isinstance(item, Item)] == [{"a": 1}, {"a": 2}]
    found = problems(path)
    assert [problem.partition(": ")[0] for problem in found] == ["FILE:2", "FILE:3", "FILE:4", "FILE:5"]
    assert found[1] == "FILE:3: an empty line"
    assert "not JSON: EOF while parsing" in found[0]
    with pytest.raises(TaskError, match=r"t\.jsonl:2: not JSON"):
        list(strict(read(path)))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"tasks": [{"a": 1}, {"a": ', "FILE: tasks[1]: not JSON: "),
        ('[{"a": 1}, {]]', "FILE: [1]: not JSON: "),
        ('{"tasks": [{"a": 1}]} trailing', "FILE: tasks[1]: not JSON: "),
    ],
)
def test_broken_json_gives_what_came_before(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "t.json").write_text(text)
    first, second = read(tmp_path / "t.json")
    assert isinstance(first, Item)
    assert first.value == {"a": 1}
    assert str(second).replace(str(tmp_path / "t.json"), "FILE").startswith(problem)


@pytest.mark.parametrize(
    ("element", "problem"),
    [
        ("Task(a=open('x'))", "open('x') is no literal"),
        ("Task(a=f'{x}')", "f'{x}' is no literal"),
        ("Task(a=x)", "x is no literal"),
        ("Task(1)", "Task(1) is no literal"),
        ("tau.Task(a=1)", "tau.Task(a=1) is no literal"),
        ("Task(**x)", "** is no literal"),
        ("{1: 2}", "a dict has a key that is no string literal"),
        ("{**x}", "a dict has a key that is no string literal"),
        ("[y for y in x]", "[y for y in x] is no literal"),
        ("1 + 1", "1 + 1 is no literal"),
        ("1" + " + 1" * 900, "nested too deeply"),
        ("b'x'", "b'x' is no literal"),
        ("lambda: 0", "lambda: 0 is no literal"),
    ],
)
def test_python_is_never_executed(tmp_path: Path, element: str, problem: str) -> None:
    (tmp_path / "t.py").write_text(f"x = 1\nTASKS = [\n{element},\nTask(a=1)]\n")
    bad, good = read(tmp_path / "t.py")
    assert isinstance(good, Item)
    assert good.value == {"a": 1}
    assert str(bad).startswith(f"{tmp_path / 't.py'}:3: ")
    assert problem in str(bad)


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("t.py", "TASKS = [", "not Python: "),
        ("t.py", "TASKS = [\0]", "not Python: "),
        ("t.py", "TASKS = " + "-" * 3000 + "1", "not Python: maximum recursion depth"),
        ("t.py", "TASKS = " + "[" * 500 + "]" * 500, "not Python: "),
        ("t.py", "OTHERS = []", "no list named TASKS"),
        ("t.py", "TASKS = []\nTASKS_TEST = []", "several lists of tasks (TASKS, TASKS_TEST)"),
        ("t.py", "\nTASKS = make()", "t.py:2: TASKS is no literal list"),
        ("t.py", "TASKS = [1]\nTASKS += [2]", "t.py:2: TASKS is changed there; write it as one list"),
        ("t.py", "TASKS = [1]\nif x:\n    TASKS.append(2)", "t.py:3: TASKS is changed there"),
        ("t.py", "TASKS = [1]\nTASKS[0] = 2", "t.py:2: TASKS is changed there"),
        ("t.json", "{", "not JSON"),
        ("t.json", '{"task": []}', "neither a list at its top nor a list 'tasks'"),
        ("t.json", '{"tasks": {"a": []}}', "neither a list at its top nor a list 'tasks'"),
        ("t.csv", "a,b", "unknown kind of file '.csv'; allowed: .json, .jsonl, .parquet, .py"),
        ("none.json", None, "there is no file"),
    ],
)
def test_files_that_are_none(tmp_path: Path, name: str, text: str | None, problem: str) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError) as error:
        list(read(tmp_path / name))
    assert problem in str(error.value)
    assert "\n" not in str(error.value)


def test_broken_parquet(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    path.write_bytes(b"PAR1 this is none PAR1")
    (problem,) = problems(path)
    assert problem.startswith("FILE: row 1: not parquet: ")


def test_a_missing_library_is_named() -> None:
    with pytest.raises(ConfigError, match=r"x needs no_such_library; run pip install -e '\.\[data\]' in the clone"):
        needed("no_such_library", "reading x")


def big(count: int) -> Iterator[dict[str, Any]]:
    return ({"number": i, "text": "x" * 2000} for i in range(count))


@pytest.mark.parametrize("name", ["t.json", "t.jsonl", "t.parquet"])
def test_reading_holds_little(tmp_path: Path, name: str) -> None:
    """20 MB of values in less than 8 MB of Python's memory."""
    path = tmp_path / name
    if name == "t.parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(big(10_000))), path, row_group_size=1000)
    else:
        (write_tau if name == "t.json" else write_lines)(path, big(10_000))
    gc.collect()
    tracemalloc.start()
    assert sum(item.value["number"] for item in strict(read(path))) == sum(range(10_000))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8_000_000


def test_reading_is_lazy(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"a": 1}\nbroken')
    assert next(strict(read(path))).value == {"a": 1}
