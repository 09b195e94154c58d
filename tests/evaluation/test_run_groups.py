"""Test comparing groups of runs over seeds, with values worked by hand."""

import json
import re
import statistics
from pathlib import Path
from typing import Any

import pytest

from support.eval_results import make_result
from support.run_evaluations import write_run_evaluation
from understudy.core.errors import ConfigError
from understudy.evaluation.reports.files import find_evaluated, read_group
from understudy.evaluation.reports.run_groups import group_report_to_dict, group_tables
from understudy.evaluation.result import EvalResult
from understudy.evaluation.run_groups import GroupReport, compare_groups
from understudy.evaluation.statistics import student_interval
from understudy.runs.config import TrainConfig
from understudy.runs.run import Run

T_OF_TWO = 4.302653
"""The quantile of Student's t with two degrees of freedom for a two-sided 95% interval."""


def write_run(folder: Path, seed: int, *stages: EvalResult, lr: float = 1e-5, names: str = "base rl") -> Path:
    run = Run.create(folder, TrainConfig(seed=seed, algorithm={"learning_rate": lr}))
    for step, (name, result) in enumerate(zip(names.split(), stages, strict=True)):
        write_run_evaluation(run, step, name, result)
    return folder


def write_group(root: Path, name: str, *results: EvalResult, lr: float = 1e-5) -> None:
    for seed, result in enumerate(results):
        write_run(root / f"{name}-seed{seed}", seed, make_result((0.0,), (0.0,)), result, lr=lr)


def compared(*patterns: Path) -> GroupReport:
    return compare_groups([read_group(each.name, find_evaluated(str(each))) for each in patterns])


def test_groups_are_paired_by_seed_and_task(tmp_path: Path) -> None:
    """Seed 1 of `old` has no score on the first task, so that task is compared by seeds 0 and 2 only."""
    write_group(tmp_path, "old", make_result((0.0,), (0.0,)), make_result((None,), (1.0,)), make_result((0.0,), (1.0,)))
    write_group(
        tmp_path, "new", make_result((1.0,), (0.0,)), make_result((0.0,), (1.0,)), make_result((1.0,), (1.0,)), lr=2e-5
    )
    found = compared(tmp_path / "old-*", tmp_path / "new-*")
    [difference] = found.differences
    assert (difference.gain.mean, difference.gain.tasks) == ((1.0 + 0.0) / 2, 2)
    assert difference.gains_by_seed == (0.5, 0.0, 0.5)
    interval = difference.seed_interval
    assert interval is not None
    half = T_OF_TWO * statistics.stdev((0.5, 0.0, 0.5)) / 3**0.5
    assert interval == pytest.approx((1 / 3 - half, min(1.0, 1 / 3 + half)), abs=0.01)
    assert "other seeds may reverse it" in difference.verdict
    assert [group.row.result.success_rate.mean for group in found.groups] == pytest.approx([(0 + 2 / 3) / 2, 2 / 3])
    assert "algorithm.learning_rate: 1e-05 and 2e-05" in found.setting_notes[0]
    assert json.loads(json.dumps(group_report_to_dict(found), allow_nan=False))["groups"][0]["runs"][2]["seed"] == 2


def test_only_common_seeds_are_compared_and_all_runs_if_there_are_none(tmp_path: Path) -> None:
    write_group(tmp_path, "old", make_result((0.0,), (0.0,)), make_result((1.0,), (1.0,)))
    write_run(tmp_path / "one", 1, make_result((1.0,), (0.0,)), names="rl")
    write_run(tmp_path / "other", 9, make_result((1.0,), (1.0,)), names="rl")
    found = compared(tmp_path / "old-*", tmp_path / "one", tmp_path / "other")
    assert [each.gain.mean for each in found.differences] == [-0.5, 0.5]
    assert [each.gains_by_seed for each in found.differences] == [(-0.5,), ()]
    assert found.differences[0].seed_interval is None


def test_table_of_seeds_has_their_stages_and_gains(tmp_path: Path) -> None:
    base, sft, step = make_result((0.0,), (0.0,)), make_result((1.0,), (0.0,)), make_result((0.0,), (1.0,))
    for seed, last in enumerate((make_result((1.0,), (1.0,)), make_result((1.0,), (0.0,)))):
        write_run(tmp_path / f"a{seed}", seed, base, sft, step, last, names="base sft x rl")
    for folder in tmp_path.iterdir():
        (folder / "evaluations" / "000002 x").rename(folder / "evaluations" / "000002 step 2")
    tables = group_tables(compared(tmp_path / "a*"))
    head, *lines = tables["Each seed"]
    assert head[1:4] == ["seed", "base", "sft"]
    assert [line[1:4] for line in lines] == [
        ["0", "0.000", "0.500"],
        ["1", "0.000", "0.500"],
        ["all", "0.000", "0.500"],
    ]
    assert [line[4][:5] for line in lines] == ["1.000", "0.500", "0.750"]
    assert [line[5][:6] for line in lines] == ["+0.500", "+0.000", "+0.250"]
    assert tables["Success"][1][1:2] == ["2"]
    assert tables["Success"][1][3] == "-", "two seeds have no interval"


def test_runs_that_are_no_group_are_refused(tmp_path: Path) -> None:
    result = make_result((1.0,), (0.0,))
    write_run(tmp_path / "a0", 0, result, names="rl")
    for folder, seed, names, words in (
        ("a1", 0, "rl", ("a0", "a1", "seed = 0")),
        ("a2", 1, "sft", ("a0", "a2", "sft")),
        ("a3", 2, "rl", ("1 of 2",)),
    ):
        other = result.replace(task_results=(result.task_results[0].replace(fingerprint="x"), result.task_results[1]))
        write_run(tmp_path / folder, seed, other if folder == "a3" else result, names=names)
        with pytest.raises(ConfigError) as error:
            read_group("a*", [tmp_path / "a0", tmp_path / folder])
        assert all(word in str(error.value) for word in words)
    with pytest.raises(ConfigError, match="a0"):
        compared(tmp_path / "a0", tmp_path / "a[0]")


def test_settings_that_differ_within_a_group_are_named(tmp_path: Path) -> None:
    for seed in (0, 1):
        write_run(tmp_path / f"a{seed}", seed, make_result((1.0,)), lr=1e-5 * (seed + 1), names="rl")
    [note] = compared(tmp_path / "a*").setting_notes
    assert "algorithm.learning_rate" in note
    assert "seed:" not in note


def test_student_interval() -> None:
    """Student's differences of hours of sleep (1908), divided by ten. R's t.test gives 0.7001 to 2.4599 hours."""
    slept = [value / 10 for value in (1.2, 2.4, 1.3, 1.3, 0.0, 1.0, 1.8, 0.8, 4.6, 1.4)]
    assert student_interval(slept) == pytest.approx((0.07001, 0.24599), rel=1e-2)
    assert student_interval([0.9, 1.0, 0.8])[1] == 1.0  # type: ignore[index]
    assert student_interval([0.0, 0.1, 0.0], low=0.0)[0] == 0.0  # type: ignore[index]
    assert student_interval([0.5, 0.6]) is None
    assert student_interval([0.5] * 5) is None


def test_compare_takes_patterns_and_prints_all_forms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from understudy.cli.evaluation import CompareOptions, compare

    monkeypatch.chdir(tmp_path)
    write_group(tmp_path, "old", make_result((0.0,), (0.0,)), make_result((0.0,), (1.0,)))
    write_group(tmp_path, "new", make_result((1.0,), (0.0,)), make_result((1.0,), (1.0,)))
    compare(CompareOptions(groups=("old-*", "new-*"), markdown=Path("c.md")))
    shown = capsys.readouterr().out
    page = Path("c.md").read_text()
    for text in (shown, page):
        assert "+0.500, +0.500" in text
        assert "old-seed1" in text
    compare(CompareOptions(groups=("old-*", "new-seed0"), as_json=True))
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert [len(group["runs"]) for group in found["groups"]] == [2, 1]
    assert found["differences"][0]["gains_by_seed"] == [0.5]
    for groups, wanted in (
        (("old", "new-*"), "'old-*'"),
        (("old-seed0", "old-seed1", "new-seed0", "new-seed1"), "'old-*' 'new-*'"),
    ):
        with pytest.raises(ConfigError, match=re.escape(wanted)):
            compare(CompareOptions(groups=groups))
    compare(CompareOptions(groups=("old-seed0", "old-seed1")))
    assert "seed: 0 and 1" in capsys.readouterr().out, "two runs are compared as before, and their settings too"
