"""Test our tasks as TRL's `environment_factory`: the schemas that TRL makes, and the rewards of gold."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from support.paths import ROOT
from support.software import trl_packages
from support.tiny_runs import make_tiny_model
from support.trl_counter import Counter
from toy import DOMAIN
from understudy import ToolCall, ToolDataset, ToolEpisode, ToolExample
from understudy.core.errors import ConfigError, ToolError
from understudy.core.messages import Message
from understudy.rollouts.trl_environment import TRLEnvironment
from understudy.sources.loading import load_source


def play(ours: TRLEnvironment, row: dict[str, Any], turns: list[Message]) -> float | None:
    """Play turns as TRL does: methods are tools, and the last reply without calls ends the completion."""
    environment = ours.factory()
    environment.reset(**row)
    completion: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    for number, turn in enumerate(turns):
        for call in turn.tool_calls:
            getattr(environment, call.name)(**call.arguments)
        is_last = number == len(turns) - 1
        if not turn.tool_calls and is_last:
            completion.append({"role": "assistant", "content": turn.content})
        elif not turn.tool_calls:
            environment.send_message(text=turn.content)
    (reward,) = ours.reward([completion], [environment], task_id=[row["task_id"]])
    return reward


@pytest.mark.parametrize("name", ["toy:DOMAIN", "retail"])
def test_gold_earns_its_reward_and_texts_alone_do_not(name: str) -> None:
    source = load_source(name)
    ours = TRLEnvironment(source)
    for row, task in list(zip(ours.rows, source.tasks("train"), strict=True))[:5]:
        assert play(ours, row, list(task.gold_turns)) == 1.0
        assert play(ours, row, [turn for turn in task.gold_turns if not turn.tool_calls]) == 0.0


def test_reset_gives_the_message_that_trl_appends_to_the_prompt() -> None:
    ours, task = TRLEnvironment(DOMAIN), DOMAIN.tasks("train")[0]
    assert ours.rows[0]["prompt"] == [
        {"role": "system", "content": DOMAIN.domain_policy},
        {"role": "user", "content": ""},
    ]
    environment = ours.factory()
    assert environment.reset(**ours.rows[0]) == task.scenario.opening
    assert environment.reset(**ours.rows[0]) == task.scenario.opening  # TRL uses an object again


def test_trl_reads_the_schemas_of_the_tools() -> None:
    schema = pytest.importorskip("transformers.utils").get_json_schema
    source = load_source("retail")
    environment = TRLEnvironment(source).factory()
    for spec in source.tool_specs:
        found = schema(getattr(environment, spec.name))["function"]
        assert found["name"] == spec.name
        assert " ".join(found["description"].split()) == " ".join(spec.description.split())
        properties = spec.parameters.get("properties", {})
        assert found["parameters"].get("properties", {}).keys() == properties.keys()
        assert sorted(found["parameters"].get("required", [])) == sorted(spec.parameters.get("required", []))
        for name, inner in properties.items():
            if "enum" in inner:
                assert found["parameters"]["properties"][name]["enum"] == inner["enum"]
    assert schema(environment.send_message)["function"]["parameters"]["required"] == ["text"]


def test_an_argument_that_is_no_name_is_refused() -> None:
    class Episode(ToolEpisode):
        def look(self, where: str) -> str:
            """Look."""
            return where

    source = ToolDataset("looks", "", [ToolExample(prompt="Look.")], Episode)
    spec = source.tool_specs[0].replace(parameters={"type": "object", "properties": {"from": {"type": "string"}}})
    Episode._specs = (spec,)
    with pytest.raises(ConfigError, match="'from'"):
        TRLEnvironment(source)


def test_own_tool_and_the_tool_of_the_user_are_two_methods() -> None:
    class Chat(ToolEpisode):
        def send_message(self, receiver: str) -> str:
            """Send a message to a colleague."""
            return f"sent to {receiver}"

        def env_response(self, transcript: Sequence[Message]) -> str | None:
            return "And?" if transcript[-1].content == "hm" else None

        def reward(self, transcript: Sequence[Message]) -> float:
            return float(transcript[-1].content == "done")

    ours = TRLEnvironment(ToolDataset("chat", "", [ToolExample(prompt="Greet ada.", split="train")], Chat))
    environment = ours.factory()
    environment.reset(**ours.rows[0])
    assert environment.send_message(receiver="ada") == "sent to ada"
    assert environment.send_message_to_user(text="hm") == "And?"


def test_error_that_ends_a_run_passes_the_reward() -> None:
    class Broken(ToolEpisode):
        def look(self) -> str:
            """Look."""
            raise ConfigError("no endpoint")

        def reward(self, transcript: Sequence[Message]) -> float:
            return 1.0

    ours = TRLEnvironment(ToolDataset("broken", "", [ToolExample(prompt="Look.", split="train")], Broken))
    environment = ours.factory()
    environment.reset(**ours.rows[0])
    with pytest.raises(ToolError):
        environment.look()
    with pytest.raises(ConfigError, match="no endpoint"):
        ours.reward([[{"role": "assistant", "content": "done"}]], [environment])


def to_replies(turns: Sequence[Message]) -> list[str]:
    """Return turns as Qwen writes them. A text before the last turn is a call of `send_message`."""
    replies = []
    for number, turn in enumerate(turns):
        calls = [(call.name, call.arguments) for call in turn.tool_calls]
        if not calls and number < len(turns) - 1:
            calls = [("send_message", {"text": turn.content})]
        written = [json.dumps({"name": name, "arguments": arguments}) for name, arguments in calls]
        replies.append("\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in written) or turn.content)
    return replies


def increment(step: int) -> Message:
    return Message(role="assistant", tool_calls=(ToolCall(id="1", name="increment", arguments={"step": step}),))


async def play_here(turns: Sequence[Message]) -> float:
    example = ToolExample(prompt="Count to 3.", info={"target": 3}, split="train")
    source = ToolDataset("counting", "", [example], Counter)
    environment = source.environment(source.tasks("train")[0])
    await environment.start()
    for turn in turns:
        step = await environment.step(turn)
    assert step.score
    return step.score.reward


@pytest.mark.environments
def test_rewards_in_its_trainer_are_those_here(tmp_path: Path) -> None:
    """A class of TRL, and gold and texts of a task of ours, in one step of GRPOTrainer each."""
    done = Message(role="assistant", content="Done.")
    counts = [[increment(1), increment(2), done], [increment(1), done]]
    row = {"prompt": [{"role": "user", "content": "Count to 3."}], "target": 3}
    gold = DOMAIN.tasks("train")[0].gold_turns
    idle = [turn for turn in gold if not turn.tool_calls]
    jobs: list[dict[str, Any]] = [
        {"class": "support.trl_counter:Counter", "row": row, "replies": to_replies(turns)} for turns in counts
    ]
    jobs += [{"source": "toy:DOMAIN", "task": 0, "replies": to_replies(turns)} for turns in (gold, idle)]
    path = os.pathsep.join(map(str, (trl_packages(), ROOT / "src", ROOT / "tests")))
    ended = subprocess.run(
        [sys.executable, str(ROOT / "tests/support/trl_trainer.py"), str(make_tiny_model(tmp_path / "model"))],
        input=json.dumps(jobs),
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path, "TRL_EXPERIMENTAL_SILENCE": "1"},
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    rewards = [json.loads(line) for line in ended.stdout.splitlines()]
    assert rewards == [1.0, -1.0, 1.0, 0.0]
    assert [asyncio.run(play_here(turns)) for turns in counts] == [(reward + 1) / 2 for reward in rewards[:2]]
