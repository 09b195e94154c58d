"""`understudy mcp …`. What a verb needs is imported when it runs."""

import contextlib
import json
import os
import signal
import sys
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import typer
from pydantic import Field

from understudy.cli.grammar import Options, verb
from understudy.cli.messages import print_result
from understudy.core.errors import ConfigError, RolloutError, ToolError

if TYPE_CHECKING:
    from understudy.sources.mcp.config import MCPServerConfig
    from understudy.sources.mcp.toolkit import MCPToolkit

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Serve and call tools over the Model Context Protocol.",
    context_settings={"help_option_names": ["-h", "--help"]},
)


class MCPServeOptions(Options):
    """Options of `mcp serve`."""

    name: Annotated[str, typer.Argument(metavar="SERVER|DOMAIN")]
    """polygon, fmp, tavily, slack, python, or a domain."""
    http_port: int | None = Field(default=None, ge=0, le=65535)
    """Serve over HTTP on loopback at this port."""
    tools: tuple[str, ...] = ()
    """Names of the tools to offer, separated by commas."""
    allow_writes: bool = False
    """Offer a service's tools that change something too."""
    task: str = ""
    """The id of a task of the domain. Each session starts with the database of this task. Default: the initial database
    of the domain."""
    split: Literal["", "train", "validation", "test"] = ""
    """Choose the task by its split and --index."""
    index: int = Field(default=0, ge=0)
    """Position of the task in --split, from 0."""
    web: str = ""
    """module:attribute of a context manager that runs a replica of the service and yields environment variables, such
    as FMP_BASE_URL. The tools then call the replica instead of the service."""
    user_tools: bool = False
    """Offer a domain's user tools too."""


@verb(app)
def serve(options: MCPServeOptions) -> None:
    """Run an MCP server over standard input and output, or over HTTP.

    HTTP needs --http-port. Environment variables such as POLYGON_API_KEY set a service's key, address and limits;
    docs/mcp_servers.md lists them. Each session of a domain has its own copy of the database.
    """
    import asyncio

    from understudy.core.event_loop import run_async
    from understudy.core.imports import import_object
    from understudy.sources.mcp.server import serve_http, serve_stdio
    from understudy.sources.mcp.servers.definitions import WEB_SERVICES, ServerOptions, server_definition
    from understudy.sources.mcp.servers.domain import InitialStateChoice

    name, web = options.name, options.web
    if web and name not in WEB_SERVICES:
        raise ConfigError(f"--web {web}: {name} is not a web service; the web services are {', '.join(WEB_SERVICES)}")
    choice = InitialStateChoice(task=options.task, split=options.split, index=options.index)
    with import_object(web)() if web else contextlib.nullcontext({}) as variables:
        os.environ.update(variables)
        offered = server_definition(
            name,
            ServerOptions(
                tools=options.tools,
                allow_writes=options.allow_writes,
                user_tools=options.user_tools,
                initial_state=choice,
            ),
        )
        if options.http_port is None:
            signal.signal(signal.SIGINT, _end)
            return asyncio.run(serve_stdio(offered))  # run_async would replace this handler
        with contextlib.suppress(KeyboardInterrupt):
            run_async(serve_http(offered, options.http_port))


def _end(*_: object) -> NoReturn:
    """End the process immediately on Ctrl-C. The thread that reads standard input cannot be stopped."""
    print("understudy: stopped", file=sys.stderr, flush=True)
    os._exit(130)


ServerArgument = Annotated[
    str,
    typer.Argument(metavar="COMMAND|URL", help="The command that starts the server, in quotes, or the server's URL."),
]


class MCPServerOptions(Options):
    """Options of the commands that start or reach a server."""

    server: ServerArgument
    env: dict[str, str] = {}
    """An environment variable for the server, NAME=VALUE. May be given several times."""
    header: dict[str, str] = {}
    """A header of each request, NAME=VALUE; '${NAME}' reads a secret from the environment."""
    timeout: float = Field(default=60.0, ge=0.1)
    """Seconds that a start or a call may take."""


class MCPToolsOptions(MCPServerOptions):
    """Options of `mcp tools`."""

    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with the schemas.")] = False


class MCPCallOptions(MCPServerOptions):
    """Options of `mcp call`. NAME=VALUE is an argument of the tool, so options are only `--key VALUE`."""

    tool: Annotated[str, typer.Argument(metavar="TOOL")]
    """The tool's name."""
    arguments: Annotated[tuple[str, ...], typer.Argument(metavar="NAME=VALUE|JSON")] = ()
    """Its arguments, or all of them as JSON."""


@verb(app)
def tools(options: MCPToolsOptions) -> None:
    """List the tools of a server."""
    from understudy.core.messages import HIDDEN_FIELDS
    from understudy.formats.typed_calls import format_tool_list
    from understudy.sources.mcp.toolkit import MCPToolkit

    async def listed() -> str:
        async with MCPToolkit({"server": _server(options)}) as kit:
            for note in kit.notes:
                typer.echo(note, err=True)
            specs = [spec.model_dump(exclude=HIDDEN_FIELDS) for spec in kit.specs()]
            return json.dumps(specs, indent=1, ensure_ascii=False) if options.as_json else format_tool_list(kit.specs())

    print_result(_run(listed(), options.server))


@verb(app)
def call(options: MCPCallOptions) -> None:
    """Call one tool and print its result. If the tool refuses the call, the exit code is 1."""
    from understudy.sources.mcp.toolkit import MCPToolkit

    async def answered() -> str:
        async with MCPToolkit({"server": _server(options)}, on_progress=_show) as kit:
            return await _call(kit, options.tool, options.arguments)

    try:
        print(_run(answered(), options.server))
    except ToolError as e:
        typer.echo(f"{options.tool}: {e}", err=True)
        raise typer.Exit(1) from e


def _run(work: Coroutine[Any, Any, str], server: str) -> str:
    from understudy.core.event_loop import run_async

    try:
        return run_async(work)
    except RolloutError as e:
        raise RolloutError(f"{e}; check its address or command: {server}", e.fault) from e


async def _call(kit: "MCPToolkit", tool: str, words: Sequence[str]) -> str:
    from understudy.core.messages import ToolCall
    from understudy.formats.typed_calls import parse_typed_arguments

    schema = next((spec.parameters for spec in kit.specs() if spec.name == tool), {})
    try:
        return await kit.call(ToolCall(name=tool, arguments=parse_typed_arguments(words, schema)))
    except ValueError as e:
        raise ConfigError(f"the arguments of {tool} cannot be read: {e}") from e


def _server(options: MCPServerOptions) -> "MCPServerConfig":
    from understudy.sources.mcp.config import MCPServerConfig

    place = "url" if options.server.startswith(("http://", "https://")) else "command"
    if (file := Path(options.server)).is_file() and file.suffix in (".json", ".toml", ".yaml", ".yml"):
        raise ConfigError(
            f"{file} is a file of settings; give the command or URL of a server that it names, in quotes (the file of "
            "an environment is a TARGET: understudy check mcp:FILE.toml)"
        )
    return MCPServerConfig.model_validate(
        {
            place: options.server,
            "env": options.env,
            "headers": options.header,
            "isolation": "shared",
            "start_timeout": options.timeout,
            "call_timeout": options.timeout,
        }
    )


def _show(done: float, total: float | None, text: str) -> None:
    print(f"{done:g}{f' of {total:g}' if total else ''} {text}".rstrip(), file=sys.stderr)
