"""Make: write the task sets, and record the servers' answers to their gold calls. The same each time.

python -m understudy.mcp.servers.tasks.make
"""

import asyncio
import contextlib
import json
import os
import shutil
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import uvicorn

from understudy.agent import GoldAgent
from understudy.check import earned
from understudy.errors import TaskError
from understudy.mcp.serve import HOST, PATH, http_app
from understudy.mcp.servers.offers import Part, offer
from understudy.mcp.servers.replica.answers import slack
from understudy.mcp.servers.replica.channels import Workspace
from understudy.mcp.servers.replica.loopback import Replicas, replicas
from understudy.mcp.servers.tasks.computing import PYTHON
from understudy.mcp.servers.tasks.draft import Family, tasks
from understudy.mcp.servers.tasks.markets import FMP, POLYGON, TAVILY
from understudy.mcp.servers.tasks.talks import SEVERAL, SLACK
from understudy.mcp.settings import CassetteConfig, EnvironmentConfig, ServerConfig, load_environment
from understudy.mcp.source import MCPSource, Shared
from understudy.tasks import SPLITS

FOLDER = Path(__file__).parent
SETS: Mapping[str, tuple[tuple[Family, ...], tuple[str, ...]]] = {
    "polygon": (POLYGON, ("polygon",)),
    "fmp": (FMP, ("fmp",)),
    "tavily": (TAVILY, ("tavily",)),
    "slack": (SLACK, ("slack",)),
    "python": (PYTHON, ("python",)),
    "several": (SEVERAL, ("polygon", "fmp", "tavily", "slack")),
}
"""The families of each set, and its servers."""
_POLICY = """\
You help with questions and small errands by means of the tools. Find out what you need, never guess it. When you know
the answer, say it in one short sentence with no other number in it than the answer; when you have done what was asked
for, say so."""
_READS = {"slack": ("slack_auth_test", "slack_list_channels", "slack_get_channel_history"), "python": ()}


def write(name: str, folder: Path = FOLDER) -> None:
    """Write the tasks of a set and its two TOML files: against servers with made-up data, and against recordings."""
    families, servers = SETS[name]
    lines = [task.model_dump_json(exclude_defaults=True) for task in tasks(name, families)]
    (folder / f"{name}.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    head = f'name = "{name}"\npolicy = """\n{_POLICY}"""\ntasks = "{name}.jsonl"\n'
    text = head + "".join(_section(server) for server in servers)
    (folder / f"{name}.toml").write_text(text, encoding="utf-8")
    if name != "python":  # what code prints is computed, not looked up
        tape = f'\n[cassette]\nfolder = "cassettes/{name}"\nmode = "replay"\n'
        (folder / f"{name}-replay.toml").write_text(text + tape, encoding="utf-8")


def _section(server: str) -> str:
    options = {"slack": ["--replica", "--allow-writes"], "python": []}.get(server, ["--replica"])
    command = json.dumps(["{python}", "-m", "understudy", "mcp", "serve", server, *options])
    isolation = "episode" if server in _READS else "shared"
    reads = json.dumps(list(_READS.get(server, ("*",))))
    return f'\n[servers.{server}]\ncommand = {command}\nisolation = "{isolation}"\nreads = {reads}\n'


def record(name: str, folder: Path = FOLDER) -> None:
    """Record what the servers answer to a set's gold calls. A task whose gold does not earn 1.0 is a `TaskError`."""
    cassettes = folder / "cassettes" / name
    shutil.rmtree(cassettes, ignore_errors=True)
    with replicas() as services, _environment(services), contextlib.ExitStack() as stack:
        config = load_environment(folder / f"{name}.toml")
        urls = {server: stack.enter_context(_serving(server)) for server in config.servers}
        source = MCPSource(Shared(_recording(config, urls, cassettes)))
        asyncio.run(_play(source, services))


def _recording(config: EnvironmentConfig, urls: Mapping[str, str], cassettes: Path) -> EnvironmentConfig:
    """The environment with its servers where they are, in sessions of their own."""
    servers: dict[str, ServerConfig] = {
        server: given.replace(command=(), url=urls[server], per_session=True, warm=0)
        for server, given in config.servers.items()
    }
    return config.replace(servers=servers, cassette=CassetteConfig(folder=str(cassettes), mode="record"))


async def _play(source: MCPSource, services: Replicas) -> None:
    for task in (task for split in SPLITS for task in source.tasks(split)):
        services.services["slack"] = slack(Workspace())  # as it was before the last task
        score = await earned(source, task, GoldAgent())
        if score.reward != 1.0:
            raise TaskError(f"task {task.id}: its gold earns {score.reward:g}: {score.parts}")


@contextlib.contextmanager
def _environment(services: Replicas) -> Iterator[None]:
    """The variables that lead to the replicas, for a while. Answers are not kept: a workspace begins anew."""
    before = dict(os.environ)
    os.environ.update(services.environment() | {"SLACK_CACHE": "0"})
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextlib.contextmanager
def _serving(server: str) -> Iterator[str]:
    """A server over HTTP in a thread; its address."""
    with socket.socket() as listening:
        listening.bind((HOST, 0))
        listening.listen()
        app = http_app(offer(server, Part(writes=server == "slack")))
        running = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
        thread = threading.Thread(target=running.run, args=([listening],), daemon=True)
        thread.start()
        try:
            yield f"http://{HOST}:{listening.getsockname()[1]}{PATH}"
        finally:
            running.should_exit = True
            thread.join()


def main(names: Sequence[str] = tuple(SETS)) -> None:
    """Write and record every set."""
    for name in names:
        write(name)
        if name != "python":
            record(name)


if __name__ == "__main__":
    main()
