"""Test `examples/my_agent`: its program is played, and its reward is given."""

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

from support.paths import ROOT
from support.replying import ReplySampler
from support.tiny_runs import make_tiny_model
from understudy.core.messages import Message, ToolCall
from understudy.engines.interface import SamplingParams
from understudy.formats import FormatTokenizer
from understudy.rollouts.program import ProgramAgent
from understudy.rollouts.rollout import EpisodeLimits, play_episode
from understudy.runs.config import parse_config
from understudy.serve.generation import ServedModel

FOLDER = ROOT / "examples" / "my_agent"


@pytest.mark.slow
def test_example_is_played_and_rewarded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(FOLDER)
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    config = parse_config((FOLDER / "my_agent.toml").read_text(), [])
    source = config.open_source()
    task = source.tasks("train")[0]
    row = next(row for row in map(json.loads, Path("questions.jsonl").read_text().splitlines()) if _is_of(row, task))
    folder = make_tiny_model(tmp_path)
    calls = (
        ToolCall(name="multiply", arguments={"a": int(row["answer"]) // 17, "b": 17}),
        ToolCall(name="multiply", arguments={"a": "x"}),
    )
    replies = iter([*(Message(role="assistant", tool_calls=(call,)) for call in calls)])
    last = Message(role="assistant", content=f"It is {row['answer']}.")
    sampler = ReplySampler(folder, lambda prompt, seed: next(replies, last))
    model = ServedModel("m", sampler, sampler.format, FormatTokenizer.load(folder / "tokenizer.json"))
    agent = ProgramAgent(config.agent, model, SamplingParams(max_response_tokens=300))
    episode = asyncio.run(play_episode(source, task, agent, EpisodeLimits(max_retries=0), seed=0))
    assert (episode.reward, episode.num_turns, len(episode.sequences)) == (1.0, 3, 1), episode.error
    results = [message.content for message in episode.messages if message.role == "tool"]
    assert results[0] == row["answer"]
    assert results[1].startswith("Error: ")


def _is_of(row: dict[str, str], task: object) -> bool:
    return row["question"] in repr(task)
