"""Benchmarks that take seconds run, on the smallest of what they measure; what they print is read back."""

import json
import runpy
import shutil
import sys
from pathlib import Path

import pytest

from viewing import make_run

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
REPLIES = (
    '{"text": "<tool_call>{\\"name\\": \\"find\\", \\"arguments\\": {\\"id\\": 1}}</tool_call>", "expected_calls":'
    ' [{"name": "find", "kwargs": {"id": 1}}]}\n{"text": "Good day.", "expected_calls": []}\n'
    '{"text": "Good day.", "expected_calls": [{"name": "find", "kwargs": {}}]}\n'
)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> object:
    """What a benchmark prints, by its command line."""

    def run(name: str, *words: object) -> str:
        monkeypatch.setattr(sys, "argv", [name, *map(str, words)])
        runpy.run_path(str(BENCHMARKS / name), run_name="__main__")
        return capfd.readouterr().out

    return run


def test_environments(said) -> None:  # type: ignore[no-untyped-def]
    (row,) = json.loads(said("environments.py", "--domain", "retail", "--tasks", 4, "--repeats", 2, "--json"))
    assert row.pop("domain") == "retail"
    assert all(value > 0 for value in row.values())
    assert 1 < row["steps_per_episode"] < 60


def test_scaling(said) -> None:  # type: ignore[no-untyped-def]
    rows = json.loads(said("scaling.py", "--gpus", 1, 8, "--json"))
    assert [row["gpus"] for row in rows] == [1, 8]
    assert all(row["total"] == pytest.approx(sum(row[p] for p in ("rollout", "forward", "update", "sync"))) for row in rows)
    assert "published: 97.7 s" in said("scaling.py", "--check")


def test_replies(said, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "replies.jsonl").write_text(REPLIES)
    printed = said("replies.py", tmp_path / "replies.jsonl", "--show")
    assert "\nwithout calls: 1 of 1 as labelled" in printed
    assert printed.startswith("with calls: 1 of 2 as labelled (0.5000)\n")
    assert "line 3: " in printed


def test_load(said) -> None:  # type: ignore[no-untyped-def]
    load = {"at_once": 2, "user": "sleeping", "actors": 0, "seconds": 1.0}
    found = json.loads(said("load.py", "--one", json.dumps(load)))
    assert found["episodes"] >= 2
    assert found["episodes_per_cpu_second"] > 0


def test_viewer(said) -> None:  # type: ignore[no-untyped-def]
    found = json.loads(said("viewer.py", "--episodes", 64, "--step", 32, "--tokens", 20, "--json"))
    assert found["episodes"] == 64
    assert len(found) > 6


def test_seeds_and_their_curve(said, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
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
