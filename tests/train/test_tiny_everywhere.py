"""The model `tiny` trains on every shipped domain and kind of preset, or the error names the key to set."""

import re
from pathlib import Path

import pytest

from support.program import Call, call
from understudy.cli import launch
from understudy.core.errors import TaskError
from understudy.sources.references import list_domains
from understudy.train.planning import bench

__all__ = ["call"]
ONE_STEP = (
    "model=tiny",
    "limits.max_episode_tokens=18500",
    "sft.steps=1",
    "sft.batch_size=2",
    "sft.num_demonstrations=4",
    "steps=1",
    "algorithm.groups_per_batch=1",
    "algorithm.group_size=2",
    "algorithm.max_resampled_groups=0",
    "sampling.max_response_tokens=16",
    "eval.tasks=2",
)


@pytest.mark.slow
@pytest.mark.parametrize("what", [*list_domains(), "retail_quick", "retail_easy", "five_quick", "ood_small"])
def test_dry_run_raises_limits_or_accepts_the_value_that_its_error_names(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bench, "cache_folder", lambda: tmp_path / "cache")
    settings = [what, "model=tiny"]
    if what not in list_domains():  # a preset raises its limits by itself
        found = launch.dry_run(settings)
        assert found.gold_sizes.max_tokens < found.config.limits.max_episode_tokens
        return
    with pytest.raises(TaskError, match=r"gold episodes have up to \d+ tokens") as refused:
        launch.dry_run(settings)
    named = re.search(r"set (limits\.max_episode_tokens=\d+)$", str(refused.value))
    assert named
    found = launch.dry_run([*settings, named[1]])
    assert "no room" not in str(found)
    assert found.gold_sizes.max_tokens < found.config.limits.max_episode_tokens


@pytest.mark.slow
def test_tiny_takes_a_step_on_a_whole_domain(call: Call, tmp_path: Path) -> None:
    code, out, err = call("train", "retail", *ONE_STEP, "--out", str(tmp_path / "run"))
    assert (code, "rl differs from sft" in out) == (0, True), err
