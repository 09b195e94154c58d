"""Training on an MCP environment, whole: demonstrations, episodes against real servers, and the result table."""

import json
from pathlib import Path

import pytest

from test_mcp_source import environment

pytest.importorskip("torch")

from understudy.config import TrainConfig
from understudy.run import Run, read_metrics
from understudy.settings import parse
from understudy.train import train


@pytest.mark.parametrize("domain", ["mcp:{}", "mix:mcp:{},retail"])
def test_a_run_trains_on_an_mcp_environment(tmp_path: Path, domain: str) -> None:
    settings = [
        f"domain={domain.format(environment(tmp_path))}",
        "model=tiny",
        "steps=1",
        "sft.steps=1",
        "sft.demonstrations=2",
        "sft.batch_size=2",
        "algorithm.group_size=2",
        "algorithm.tasks_per_step=2",
        "algorithm.refill=0",
        "eval.split=test",
        "eval.tasks=2",
        "sampling.max_tokens=16",
        "limits.max_tokens=8000",
        *(["slice.policy=brief"] if domain.startswith("mix") else []),  # the model reads bytes, and 8,192 of them
    ]
    run = Run.create(tmp_path / "run", parse(TrainConfig, "", settings))
    rows = dict(train(run.config, run, lambda *told: None)["evaluations"])
    assert rows["gold"].success.mean == 1.0
    assert rows["do nothing"].success.mean == 0.0
    assert [metrics["step"] for metrics in read_metrics(run.folder)] == [0, 1, 2]
    episodes = (run.folder / "trajectories" / "step_000002.jsonl").read_text(encoding="utf-8").splitlines()
    played = {json.loads(episode)["domain"] for episode in episodes}
    assert len(played) == (2 if domain.startswith("mix") else 1)
