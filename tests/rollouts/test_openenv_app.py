"""Test our tasks as a server of OpenEnv: by messages of its protocol, by its own client, and by ours."""

import asyncio
import importlib.util
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from support.software import openenv_python, websockets_packages
from toy import DOMAIN
from understudy.core.errors import ConfigError
from understudy.core.messages import Message, ToolCall
from understudy.core.tasks import Task
from understudy.rollouts.openenv_app import openenv_app, serve_openenv
from understudy.rollouts.rollout import EpisodeEnvironment
from understudy.runs.targets import load
from understudy.serve.options import ServeConfig
from understudy.sources.loading import load_source

PROGRAM = str(Path(__file__).parents[1] / "support" / "openenv_server.py")


def actions_of(turns: Sequence[Message]) -> list[dict[str, Any]]:
    """Return turns of the agent as actions: calls, and messages to the user."""
    actions: list[dict[str, Any]] = []
    for turn in turns:
        for call in turn.tool_calls:
            actions.append({"type": "call_tool", "tool_name": call.name, "arguments": call.arguments})
        if not turn.tool_calls:
            actions.append({"type": "call_tool", "tool_name": "send_message", "arguments": {"text": turn.content}})
    return actions


def converse(*messages: Any, sessions: int = 2) -> list[dict[str, Any]]:
    """Return the answers to messages of one session."""

    async def run() -> list[dict[str, Any]]:
        sent: list[dict[str, Any]] = []
        waiting = [{"type": "websocket.connect"}]
        waiting += [{"type": "websocket.receive", "text": json.dumps(message)} for message in messages]
        waiting += [{"type": "websocket.disconnect", "code": 1000}]

        async def receive() -> Any:
            return waiting.pop(0)

        async def send(event: Any) -> None:
            if event["type"] == "websocket.send":
                sent.append(json.loads(event["text"]))

        scope = {"type": "websocket", "path": "/ws", "headers": [], "query_string": b"", "subprotocols": []}
        await openenv_app(DOMAIN, sessions)(scope, receive, send)
        return sent

    return asyncio.run(run())


def test_gold_is_played_by_messages() -> None:
    task = DOMAIN.tasks("train")[0]
    steps = [{"type": "step", "data": action} for action in actions_of(task.gold_turns)]
    first, *others = converse({"type": "reset", "data": {"split": "train", "index": 0}}, *steps)
    assert first["data"]["observation"]["message"] == task.scenario.opening
    assert first["data"]["observation"]["system"] == DOMAIN.domain_policy
    assert (first["data"]["done"], first["data"]["reward"]) == (False, None)
    assert (others[-1]["data"]["done"], others[-1]["data"]["reward"]) == (True, 1.0)


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ({"type": "step", "data": {"tool_name": "x"}}, "VALIDATION_ERROR"),
        ({"type": "reset", "data": {"task_id": "none"}}, "VALIDATION_ERROR"),
        ({"type": "reset", "data": {"split": "train", "index": 10**6}}, "VALIDATION_ERROR"),
        ({"type": "reset", "data": {"seed": "x"}}, "VALIDATION_ERROR"),
        ({"type": "reset", "data": {"split": ["train"]}}, "VALIDATION_ERROR"),
        ({"type": "reset", "data": [1]}, "VALIDATION_ERROR"),
        ([1], "VALIDATION_ERROR"),
        ({"type": "jump"}, "UNKNOWN_TYPE"),
    ],
    ids=["no reset", "no task", "no index", "bad seed", "bad split", "bad data", "no object", "no type"],
)
def test_wrong_messages_are_refused(message: Any, code: str) -> None:
    (answer,) = converse(message)
    assert (answer["type"], answer["data"]["code"]) == ("error", code)


def test_unknown_tools_and_full_servers() -> None:
    _, refused, state = converse(
        {"type": "reset"}, {"type": "step", "data": {"tool_name": "jump", "arguments": {}}}, {"type": "state"}
    )
    assert "jump" in refused["data"]["observation"]["error"]["message"]
    assert state["data"]["step_count"] == 1
    (full,) = converse({"type": "reset"}, sessions=0)
    assert (full["data"]["code"], full["data"]["max_sessions"]) == ("CAPACITY_REACHED", 0)


def test_error_that_ends_a_run_is_an_answer_and_not_the_end_of_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(self: Any, reply: Message) -> Any:
        raise ConfigError("no endpoint")

    monkeypatch.setattr(EpisodeEnvironment, "step", fail)
    call = {"type": "step", "data": {"tool_name": "jump", "arguments": {}}}
    _, failed, state = converse({"type": "reset"}, call, {"type": "state"})
    assert (failed["data"]["code"], failed["data"]["message"]) == ("EXECUTION_ERROR", "no endpoint")
    assert state["type"] == "state"


@pytest.fixture
def retail_port() -> Iterator[int]:
    sys.path.append(folder := str(websockets_packages()))
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(
        uvicorn.Config(openenv_app(load_source("retail")), log_level="error", ws="websockets-sansio")
    )
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield listener.getsockname()[1]
    server.should_exit = True
    thread.join()
    sys.path.remove(folder)


async def play_by_our_client(port: int, tasks: Sequence[tuple[int, Sequence[dict[str, Any]]]]) -> list[float]:
    source = load(f"openenv:http://127.0.0.1:{port}")
    rewards = []
    for index, actions in tasks:
        task = next(task for task in source.tasks("train") if task.id == f"retail/train-{index}")
        environment = source.environment(task)
        step = await environment.start()
        for action in actions:
            call = ToolCall(id="1", name=action["tool_name"], arguments=action["arguments"])
            step = await environment.step(Message(role="assistant", tool_calls=(call,)))
        await environment.close()
        rewards.append(step.score.reward if step.score else 0.0)
    return rewards


class Served:
    """A running `understudy serve-env`."""

    def __init__(self, *arguments: str) -> None:
        code = (
            f"import sys; sys.path.append({str(websockets_packages())!r}); from understudy.cli.main import main; main()"
        )
        command = [sys.executable, "-c", code, "serve-env", *arguments, "--port", "0"]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr
        self.lines = [self.process.stderr.readline()]
        while "http://" not in self.lines[-1]:
            assert self.process.poll() is None, self.lines
            self.lines.append(self.process.stderr.readline())
        self.port = int(re.findall(r":(\d+);", self.lines[-1])[0])


@pytest.fixture
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    running = Served(*request.param)
    yield running
    running.process.kill()
    running.process.communicate()


@pytest.mark.environments
@pytest.mark.parametrize("served", [["retail"]], indirect=True)
def test_command_serves_the_same_environment_and_ends_with_ctrl_c(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, str(websockets_packages())])
    task = load_source("retail").tasks("train")[0]
    assert asyncio.run(play_by_our_client(served.port, [(0, actions_of(task.gold_turns))])) == [1.0]
    for header in ("Host: evil.example", "Host: 127.0.0.1\r\nSec-Fetch-Site: cross-site"):
        with socket.create_connection(("127.0.0.1", served.port)) as client:
            upgrade = "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13"
            request = (
                f"GET /ws HTTP/1.1\r\n{header}\r\n{upgrade}\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
            )
            client.sendall(request.encode())
            assert client.recv(99).split()[1] in (b"400", b"403")
    served.process.send_signal(signal.SIGINT)
    _, err = served.process.communicate(timeout=60)
    assert (served.process.returncode, "Traceback" in err) == (0, False)


def test_server_needs_websockets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"websockets.*understudy-rl\[openenv\]"):
        asyncio.run(serve_openenv(DOMAIN, ServeConfig(port=0), print))


@pytest.mark.environments
def test_rewards_by_both_clients_are_those_of_the_source(retail_port: int) -> None:
    """Gold earns 1, and gold without its calls earns 0."""
    tasks: list[Task] = load_source("retail").tasks("train")[:4]
    gold = [(index, actions_of(task.gold_turns)) for index, task in enumerate(tasks)]
    idle = [
        (index, actions_of([turn for turn in task.gold_turns if not turn.tool_calls]))
        for index, task in enumerate(tasks)
    ]
    rows = [[{"split": "train", "index": index}, *actions] for index, actions in (*gold, *idle)]
    with subprocess.Popen([openenv_python(), PROGRAM], stdin=-1, stdout=-1, text=True) as process:
        assert process.stdin
        assert process.stdout
        process.stdout.readline()
        print(json.dumps([retail_port, *rows]), file=process.stdin, flush=True)
        own = [sum(rewards) for rewards in json.loads(process.stdout.readline())]
        process.kill()
    assert own == [1.0] * 4 + [0.0] * 4
    assert asyncio.run(play_by_our_client(retail_port, [*gold, *idle])) == own
