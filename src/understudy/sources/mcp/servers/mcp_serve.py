"""The command `understudy mcp serve`. It imports the servers only when it runs."""

import asyncio
import contextlib
import os
import signal
import sys
from typing import Annotated, Literal, NoReturn

import typer

from understudy.core.errors import ConfigError
from understudy.core.event_loop import run_async


def serve(
    name: Annotated[
        str, typer.Argument(metavar="SERVER|DOMAIN", help="polygon, fmp, tavily, slack, python, or a domain.")
    ],
    http_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Serve over HTTP on loopback at this port.")
    ] = None,
    tools: Annotated[str, typer.Option(help="Names of the tools to offer, separated by commas.")] = "",
    allow_writes: Annotated[
        bool, typer.Option("--allow-writes", help="Offer a service's tools that change something too.")
    ] = False,
    task: Annotated[
        str,
        typer.Option(
            metavar="ID",
            help="The id of a task of the domain. Each session starts with the database of this task. "
            "Default: the initial database of the domain.",
        ),
    ] = "",
    split: Annotated[
        Literal["", "train", "validation", "test"], typer.Option(help="Choose the task by its split and --index.")
    ] = "",
    index: Annotated[int, typer.Option(min=0, help="Position of the task in --split, from 0.")] = 0,
    web: Annotated[
        str,
        typer.Option(
            metavar="MODULE:ATTRIBUTE",
            help="A context manager that runs a replica of the service and yields environment variables, such as "
            "FMP_BASE_URL. The tools then call the replica instead of the service.",
        ),
    ] = "",
    user_tools: Annotated[bool, typer.Option("--user-tools", help="Offer a domain's user tools too.")] = False,
) -> None:
    """Run an MCP server over standard input and output, or over HTTP.

    HTTP needs --http-port. Environment variables such as POLYGON_API_KEY set a service's key, address and limits;
    docs/mcp.md lists them. Each session of a domain has its own copy of the database.
    """
    from understudy.core.imports import import_object
    from understudy.sources.mcp.server import serve_http, serve_stdio
    from understudy.sources.mcp.servers.definitions import WEB_SERVICES, ServerOptions, server_definition
    from understudy.sources.mcp.servers.domain import InitialStateChoice

    if web and name not in WEB_SERVICES:
        raise ConfigError(f"--web {web}: {name} is not a web service; the web services are {', '.join(WEB_SERVICES)}")
    names = tuple(name.strip() for name in tools.split(",") if name.strip())
    choice = InitialStateChoice(task=task, split=split, index=index)
    with import_object(web)() if web else contextlib.nullcontext({}) as variables:
        os.environ.update(variables)
        offered = server_definition(
            name, ServerOptions(tools=names, allow_writes=allow_writes, user_tools=user_tools, initial_state=choice)
        )
        if http_port is None:
            signal.signal(signal.SIGINT, _end)
            return asyncio.run(serve_stdio(offered))  # run_async would replace this handler
        with contextlib.suppress(KeyboardInterrupt):
            run_async(serve_http(offered, http_port))


def _end(*_: object) -> NoReturn:
    """End the process immediately on Ctrl-C. The thread that reads standard input cannot be stopped."""
    print("understudy: stopped", file=sys.stderr, flush=True)
    os._exit(130)
