"""Test tasks of ours as task folders of Harbor: played from its shell, and read by Harbor."""

import asyncio
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import typing_extensions
import uvicorn

from support.machine import ELSEWHERE
from support.software import harbor_packages
from toy import DOMAIN
from understudy.core.errors import ConfigError
from understudy.core.event_loop import run_async
from understudy.core.messages import Message, ToolCall
from understudy.core.tasks import SPLITS, Task
from understudy.data.harbor_tasks import read_key, write_harbor_tasks
from understudy.envs.task_source import TaskSource
from understudy.rollouts.http_episodes import HTTPEpisodes
from understudy.runs.targets import load

TASK = DOMAIN.tasks("train")[0]
NAME = TASK.id.replace("/", "-")


@pytest.fixture
def tasks_folder(tmp_path: Path) -> Iterator[Path]:
    """The toy domain as tasks of Harbor, and their server."""
    listener = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    counts = write_harbor_tasks("toy:DOMAIN", tmp_path / "out", url)
    assert counts == {split: len(DOMAIN.tasks(split)) for split in SPLITS if DOMAIN.tasks(split)}
    app = HTTPEpisodes(DOMAIN, read_key(tmp_path / "out")).app
    server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
    serving = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    serving.start()
    while not server.started:
        time.sleep(0.01)
    yield tmp_path / "out"
    server.should_exit = True
    serving.join()


def load_local(folder: Path) -> TaskSource:
    try:
        return load(f"harbor:{folder}#run=local")
    except ConfigError as e:
        if "user namespaces" in str(e):
            pytest.skip(f"{ELSEWHERE}{e}")
        raise


async def play(source: TaskSource, task: Task, *commands: str) -> tuple[float, str]:
    """Return the reward of shell commands, and what the last one printed."""
    environment, seen = source.environment(task), ""
    try:
        await environment.start()
        for command in commands:
            call = ToolCall(name="bash", arguments={"command": command})
            step = await environment.step(Message(role="assistant", tool_calls=(call,)))
            seen = step.messages[-1].content
        step = await environment.step(Message(role="assistant", content="Done."))
        assert step.score
        return step.score.reward, seen
    finally:
        await environment.close()


def test_gold_earns_1_and_nothing_0_from_its_shell(tasks_folder: Path) -> None:
    source = load_local(tasks_folder / "train")
    tasks = [task for split in SPLITS for task in source.tasks(split)]
    assert (len(tasks), source.lacks_gold) == (len(DOMAIN.tasks("train")), False)
    task = next(task for task in tasks if task.id.endswith(f"/{NAME}"))
    (gold,) = (call.arguments["command"] for call in task.gold_calls)

    async def playing() -> list[tuple[float, str]]:
        return [
            await play(source, task, gold),
            await play(source, task),
            await play(source, task, "python3 /app/tool.py"),
            await play(source, task, "python3 /app/tool.py nothing '{}'"),
            await play(source, task, "python3 /app/tool.py send_message text"),
            await play(source, task, gold, 'python3 /app/tool.py send_message \'{"text": "Yes."}\''),
            await play(source, task, "grep -rhs key= /app /tests"),
        ]

    rewards, texts = zip(*run_async(playing()), strict=True)
    assert rewards == (1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0)
    assert TASK.scenario.opening in texts[2]
    assert ["unknown tool" in texts[3], "must be JSON" in texts[4], "has ended" in texts[5]] == [True] * 3
    assert "key=" not in texts[6]


def test_instructions_have_what_the_agent_needs_and_no_more(tmp_path: Path) -> None:
    write_harbor_tasks("toy:DOMAIN", tmp_path / "out", "http://host:1/")
    folder = tmp_path / "out" / "train" / NAME
    text = (folder / "instruction.md").read_text()
    assert [part in text for part in (DOMAIN.domain_policy, TASK.scenario.opening, "send_message")] == [True] * 3
    assert all(f"- {spec.name}: " in text for spec in DOMAIN.tool_specs)
    shown = text + (folder / "environment" / "tool.py").read_text()
    assert "http://host:1/episodes" in shown
    assert TASK.gold_turns[-1].content not in shown
    key = read_key(tmp_path / "out")
    assert [key in shown, key in (folder / "tests" / "test.sh").read_text()] == [False, True]


def test_only_the_key_gets_rewards() -> None:
    app = HTTPEpisodes(DOMAIN, "k", max_episodes=1).app
    call, grade = {"task": TASK.id, "tool": ""}, {"task": TASK.id, "key": "k"}
    other = DOMAIN.tasks("train")[1].id

    async def ask(path: str, body: Any) -> tuple[int, Any]:
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://test") as client:
            answer = await client.post(path, json=body)
            return answer.status_code, answer.json() if answer.is_success else None

    async def asking() -> list[tuple[int, Any]]:
        return [
            await ask("/episodes/a/call", call),
            await ask("/episodes/a/grade", {**grade, "key": "x"}),
            await ask("/episodes/a/call", {**call, "task": other}),
            await ask("/episodes/b/call", call),
            await ask("/episodes/a/grade", grade),
            await ask("/episodes/a/grade", grade),
            await ask("/episodes/b/call", call),
            await ask("/episodes/b/call", {**call, "tool": "x", "arguments": []}),
            await ask("/episodes/c/call", {**call, "task": "none"}),
            await ask("/episodes/c/call", ["task"]),
        ]

    opening, *others = asyncio.run(asking())
    assert opening == (200, {"result": TASK.scenario.opening})
    assert [status for status, _ in others] == [403, 403, 503, 200, 200, 200, 200, 404, 400]
    assert (others[3][1], others[4][1]) == ({"reward": 0.0}, {"reward": 0.0})
    assert "arguments" in others[6][1]["error"]


def test_command_serves_the_tasks_of_a_folder(tmp_path: Path) -> None:
    write_harbor_tasks("retail", tmp_path / "out", "http://host:1")
    serving = [sys.executable, "-m", "understudy", "serve-env", "retail", "--port", "0", "--harbor"]
    refused = subprocess.run([*serving, str(tmp_path)], capture_output=True, text=True, check=False)
    assert (refused.returncode, "reward.key" in refused.stderr) == (2, True)
    command = [*serving, str(tmp_path / "out")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr
        try:
            found = re.search(r"http://[\d.:]+", process.stderr.readline())
            assert found
            body = {"task": load("retail").tasks("test")[0].id, "key": read_key(tmp_path / "out")}
            answer = httpx2.post(f"{found[0]}/episodes/a/grade", json=body, trust_env=False)
            assert answer.json() == {"reward": 0.0}
        finally:
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 0


@pytest.mark.parametrize(("source", "url"), [("retial", "http://host:1"), ("toy:DOMAIN", ""), ("toy:DOMAIN", "host:1")])
def test_wrong_names_and_addresses_are_refused(tmp_path: Path, source: str, url: str) -> None:
    with pytest.raises(ConfigError, match=r"retial|--url"):
        write_harbor_tasks(source, tmp_path / "out", url)
    assert not (tmp_path / "out").exists()


@pytest.mark.environments
def test_harbor_accepts_the_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(harbor_packages())
    monkeypatch.setattr(typing, "override", typing_extensions.override, raising=False)  # of Python 3.12
    write_harbor_tasks("retail", tmp_path / "out", "http://host:1")
    from harbor.models.task.task import Task as HarborTask

    for split in SPLITS:
        for folder in (tmp_path / "out" / split).iterdir():
            assert HarborTask.is_valid_dir(folder)
            task = HarborTask(folder)
            assert task.config.environment.network_mode.value == "public"
            assert task.instruction == (folder / "instruction.md").read_text()
            assert task.paths.discovered_test_path_for(task.config.environment.os)
            assert task.paths.discovered_solve_path_for(task.config.environment.os)
