"""Test the Inspect log: its JSON, and reading it with inspect_ai in a venv of its own (`make test-inspect`)."""

import asyncio
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from support.lamp_turns import ASK, ONE, RIGHT, WRONG, call_reply, text_reply
from support.script import Script
from support.software import inspect_programs
from support.venvs import run_command
from understudy.core.errors import ConfigError
from understudy.core.messages import Message
from understudy.core.trajectory import Trajectory, read_trajectories
from understudy.evaluation.inspect_log import _message, inspect_log, write_inspect_log
from understudy.evaluation.reports.files import read_report
from understudy.evaluation.runner import prepare_eval, run_eval, write_report
from understudy.rollouts.agent import Agent
from understudy.runs.config import parse_config
from understudy.runs.eval_spec import EvalSpec

SUPPORT = Path(__file__).parents[1] / "support"
TURNS = {
    "right": [text_reply(ASK), RIGHT, text_reply("Done.")],
    "wrong": [text_reply(ASK), WRONG, text_reply("Done.")],
    "malformed": [
        text_reply("<think>hm</think>Well."),
        call_reply(malformed="not JSON"),
        call_reply("lamp"),
        text_reply("Done."),
    ],
}


def write_evaluation(out: Path, trials: int, repeats: int = 1) -> Path:
    """Evaluate one task; the episodes are in turn solved, failed, and cut by the turn limit."""

    class ScriptedAgents:
        def __init__(self) -> None:
            self.agents: dict[int, Agent] = {}

        async def act(self, task: Any, episode: Any, new: Any, tools: Any) -> Any:
            if id(episode) not in self.agents:
                self.agents[id(episode)] = Script(*TURNS[list(TURNS)[len(self.agents)]])
            return await self.agents[id(episode)].act(task, episode, new, tools)

    settings = ["domain=toy:DOMAIN", "slice.families=one", "eval.split=train", "eval.tasks=1", f"eval.trials={trials}"]
    config = parse_config("", [*settings, "limits.max_turns=3"])
    spec = EvalSpec(name="wavering", agent="human", config=config, repeats=repeats)
    context = prepare_eval(spec, out, Decimal(0), 1, human_agent=ScriptedAgents())
    assert asyncio.run(run_eval(spec, context, out)).agent_rows[0].result.task_results[0].task == ONE.id
    return out


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write an evaluation with a solved, a failed and a cut episode."""
    return write_evaluation(tmp_path / "evaluation", 3)


def test_repeats_are_epochs_of_one_log(tmp_path: Path) -> None:
    found = inspect_log(write_evaluation(tmp_path / "evaluation", 1, repeats=2))
    success = found["results"]["scores"][0]
    metrics = {name: each["value"] for name, each in success["metrics"].items()}
    assert (found["eval"]["config"]["epochs"], success["scored_samples"]) == (2, 2)
    assert [sample["scores"]["success"]["value"] for sample in found["samples"]] == [1.0, 0.0]
    assert (metrics["accuracy"], metrics["pass^1"], metrics["pass^2"]) == (0.5, 0.5, 0.0)


def test_log_is_valid_json_and_is_not_overwritten(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "log.json"
    write_inspect_log(folder, file)
    found = json.loads(file.read_text())
    assert found == json.loads(json.dumps(inspect_log(folder), allow_nan=False))
    assert list(found) == ["version", "status", "eval", "plan", "results", "stats", "samples"]
    assert [sample["epoch"] for sample in found["samples"]] == [1, 2, 3]
    ids = [message["id"] for sample in found["samples"] for message in sample["messages"]]
    assert len(ids) == len(set(ids))  # Inspect merges messages with equal ids
    for name, message in (
        (file, "log.json"),
        (tmp_path / "log.eval", r"\.json"),
        (file / "x.json", "log.json"),
    ):
        with pytest.raises(ConfigError, match=message):
            write_inspect_log(folder, name)


@pytest.mark.inspect
def test_inspect_reads_the_episodes(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "log.json"
    write_inspect_log(folder, file)
    found = json.loads(run_command(str(inspect_programs() / "python"), str(SUPPORT / "inspect_reader.py"), str(file)))
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
    dumped = json.loads(run_command(str(inspect_programs() / "inspect"), "log", "dump", str(file)))
    assert len(dumped["samples"]) == 3
    assert dumped["samples"][0]["messages"][0]["role"] == "system"


def test_tool_results_match_the_previous_call_if_ids_repeat() -> None:
    asked = [
        call_reply("find_lamp").tool_calls[0].replace(id="0"),
        call_reply("switch_lamp").tool_calls[0].replace(id="0"),
    ]
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


def test_log_with_a_faulty_episode_is_valid_json(tmp_path: Path) -> None:
    folder = write_evaluation(tmp_path / "evaluation", 2)
    whole = read_report(folder)
    agent = whole.agent_rows[0]
    faulty = agent.result.task_results[0].replace(rewards=(None, 0.0))
    lost = agent.replace(result=agent.result.replace(task_results=(faulty,)))
    write_report(folder, whole.replace(rows=(*whole.rows[:2], lost)))
    metrics = json.loads(json.dumps(inspect_log(folder), allow_nan=False))["results"]["scores"][0]["metrics"]
    assert list(metrics) == ["accuracy", "low", "high", "pass^1"]


def test_log_without_a_scored_episode_is_an_error(tmp_path: Path) -> None:
    folder = write_evaluation(tmp_path / "evaluation", 1)
    assert inspect_log(folder)["status"] == "success"
    (folder / "episodes.jsonl").write_text("")
    assert inspect_log(folder)["status"] == "error"
