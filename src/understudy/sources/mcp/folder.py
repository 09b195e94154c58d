"""Write an MCP environment with other tasks as a folder of its own: TOML, tasks and recorded answers."""

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from understudy.core.files import RETRY_HINT, atomic_folder, os_errors_as_config_errors
from understudy.core.settings import dump_toml
from understudy.sources.mcp.config import MCPEnvironmentConfig, MCPServerConfig
from understudy.sources.mcp.tasks import MCPTask

TASKS_FILE = "tasks.jsonl"
CASSETTE_FILE = "answers.jsonl"


def write_environment(config: MCPEnvironmentConfig, tasks: Iterable[MCPTask], folder: Path) -> None:
    """Write the folder: NAME.toml, tasks.jsonl and, if the environment has recorded answers, answers.jsonl.

    The servers are those of `config`, with absolute paths. Answers that were recorded now are replayed, so that the new
    environment needs no server.
    """
    tape, servers = config.cassette, {name: _with_plain_path(server) for name, server in config.servers.items()}
    if tape.mode != "off":
        tape = tape.replace(file=CASSETTE_FILE, mode="replay" if tape.mode == "record" else tape.mode)
    staging = folder.with_name(f"{folder.name}.new")
    with os_errors_as_config_errors(folder, RETRY_HINT):
        with atomic_folder(staging) as partial:
            if tape.mode != "off":
                shutil.copy(config.cassette.file, partial / CASSETTE_FILE)
            lines = [task.model_dump_json(exclude_defaults=True) for task in tasks]
            (partial / TASKS_FILE).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
            written = config.replace(tasks=TASKS_FILE, cassette=tape, servers=servers)
            (partial / f"{config.name}.toml").write_text(dump_toml(written), encoding="utf-8")
        os.replace(staging, folder)


def _with_plain_path(server: MCPServerConfig) -> MCPServerConfig:
    return server if server.cwd.startswith("{folder}") else server.replace(cwd=os.path.normpath(server.cwd))
