"""Test of training and evaluation on an MCP environment with real servers."""

import json
from pathlib import Path

import pytest

from support.mcp_environment import write_environment
from understudy.runs.config import parse_config
from understudy.runs.run import Run, read_metrics
from understudy.train.loop import train


@pytest.mark.slow
@pytest.mark.parametrize(("domain", "sdk"), [("mcp:{}", True), ("mix:mcp:{},retail", False)])
def test_run_trains_on_an_mcp_environment(tmp_path: Path, domain: str, sdk: bool) -> None:
    settings = [
        f"domain={domain.format(write_environment(tmp_path, sdk=sdk))}",
        "model=tiny",
        "steps=1",
        "sft.steps=1",
        "sft.num_demonstrations=2",
        "sft.batch_size=2",
        "algorithm.group_size=2",
        "algorithm.groups_per_batch=2",
        "algorithm.max_resampled_groups=0",
        "eval.split=test",
        "eval.tasks=2",
        "sampling.max_response_tokens=16",
        "limits.max_episode_tokens=8000",
        *(
            ["slice.domain_policy=brief"] if domain.startswith("mix") else []
        ),  # the tiny model has a context of 8,192 bytes
    ]
    run = Run.create(tmp_path / "run", parse_config("", settings))
    rows = train(run.config, run, lambda *_: None).held_out.results
    assert rows["gold"].success_rate.mean == 1.0
    assert rows["noop"].success_rate.mean == 0.0
    assert [metrics["step"] for metrics in read_metrics(run.folder)] == [0, 1, 2]
    episodes = (run.folder / "trajectories" / "step_000002.jsonl").read_text(encoding="utf-8").splitlines()
    played = {json.loads(episode)["domain"] for episode in episodes}
    assert len(played) == (2 if domain.startswith("mix") else 1)
