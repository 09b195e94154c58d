"""Run each quick benchmark on its smallest input and check what it prints."""

import json
import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from support.paths import ROOT
from support.viewing import make_run
from understudy.sources.loading import load_source

BENCHMARKS = ROOT / "benchmarks"
REPLIES = (
    '{"text": "<tool_call>{\\"name\\": \\"find\\", \\"arguments\\": {\\"id\\": 1}}</tool_call>", "expected_calls":'
    ' [{"name": "find", "kwargs": {"id": 1}}]}\n{"text": "Good day.", "expected_calls": []}\n'
    '{"text": "Good day.", "expected_calls": [{"name": "find", "kwargs": {}}]}\n'
)


RunBenchmark = Callable[..., str]


@pytest.fixture
def run_benchmark(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> RunBenchmark:
    """Return a function that runs a benchmark by its command line and returns its output."""

    def run(name: str, *words: object) -> str:
        monkeypatch.syspath_prepend(BENCHMARKS)
        monkeypatch.setattr(sys, "argv", [name, *map(str, words)])
        runpy.run_path(str(BENCHMARKS / name), run_name="__main__")
        return capfd.readouterr().out

    return run


def test_environments_benchmark(run_benchmark: RunBenchmark) -> None:
    (row,) = json.loads(run_benchmark("environments.py", "--domain", "retail", "--tasks", 4, "--repeats", 2, "--json"))
    assert row["domain"] == "retail"
    assert (
        row["steps_per_episode"] == sum(len(task.gold_turns) for task in load_source("retail").sample("train", 4)) / 4
    )


def test_scaling_benchmark(run_benchmark: RunBenchmark) -> None:
    rows = json.loads(run_benchmark("scaling.py", "--gpus", 1, 8, "--json"))
    assert [row["gpus"] for row in rows] == [1, 8]
    assert all(
        row["total"] == pytest.approx(sum(row[p] for p in ("rollout", "forward", "update", "sync"))) for row in rows
    )
    assert "published: 97.7 s" in run_benchmark("scaling.py", "--check")


@pytest.mark.slow
def test_limits_benchmark(run_benchmark: RunBenchmark) -> None:
    words = ("--model", "tiny", "--prompt", 8, "--reply", 2, "--steps", 1, "--json")
    found = json.loads(run_benchmark("limits.py", *words))
    assert 0 < found["update_limit"] < found["update"]
    assert 0 < found["sampling_limit"] < found["sampling"]


def test_replies_benchmark(run_benchmark: RunBenchmark, tmp_path: Path) -> None:
    (tmp_path / "replies.jsonl").write_text(REPLIES)
    printed = run_benchmark("replies.py", tmp_path / "replies.jsonl", "--show")
    assert re.search(r"\nwithout calls: 1 of 1\b", printed)
    assert re.match(r"with calls: 1 of 2\b.*\b0\.5000\b", printed)
    assert "line 3: " in printed


@pytest.mark.slow
def test_viewer_benchmark(run_benchmark: RunBenchmark) -> None:
    found = json.loads(run_benchmark("viewer.py", "--episodes", 64, "--step", 32, "--tokens", 20, "--json"))
    assert found["episodes"] == 64
    assert any("last page" in name for name in found)


def test_curve_benchmark(run_benchmark: RunBenchmark, tmp_path: Path) -> None:
    runs = [make_run(tmp_path / f"seed{seed}", steps=2, seed=seed, finished=True).folder for seed in (0, 1)]
    run_benchmark("curve.py", *runs, tmp_path / "curve.svg", "--title", "a < b")
    drawn = (tmp_path / "curve.svg").read_text(encoding="utf-8")
    assert drawn.count('class="train each"') == 2
    assert "a &lt; b" in drawn
