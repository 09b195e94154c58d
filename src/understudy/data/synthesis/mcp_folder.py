"""Write new tasks of an MCP environment as an environment of its own: a folder with TOML, tasks and recordings."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from understudy.core.files import RETRY_HINT, atomic_folder, os_errors_as_config_errors
from understudy.core.settings import dump_toml
from understudy.core.tasks import Task
from understudy.envs.mcp.config import MCPServerConfig
from understudy.envs.mcp.source import MCPTaskSource

TASKS_FILE = "tasks.jsonl"
CASSETTE_FILE = "answers.jsonl"


def write_environment(source: MCPTaskSource, tasks: Sequence[Task], folder: Path) -> None:
    """Write the folder: NAME.toml, tasks.jsonl and, if the environment has recorded answers, answers.jsonl.

    The servers are those of `source`, with absolute paths. Answers that were recorded now are replayed, so that the new
    environment needs no server.
    """
    config = source.resources.config
    tape, servers = config.cassette, {name: _with_plain_path(server) for name, server in config.servers.items()}
    if tape.mode != "off":
        tape = tape.replace(file=CASSETTE_FILE, mode="replay" if tape.mode == "record" else tape.mode)
    staging = folder.with_name(f"{folder.name}.new")  # the tasks themselves are in `NAME.partial`
    with os_errors_as_config_errors(folder, RETRY_HINT):
        with atomic_folder(staging) as partial:
            if tape.mode != "off":
                shutil.copy(config.cassette.file, partial / CASSETTE_FILE)
            lines = [source.to_mcp_task(task).model_dump_json(exclude_defaults=True) for task in tasks]
            (partial / TASKS_FILE).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
            written = config.replace(tasks=TASKS_FILE, cassette=tape, servers=servers)
            (partial / f"{config.name}.toml").write_text(dump_toml(written), encoding="utf-8")
        os.replace(staging, folder)


def _with_plain_path(server: MCPServerConfig) -> MCPServerConfig:
    return server if server.cwd.startswith("{folder}") else server.replace(cwd=os.path.normpath(server.cwd))
