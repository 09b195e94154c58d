"""The log of an evaluation, read by Inspect itself, which the test installs into an environment of its own (make
test-inspect), and by hand where it is not there."""

import asyncio
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from script import Script
from test_failures import ASK, ONE, RIGHT, WRONG, calls
from test_failures import says as said
from understudy.agent import Agent
from understudy.assess.inspect_log import _message, log, write_log
from understudy.assess.sitting import Sitting, assess, set_up, write
from understudy.config import TrainConfig
from understudy.errors import ConfigError
from understudy.messages import Message
from understudy.outcome import read
from understudy.settings import parse
from understudy.trajectory import Trajectory, read_trajectories
from venvs import environment, told

VERSION = "0.3.285"
TURNS = {
    "right": [said(ASK), RIGHT, said("Done.")],
    "wrong": [said(ASK), WRONG, said("Done.")],
    "malformed": [said("<think>hm</think>Well."), calls(malformed="not JSON"), calls("lamp"), said("Done.")],
}


def evaluated(out: Path, trials: int, reruns: int = 1) -> Path:
    """Episodes of one task, one after the other: won, lost, and cut off."""

    class Wavering:
        def __init__(self) -> None:
            self.agents: dict[int, Agent] = {}

        async def act(self, task: Any, episode: Any, new: Any, tools: Any) -> Any:
            if id(episode) not in self.agents:
                self.agents[id(episode)] = Script(*TURNS[list(TURNS)[len(self.agents)]])
            return await self.agents[id(episode)].act(task, episode, new, tools)

    settings = ["domain=toy:DOMAIN", "slice.families=one", "eval.split=train", "eval.tasks=1", f"eval.trials={trials}"]
    config = parse(TrainConfig, "", [*settings, "limits.max_turns=3"])
    sitting = Sitting(name="wavering", agent="human", config=config, reruns=reruns)
    desk = set_up(sitting, out, Decimal(0), 1, human=Wavering())
    assert asyncio.run(assess(sitting, desk, out)).agents[0].evaluation.results[0].task == ONE.id
    return out


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An evaluation with all three."""
    return evaluated(tmp_path / "evaluation", 3)


def test_reruns_are_epochs_of_one_accuracy(tmp_path: Path) -> None:
    found = log(evaluated(tmp_path / "evaluation", 1, reruns=2))
    success = found["results"]["scores"][0]
    metrics = {name: each["value"] for name, each in success["metrics"].items()}
    assert (found["eval"]["config"]["epochs"], success["scored_samples"]) == (2, 2)
    assert [sample["scores"]["success"]["value"] for sample in found["samples"]] == [1.0, 0.0]
    assert (metrics["accuracy"], metrics["pass^1"], metrics["pass^2"]) == (0.5, 0.5, 0.0)


def test_a_log_is_plain_json_and_written_once(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "log.json"
    write_log(folder, file)
    found = json.loads(file.read_text())
    assert found == json.loads(json.dumps(log(folder), allow_nan=False))
    assert list(found) == ["version", "status", "eval", "plan", "results", "stats", "samples"]
    assert [sample["epoch"] for sample in found["samples"]] == [1, 2, 3]
    ids = [message["id"] for sample in found["samples"] for message in sample["messages"]]
    assert len(ids) == len(set(ids))  # Inspect takes messages of one id for one message
    for name, message in (
        (file, "is there already"),
        (tmp_path / "log.eval", "ends in .json"),
        (file / "x.json", "no folder"),
    ):
        with pytest.raises(ConfigError, match=message):
            write_log(folder, name)


@pytest.mark.inspect
def test_inspect_reads_what_was_played(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "log.json"
    write_log(folder, file)
    place = environment(f"inspect-{VERSION}", f"inspect-ai=={VERSION}")
    python = str(place / "bin" / "python")
    found = json.loads(told(python, str(Path(__file__).with_name("inspect_reader.py")), str(file)))
    assert (found["status"], found["task"], found["model"]) == ("success", "toy:DOMAIN/train", "understudy/wavering")
    assert (found["epochs"], found["summaries"]) == (3, 3)
    assert found["accuracy"] == pytest.approx(1 / 3)
    samples = found["samples"]
    assert [(sample["id"], sample["epoch"]) for sample in samples] == [(ONE.id, 1), (ONE.id, 2), (ONE.id, 3)]
    assert sum(sample["success"] for sample in samples) == 1.0
    episodes = {episode.seed: episode for episode in read_trajectories(folder / "episodes.jsonl")[0]}
    texts = {tuple(m.content for m in e.messages) for e in episodes.values()}
    assert {tuple(sample["texts"]) for sample in samples} == texts
    cut = next(sample for sample in samples if sample["limit"])
    assert (cut["limit"], cut["errors"][0]) == ("message", "not JSON")
    assert cut["calls"][0] == ["switch_lamp", {}, "not JSON"]
    assert any("agent: wrong_argument. switch_lamp: lamp_id=" in sample["why"] for sample in samples)
    dumped = json.loads(told(str(place / "bin" / "inspect"), "log", "dump", str(file)))
    assert len(dumped["samples"]) == 3
    assert dumped["samples"][0]["messages"][0]["role"] == "system"


def test_results_are_of_the_call_before_them_though_ids_begin_anew_in_each_reply() -> None:
    asked = [calls("find_lamp").tool_calls[0].replace(id="0"), calls("switch_lamp").tool_calls[0].replace(id="0")]
    talk = [
        message
        for call in asked
        for message in (
            Message(role="assistant", tool_calls=(call,)),
            Message(role="tool", content="x", tool_call_id="0"),
        )
    ]
    episode = Trajectory("t", messages=talk)
    assert [_message(episode, place, "")["function"] for place in (1, 3)] == ["find_lamp", "switch_lamp"]


def test_a_log_with_an_episode_that_the_machinery_failed_is_json(tmp_path: Path) -> None:
    folder = evaluated(tmp_path / "evaluation", 2)
    whole = read(folder)
    agent = whole.agents[0]
    faulty = agent.evaluation.results[0].replace(rewards=(None, 0.0))
    lost = agent.replace(evaluation=agent.evaluation.replace(results=(faulty,)))
    write(folder, whole.replace(rows=(*whole.rows[:2], lost)))
    metrics = json.loads(json.dumps(log(folder), allow_nan=False))["results"]["scores"][0]["metrics"]
    assert list(metrics) == ["accuracy", "low", "high", "pass^1"]
