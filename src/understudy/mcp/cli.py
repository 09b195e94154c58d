"""`understudy mcp …`: verbs only; what they need is imported late."""

import asyncio
import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from understudy.errors import ConfigError, ToolError
from understudy.mcp.servers.cli import serve

if TYPE_CHECKING:
    from understudy.mcp.settings import ServerConfig
    from understudy.mcp.toolkit import MCPToolkit

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Tools behind the Model Context Protocol.",
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.command()(serve)

Where = Annotated[
    str, typer.Argument(metavar="COMMAND|URL", help="How the server is started, in quotes, or where it is.")
]
Env = Annotated[list[str] | None, typer.Option("--env", metavar="NAME=VALUE", help="A variable of the server's.")]
Header = Annotated[
    list[str] | None,
    typer.Option("--header", metavar="NAME=VALUE", help="Sent with each request; '${NAME}' is secret."),
]
Seconds = Annotated[float, typer.Option(min=0.1, help="How long the server may take for a start or a call.")]


@app.command()
def tools(
    where: Where,
    env: Env = None,
    header: Header = None,
    seconds: Seconds = 60.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with the schemas.")] = False,
) -> None:
    """List what a server offers."""
    from understudy.mcp.toolkit import MCPToolkit
    from understudy.prompt import tool_list

    async def listed() -> str:
        async with MCPToolkit({"server": _server(where, env, header, seconds)}) as kit:
            specs = [spec.model_dump(exclude={"aliases"}) for spec in kit.specs()]
            return json.dumps(specs, indent=1, ensure_ascii=False) if as_json else tool_list(kit.specs())

    print(asyncio.run(listed()))


@app.command()
def call(
    where: Where,
    tool: Annotated[str, typer.Argument(help="The tool's name.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="NAME=VALUE|JSON", help="Its arguments, or all of them as JSON.")
    ] = None,
    env: Env = None,
    header: Header = None,
    seconds: Seconds = 60.0,
) -> None:
    """Call one tool and print what it answers; progress goes to standard error. A refusal is exit code 1."""
    from understudy.mcp.toolkit import MCPToolkit

    async def answered() -> str:
        servers = {"server": _server(where, env, header, seconds)}
        async with MCPToolkit(servers, on_progress=_show) as kit:
            return await _call(kit, tool, arguments or [])

    try:
        print(asyncio.run(answered()))
    except ToolError as e:
        typer.echo(f"{tool}: {e}", err=True)
        raise typer.Exit(1) from e


async def _call(kit: "MCPToolkit", tool: str, words: list[str]) -> str:
    from understudy.messages import ToolCall
    from understudy.prompt import read_arguments

    schema = next((spec.parameters for spec in kit.specs() if spec.name == tool), {})
    try:
        return await kit.call(ToolCall(name=tool, arguments=read_arguments(words, schema.get("properties", {}))))
    except ValueError as e:
        raise ConfigError(f"the arguments of {tool} cannot be read: {e}") from e


def _server(where: str, env: list[str] | None, header: list[str] | None, seconds: float) -> "ServerConfig":
    from understudy.mcp.settings import ServerConfig

    place = {"url": where} if where.startswith(("http://", "https://")) else {"command": where}
    return ServerConfig.model_validate(
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
