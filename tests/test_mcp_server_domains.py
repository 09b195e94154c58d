"""Domains as MCP servers: the same tools on the same worlds, a world for each session."""

import asyncio
import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, MCPError, StdioServerParameters
from typer.testing import CliRunner

import understudy
from understudy.cli import app
from understudy.domains.base import find_domain, names
from understudy.errors import ConfigError
from understudy.mcp.serve import GLANCE, IDLE, Offer, Served, _Sessions, server
from understudy.mcp.servers.domain import STATE, USER, Choice, changes, domain_offer
from understudy.mcp.servers.offers import WEB, Part, offer
from understudy.tasks import Task

ENVIRONMENT = {"PYTHONPATH": str(Path(understudy.__file__).parent.parent)}
COMMAND = ("-c", "from understudy.cli import main; main()", "mcp", "serve")


def each_task(made: Offer, task: Task) -> Offer:
    return dataclasses.replace(made, open=lambda _: made.open({"task": task.id}))


async def play_gold(client: Client, task: Task) -> dict[str, Any]:
    """The state after the task's gold calls, the agent's and the user's, as a client reads it."""
    for role, call in ((message.role, call) for message in task.gold for call in message.tool_calls):
        result = await client.call_tool((USER if role == "user" else "") + call.name, call.arguments)
        assert not result.is_error, result.content
    return await state_of(client)


async def state_of(client: Client) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((await client.read_resource(STATE)).contents[0].text)
    return found


def through(made: Offer, talk: Callable[[Client], Awaitable[Any]], mode: str = "auto") -> Any:
    async def connected() -> Any:
        async with Client(server(made), mode=mode) as client:
            return await talk(client)

    return asyncio.run(connected())


@pytest.mark.parametrize("name", names())
def test_gold_through_the_protocol_and_in_memory_gives_the_same_state(name: str) -> None:
    domain = find_domain(name)
    made = domain_offer(domain, Choice(), user_tools=domain.device is not None)
    tasks = domain.tasks("test")[:40]
    assert {task.family for task in tasks} == set(domain.families)
    wrote = 0
    for task in tasks:
        in_memory = domain.fulfilled(task)
        state = through(each_task(made, task), lambda client, task=task: play_gold(client, task))
        assert state == changes(in_memory)
        wrote += bool(state)
    assert wrote > len(tasks) // 3  # else it would compare nothing with nothing


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_tools_are_the_domains_in_both_protocols(mode: str) -> None:
    domain = find_domain("retail")

    async def talk(client: Client) -> tuple[Any, Any, Any]:
        listed = (await client.list_tools()).tools
        refused = await client.call_tool(listed[0].name, {"no such": 1})
        return [(t.name, t.description, t.input_schema) for t in listed], refused, client.instructions

    tools, refused, instructions = through(domain_offer(domain, Choice()), talk, mode)
    assert tools == [(spec.name, spec.description, spec.parameters) for spec in domain.specs]
    assert refused.is_error
    assert "bad arguments" in refused.content[0].text
    assert instructions == domain.policy


def test_tools_can_be_narrowed() -> None:
    domain = find_domain("retail")
    first, second = (spec.name for spec in domain.specs[:2])

    async def talk(client: Client) -> tuple[list[str], Any]:
        called = await client.call_tool(second, {})
        return [tool.name for tool in (await client.list_tools()).tools], called

    shown, called = through(domain_offer(domain, Choice(), tools=[first]), talk)
    assert shown == [first]
    assert f"unknown tool {second!r}" in called.content[0].text


def test_the_world_is_chosen_by_task_by_place_or_not_at_all() -> None:
    domain = find_domain("telecom")
    task = next(task for task in domain.tasks("validation") if task.setup)
    place = domain.tasks("validation").index(task)
    by_id = domain_offer(domain, Choice(task=task.id))
    by_place = domain_offer(domain, Choice(split="validation", index=place))
    assert _world(by_id.open({})) == _world(by_place.open({})) == domain.initial(task).dump()
    assert _world(domain_offer(domain, Choice()).open({})) == domain.world().dump()


def _world(session: Served) -> Any:
    return session.tools._state.dump()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (Choice(task="no such"), "retail has no task 'no such' in train, validation, test"),
        (Choice(split="tests"), "there is no split 'tests'; did you mean 'test'"),
        (Choice(split="test", index=100), "index 100: the split test has the tasks 0 to 99"),
    ],
)
def test_a_world_that_is_not_there_is_one_line(choice: Choice, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        domain_offer(find_domain("retail"), choice)


def test_reading_what_is_not_there_is_refused() -> None:
    async def talk(client: Client) -> Any:
        assert [resource.uri for resource in (await client.list_resources()).resources] == [STATE]
        with pytest.raises(MCPError, match="there is no resource 'understudy://stat'; did you mean"):
            await client.read_resource("understudy://stat")

    through(domain_offer(find_domain("retail"), Choice()), talk)


def launched(arguments: Sequence[str]) -> StdioServerParameters:
    return StdioServerParameters(command=sys.executable, args=[*COMMAND, *arguments], env=ENVIRONMENT)


def test_over_standard_input_and_output() -> None:
    domain = find_domain("airline")
    task = next(task for task in domain.tasks("test") if domain.goal(task))

    async def talk() -> dict[str, Any]:
        async with Client(launched(["airline", "--task", task.id])) as client:
            return await play_gold(client, task)

    assert asyncio.run(talk()) == changes(domain.fulfilled(task))


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Retail over HTTP, by the command itself, in a process of its own."""
    command = [sys.executable, *COMMAND, "retail", "--http", "0"]
    process = subprocess.Popen(command, env=os.environ | ENVIRONMENT, stderr=subprocess.PIPE, text=True)
    with process:
        assert process.stderr
        yield process.stderr.readline().split()[-1]
        process.send_signal(signal.SIGINT)


def test_each_session_over_http_has_a_world_of_its_own(address: str) -> None:
    domain = find_domain("retail")
    one, other = [task for task in domain.tasks("test") if domain.goal(task)][:2]

    async def talk() -> list[Any]:
        async with Client(f"{address}?task={one.id}") as first, Client(f"{address}?task={other.id}") as second:
            states = await asyncio.gather(play_gold(first, one), play_gold(second, other))
            async with Client(f"{address}?task={one.id}") as third:
                return [*states, await state_of(third), third.protocol_version]

    first, second, untouched, version = asyncio.run(talk())
    assert (first, second) == (changes(domain.fulfilled(one)), changes(domain.fulfilled(other)))
    assert untouched == {}
    assert version < "2026"  # the protocol that has sessions over HTTP, which the client has fallen back to


@pytest.mark.parametrize(
    ("parameters", "message"),
    [("task=x", "retail has no task 'x'"), ("taks=x", "no parameter 'taks'; did you mean 'task'"), ("index=-1", "-1")],
)
def test_a_wrong_address_is_told(parameters: str, message: str, address: str) -> None:
    async def talk() -> None:
        async with Client(f"{address}?{parameters}") as client:
            with pytest.raises(MCPError, match=message):
                await client.list_tools()

    asyncio.run(talk())


def test_another_host_name_is_refused(address: str) -> None:
    """A page in a browser that has its own name lead to loopback gets nothing."""
    import httpx2

    asked = httpx2.post(address, headers={"Host": "evil.example"}, json={})
    assert asked.status_code == 421


def test_sessions_end_when_they_are_idle_or_left(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[str] = []

    def opened(parameters: Any) -> Served:
        async def close() -> None:
            ended.append(parameters["name"])

        return Served(tools=None, close=close)  # type: ignore[arg-type]

    now = [0.0]
    monkeypatch.setattr("understudy.mcp.serve.time.monotonic", lambda: now[0])

    async def talk() -> None:
        sessions = _Sessions(Offer("x", opened))
        with sessions.request("1"):
            first = sessions.find("1", {"name": "first"})
            assert sessions.find("1", {"name": "again"}) is first
        with sessions.request("2"):  # a stream that stays open
            sessions.find("2", {"name": "second"})
            now[0] = IDLE + GLANCE + 1
            with sessions.request("2"):
                pass
            now[0] *= 2
            await sessions.end_idle()
            assert ended == ["first"]
        await sessions.end_idle()
        await sessions.end("no such")
        assert ended == ["first"]
        now[0] *= 2
        await sessions.end_idle()
        assert ended == ["first", "second"]
        sessions.find("3", {"name": "third"})
        await sessions.end_all()

    asyncio.run(talk())
    assert ended == ["first", "second", "third"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["retial"], "unknown server 'retial'; did you mean 'retail'?"),
        (["retail", "--user-tools"], "the users of retail have no tools of their own"),
        (["retail", "--allow-writes"], "--allow-writes is for services"),
        (["retail", "--index", "1"], "index 1 needs a split, and no task"),
        (["retail", "--tools", "find_ordr"], "there is no tool 'find_ordr'; did you mean"),
        (["python", "--task", "x"], "python is a service"),
        (["python", "--allow-writes"], "python has no tool that changes something; leave out --allow-writes"),
        (["python", "--replica"], "--replica: there is one of polygon, fmp, tavily, slack"),
        (["polygon"], "polygon needs a key: set the environment variable POLYGON_API_KEY"),
    ],
)
def test_a_wrong_command_is_one_line(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("POLYGON_API_KEY", raising=False)
    found = CliRunner().invoke(app, ["mcp", "serve", *arguments])
    assert isinstance(found.exception, ConfigError)
    assert str(found.exception).startswith(message)
    assert "\n" not in str(found.exception)


def test_a_port_that_is_taken_is_one_line(address: str) -> None:
    port = address.split(":")[2].split("/")[0]
    found = CliRunner().invoke(app, ["mcp", "serve", "airline", "--http", port])
    assert isinstance(found.exception, ConfigError)
    assert f"port {port} on 127.0.0.1 cannot be had (Address already in use)" in str(found.exception)


def test_every_service_says_which_key_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in WEB:
        for variable in (f"{name.upper()}_API_KEY", "SLACK_BOT_TOKEN"):
            monkeypatch.delenv(variable, raising=False)
        with contextlib.suppress(ConfigError):
            offer(name, Part())
            pytest.fail(f"{name} begins without a key")
