"""`understudy mcp serve`: the verb; what it needs is imported late."""

import asyncio
import contextlib
import os
import signal
import sys
from typing import Annotated, Literal, NoReturn

import typer

from understudy.errors import ConfigError


def serve(
    name: Annotated[
        str, typer.Argument(metavar="SERVER|DOMAIN", help="polygon, fmp, tavily, slack, python; a domain.")
    ],
    http: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Serve over HTTP on loopback at this port.")
    ] = None,
    tools: Annotated[str, typer.Option(help="Only these tools, with commas.")] = "",
    allow_writes: Annotated[bool, typer.Option("--allow-writes", help="A service may change things too.")] = False,
    task: Annotated[str, typer.Option(help="A domain's task, by its id: the world that sessions begin in.")] = "",
    split: Annotated[Literal["", "train", "validation", "test"], typer.Option(help="Or by its split …")] = "",
    index: Annotated[int, typer.Option(min=0, help="… and its place there.")] = 0,
    replica: Annotated[
        bool, typer.Option("--replica", help="A service with made-up data, without key and network.")
    ] = False,
    user_tools: Annotated[bool, typer.Option("--user-tools", help="A domain's tools of the user too.")] = False,
) -> None:
    """Be an MCP server, over standard input and output unless --http is given.

    Keys, addresses and limits of services come from the environment, such as POLYGON_API_KEY; docs/mcp-servers.md
    lists them. A domain's sessions each have a world of their own.
    """
    from understudy.mcp.serve import serve_http, serve_stdio
    from understudy.mcp.servers.domain import Choice
    from understudy.mcp.servers.offers import Part, offer
    from understudy.mcp.servers.replica.loopback import replicas

    names = tuple(name.strip() for name in tools.split(",") if name.strip())
    choice = Choice(task=task, split=split, index=index)
    with replicas() if replica else contextlib.nullcontext() as services:
        if services and name not in services.services:
            raise ConfigError(f"--replica: there is one of {', '.join(services.services)}")
        os.environ.update(services.environment() if services else {})
        offered = offer(name, Part(tools=names, writes=allow_writes, user_tools=user_tools, choice=choice))
        if http is None:
            signal.signal(signal.SIGINT, _end)
            return asyncio.run(serve_stdio(offered))
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(serve_http(offered, http))


def _end(*_: object) -> NoReturn:
    """Ctrl-C ends the process at once: the thread that waits for standard input cannot be told to stop."""
    print("understudy: stopped", file=sys.stderr, flush=True)
    os._exit(130)
