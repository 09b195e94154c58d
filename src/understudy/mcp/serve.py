"""Being an MCP server: any tools over standard input and output, or over HTTP on loopback, by the official SDK.

Each client has a session of its own: over standard input it is the process, in memory the connection, over HTTP what
`Mcp-Served-Id` names. The protocol of 2026-07-28 has no sessions over HTTP, so there a client is asked to open one by
the handshake of the protocol before it; the SDK's own client does that by itself.
"""

import asyncio
import socket
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from mcp import MCPError, types
from mcp.server import Server, ServerRequestContext
from mcp.server.context import CallNext, HandlerResult
from mcp.server.stdio import stdio_server
from mcp.types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS
from starlette.types import ASGIApp, Receive, Scope, Send

import understudy
from understudy.errors import ConfigError, ToolError, nearest
from understudy.messages import ToolCall, ToolSpec
from understudy.tools import Tools

HOST = "127.0.0.1"
PATH = "/mcp"
SESSIONS = 64
"""Sessions over HTTP at once."""
IDLE = 1800.0
"""Seconds without a request after which a session over HTTP ends."""
GLANCE = 60.0
"""Seconds between two looks for sessions that have ended."""
_SESSION = "mcp-session-id"


async def _nothing() -> None:
    pass


@dataclass(frozen=True)
class Served:
    """What one client talks to."""

    tools: Tools
    writes: frozenset[str] | None = None
    """The tools that change something; None where nobody knows."""
    resources: Mapping[str, Callable[[], str]] = field(default_factory=dict)
    """JSON documents by address, made anew at each reading."""
    close: Callable[[], Awaitable[None]] = _nothing


@dataclass(frozen=True)
class Offer:
    """What a server offers: `open` makes a session, from the parameters of the address where it comes by HTTP."""

    name: str
    open: Callable[[Mapping[str, str]], Served]
    instructions: str = ""
    close: Callable[[], Awaitable[None]] = _nothing
    """Gives back what the sessions share."""


class Narrowed:
    """Some of the tools: the others are neither shown nor run."""

    def __init__(self, tools: Tools, names: Sequence[str]) -> None:
        known = [spec.name for spec in tools.specs()]
        for wrong in sorted(set(names) - set(known)):
            raise ConfigError(f"there is no tool {nearest(wrong, known)}")
        self._tools, self._names = tools, frozenset(names)

    def specs(self) -> list[ToolSpec]:
        """The tools that are left, in their order."""
        return [spec for spec in self._tools.specs() if spec.name in self._names]

    async def call(self, call: ToolCall) -> str:
        """Run a call of a tool that is left."""
        if call.name not in self._names:
            raise ToolError(f"unknown tool {nearest(call.name, self._names)}", "unknown_tool")
        return await self._tools.call(call)


class _Sessions:
    """What is served to the SDK's sessions over HTTP, by their ids. The SDK does not tell when it ends an idle one."""

    def __init__(self, offer: Offer) -> None:
        self._offer = offer
        self._open: dict[str, Served] = {}
        self._requests = Counter[str]()
        self._used: dict[str, float] = {}

    @contextmanager
    def request(self, name: str) -> Iterator[None]:
        """A request of a session is under way: as the SDK counts it, one that waits for news is a request too."""
        self._requests[name] += 1
        try:
            yield
        finally:
            self._requests -= Counter([name])
            self._used[name] = time.monotonic()

    def find(self, name: str, parameters: Mapping[str, str]) -> Served:
        """What is served to the session of that name, opened where it is new."""
        if name not in self._open:
            self._open[name] = self._offer.open(parameters)
        return self._open[name]

    async def end_idle(self) -> None:
        """Close what sessions have left that the SDK has ended: it does so after `IDLE` without a request."""
        now = time.monotonic()
        for name in [n for n, used in self._used.items() if not self._requests[n] and now - used > IDLE + GLANCE]:
            await self.end(name)

    async def end(self, name: str) -> None:
        """Close what is served to a session, if it is open."""
        self._used.pop(name, None)
        if session := self._open.pop(name, None):
            await session.close()

    async def end_all(self) -> None:
        """Close every session."""
        for name in list(self._open):
            await self.end(name)

    async def watch(self) -> None:
        """Close what is idle, for ever."""
        while True:
            await asyncio.sleep(GLANCE)
            await self.end_idle()


Context = ServerRequestContext[Any, Any]
Find = Callable[[Context], Awaitable[Served]]


def server(offer: Offer) -> Server[Any]:
    """A server for one connection at a time: over standard input and output, or in memory."""

    @asynccontextmanager
    async def lifespan(_: Server[Any]) -> AsyncIterator[Served]:
        session = offer.open({})
        try:
            yield session
        finally:
            await session.close()
            await offer.close()

    async def find(context: Context) -> Served:
        session: Served = context.lifespan_context
        return session

    return _server(offer, find, lifespan)


def http_app(offer: Offer) -> ASGIApp:
    """The same over HTTP at `/mcp`, with a session for each client. Only loopback's own names are served."""
    sessions = _Sessions(offer)

    @asynccontextmanager
    async def lifespan(_: Server[Any]) -> AsyncIterator[None]:
        watch = asyncio.create_task(sessions.watch())
        try:
            yield None
        finally:
            watch.cancel()
            await sessions.end_all()
            await offer.close()

    async def find(context: Context) -> Served:
        request: Any = context.request
        try:
            return sessions.find(request.headers[_SESSION], request.query_params)
        except ConfigError as e:
            raise MCPError(types.INVALID_PARAMS, str(e)) from e

    made = _server(offer, find, lifespan)
    made.middleware.append(_handshake_only)
    inner = made.streamable_http_app(
        host=HOST, streamable_http_path=PATH, session_idle_timeout=IDLE, max_sessions=SESSIONS
    )

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        name = dict(scope.get("headers", ())).get(_SESSION.encode(), b"").decode("latin-1")
        with sessions.request(name) if name else nullcontext():
            await inner(scope, receive, send)
        if name and scope.get("method") == "DELETE":
            await sessions.end(name)

    return app


async def serve_stdio(offer: Offer) -> None:
    """Serve one client over standard input and output, until it leaves."""
    made = server(offer)
    async with stdio_server() as (incoming, outgoing):
        await made.run(incoming, outgoing, made.create_initialization_options())


async def serve_http(offer: Offer, port: int) -> None:
    """Serve over HTTP on loopback until interrupted; port 0 takes a free one. The address goes to standard error."""
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((HOST, port))
            listening.listen(128)  # who reads the address may connect at once
        except OSError as e:
            raise ConfigError(f"port {port} on {HOST} cannot be had ({e.strerror}); choose another one") from e
        print(f"{offer.name} is at http://{HOST}:{listening.getsockname()[1]}{PATH}", file=sys.stderr, flush=True)
        await uvicorn.Server(uvicorn.Config(http_app(offer), log_level="warning")).serve([listening])


async def _handshake_only(ctx: Context, call_next: CallNext) -> HandlerResult:
    """Ask a client of the protocol without sessions to open one by the handshake."""
    if ctx.protocol_version in MODERN_PROTOCOL_VERSIONS:
        data = {"supported": list(HANDSHAKE_PROTOCOL_VERSIONS), "requested": ctx.protocol_version}
        raise MCPError(types.UNSUPPORTED_PROTOCOL_VERSION, "this server has sessions; open one by initialize", data)
    return await call_next(ctx)


def _server(offer: Offer, find: Find, lifespan: Any) -> Server[Any]:
    async def list_tools(context: Context, _: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        session = await find(context)
        return types.ListToolsResult(tools=[_tool(spec, session.writes) for spec in session.tools.specs()])

    async def call_tool(context: Context, asked: types.CallToolRequestParams) -> types.CallToolResult:
        session = await find(context)
        try:
            text = await session.tools.call(ToolCall(name=asked.name, arguments=asked.arguments or {}))
        except (ToolError, ConfigError) as e:
            return types.CallToolResult(content=[types.TextContent(text=str(e))], is_error=True)
        return types.CallToolResult(content=[types.TextContent(text=text)])

    async def list_resources(context: Context, _: types.PaginatedRequestParams | None) -> types.ListResourcesResult:
        uris = (await find(context)).resources
        listed = [types.Resource(name=u.rpartition("/")[2], uri=u, mime_type="application/json") for u in uris]
        return types.ListResourcesResult(resources=listed)

    async def read_resource(context: Context, asked: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        resources = (await find(context)).resources
        if asked.uri not in resources:
            raise MCPError(types.INVALID_PARAMS, f"there is no resource {nearest(asked.uri, resources)}")
        text = resources[asked.uri]()
        contents = types.TextResourceContents(uri=asked.uri, mime_type="application/json", text=text)
        return types.ReadResourceResult(contents=[contents])

    return Server(
        offer.name,
        version=understudy.__version__,
        instructions=offer.instructions or None,
        lifespan=lifespan,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_resources=list_resources,
        on_read_resource=read_resource,
    )


def _tool(spec: ToolSpec, writes: frozenset[str] | None) -> types.Tool:
    hints = None if writes is None else types.ToolAnnotations(read_only_hint=spec.name not in writes)
    return types.Tool(name=spec.name, description=spec.description, input_schema=spec.parameters, annotations=hints)
