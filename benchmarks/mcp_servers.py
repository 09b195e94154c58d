"""Measure the speed of MCP servers: calls through the toolkit compared with the plain SDK, and whole episodes.

    python benchmarks/mcp_servers.py [--calls 300] [--repeats 5] [--episodes 64] [--json]

Calls: the SDK's client and the toolkit alternate, each with its own server over stdio and one call at a time. Shown
are the best repeat of each side and the median ratio of the two.

Episodes: a session, three calls and its end, several at once. They use one shared server, servers that are reset, or a
fresh server each. The number of fresh servers at once is at most that of the cores plus two.
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from mcp import Client, StdioServerParameters
from rich.console import Console
from rich.table import Table

from understudy.core.messages import ToolCall
from understudy.sources.mcp.config import MCPCall, MCPServerConfig
from understudy.sources.mcp.pool import SessionPools
from understudy.sources.mcp.toolkit import MCPToolkit

COMMAND = (sys.executable, str(Path(__file__).with_name("mcp_counter.py")))
PROCESSES = (os.cpu_count() or 1) + 2
KINDS = {
    "shared": MCPServerConfig(command=COMMAND, isolation="shared", max_sessions=1),
    "reset": MCPServerConfig(
        command=COMMAND, max_sessions=PROCESSES, warm_sessions=PROCESSES, reset=MCPCall(tool="reset")
    ),
    "fresh": MCPServerConfig(command=COMMAND, max_sessions=PROCESSES, warm_sessions=PROCESSES, start_timeout=300),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=300, help="calls per repeat and side (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=5, help="repeats of the calls (default: %(default)s)")
    parser.add_argument("--episodes", type=int, default=64, help="episodes per row (default: %(default)s)")
    parser.add_argument("--at-once", type=int, nargs="*", default=[1, 16, 64], help="numbers of parallel episodes")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    options = parser.parse_args()
    calls = asyncio.run(compare(options.calls, options.repeats))
    rows = [
        {
            "isolation": kind,
            "parallel_episodes": width,
            "episodes_per_second": asyncio.run(play(kind, options.episodes, width)),
        }
        for kind in KINDS
        for width in options.at_once
    ]
    show({"calls": calls, "episodes": rows}, as_json=options.json)


async def compare(calls: int, repeats: int) -> dict[str, float]:
    """Return the calls per second of the SDK's client and of the toolkit, and their ratios."""
    server = StdioServerParameters(command=COMMAND[0], args=list(COMMAND[1:]))
    async with Client(server) as client, MCPToolkit({"counter": KINDS["shared"]}) as kit:
        await client.list_tools()
        bare: list[float] = []
        ours: list[float] = []
        for _ in range(repeats):
            bare.append(await timed(lambda: client.call_tool("add", {"amount": 1}), calls))
            ours.append(await timed(lambda: kit.call(ToolCall(name="add", arguments={"amount": 1})), calls))
    sdk, toolkit = calls / min(bare), calls / min(ours)
    ratio = statistics.median(b / o for b, o in zip(bare, ours, strict=True))
    return {"sdk_per_second": round(sdk), "toolkit_per_second": round(toolkit), "median_ratio": round(ratio, 3)}


async def timed(call: Callable[[], Awaitable[object]], times: int) -> float:
    started = time.perf_counter()
    for _ in range(times):
        await call()
    return time.perf_counter() - started


async def play(kind: str, episodes: int, width: int) -> float:
    """Return the episodes per second with `width` of them at once. The first one, which waits for a start, does not
    count.
    """
    servers = {"counter": KINDS[kind]}
    pools, gate = SessionPools(servers), asyncio.Semaphore(width)

    async def episode() -> None:
        async with gate, MCPToolkit(servers, pools=pools) as kit:
            for count in (1, 2, 3):
                text = await kit.call(ToolCall(name="add", arguments={"amount": 1}))
                assert kind == "shared" or text == f"the count is {count}", text

    await episode()
    started = time.perf_counter()
    await asyncio.gather(*(episode() for _ in range(episodes)))
    return round(episodes / (time.perf_counter() - started), 2)


def show(found: dict[str, object], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(found, indent=2))
        return
    for title, rows in found.items():
        rows = rows if isinstance(rows, list) else [rows]
        table = Table(title=title)
        for name in rows[0]:
            table.add_column(name.replace("_", " "), justify="right")
        for row in rows:
            table.add_row(*map(str, row.values()))
        Console(width=110).print(table)


if __name__ == "__main__":
    main()
