"""What tests of MCP share: servers with state and with bad manners, and a look at the processes that are left."""

import asyncio
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import psutil

from understudy.errors import RolloutError, ToolError
from understudy.mcp.settings import ServerConfig
from understudy.mcp.toolkit import MCPToolkit
from understudy.messages import ToolCall

UNRULY = Path(__file__).parent / "mcp_servers" / "unruly.py"
T = TypeVar("T")


def unruly(wrong: str = "", **settings: Any) -> ServerConfig:
    """The server of `mcp_servers/unruly.py`; tests say how patient they are."""
    command = [sys.executable, str(UNRULY), *wrong.split()]
    return ServerConfig.model_validate({"command": command, "warm": 0, "starts": 1, "call_timeout": 20.0, **settings})


def run(work: Coroutine[Any, Any, T]) -> T:
    """What a coroutine gives; a test never waits for a server for ever."""

    async def bounded() -> T:
        async with asyncio.timeout(120):
            return await work

    return asyncio.run(bounded())


async def says(kit: MCPToolkit, tool: str, **arguments: Any) -> str:
    """What a call comes to, whichever way."""
    try:
        return await kit.call(ToolCall(name=tool, arguments=arguments))
    except ToolError as e:
        return f"{e.kind}: {e}"
    except RolloutError as e:
        return f"{e.fault}'s fault: {e}"


async def once(config: ServerConfig, tool: str, **arguments: Any) -> str:
    """The same with a server for this call alone."""
    try:
        async with MCPToolkit({"unruly": config}) as kit:
            return await says(kit, tool, **arguments)
    except RolloutError as e:
        return f"{e.fault}'s fault: {e}"


def servers_left() -> list[int]:
    """Processes of unruly servers that this one has started and that run."""
    mine = psutil.Process().children(recursive=True)
    return [p.pid for p in mine if p.status() != psutil.STATUS_ZOMBIE and str(UNRULY) in " ".join(p.cmdline())]
