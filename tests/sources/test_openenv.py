"""Test environments of OpenEnv on its own server, and compare their rewards with those that its own client gets."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from support.software import openenv_python, websockets_packages
from understudy.core.errors import ConfigError, RolloutError
from understudy.core.event_loop import gather_or_cancel
from understudy.core.messages import Message, ToolCall
from understudy.envs.environment import StepResult
from understudy.envs.task_source import TaskSource
from understudy.runs.targets import load

PROGRAM = str(Path(__file__).parents[1] / "support" / "openenv_server.py")


@pytest.mark.parametrize(
    ("reference", "parts"),
    [
        ("127.0.0.1:1", ("127.0.0.1:1", "address")),
        ("http://127.0.0.1:1#tasks=3", ("'tasks'", "reward_range")),
    ],
)
def test_wrong_references_are_refused(reference: str, parts: Sequence[str]) -> None:
    with pytest.raises(ConfigError) as e:
        load(f"openenv:{reference}")
    assert all(part in str(e.value) for part in parts)


class Server:
    """A process with servers of OpenEnv, and its own client."""

    def __init__(self) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen([openenv_python(), PROGRAM], stdin=pipe, stdout=pipe, text=True)
        self.ports: dict[str, int] = self.read()

    def __getitem__(self, name: str) -> str:
        """Return the reference of an environment."""
        return f"openenv:http://127.0.0.1:{self.ports[name]}"

    def read(self) -> Any:
        assert self.process.stdout
        return json.loads(self.process.stdout.readline())

    def own_rewards(self, name: str, *episodes: Sequence[dict[str, Any]]) -> list[float]:
        """Return what OpenEnv's own client adds up in each episode: what `reset` gets, then the actions."""
        assert self.process.stdin
        print(json.dumps([self.ports[name], *episodes]), file=self.process.stdin, flush=True)
        return [sum(rewards) for rewards in self.read()]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    sys.path.append(folder := str(websockets_packages()))
    started = Server()
    with started.process:
        yield started
        started.process.kill()
    sys.path.remove(folder)


async def play(source: TaskSource, task: int, replies: Sequence[Message], split: Any = "train") -> list[StepResult]:
    environment = source.environment(source.tasks(split)[task])
    steps = [await environment.start()]
    try:
        for reply in replies:
            steps.append(await environment.step(reply))
    finally:
        await environment.close()
    return steps


def say(text: str) -> Message:
    return Message(role="assistant", content=text)


def call(name: str, **arguments: Any) -> Message:
    return Message(role="assistant", tool_calls=(ToolCall(id="1", name=name, arguments=arguments),))


def texts(step: StepResult) -> list[str]:
    return [message.content for message in step.messages]


@pytest.mark.environments
def test_text_actions(server: Server) -> None:
    guess = load(server["guess"])
    assert (guess.name, guess.domain_policy, guess.tool_specs) == ("guess", "Guess with one number.", ())
    replies = [["1", "4", "3"], ["3"], ["5", "2", "3"]]
    played = [asyncio.run(play(guess, 3, list(map(say, each)))) for each in replies]
    assert [texts(step) for step in played[0]] == [
        ["Guess with one number.", "Guess a number from 0 to 9."],
        ["wrong"],
        ["wrong"],
        ["right"],
    ]
    rewards = [steps[-1].score.reward for steps in played if steps[-1].score]
    own = server.own_rewards("guess", *([{"seed": 3}, *({"message": text} for text in each)] for each in replies))
    assert rewards == own == [0.75, 0.5, 0.75]


@pytest.mark.environments
def test_typed_actions_and_the_task_api(server: Server) -> None:
    count = load(server["count"] + "#reward_range=-1:1")
    assert {split: len(count.tasks(split)) for split in ("train", "validation", "test")} == {
        "train": 4,
        "validation": 0,
        "test": 2,
    }
    (step,) = count.tool_specs
    assert (step.name, step.description) == ("step", "Add an amount to the counter.")
    assert step.parameters == {
        "type": "object",
        "properties": {"amount": {"type": "integer"}, "note": {"type": "string", "default": ""}},
        "required": ["amount"],
    }
    actions = [[{"amount": 5}, {"amount": 1}], [{"amount": 9}]]
    played = [asyncio.run(play(count, 1, [call("step", **a) for a in each], "test")) for each in actions]
    assert texts(played[0][0]) == ['{"count": 0, "target": 6}']
    rewards = [steps[-1].score.reward for steps in played if steps[-1].score]
    own = server.own_rewards("count", *([{"split": "eval", "index": 1}, *each] for each in actions))
    assert (rewards, own) == ([1.0, 0.0], [1, -1])


@pytest.mark.environments
def test_wrong_actions_are_read_and_failures_are_faults(server: Server) -> None:
    count = load(server["count"] + "#reward_range=-1:1")
    wrong = asyncio.run(play(count, 0, [call("step", amount="much"), call("jump")]))
    assert [step.error_kinds for step in wrong[1:]] == [("invalid_arguments",), ("unknown_tool",)]
    assert "amount" in texts(wrong[1])[0]
    with pytest.raises(RolloutError, match="invalid literal") as e:
        asyncio.run(play(load(server["guess"]), 0, [say("no number")]))
    assert e.value.fault == "environment"
    with pytest.raises(RolloutError, match="reward_range") as e:
        asyncio.run(play(load(server["count"]), 0, [call("step", amount=9)]))
    assert e.value.fault == "grader"


@pytest.mark.environments
def test_tools_of_an_mcp_environment(server: Server) -> None:
    shelf = load(server["shelf"])
    assert [spec.name for spec in shelf.tool_specs] == ["list_books", "put_book"]
    assert shelf.domain_policy == ""
    calls = [("put_book", {"title": "Ivanhoe"}), ("list_books", {}), ("put_book", {"title": "Emma"})]
    steps = asyncio.run(play(shelf, 0, [call(name, **arguments) for name, arguments in calls]))
    assert texts(steps[0]) == ["Put Emma on the shelf."]
    assert texts(steps[1]) == ["Ivanhoe is on the shelf"]
    assert "Ivanhoe" in texts(steps[2])[0]
    assert steps[-1].score
    actions = [{"type": "call_tool", "tool_name": name, "arguments": arguments} for name, arguments in calls]
    assert [steps[-1].score.reward] == server.own_rewards("shelf", [{}, *actions]) == [1.0]
    refused = asyncio.run(play(shelf, 0, [call("put_book", title="")]))[1]
    assert refused.error_kinds == ("refused",)
    assert "a book has a title" in texts(refused)[0]


@pytest.mark.environments
def test_episodes_wait_for_a_free_session(server: Server) -> None:
    """The server of `guess` has two sessions."""
    guess = load(server["guess"])

    async def play_all() -> list[list[StepResult]]:
        return await gather_or_cancel(play(guess, task, [say(str(task))]) for task in range(8))

    assert [steps[-1].score and steps[-1].score.reward for steps in asyncio.run(play_all())] == [0.5] * 8


@pytest.mark.environments
def test_a_lost_server_is_a_fault(server: Server) -> None:
    """This test is the last, because it kills the server."""

    async def lose() -> None:
        guess = load(server["guess"])
        environment = guess.environment(guess.tasks("train")[0])
        await environment.start()
        server.process.kill()
        server.process.wait()
        try:
            with pytest.raises(RolloutError, match="the connection is lost"):
                await environment.step(say("1"))
        finally:
            await environment.close()
        with pytest.raises(RolloutError, match="no session"):
            await guess.environment(guess.tasks("train")[0]).start()
        with pytest.raises(ConfigError, match="does not answer as an OpenEnv server"):
            load(server["guess"])

    asyncio.run(lose())
