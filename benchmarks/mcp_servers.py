"""How fast MCP servers play: calls through the toolkit beside the bare SDK, and whole episodes.

    python benchmarks/mcp_servers.py [--calls 300] [--repeats 5] [--episodes 64] [--json]

Calls: two servers over stdio, one call after the other, by the SDK's client and by our toolkit in turns; the best of
the repeats of each, and the median of how they compare, repeat by repeat. Episodes: a session, three calls of it, and
its end, so many at once: of one shared server, of servers that are reset, and of one fresh server each. Of those there
are at most as many as cores and two more.
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

from understudy.mcp.pool import Pools
from understudy.mcp.settings import Call, ServerConfig
from understudy.mcp.toolkit import MCPToolkit
from understudy.messages import ToolCall

COMMAND = (sys.executable, str(Path(__file__).with_name("mcp_counter.py")))
PROCESSES = (os.cpu_count() or 1) + 2
KINDS = {
    "shared": ServerConfig(command=COMMAND, isolation="shared", processes=1),
    "reset": ServerConfig(command=COMMAND, processes=PROCESSES, warm=PROCESSES, reset=Call(tool="reset")),
    "fresh": ServerConfig(command=COMMAND, processes=PROCESSES, warm=PROCESSES, start_timeout=300),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=300)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--episodes", type=int, default=64)
    parser.add_argument("--at-once", type=int, nargs="*", default=[1, 16, 64])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    calls = asyncio.run(compare(options.calls, options.repeats))
    rows = [
        {"kind": kind, "at_once": width, "episodes_per_second": asyncio.run(play(kind, options.episodes, width))}
        for kind in KINDS
        for width in options.at_once
    ]
    show({"calls": calls, "episodes": rows}, as_json=options.json)


async def compare(calls: int, repeats: int) -> dict[str, float]:
    """Calls a second of the SDK's client and of the toolkit, and how they compare."""
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
    return {"sdk_per_second": round(sdk), "toolkit_per_second": round(toolkit), "ratio": round(ratio, 3)}


async def timed(call: Callable[[], Awaitable[object]], times: int) -> float:
    started = time.perf_counter()
    for _ in range(times):
        await call()
    return time.perf_counter() - started


async def play(kind: str, episodes: int, width: int) -> float:
    """Episodes a second, `width` of them at once; the first, which waits for a start, is not counted."""
    servers = {"counter": KINDS[kind]}
    pools, gate = Pools(servers), asyncio.Semaphore(width)

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
