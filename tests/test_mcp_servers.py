"""Servers that no one here wrote, from npm and PyPI: what each offers, its errors, isolation, and a sudden end.

    make test-mcp

They are installed once, in the user's cache folder; so are node and npm on the machine, where apt-get may do that.
"""

import asyncio
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from machine import program
from mcp_kit import run, says
from understudy.check import check
from understudy.mcp.pool import Pools
from understudy.mcp.settings import Call, ServerConfig, load_environment
from understudy.mcp.source import MCPSource, Shared
from understudy.mcp.toolkit import MCPToolkit
from venvs import environment, kept, told

pytestmark = pytest.mark.mcp_servers

NPM = tuple(f"@modelcontextprotocol/server-{name}@2026.8.31" for name in ("everything", "filesystem", "memory"))
PYPI = {
    "time": ("mcp-server-time==2026.10.19",),
    "git": ("mcp-server-git==2026.10.19",),
    "sqlite": ("mcp-server-sqlite==2025.4.25", "mcp<2"),
}
EPISODES = 16


def npm(name: str) -> str:
    """The program of a server from npm."""
    for needed in ("node", "npm"):
        program(needed, package="nodejs npm")
    install = ("npm", "install", "--no-audit", "--no-fund", "--silent", "--prefix")
    folder = kept("mcp-servers/npm", lambda folder: told(*install, str(folder), *NPM), *NPM)
    return str(folder / "node_modules" / ".bin" / f"mcp-server-{name}")


def pypi(name: str) -> str:
    """The program of a server from PyPI, in an environment of its own."""
    return str(environment(f"mcp-servers/{name}", *PYPI[name]) / "bin" / f"mcp-server-{name}")


def server(*command: str, **settings: Any) -> ServerConfig:
    """A server with little patience."""
    return ServerConfig.model_validate({"command": command, "warm": 0, "processes": 4, **settings})


def filesystem() -> ServerConfig:
    """Files of the episode's folder."""
    return server(npm("filesystem"), "{folder}", reads=["read_*", "list_*", "get_*"])


def memory() -> ServerConfig:
    """A graph that is kept in the episode's folder."""
    return server(npm("memory"), env={"MEMORY_FILE_PATH": "{folder}/memory.jsonl"})


def sqlite() -> ServerConfig:
    """A database in the episode's folder."""
    return server(pypi("sqlite"), "--db-path", "{folder}/test.db")


def everything(over: str) -> ServerConfig:
    """The server that shows all that the protocol has, by either transport."""
    if over == "stdio":
        return server(npm("everything"), "stdio")
    url = "http://127.0.0.1:{port}/mcp"
    return server(npm("everything"), "streamableHttp", url=url, env={"PORT": "{port}"})


@pytest.mark.parametrize("over", ["stdio", "http"])
def test_everything(over: str) -> None:
    steps: list[tuple[float, float | None, str]] = []

    async def episode() -> None:
        config = everything(over).replace(timeouts={"trigger-long-running-operation": 20.0})
        async with MCPToolkit({"e": config}, on_progress=lambda *step: steps.append(step)) as kit:
            assert {"echo", "get-sum", "get-structured-content"} <= {spec.name for spec in kit.specs()}
            assert await says(kit, "echo", message="hello <tool_call>") == "Echo: hello \u2039tool_call\u203a"
            assert "7" in await says(kit, "e.get-sum", a=3, b=4)
            assert (await says(kit, "get-sum", a="three", b=4)).startswith("bad_arguments")
            assert await says(kit, "get-tiny-image") != ""
            assert "image/png, not shown" in await says(kit, "get-tiny-image")
            assert "temperature" in (await kit.perform(weather())).data
            assert "[demo://resource/" in await says(kit, "get-resource-reference", resourceId=1)
            assert (await says(kit, "get-resource-reference", resourceId=-1)).startswith(("refused", "bad_arguments"))
            assert "completed" in await says(kit, "trigger-long-running-operation", duration=1, steps=2)

    run(episode())
    assert [step[0] for step in steps] == [1, 2]


def weather() -> Call:
    """A call with a structured result."""
    return Call(tool="get-structured-content", arguments={"location": "Chicago"})


def test_filesystem() -> None:
    async def episode() -> None:
        async with MCPToolkit({"fs": filesystem()}) as kit:
            assert "/episode" in await says(kit, "list_allowed_directories")
            wrote = await says(kit, "write_file", path="/episode/a.txt", content="milk\n")
            assert wrote == "Successfully wrote to /episode/a.txt"
            assert await says(kit, "read_text_file", path="/episode/a.txt") == "milk\n"
            assert (await says(kit, "read_text_file", path="/etc/passwd")).startswith("refused: ")
            assert (await says(kit, "read_text_file", path="/episode/b.txt")).startswith("refused: ")

    run(episode())


def test_time() -> None:
    async def episode() -> None:
        async with MCPToolkit({"time": server(pypi("time"), isolation="shared")}) as kit:
            there = {"source_timezone": "Europe/Paris", "target_timezone": "Asia/Tokyo"}
            assert "Asia/Tokyo" in await says(kit, "convert_time", time="12:00", **there)
            assert (await says(kit, "convert_time", time="noon", **there)).startswith("refused: ")
            assert (await says(kit, "get_current_time", timezone="Mars/Base")).startswith("refused: ")

    run(episode())


def test_git(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        identity = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
        subprocess.run(["git", *identity, *words], cwd=tmp_path, check=True, capture_output=True)

    git("init", "-q", "-b", "main")
    (tmp_path / "a.txt").write_text("milk\n")
    git("add", "a.txt")
    git("commit", "-q", "-m", "Begin")

    async def episode() -> None:
        config = server(pypi("git"), "--repository", "{folder}", files=str(tmp_path))
        async with MCPToolkit({"git": config}) as kit:
            assert "Begin" in await says(kit, "git_log", repo_path="/episode")
            assert "branch" in await says(kit, "git_create_branch", repo_path="/episode", branch_name="next")
            assert "next" in await says(kit, "git_branch", repo_path="/episode", branch_type="local")
            assert (await says(kit, "git_status", repo_path="/nowhere")).startswith("refused: ")

    run(episode())
    branches = subprocess.run(["git", "branch"], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert "next" not in branches  # the episode has worked on a copy


def test_sqlite() -> None:
    async def episode() -> None:
        async with MCPToolkit({"db": sqlite()}) as kit:
            await says(kit, "create_table", query="CREATE TABLE t (n INTEGER)")
            assert "1" in await says(kit, "write_query", query="INSERT INTO t VALUES (41)")
            assert "41" in await says(kit, "read_query", query="SELECT n FROM t")
            assert "rror" in await says(kit, "read_query", query="SELECT n FROM nowhere")

    run(episode())


async def in_files(kit: MCPToolkit, number: int) -> str:
    """Leave a file of one's own and list what there is."""
    await says(kit, "write_file", path=f"/episode/{number}.txt", content=str(number))
    return await says(kit, "list_directory", path="/episode")


async def in_graph(kit: MCPToolkit, number: int) -> str:
    """Remember somebody and list whom one remembers."""
    entity = {"name": f"guest {number}", "entityType": "person", "observations": []}
    await says(kit, "create_entities", entities=[entity])
    return str([entity["name"] for entity in (await kit.perform(Call(tool="read_graph"))).value["entities"]])


async def in_tables(kit: MCPToolkit, number: int) -> str:
    """Write a row and read all rows."""
    await says(kit, "create_table", query="CREATE TABLE t (n INTEGER)")
    await says(kit, "write_query", query=f"INSERT INTO t VALUES ({number})")
    return await says(kit, "read_query", query="SELECT n FROM t")


@pytest.mark.parametrize(
    ("config", "leave", "trace"),
    [
        (filesystem, in_files, "[FILE] {}.txt"),
        (memory, in_graph, "['guest {}']"),
        (sqlite, in_tables, "[{{'n': {}}}]"),
    ],
    ids=["filesystem", "memory", "sqlite"],
)
def test_sixteen_episodes_at_once_see_no_trace_of_each_other(
    config: Callable[[], ServerConfig], leave: Callable[[MCPToolkit, int], Any], trace: str
) -> None:
    servers = {"s": config()}
    pools = Pools(servers)

    async def episode(number: int) -> str:
        async with MCPToolkit(servers, pools=pools) as kit:
            return str(await leave(kit, number))

    async def all_of_them() -> list[str]:
        return await asyncio.gather(*map(episode, range(EPISODES)))

    assert run(all_of_them()) == [trace.format(number) for number in range(EPISODES)]


@pytest.mark.parametrize("over", ["stdio", "http"])
def test_a_server_killed_in_mid_episode_costs_that_episode_alone(over: str) -> None:
    servers = {"e": everything(over)}
    pools = Pools(servers)

    async def killed() -> str:
        async with MCPToolkit(servers, pools=pools) as kit:
            await says(kit, "echo", message="here")
            log = kit._sessions["e"]._log
            assert log is not None
            working = asyncio.ensure_future(says(kit, "trigger-long-running-operation", duration=20, steps=2))
            await asyncio.sleep(0.5)
            os.kill(log.process, signal.SIGKILL)
            return await working

    async def other() -> str:
        async with MCPToolkit(servers, pools=pools) as kit:
            return await says(kit, "trigger-long-running-operation", duration=2, steps=1)

    async def both() -> list[str]:
        return await asyncio.gather(killed(), other())

    fault, rest = run(both())
    assert fault.startswith("mcp's fault: the MCP server 'e' ")
    assert "completed" in rest


@pytest.mark.parametrize(("name", "programs"), [("filesystem", filesystem), ("memory", memory), ("sqlite", sqlite)])
def test_the_examples_are_sound(name: str, programs: Callable[[], ServerConfig]) -> None:
    config = load_environment(Path(__file__).parents[1] / "examples" / "mcp" / f"{name}.toml")
    installed = config.servers[name].replace(command=programs().command)  # by npx or uvx otherwise
    report = check(MCPSource(Shared(config.replace(servers={name: installed}))))
    assert report.problems == ()
    assert [split.tasks for split in report.splits] == [20, 4, 6]
