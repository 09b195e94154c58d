"""Shared parts of the MCP tests: servers with state and with faults, and the list of their running processes."""

import asyncio
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import psutil

from understudy.core import event_loop
from understudy.core.errors import RolloutError, ToolError
from understudy.core.messages import ToolCall
from understudy.sources.mcp.config import MCPServerConfig
from understudy.sources.mcp.toolkit import MCPToolkit

UNRULY = Path(__file__).parent / "mcp_servers" / "unruly.py"
T = TypeVar("T")


def unruly_config(wrong: str = "", *, sdk: bool = False, **settings: Any) -> MCPServerConfig:
    """Return the config of the server `mcp_servers/unruly.py` with the fault `wrong`. Tests set its timeouts.

    With `sdk` the server is the SDK's, which takes a second of CPU time to start.
    """
    command = [sys.executable, str(UNRULY), *wrong.split(), *(["--sdk"] if sdk else [])]
    return MCPServerConfig.model_validate(
        {"command": command, "warm_sessions": 0, "max_start_attempts": 1, "call_timeout": 60.0, **settings}
    )


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine, with a time limit."""

    async def bounded() -> T:
        async with asyncio.timeout(600):
            return await work

    return event_loop.run_async(bounded())


async def call_result(kit: MCPToolkit, tool: str, **arguments: Any) -> str:
    """Return the result of a call or the text of its error."""
    try:
        return await kit.call(ToolCall(name=tool, arguments=arguments))
    except ToolError as e:
        return f"{e.kind}: {e}"
    except RolloutError as e:
        return f"{e.fault}'s fault: {e}"


async def call_on_new_server(config: MCPServerConfig, tool: str, **arguments: Any) -> str:
    """Return the result of a call on a server that is started for it."""
    try:
        async with MCPToolkit({"unruly": config}) as kit:
            return await call_result(kit, tool, **arguments)
    except RolloutError as e:
        return f"{e.fault}'s fault: {e}"


def running_servers() -> list[int]:
    """Return the running processes of unruly servers that this process has started."""
    mine = psutil.Process().children(recursive=True)
    return [p.pid for p in mine if p.status() != psutil.STATUS_ZOMBIE and str(UNRULY) in " ".join(p.cmdline())]
