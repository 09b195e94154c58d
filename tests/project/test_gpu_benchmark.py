"""Test benchmarks/gpu.py: a cell is measured once, in time, and stands in the table with its result or a reason."""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.paths import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))

from gpu import Cell, all_cells, read_json, run, table
from shapes import build


def options(out: Path, **changed: Any) -> argparse.Namespace:
    values = {"shapes": ["tiny"], "model": "tiny", "vllm_python": "", "peers": [], "steps": 1, "minutes": 1.0}
    return argparse.Namespace(**{"device": "cpu", "out": out, **values, **changed})


def cell(name: str, code: str, **changed: Any) -> Cell:
    """Return a cell that runs Python code."""
    values = {"section": "times", "limit": 30.0, "labels": {"what": name}}
    return Cell(name=name, command=[sys.executable, "-c", code], **{**values, **changed})


def test_result_is_not_measured_again(tmp_path: Path) -> None:
    code = f"open({str(tmp_path / 'count')!r}, 'a').write('x'); print('text'); print('{{\"seconds\": 2.5}}')"
    counting = cell("one", code)
    for _ in range(2):
        assert run([counting], options(tmp_path)) == {}
    assert (tmp_path / "count").read_text() == "x"
    assert json.loads((tmp_path / "one.json").read_text())["rows"] == [{"seconds": 2.5}]
    assert "| one | 2.5 |" in (tmp_path / "results.md").read_text()


def test_reason_stands_in_the_table_and_the_cell_is_tried_again(tmp_path: Path) -> None:
    wanted = tmp_path / "there"
    code = f"import os, sys; os.path.exists({str(wanted)!r}) or sys.exit('no | memory'); print('[]')"
    failing, after = cell("first", code), cell("second", "print('{}')", after=("first",))
    skipped = cell("third", "print('{}')", missing="no GPU")
    reasons = run([failing, after, skipped], options(tmp_path))
    assert reasons == {"first": "no | memory", "second": "no | memory", "third": "no GPU"}
    lines = (tmp_path / "results.md").read_text().splitlines()
    assert [line for line in lines if line.startswith("| first")] == ["| first | no \\| memory |"]
    wanted.touch()
    assert run([failing, after, skipped], options(tmp_path)) == {"third": "no GPU"}


def test_limits_of_a_cell_and_of_all_cells(tmp_path: Path) -> None:
    endless = cell("endless", "import time; time.sleep(600)", limit=0.2)
    assert run([endless], options(tmp_path)) == {"endless": "more than 0 s"}
    (reason,) = run([endless], options(tmp_path, minutes=0.0)).values()
    assert reason.startswith("the time was over")


def test_columns_are_those_of_all_rows(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps({"seconds": 120.4, "rows": [{"x": 1}, {"y": 0.12345}]}))
    assert [*table([cell("a", ""), cell("b", "")], tmp_path, {"b": "no"})] == [
        "| what | x | y | whole cell, s | note |",
        "|---|---|---|---|---|",
        "| a | 1 |  |  |  |",
        "| a |  | 0.123 | 120 |  |",
        "| b |  |  |  | no |",
    ]


@pytest.mark.parametrize(
    ("text", "found"),
    [('note\n{"a": 1}', {"a": 1}), ("[\n 1\n]\n", [1]), ("[a] note\n[2]", [2]), ("", None), ("{", None)],
)
def test_json_after_other_lines(text: str, found: object) -> None:
    assert read_json(text) == found


def test_cells_have_unique_names_and_follow_those_they_need(tmp_path: Path) -> None:
    cells = [*all_cells(options(tmp_path, shapes=["0.5b", "3b", "7b"], device="cuda"))]
    names = [each.name for each in cells]
    assert len({*names}) == len(names) > 40
    assert all(names.index(before) < names.index(each.name) for each in cells for before in each.after)


@pytest.mark.slow
@pytest.mark.parametrize(("shape", "parameters"), [("0.5b", 494_032_768), ("3b", 3_085_938_688), ("7b", 7_615_616_512)])
def test_shapes_have_the_published_numbers_of_parameters(shape: str, parameters: int) -> None:
    assert build(shape, "meta").num_parameters() == parameters


@pytest.mark.slow
def test_a_cell_on_the_cpu(tmp_path: Path) -> None:
    cells = ("--cells", "model-tiny", "step-tiny-full-shared", "step-tiny-full-vllm")
    words = ("--device", "cpu", "--shapes", "tiny", "--steps", "1", "--out", str(tmp_path))
    variables = os.environ | {"PYTHON": sys.executable, "PYTHONPATH": str(ROOT / "src")}
    subprocess.run([ROOT / "benchmarks" / "gpu.sh", *words, *cells], check=True, env=variables)
    (row,) = json.loads((tmp_path / "step-tiny-full-shared.json").read_text())["rows"]
    assert row["computed tokens/s"] > row["trained tokens/s"] > 0
    assert row["planned GiB"] > row["peak GiB"] / 2
    report = (tmp_path / "results.md").read_text()
    assert "| tiny | full | understudy, shared prompts |" in report
    assert "vLLM is not installed" in report
