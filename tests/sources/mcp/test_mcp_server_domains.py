"""Tests of domains served over MCP: tools, worlds, sessions and the serve command."""

import asyncio
import contextlib
import dataclasses
import json
import os
import re
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
from understudy.cli.main import app
from understudy.core.errors import ConfigError
from understudy.core.tasks import Task
from understudy.sources.mcp.server import (
    SESSION_CHECK_SECONDS,
    SESSION_IDLE_SECONDS,
    ServedSession,
    ServerDefinition,
    _Sessions,
    build_server,
)
from understudy.sources.mcp.servers.definitions import WEB_SERVICES, ServerOptions, server_definition
from understudy.sources.mcp.servers.domain import (
    STATE_URI,
    USER_TOOL_PREFIX,
    InitialStateChoice,
    domain_server,
    state_changes,
)
from understudy.sources.references import list_domains, load_domain

ENVIRONMENT = {"PYTHONPATH": str(Path(understudy.__file__).parent.parent)}
COMMAND = ("-c", "from understudy.cli.main import main; main()", "mcp", "serve")


def serve_task(made: ServerDefinition, task: Task) -> ServerDefinition:
    return dataclasses.replace(made, open_session=lambda _: made.open_session({"task": task.id}))


async def play_gold(client: Client, task: Task) -> dict[str, Any]:
    """Make the gold calls of the agent and of the user and return the state that the client reads."""
    for role, call in ((message.role, call) for message in task.gold for call in message.tool_calls):
        result = await client.call_tool((USER_TOOL_PREFIX if role == "user" else "") + call.name, call.arguments)
        assert not result.is_error, result.content
    return await read_state(client)


async def read_state(client: Client) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((await client.read_resource(STATE_URI)).contents[0].text)
    return found


def run_client(made: ServerDefinition, talk: Callable[[Client], Awaitable[Any]], mode: str = "auto") -> Any:
    async def connected() -> Any:
        async with Client(build_server(made), mode=mode) as client:
            return await talk(client)

    return asyncio.run(connected())


@pytest.mark.slow
@pytest.mark.parametrize("name", list_domains())
def test_gold_over_mcp_gives_same_state_as_in_memory(name: str) -> None:
    domain = load_domain(name)
    made = domain_server(domain, InitialStateChoice(), user_tools=domain.user_tools is not None)
    tasks = domain.tasks("test")[:40]
    assert {task.family for task in tasks} == set(domain.families)
    wrote = 0
    for task in tasks:
        in_memory = domain.gold_state(task)
        state = run_client(serve_task(made, task), lambda client, task=task: play_gold(client, task))
        assert state == state_changes(in_memory)
        wrote += bool(state)
    assert wrote > len(tasks) // 3  # otherwise most of the compared states would be empty


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_served_tools_match_domain_in_both_protocols(mode: str) -> None:
    domain = load_domain("retail")

    async def talk(client: Client) -> tuple[Any, Any, Any]:
        listed = (await client.list_tools()).tools
        refused = await client.call_tool(listed[0].name, {"no such": 1})
        return [(t.name, t.description, t.input_schema) for t in listed], refused, client.instructions

    tools, refused, instructions = run_client(domain_server(domain, InitialStateChoice()), talk, mode)
    assert tools == [(spec.name, spec.description, spec.parameters) for spec in domain.tool_specs]
    assert refused.is_error
    assert "bad arguments" in refused.content[0].text
    assert instructions == domain.domain_policy


def test_tools_option_limits_served_tools() -> None:
    domain = load_domain("retail")
    first, second = (spec.name for spec in domain.tool_specs[:2])

    async def talk(client: Client) -> tuple[list[str], Any]:
        called = await client.call_tool(second, {})
        return [tool.name for tool in (await client.list_tools()).tools], called

    shown, called = run_client(domain_server(domain, InitialStateChoice(), tools=[first]), talk)
    assert shown == [first]
    assert f"unknown tool {second!r}" in called.content[0].text


def test_world_is_chosen_by_task_id_index_or_default() -> None:
    domain = load_domain("telecom")
    task = next(task for task in domain.tasks("validation") if task.setup)
    place = domain.tasks("validation").index(task)
    by_id = domain_server(domain, InitialStateChoice(task=task.id))
    by_place = domain_server(domain, InitialStateChoice(split="validation", index=place))
    assert (
        _dump_world(by_id.open_session({}))
        == _dump_world(by_place.open_session({}))
        == domain.initial_state(task).dump()
    )
    assert _dump_world(domain_server(domain, InitialStateChoice()).open_session({})) == domain.build_world().dump()


def _dump_world(session: ServedSession) -> Any:
    return session.tools._state.dump()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (InitialStateChoice(task="no such"), "'no such'.*train, validation, test"),
        (InitialStateChoice(split="tests"), "'tests'.*'test'"),
        (InitialStateChoice(split="test", index=100), r"\b100\b.*\btest\b.*\b0 to 99\b"),
    ],
)
def test_unknown_world_raises_config_error(choice: InitialStateChoice, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        domain_server(load_domain("retail"), choice)


def test_unknown_resource_is_rejected() -> None:
    async def talk(client: Client) -> Any:
        assert [resource.uri for resource in (await client.list_resources()).resources] == [STATE_URI]
        with pytest.raises(MCPError, match=rf"'understudy://stat'.*'{STATE_URI}'"):
            await client.read_resource("understudy://stat")

    run_client(domain_server(load_domain("retail"), InitialStateChoice()), talk)


def stdio_parameters(arguments: Sequence[str]) -> StdioServerParameters:
    return StdioServerParameters(command=sys.executable, args=[*COMMAND, *arguments], env=ENVIRONMENT)


@pytest.mark.slow
def test_gold_over_stdio_gives_same_state_as_in_memory() -> None:
    domain = load_domain("airline")
    task = next(task for task in domain.tasks("test") if domain.gold_changes(task))

    async def talk() -> dict[str, Any]:
        async with Client(stdio_parameters(["airline", "--task", task.id])) as client:
            return await play_gold(client, task)

    assert asyncio.run(talk()) == state_changes(domain.gold_state(task))


@pytest.fixture(scope="module")
def server_url() -> Iterator[str]:
    """Serve retail over HTTP with the command in a subprocess and yield its URL."""
    command = [sys.executable, *COMMAND, "retail", "--http-port", "0"]
    process = subprocess.Popen(command, env=os.environ | ENVIRONMENT, stderr=subprocess.PIPE, text=True)
    with process:
        assert process.stderr
        yield process.stderr.readline().split()[-1]
        process.send_signal(signal.SIGINT)


def test_each_http_session_has_own_world(server_url: str) -> None:
    domain = load_domain("retail")
    one, other = [task for task in domain.tasks("test") if domain.gold_changes(task)][:2]

    async def talk() -> list[Any]:
        async with Client(f"{server_url}?task={one.id}") as first, Client(f"{server_url}?task={other.id}") as second:
            states = await asyncio.gather(play_gold(first, one), play_gold(second, other))
            async with Client(f"{server_url}?task={one.id}") as third:
                return [*states, await read_state(third), third.protocol_version]

    first, second, untouched, version = asyncio.run(talk())
    assert (first, second) == (state_changes(domain.gold_state(one)), state_changes(domain.gold_state(other)))
    assert untouched == {}
    assert version < "2026"  # the client has fallen back to the protocol version with HTTP sessions


@pytest.mark.parametrize(
    ("parameters", "message"),
    [("task=x", "'x'"), ("taks=x", "'taks'.*'task'"), ("index=-1", "-1")],
)
def test_invalid_url_parameter_raises_mcp_error(parameters: str, message: str, server_url: str) -> None:
    async def talk() -> None:
        async with Client(f"{server_url}?{parameters}") as client:
            with pytest.raises(MCPError, match=message):
                await client.list_tools()

    asyncio.run(talk())


def test_foreign_host_header_is_rejected(server_url: str) -> None:
    """This protects against DNS rebinding by a web page."""
    import httpx2

    asked = httpx2.post(server_url, headers={"Host": "evil.example"}, json={})
    assert asked.status_code == 421


def test_sessions_end_when_idle_or_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[str] = []

    def opened(parameters: Any) -> ServedSession:
        async def close() -> None:
            ended.append(parameters["name"])

        return ServedSession(tools=None, close=close)  # type: ignore[arg-type]

    now = [0.0]
    monkeypatch.setattr("understudy.sources.mcp.server.time.monotonic", lambda: now[0])

    async def talk() -> None:
        sessions = _Sessions(ServerDefinition("x", opened))
        with sessions.request("1"):
            first = sessions.find("1", {"name": "first"})
            assert sessions.find("1", {"name": "again"}) is first
        with sessions.request("2"):  # a stream that stays open
            sessions.find("2", {"name": "second"})
            now[0] = SESSION_IDLE_SECONDS + SESSION_CHECK_SECONDS + 1
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
        (["retial"], "'retial'.*'retail'"),
        (["retail", "--user-tools"], "retail"),
        (["retail", "--allow-writes"], "--allow-writes"),
        (["retail", "--index", "1"], r"\bindex\b.*\b1\b.*split"),
        (["retail", "--tools", "find_ordr"], "'find_ordr'.*'"),
        (["python", "--task", "x"], "python"),
        (["python", "--allow-writes"], "python.*--allow-writes"),
        (["python", "--web", "m:a"], "m:a.*polygon, fmp, tavily"),
        (["polygon", "--web", "nowhere:a"], "nowhere:a"),
        (["polygon"], "POLYGON_API_KEY"),
    ],
)
def test_invalid_serve_command_raises_one_line_error(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("POLYGON_API_KEY", raising=False)
    found = CliRunner().invoke(app, ["mcp", "serve", *arguments])
    assert isinstance(found.exception, ConfigError)
    assert re.search(message, str(found.exception))
    assert "\n" not in str(found.exception)


def test_port_in_use_raises_config_error(server_url: str) -> None:
    port = server_url.split(":")[2].split("/")[0]
    found = CliRunner().invoke(app, ["mcp", "serve", "airline", "--http-port", port])
    assert isinstance(found.exception, ConfigError)
    assert re.search(rf"\b{port}\b.*127\.0\.0\.1.*Address already in use", str(found.exception))


def test_web_service_without_api_key_raises_config_error(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in WEB_SERVICES:
        for variable in (f"{name.upper()}_API_KEY", "SLACK_BOT_TOKEN"):
            monkeypatch.delenv(variable, raising=False)
        with contextlib.suppress(ConfigError):
            server_definition(name, ServerOptions())
            pytest.fail(f"{name} starts without a key")
