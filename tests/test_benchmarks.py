"""Benchmarks that take seconds run, on the smallest of what they measure; what they print is read back."""

import json
import runpy
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from understudy.domains.base import find
from viewing import make_run

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
REPLIES = (
    '{"text": "<tool_call>{\\"name\\": \\"find\\", \\"arguments\\": {\\"id\\": 1}}</tool_call>", "expected_calls":'
    ' [{"name": "find", "kwargs": {"id": 1}}]}\n{"text": "Good day.", "expected_calls": []}\n'
    '{"text": "Good day.", "expected_calls": [{"name": "find", "kwargs": {}}]}\n'
)


Said = Callable[..., str]


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Said:
    """What a benchmark prints, by its command line."""

    def run(name: str, *words: object) -> str:
        monkeypatch.setattr(sys, "argv", [name, *map(str, words)])
        runpy.run_path(str(BENCHMARKS / name), run_name="__main__")
        return capfd.readouterr().out

    return run


def test_environments(said: Said) -> None:
    (row,) = json.loads(said("environments.py", "--domain", "retail", "--tasks", 4, "--repeats", 2, "--json"))
    assert row["domain"] == "retail"
    assert row["steps_per_episode"] == sum(len(task.turns) for task in find("retail").sample("train", 4)) / 4


def test_scaling(said: Said) -> None:
    rows = json.loads(said("scaling.py", "--gpus", 1, 8, "--json"))
    assert [row["gpus"] for row in rows] == [1, 8]
    assert all(
        row["total"] == pytest.approx(sum(row[p] for p in ("rollout", "forward", "update", "sync"))) for row in rows
    )
    assert "published: 97.7 s" in said("scaling.py", "--check")


def test_replies(said: Said, tmp_path: Path) -> None:
    (tmp_path / "replies.jsonl").write_text(REPLIES)
    printed = said("replies.py", tmp_path / "replies.jsonl", "--show")
    assert "\nwithout calls: 1 of 1 as labelled" in printed
    assert printed.startswith("with calls: 1 of 2 as labelled (0.5000)\n")
    assert "line 3: " in printed


def test_viewer(said: Said) -> None:
    found = json.loads(said("viewer.py", "--episodes", 64, "--step", 32, "--tokens", 20, "--json"))
    assert found["episodes"] == 64
    assert any("the last page of all" in name for name in found)


def test_seeds_and_their_curve(said: Said, tmp_path: Path) -> None:
    runs = [make_run(tmp_path / f"seed{seed}", steps=2, seed=seed, finished=True).folder for seed in (0, 1)]
    for run in runs:
        first = run / "evaluations" / "000000 base model.json"
        for stage in ("000000 warm start", "000002 trained"):
            shutil.copy(first, first.with_name(f"{stage}.json"))
    printed = said("seeds.py", *runs)
    assert printed.count("| seed 0 |") == printed.count("| seed 1 |") == 2
    said("curve.py", *runs, tmp_path / "curve.svg", "--title", "a < b")
    drawn = (tmp_path / "curve.svg").read_text(encoding="utf-8")
    assert drawn.count('class="train each"') == 2
    assert "a &lt; b" in drawn
