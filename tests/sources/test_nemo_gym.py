"""Test resources servers of NeMo Gym: a server written by hand of its protocol, and three of its own."""

import json
import socket
import subprocess
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from support.software import nemo_gym_python
from understudy.core.errors import ConfigError, RolloutError, TaskError
from understudy.core.event_loop import run_async
from understudy.core.messages import Message, ToolCall
from understudy.core.tasks import SPLITS, Score, Task
from understudy.envs.task_source import TaskSource
from understudy.runs.targets import load

PROGRAM = str(Path(__file__).parents[1] / "support" / "nemo_gym_servers.py")
ADD = {
    "type": "function",
    "name": "add",
    "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
    "strict": True,
}


def row(start: int, goal: int, **more: Any) -> dict[str, Any]:
    items = [{"role": "developer", "content": "Count."}, {"role": "user", "content": f"From {start} to {goal}."}]
    return {"responses_create_params": {"input": items, "tools": [ADD]}, "start": start, "goal": goal, **more}


class Counter:
    """A server whose tool adds to a number of the session. It records the bodies of `/verify`."""

    def __init__(self) -> None:
        self.verified: list[Mapping[str, Any]] = []
        self.judge: Mapping[str, Any] = {}
        self._sums = dict[str, int]()

    async def seed(self, request: Request) -> JSONResponse:
        response = JSONResponse({})
        response.set_cookie("session", session := uuid.uuid4().hex)
        self._sums[session] = (await request.json())["start"]
        return response

    async def add(self, request: Request) -> JSONResponse:
        n, session = (await request.json())["n"], request.cookies["session"]
        if not isinstance(n, int):
            return JSONResponse({"detail": "n must be an integer"}, 422)
        self._sums[session] += n
        return JSONResponse({"sum": self._sums[session]})

    async def verify(self, request: Request) -> JSONResponse:
        body = await request.json()
        self.verified.append(body)
        reward = 2.0 * (self._sums[request.cookies["session"]] == body["goal"]) - 1.0
        return JSONResponse({**body, "reward": reward, **self.judge})

    async def describe(self, request: Request) -> JSONResponse:
        return JSONResponse({"paths": {route.path: {} for route in request.app.routes}})

    @property
    def app(self) -> Starlette:
        paths = {"/seed_session": self.seed, "/add": self.add, "/verify": self.verify}
        routes = [Route(path, endpoint, methods=["POST"]) for path, endpoint in paths.items()]
        return Starlette(routes=[Route("/openapi.json", self.describe), *routes])


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Counter, str]]:
    counter = Counter()
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(counter.app, log_level="error"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield counter, f"http://127.0.0.1:{listener.getsockname()[1]}"
    server.should_exit = True
    thread.join()


def write(folder: Path, rows: Sequence[Any], name: str = "rows.jsonl") -> Path:
    (file := folder / name).write_text("".join(json.dumps(each) + "\n" for each in rows))
    return file


def call(name: str, **arguments: Any) -> Message:
    return Message(role="assistant", tool_calls=(ToolCall(id="c1", name=name, arguments=arguments),))


def say(text: str) -> Message:
    return Message(role="assistant", content=text)


async def play(source: TaskSource, task: Task, *replies: Message) -> tuple[Score, list[Message]]:
    """Play replies, and return the score, which a limit gives after a call, and what the agent saw."""
    environment = source.environment(task)
    try:
        step = await environment.start()
        seen = [*step.messages]
        for reply in replies:
            step = await environment.step(reply)
            seen += step.messages
        return step.score or await environment.grade(ended=False), seen
    finally:
        await environment.close()


def tasks_of(source: TaskSource) -> list[Task]:
    return [task for split in SPLITS for task in source.tasks(split)]


def test_an_episode_is_a_session(served: tuple[Counter, str], tmp_path: Path) -> None:
    counter, url = served
    source = load(f"nemo-gym:{url}#{write(tmp_path, [row(1, 3)])}&reward_range=-1:1")
    (task,) = tasks_of(source)
    assert (source.name, task.id, task.scenario.opening) == ("nemo-gym-rows", "nemo-gym-rows/0", "From 1 to 3.")
    score, seen = run_async(play(source, task, call("add", n=2), call("add", n="x"), say("done")))
    assert score.parts == {"reward": 1.0, "within_limits": 1.0}
    assert [(m.role, m.content) for m in seen] == [
        ("system", "Count."),
        ("user", "From 1 to 3."),
        ("tool", '{"sum":3}'),
        ("tool", 'Error: {"detail":"n must be an integer"}'),
    ]
    given = counter.verified[-1]
    assert (given["goal"], given["responses_create_params"]) == (3, row(1, 3)["responses_create_params"])
    kinds = ["function_call", "function_call_output", "function_call", "function_call_output", "message"]
    assert [item["type"] for item in given["response"]["output"]] == kinds
    assert given["response"]["output"][0]["arguments"] == '{"n": 2}'
    assert run_async(play(source, task, say("done")))[0].reward == 0.0
    assert run_async(play(source, task, call("add", n=2)))[0].parts == {"reward": 1.0, "within_limits": 0.0}


def test_files_give_the_splits(served: tuple[Counter, str], tmp_path: Path) -> None:
    write(tmp_path, [row(0, 1), row(0, 2)], "train.jsonl")
    write(tmp_path, [row(0, 3)], "validation.jsonl")
    source = load(f"nemo-gym:{served[1]}#{tmp_path}")
    assert [len(source.tasks(split)) for split in SPLITS] == [2, 1, 0]
    assert source.tasks("validation")[0].id.endswith("/validation-0")


def test_a_failed_judge_is_a_fault(
    served: tuple[Counter, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counter, url = served
    source = load(f"nemo-gym:{url}#{write(tmp_path, [row(0, 1)])}")
    monkeypatch.setattr(counter, "judge", {"reward": 0.0, "mask_sample": True, "failure_reason": "no judge"})
    with pytest.raises(RolloutError, match="no judge") as e:
        run_async(play(source, tasks_of(source)[0], say("done")))
    assert e.value.fault == "grader"


@pytest.mark.parametrize(
    ("wrong", "keys"),
    [
        ({"prompt": "x"}, ("responses_create_params",)),
        (row(0, 1) | {"responses_create_params": {"input": 3}}, ("input",)),
        (row(0, 1) | {"responses_create_params": {"input": []}}, ("input", "user")),
        (row(0, 1) | {"responses_create_params": {"input": [{"type": "computer_call"}]}}, ("input.0", "computer_call")),
        (
            row(0, 1)
            | {"responses_create_params": {"input": [{"role": "user", "content": [{"type": "input_image"}]}]}},
            ("input_image",),
        ),
        (row(0, 1) | {"responses_create_params": {"input": "x", "tools": [ADD | {"name": "../x"}]}}, ("tools.0.name",)),
        (row(0, 1) | {"responses_create_params": {"input": "x", "tools": [ADD | {"name": "verify"}]}}, ("verify",)),
        (
            row(0, 1) | {"responses_create_params": {"input": "x", "tools": [{"type": "web_search"}]}},
            ("tools.0", "function"),
        ),
    ],
    ids=["no row", "no input", "no user", "kind of item", "image", "path", "own path", "kind of tool"],
)
def test_wrong_rows_are_named(
    served: tuple[Counter, str], tmp_path: Path, wrong: dict[str, Any], keys: Sequence[str]
) -> None:
    with pytest.raises(TaskError) as e:
        load(f"nemo-gym:{served[1]}#{write(tmp_path, [row(0, 1), wrong])}")
    assert all(key in str(e.value) for key in ("rows.jsonl:2", *keys))


@pytest.mark.parametrize(
    "reference", ["http://127.0.0.1:1", "127.0.0.1:1#x.jsonl", "http://127.0.0.1:1#x.jsonl", "http://h#x.jsonl&y=1"]
)
def test_wrong_references_are_refused(reference: str) -> None:
    with pytest.raises(ConfigError, match=r"nemo-gym:|openapi\.json"):
        load(f"nemo-gym:{reference}")


def test_earlier_turns_are_shown(served: tuple[Counter, str], tmp_path: Path) -> None:
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "Add 1."}]},
        {"type": "reasoning", "summary": []},
        {"type": "function_call", "call_id": "a", "name": "add", "arguments": '{"n": 1}'},
        {"type": "function_call_output", "call_id": "a", "output": "1"},
        {"role": "assistant", "content": [{"type": "output_text", "text": "Done."}]},
        {"role": "user", "content": "Add 2."},
    ]
    given = {"responses_create_params": {"input": items, "tools": [ADD]}, "start": 1, "goal": 3}
    source = load(f"nemo-gym:{served[1]}#{write(tmp_path, [given])}")
    score, seen = run_async(play(source, tasks_of(source)[0], call("add", n=2), say("done")))
    assert [message.role for message in seen] == ["user", "assistant", "tool", "assistant", "user", "tool"]
    assert (seen[1].tool_calls[0].arguments, score.reward) == ({"n": 1}, 1.0)


@pytest.fixture(scope="module")
def real() -> Iterator[Mapping[str, str]]:
    names = ["example_session_state_mgmt", "workplace_assistant", "mcqa"]
    with subprocess.Popen([nemo_gym_python(), PROGRAM, *names], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        line = next(line for line in process.stdout if line.startswith("{"))
        yield {name: f"nemo-gym:http://127.0.0.1:{port}#{file}" for name, (port, file) in json.loads(line).items()}
        process.kill()


@pytest.mark.environments
def test_gold_earns_one_on_its_own_servers(real: Mapping[str, str]) -> None:
    """The rows that the package has are solved by hand: by state, by calls, and by an answer."""
    counter, office, quiz = (load(real[name]) for name in real)
    for source in (counter, office, quiz):
        tasks = tasks_of(source)
        assert len(tasks) == 5
        for task in tasks:
            given = source.find_row(task)  # type: ignore[attr-defined]
            assert run_async(play(source, task, *_solve(given)))[0].reward == 1.0
            assert run_async(play(source, task, say("")))[0].reward == 0.0


def _solve(given: Mapping[str, Any]) -> list[Message]:
    if "expected_answer" in given:
        return [say(f"\\boxed{{{given['expected_answer']}}}")]
    if "expected_count" in given:
        return [call("increment_counter", count=given["expected_count"] - given["initial_count"]), say("done")]
    calls = [call(each["name"], **json.loads(each["arguments"])) for each in given["ground_truth"]]
    return [*calls, say("done")]
