"""Write the task sets, and record the servers' answers to their gold calls. The result is deterministic.

python scripts/mcp_tasks/make.py
"""

import asyncio
import contextlib
import json
import os
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

HERE = Path(__file__).resolve().parent
TESTS = HERE.parents[1] / "tests"
sys.path[:0] = [str(HERE.parent), str(TESTS)]  # to import mcp_tasks and tests/support

import uvicorn

from mcp_tasks.computing import PYTHON
from mcp_tasks.draft import Family, tasks
from mcp_tasks.markets import FMP, POLYGON, TAVILY
from mcp_tasks.talks import SEVERAL, SLACK
from support.replica.answers import slack
from support.replica.channels import Workspace
from support.replica.loopback import Replicas, serve_replicas
from understudy.core.errors import TaskError
from understudy.core.tasks import SPLITS
from understudy.data.checks.check import score_agent
from understudy.rollouts.agent import GoldAgent
from understudy.sources.mcp import servers
from understudy.sources.mcp.config import CassetteConfig, MCPEnvironmentConfig, MCPServerConfig, load_environment_config
from understudy.sources.mcp.server import HOST, PATH, build_http_app
from understudy.sources.mcp.servers.definitions import ServerOptions, server_definition
from understudy.sources.mcp.source import MCPEnvironmentResources, MCPTaskSource

SHIPPED = Path(servers.__file__).parent / "tasks"
"""The package's folder of task sets."""
SETS: Mapping[str, tuple[tuple[Family, ...], tuple[str, ...]]] = {
    "polygon": (POLYGON, ("polygon",)),
    "fmp": (FMP, ("fmp",)),
    "tavily": (TAVILY, ("tavily",)),
    "slack": (SLACK, ("slack",)),
    "python": (PYTHON, ("python",)),
    "several": (SEVERAL, ("polygon", "fmp", "tavily", "slack")),
}
"""The families and the servers of each set."""
_POLICY = """\
You help the user with questions and small tasks by calling tools. Look up what you need and never guess. When you know
the answer, give it in one short sentence that contains no other number. When you have done what the user asked for, say
so."""
STAND_IN = "support.replica.loopback:variables"
_READS = {"slack": ("slack_auth_test", "slack_list_channels", "slack_get_channel_history"), "python": ()}


def files(name: str) -> dict[Path, str]:
    """Return the files of a set, except the recordings.

    The package gets the tasks, and a TOML file that needs nothing but the package. The TOML file for the replicas is
    written to this folder.
    """
    families, _ = SETS[name]
    rows = [task.model_dump_json(exclude_defaults=True) for task in tasks(name, families)]
    made = {SHIPPED / f"{name}.jsonl": "".join(f"{row}\n" for row in rows)}
    if name == "python":  # its answers are computed, so they need no recordings
        return {**made, SHIPPED / "python.toml": _toml(name, SHIPPED)}
    tape = f'\n[cassette]\nfile = "cassettes/{name}.jsonl"\nmode = "replay"\n'
    return {**made, SHIPPED / f"{name}-replay.toml": _toml(name, SHIPPED) + tape, live(name): _toml(name, HERE)}


def live(name: str) -> Path:
    """Return the TOML file of a set that plays against the replicas of the services."""
    return HERE / f"{name}.toml"


def _toml(name: str, folder: Path) -> str:
    rows = Path(os.path.relpath(SHIPPED / f"{name}.jsonl", folder)).as_posix()
    head = f'name = "{name}"\ndomain_policy = """\n{_POLICY}"""\ntasks = "{rows}"\n'
    return head + "".join(_section(server, folder == HERE) for server in SETS[name][1])


def _section(server: str, stands_in: bool) -> str:
    options = [*(["--web", STAND_IN] if stands_in else []), *(["--allow-writes"] if server == "slack" else [])]
    command = json.dumps(["{python}", "-m", "understudy", "mcp", "serve", server, *options])
    place = f'cwd = "{Path(os.path.relpath(TESTS, HERE)).as_posix()}"\n' if stands_in else ""
    isolation = "episode" if server in _READS else "shared"
    reads = json.dumps(list(_READS.get(server, ("*",))))
    return f'\n[servers.{server}]\ncommand = {command}\n{place}isolation = "{isolation}"\nread_only_tools = {reads}\n'


def record(config: MCPEnvironmentConfig, cassette: Path) -> None:
    """Record the servers' answers to the gold calls. Raise TaskError for a task whose gold does not earn 1.0."""
    cassette.unlink(missing_ok=True)
    with serve_replicas() as services, _environment(services), contextlib.ExitStack() as stack:
        urls = {server: stack.enter_context(_serving(server)) for server in config.servers}
        source = MCPTaskSource(MCPEnvironmentResources(_recording(config, urls, cassette)))
        asyncio.run(_play(source, services))


def _recording(config: MCPEnvironmentConfig, urls: Mapping[str, str], cassette: Path) -> MCPEnvironmentConfig:
    """Return the environment, with the servers in sessions that belong to it."""
    servers: dict[str, MCPServerConfig] = {
        server: given.replace(command=(), url=urls[server], state_per_session=True, warm_sessions=0)
        for server, given in config.servers.items()
    }
    return config.replace(servers=servers, cassette=CassetteConfig(file=str(cassette), mode="record"))


async def _play(source: MCPTaskSource, services: Replicas) -> None:
    for task in (task for split in SPLITS for task in source.tasks(split)):
        services.services["slack"] = slack(Workspace())  # each task starts with an unchanged workspace
        score = await score_agent(source, task, GoldAgent())
        if score.reward != 1.0:
            raise TaskError(
                f"task {task.id}: its gold calls earn the reward {score.reward:g} instead of 1: {score.parts}"
            )


@contextlib.contextmanager
def _environment(services: Replicas) -> Iterator[None]:
    """Set the environment variables of the replicas in the block. Answers are not cached, so each workspace starts
    anew.
    """
    before = dict(os.environ)
    os.environ.update(services.environment() | {"SLACK_CACHE": "0"})
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextlib.contextmanager
def _serving(server: str) -> Iterator[str]:
    """Run a server over HTTP in a thread and yield its address."""
    with socket.socket() as listening:
        listening.bind((HOST, 0))
        listening.listen()
        app = build_http_app(server_definition(server, ServerOptions(allow_writes=server == "slack")))
        running = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
        thread = threading.Thread(target=running.run, args=([listening],), daemon=True)
        thread.start()
        try:
            yield f"http://{HOST}:{listening.getsockname()[1]}{PATH}"
        finally:
            running.should_exit = True
            thread.join()


def main() -> None:
    """Write and record every set."""
    for name in SETS:
        for path, text in files(name).items():
            path.write_text(text, encoding="utf-8")
        if name != "python":
            record(load_environment_config(live(name)), SHIPPED / "cassettes" / f"{name}.jsonl")


if __name__ == "__main__":
    main()
