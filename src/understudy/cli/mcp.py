"""`understudy mcp …`. What a verb needs is imported when it runs."""

import json
import sys
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Annotated, Any

import typer

from understudy.core.errors import ConfigError, RolloutError, ToolError
from understudy.core.event_loop import run_async
from understudy.sources.mcp.servers.mcp_serve import serve

if TYPE_CHECKING:
    from understudy.sources.mcp.config import MCPServerConfig
    from understudy.sources.mcp.toolkit import MCPToolkit

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Serve and call tools over the Model Context Protocol.",
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.command()(serve)

ServerArgument = Annotated[
    str,
    typer.Argument(metavar="COMMAND|URL", help="The command that starts the server, in quotes, or the server's URL."),
]
EnvOption = Annotated[
    list[str] | None, typer.Option("--env", metavar="NAME=VALUE", help="An environment variable for the server.")
]
HeaderOption = Annotated[
    list[str] | None,
    typer.Option(
        "--header",
        metavar="NAME=VALUE",
        help="A header of each request; '${NAME}' reads a secret from the environment.",
    ),
]
TimeoutOption = Annotated[float, typer.Option(min=0.1, help="Seconds that a start or a call may take.")]


@app.command()
def tools(
    server: ServerArgument,
    env: EnvOption = None,
    header: HeaderOption = None,
    timeout: TimeoutOption = 60.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with the schemas.")] = False,
) -> None:
    """List the tools of a server."""
    from understudy.envs.terminal import format_tool_list
    from understudy.sources.mcp.toolkit import MCPToolkit

    async def listed() -> str:
        async with MCPToolkit({"server": _server(server, env, header, timeout)}) as kit:
            specs = [spec.model_dump(exclude={"aliases"}) for spec in kit.specs()]
            return json.dumps(specs, indent=1, ensure_ascii=False) if as_json else format_tool_list(kit.specs())

    print(_run(listed(), server))


@app.command()
def call(
    server: ServerArgument,
    tool: Annotated[str, typer.Argument(metavar="TOOL", help="The tool's name.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="NAME=VALUE|JSON", help="Its arguments, or all of them as JSON.")
    ] = None,
    env: EnvOption = None,
    header: HeaderOption = None,
    timeout: TimeoutOption = 60.0,
) -> None:
    """Call one tool and print its result. If the tool refuses the call, the exit code is 1."""
    from understudy.sources.mcp.toolkit import MCPToolkit

    async def answered() -> str:
        servers = {"server": _server(server, env, header, timeout)}
        async with MCPToolkit(servers, on_progress=_show) as kit:
            return await _call(kit, tool, arguments or [])

    try:
        print(_run(answered(), server))
    except ToolError as e:
        typer.echo(f"{tool}: {e}", err=True)
        raise typer.Exit(1) from e


def _run(work: Coroutine[Any, Any, str], server: str) -> str:
    try:
        return run_async(work)
    except RolloutError as e:
        raise RolloutError(f"{e}; check its address or command: {server}", e.fault) from e


async def _call(kit: "MCPToolkit", tool: str, words: list[str]) -> str:
    from understudy.core.messages import ToolCall
    from understudy.envs.terminal import parse_typed_arguments

    schema = next((spec.parameters for spec in kit.specs() if spec.name == tool), {})
    try:
        return await kit.call(ToolCall(name=tool, arguments=parse_typed_arguments(words, schema.get("properties", {}))))
    except ValueError as e:
        raise ConfigError(f"the arguments of {tool} cannot be read: {e}") from e


def _server(where: str, env: list[str] | None, header: list[str] | None, seconds: float) -> "MCPServerConfig":
    from understudy.sources.mcp.config import MCPServerConfig

    place = {"url": where} if where.startswith(("http://", "https://")) else {"command": where}
    return MCPServerConfig.model_validate(
        {
            **place,
            "env": _pairs(env, "--env"),
            "headers": _pairs(header, "--header"),
            "isolation": "shared",
            "start_timeout": seconds,
            "call_timeout": seconds,
        }
    )


def _pairs(words: list[str] | None, option: str) -> dict[str, str]:
    pairs = [word.partition("=") for word in words or ()]
    for name, equals, _ in pairs:
        if not name or not equals:
            raise ConfigError(f"{option} {name!r} is not of the form NAME=VALUE")
    return {name: value for name, _, value in pairs}


def _show(done: float, total: float | None, text: str) -> None:
    print(f"{done:g}{f' of {total:g}' if total else ''} {text}".rstrip(), file=sys.stderr)
