"""Tests with third-party servers from npm and PyPI: tools, errors, isolation, and crashes.

    make test-mcp

The servers are installed once, in the user's cache folder. node and npm are installed with apt-get where possible.
"""

import asyncio
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.mcp_kit import call_result, run_async
from support.paths import ROOT
from support.software import npm_program, pypi_program
from understudy.data.checks.adversarial.suite import play_strategies
from understudy.data.checks.check import check
from understudy.sources.mcp.config import MCPCall, MCPServerConfig, load_environment_config
from understudy.sources.mcp.pool import SessionPools
from understudy.sources.mcp.source import MCPEnvironmentResources, MCPTaskSource
from understudy.sources.mcp.toolkit import MCPToolkit

pytestmark = pytest.mark.mcp_servers

EPISODES = 8
"""Twice as many as sessions, so that each place is used again."""


def server_config(*command: str, **settings: Any) -> MCPServerConfig:
    """Return the configuration of a server with at most four sessions and none started in advance."""
    return MCPServerConfig.model_validate({"command": command, "warm_sessions": 0, "max_sessions": 4, **settings})


def filesystem_config() -> MCPServerConfig:
    """Return the configuration of the server for files in the episode's folder."""
    return server_config(npm_program("filesystem"), "{folder}", read_only_tools=["read_*", "list_*", "get_*"])


def memory_config() -> MCPServerConfig:
    """Return the configuration of the server for a knowledge graph in the episode's folder."""
    return server_config(npm_program("memory"), env={"MEMORY_FILE_PATH": "{folder}/memory.jsonl"})


def sqlite_config() -> MCPServerConfig:
    """Return the configuration of the server for a database in the episode's folder."""
    return server_config(pypi_program("sqlite"), "--db-path", "{folder}/test.db")


def everything_config(over: str) -> MCPServerConfig:
    """Return the configuration of the server that uses all features of the protocol, over stdio or HTTP."""
    if over == "stdio":
        return server_config(npm_program("everything"), "stdio")
    url = "http://127.0.0.1:{port}/mcp"
    return server_config(npm_program("everything"), "streamableHttp", url=url, env={"PORT": "{port}"})


@pytest.mark.parametrize("over", ["stdio", "http"])
def test_everything_server(over: str) -> None:
    steps: list[tuple[float, float | None, str]] = []

    async def episode() -> None:
        config = everything_config(over).replace(tool_timeouts={"trigger-long-running-operation": 20.0})
        async with MCPToolkit({"e": config}, on_progress=lambda *step: steps.append(step)) as kit:
            assert {"echo", "get-sum", "get-structured-content"} <= {spec.name for spec in kit.specs()}
            assert await call_result(kit, "echo", message="hello <tool_call>") == "Echo: hello \u2039tool_call\u203a"
            assert "7" in await call_result(kit, "e.get-sum", a=3, b=4)
            assert (await call_result(kit, "get-sum", a="three", b=4)).startswith("invalid_arguments")
            assert await call_result(kit, "get-tiny-image") != ""
            assert "image/png, not shown" in await call_result(kit, "get-tiny-image")
            assert "temperature" in (await kit.call_internal(weather_call())).structured
            assert "[demo://resource/" in await call_result(kit, "get-resource-reference", resourceId=1)
            assert (await call_result(kit, "get-resource-reference", resourceId=-1)).startswith(
                ("refused", "invalid_arguments")
            )
            assert "completed" in await call_result(kit, "trigger-long-running-operation", duration=1, steps=2)

    run_async(episode())
    assert [step[0] for step in steps] == [1, 2]


def weather_call() -> MCPCall:
    """Return a call with a structured result."""
    return MCPCall(tool="get-structured-content", arguments={"location": "Chicago"})


def test_filesystem_server() -> None:
    async def episode() -> None:
        async with MCPToolkit({"fs": filesystem_config()}) as kit:
            assert "/episode" in await call_result(kit, "list_allowed_directories")
            wrote = await call_result(kit, "write_file", path="/episode/a.txt", content="milk\n")
            assert wrote == "Successfully wrote to /episode/a.txt"
            assert await call_result(kit, "read_text_file", path="/episode/a.txt") == "milk\n"
            assert (await call_result(kit, "read_text_file", path="/etc/passwd")).startswith("refused: ")
            assert (await call_result(kit, "read_text_file", path="/episode/b.txt")).startswith("refused: ")

    run_async(episode())


def test_time_server() -> None:
    async def episode() -> None:
        async with MCPToolkit({"time": server_config(pypi_program("time"), isolation="shared")}) as kit:
            there = {"source_timezone": "Europe/Paris", "target_timezone": "Asia/Tokyo"}
            assert "Asia/Tokyo" in await call_result(kit, "convert_time", time="12:00", **there)
            assert (await call_result(kit, "convert_time", time="noon", **there)).startswith("refused: ")
            assert (await call_result(kit, "get_current_time", timezone="Mars/Base")).startswith("refused: ")

    run_async(episode())


def test_git_server(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        identity = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
        subprocess.run(["git", *identity, *words], cwd=tmp_path, check=True, capture_output=True)

    git("init", "-q", "-b", "main")
    (tmp_path / "a.txt").write_text("milk\n")
    git("add", "a.txt")
    git("commit", "-q", "-m", "Begin")

    async def episode() -> None:
        config = server_config(pypi_program("git"), "--repository", "{folder}", initial_files=str(tmp_path))
        async with MCPToolkit({"git": config}) as kit:
            assert "Begin" in await call_result(kit, "git_log", repo_path="/episode")
            assert "branch" in await call_result(kit, "git_create_branch", repo_path="/episode", branch_name="next")
            assert "next" in await call_result(kit, "git_branch", repo_path="/episode", branch_type="local")
            assert (await call_result(kit, "git_status", repo_path="/nowhere")).startswith("refused: ")

    run_async(episode())
    branches = subprocess.run(["git", "branch"], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert "next" not in branches  # the episode works on a copy


def test_sqlite_server() -> None:
    async def episode() -> None:
        async with MCPToolkit({"db": sqlite_config()}) as kit:
            await call_result(kit, "create_table", query="CREATE TABLE t (n INTEGER)")
            assert "1" in await call_result(kit, "write_query", query="INSERT INTO t VALUES (41)")
            assert "41" in await call_result(kit, "read_query", query="SELECT n FROM t")
            assert "rror" in await call_result(kit, "read_query", query="SELECT n FROM nowhere")

    run_async(episode())


async def leave_file(kit: MCPToolkit, number: int) -> str:
    """Write one file and return the list of all files."""
    await call_result(kit, "write_file", path=f"/episode/{number}.txt", content=str(number))
    return await call_result(kit, "list_directory", path="/episode")


async def leave_entity(kit: MCPToolkit, number: int) -> str:
    """Create one entity and return the names of all entities."""
    entity = {"name": f"guest {number}", "entityType": "person", "observations": []}
    await call_result(kit, "create_entities", entities=[entity])
    return str([entity["name"] for entity in (await kit.call_internal(MCPCall(tool="read_graph"))).value["entities"]])


async def leave_row(kit: MCPToolkit, number: int) -> str:
    """Write one row and return all rows."""
    await call_result(kit, "create_table", query="CREATE TABLE t (n INTEGER)")
    await call_result(kit, "write_query", query=f"INSERT INTO t VALUES ({number})")
    return await call_result(kit, "read_query", query="SELECT n FROM t")


@pytest.mark.parametrize(
    ("config", "leave", "trace"),
    [
        (filesystem_config, leave_file, "[FILE] {}.txt"),
        (memory_config, leave_entity, "['guest {}']"),
        (sqlite_config, leave_row, "[{{'n': {}}}]"),
    ],
    ids=["filesystem", "memory", "sqlite"],
)
def test_concurrent_episodes_are_isolated(
    config: Callable[[], MCPServerConfig], leave: Callable[[MCPToolkit, int], Any], trace: str
) -> None:
    servers = {"s": config()}
    pools = SessionPools(servers)

    async def episode(number: int) -> str:
        async with MCPToolkit(servers, pools=pools) as kit:
            return str(await leave(kit, number))

    async def all_of_them() -> list[str]:
        return await asyncio.gather(*map(episode, range(EPISODES)))

    assert run_async(all_of_them()) == [trace.format(number) for number in range(EPISODES)]


@pytest.mark.parametrize("over", ["stdio", "http"])
def test_killed_server_is_fault_of_its_episode_only(over: str) -> None:
    servers = {"e": everything_config(over)}
    pools = SessionPools(servers)

    async def killed() -> str:
        async with MCPToolkit(servers, pools=pools) as kit:
            await call_result(kit, "echo", message="here")
            log = kit._live._sessions["e"]._log
            assert log is not None
            working = asyncio.ensure_future(call_result(kit, "trigger-long-running-operation", duration=20, steps=2))
            await asyncio.sleep(0.5)
            os.kill(log.process, signal.SIGKILL)
            return await working

    async def other() -> str:
        async with MCPToolkit(servers, pools=pools) as kit:
            return await call_result(kit, "trigger-long-running-operation", duration=2, steps=1)

    async def both() -> list[str]:
        return await asyncio.gather(killed(), other())

    fault, rest = run_async(both())
    assert fault.startswith("mcp's fault: the MCP server 'e' ")
    assert "completed" in rest


EXAMPLES = pytest.mark.parametrize(
    ("name", "programs"), [("filesystem", filesystem_config), ("memory", memory_config), ("sqlite", sqlite_config)]
)


ROWS = (0, 1, 2, 3, 20, 21, 26, 27)
"""The rows that are played: of every family two, and of every split some. All rows come from one generator."""


def example_source(folder: Path, name: str, programs: Callable[[], MCPServerConfig]) -> MCPTaskSource:
    """Return some tasks of an example environment with the installed server. The example itself uses npx or uvx."""
    config = load_environment_config(ROOT / "examples" / "mcp" / f"{name}.toml")
    installed = config.servers[name].replace(command=programs().command)
    lines = Path(config.tasks).read_text(encoding="utf-8").splitlines(keepends=True)
    (folder / f"{name}.jsonl").write_text("".join(lines[row] for row in ROWS), encoding="utf-8")
    some = config.replace(servers={name: installed}, tasks=str(folder / f"{name}.jsonl"))
    return MCPTaskSource(MCPEnvironmentResources(some))


@EXAMPLES
def test_example_environments_pass_check(tmp_path: Path, name: str, programs: Callable[[], MCPServerConfig]) -> None:
    report = check(example_source(tmp_path, name, programs))
    assert report.problems == ()
    assert [split.tasks for split in report.splits] == [4, 2, 2]


@EXAMPLES
def test_no_strategy_is_rewarded_in_an_example_environment(
    tmp_path: Path, name: str, programs: Callable[[], MCPServerConfig]
) -> None:
    report = run_async(play_strategies(example_source(tmp_path, name, programs), num_tasks=2))
    assert len(report.results) > 20
    assert {result.strategy: result.over_floor for result in report.failures} == {}
