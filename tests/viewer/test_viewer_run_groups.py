"""Test the groups of runs on the viewer's page: runs whose configs differ only in their seeds."""

from pathlib import Path

from understudy.runs.config import TrainConfig
from understudy.runs.run import CONFIG_FILE, Run
from understudy.viewer.library import RunLibrary
from understudy.viewer.run_groups import group_runs


def test_runs_that_differ_only_in_their_seeds_are_one_group(tmp_path: Path) -> None:
    for name, seed, steps in (("a-seed0", 0, 5), ("a-seed1", 1, 5), ("b_0", 0, 9), ("b_1", 1, 9), ("other", 0, 7)):
        Run.create(tmp_path / name, TrainConfig(seed=seed, steps=steps, eval={"seed": seed}))
    found = group_runs(RunLibrary([tmp_path]).runs())
    assert found == [
        {"name": "a", "runs": ["a-seed0", "a-seed1"], "seeds": ["0", "1"], "settings": ["steps=5"]},
        {"name": "b", "runs": ["b_0", "b_1"], "seeds": ["0", "1"], "settings": ["steps=9"]},
        {"name": "other", "runs": ["other"], "seeds": ["0"], "settings": ["steps=7"]},
    ]


def test_second_run_of_a_seed_is_not_in_the_group(tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 1), ("c", 1)):
        Run.create(tmp_path / name, TrainConfig(seed=seed))
    assert [group["runs"] for group in group_runs(RunLibrary([tmp_path]).runs())] == [["a", "b"], ["c"]]


def test_equal_and_damaged_configs_are_no_group(tmp_path: Path) -> None:
    for name in ("one", "two", "three", "four"):
        Run.create(tmp_path / name, TrainConfig())
    for name in ("three", "four"):
        (tmp_path / name / CONFIG_FILE).write_text("steps = 'many'\n")
    assert [group["runs"] for group in group_runs(RunLibrary([tmp_path]).runs())] == [
        *(["four"], ["one"], ["three"], ["two"])
    ]


def test_groups_of_one_name_are_told_apart(tmp_path: Path) -> None:
    for number, (seed, steps) in enumerate(((0, 1), (1, 1), (0, 2), (1, 2))):
        Run.create(tmp_path / f"retail-{number:03}", TrainConfig(seed=seed, steps=steps))
    names = [group["name"] for group in group_runs(RunLibrary([tmp_path]).runs())]
    assert names == ["retail-000 to retail-001", "retail-002 to retail-003"]
