"""MCP server: serve any tools over standard input and output, or over HTTP on loopback, by the official SDK.

Each client has its own session. Over standard input, a session lasts as long as the process. In memory, it lasts as
long as the connection. Over HTTP, the header `Mcp-Session-Id` identifies it.

The protocol of 2026-07-28 has no sessions over HTTP, so the server asks such a client to use the earlier handshake.
The SDK's own client then does so.
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
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from understudy.core.errors import ConfigError, ToolError, did_you_mean
from understudy.core.messages import ToolCall, ToolSpec, index_tools
from understudy.core.version import __version__
from understudy.envs.tools import ToolProvider
from understudy.sources.mcp.catalog import ALIASES_KEY, NAME_ALIASES_KEY

HOST = "127.0.0.1"
PATH = "/mcp"
MAX_SESSIONS = 128
"""The largest number of HTTP sessions."""
MAX_CLIENT_SESSIONS = 64
"""The largest number of HTTP sessions of one client's address."""
SPARE_SECONDS = 60.0
"""Seconds without a request after which an HTTP session ends if a new one needs its place."""
SESSION_IDLE_SECONDS = 1800.0
"""Seconds without a request after which an HTTP session ends."""
SESSION_CHECK_SECONDS = 60.0
"""Seconds between checks for ended sessions."""
_SESSION = "mcp-session-id"


async def _nothing() -> None:
    pass


@dataclass(frozen=True)
class ServedSession:
    """The tools and resources of one client's session."""

    tools: ToolProvider
    write_tools: frozenset[str] | None = None
    """The names of tools that change state; None if unknown."""
    resources: Mapping[str, Callable[[], str]] = field(default_factory=dict)
    """JSON documents by URI. Each read calls the function again."""
    close: Callable[[], Awaitable[None]] = _nothing


@dataclass(frozen=True)
class ServerDefinition:
    """The definition of a server: its name, its instructions, and a function that opens a session.

    `open_session` gets the query parameters of the URL for HTTP clients.
    """

    name: str
    open_session: Callable[[Mapping[str, str]], ServedSession]
    instructions: str = ""
    close: Callable[[], Awaitable[None]] = _nothing
    """Releases resources that all sessions share."""


class FilteredTools:
    """Some of the tools of a `ToolProvider`. The other tools are not listed, and calls of them fail."""

    def __init__(self, tools: ToolProvider, names: Sequence[str]) -> None:
        known = [spec.name for spec in tools.specs()]
        for wrong in sorted(set(names) - set(known)):
            raise ConfigError(f"there is no tool {did_you_mean(wrong, known)}")
        self._tools, self._names = tools, frozenset(names)

    def specs(self) -> list[ToolSpec]:
        """The tools of the subset, in order."""
        return [spec for spec in self._tools.specs() if spec.name in self._names]

    async def call(self, call: ToolCall) -> str:
        """Run a call of a tool in the subset."""
        if call.name not in self._names:
            raise ToolError(f"unknown tool {did_you_mean(call.name, self._names)}", "unknown_tool")
        return await self._tools.call(call)


class _Sessions:
    """The `ServedSession` of each HTTP session, by session id.

    Idle ones are found by their last request, because the SDK does not report when it ends an idle session.
    """

    def __init__(self, offer: ServerDefinition, max_sessions: int = 0) -> None:
        self._offer = offer
        self._max_sessions = max_sessions or MAX_SESSIONS
        self._max_client_sessions = max_sessions or MAX_CLIENT_SESSIONS
        self._open: dict[str, ServedSession] = {}
        self._requests = Counter[str]()
        self._used: dict[str, float] = {}
        self._clients: dict[str, str] = {}
        self._opening = Counter[str]()

    @contextmanager
    def request(self, name: str) -> Iterator[None]:
        """Count a request as active. As in the SDK, a request that waits for notifications counts too."""
        self._requests[name] += 1
        try:
            yield
        finally:
            self._requests -= Counter([name])
            if name in self._clients or name in self._open:  # anyone may send a name that no session has
                self._used[name] = time.monotonic()

    @contextmanager
    def opening(self, client: str) -> Iterator[Callable[[str], None]]:
        """Count a request that may open a session of a client. Yield a function that takes the session's id."""
        waiting = [client]
        self._opening[client] += 1

        def opened(name: str) -> None:
            self._clients[name], self._used[name] = client, time.monotonic()
            self._opening -= Counter(waiting)
            waiting.clear()

        try:
            yield opened
        finally:
            self._opening -= Counter(waiting)

    def full(self, client: str) -> str:
        """Return which limit a new session of the client would exceed, or ""."""
        if self._is_client_full(client):
            return f"at most {self._max_client_sessions} sessions of one client may be open"
        return f"at most {self._max_sessions} sessions may be open" if self._count >= self._max_sessions else ""

    def spare(self, client: str) -> str:
        """Return the session that has had no request for the longest time, at least `SPARE_SECONDS`, or "".

        It is one of the client's own if it has too many, else of any client.
        """
        own = self._is_client_full(client)
        idle = [n for n, of in self._clients.items() if not self._requests[n] and (of == client or not own)]
        longest = min(idle, key=self._used.__getitem__, default="")
        return longest if longest and time.monotonic() - self._used[longest] >= SPARE_SECONDS else ""

    def _is_client_full(self, client: str) -> bool:
        return Counter(self._clients.values())[client] + self._opening[client] >= self._max_client_sessions

    @property
    def _count(self) -> int:
        return len(self._clients) + self._opening.total()

    def find(self, name: str, parameters: Mapping[str, str]) -> ServedSession:
        """Return the `ServedSession` with this session id. Open one if the id is new."""
        if name not in self._open:
            self._open[name] = self._offer.open_session(parameters)
        return self._open[name]

    async def end_idle(self) -> None:
        """Close each session that the SDK has ended after `SESSION_IDLE_SECONDS` without a request."""
        now = time.monotonic()
        for name in [
            n
            for n, used in self._used.items()
            if not self._requests[n] and now - used > SESSION_IDLE_SECONDS + SESSION_CHECK_SECONDS
        ]:
            await self.end(name)

    async def end(self, name: str) -> None:
        """Close the session with this id, if it is open."""
        self._used.pop(name, None)
        self._clients.pop(name, None)
        if session := self._open.pop(name, None):
            await session.close()

    async def end_all(self) -> None:
        """Close every session."""
        for name in list(self._open):
            await self.end(name)

    async def watch(self) -> None:
        """Close idle sessions forever."""
        while True:
            await asyncio.sleep(SESSION_CHECK_SECONDS)
            await self.end_idle()


Context = ServerRequestContext[Any, Any]
FindSession = Callable[[Context], Awaitable[ServedSession]]


def build_server(offer: ServerDefinition) -> Server[Any]:
    """Return a server for one connection at a time, over standard input and output or in memory."""

    @asynccontextmanager
    async def lifespan(_: Server[Any]) -> AsyncIterator[ServedSession]:
        session = offer.open_session({})
        try:
            yield session
        finally:
            await session.close()
            await offer.close()

    async def find(context: Context) -> ServedSession:
        session: ServedSession = context.lifespan_context
        return session

    return _server(offer, find, lifespan)


def build_http_app(offer: ServerDefinition, max_sessions: int = 0) -> ASGIApp:
    """Return an HTTP app that serves `/mcp`, with a session for each client. Only the names of loopback are accepted as
    host. `max_sessions` replaces MAX_SESSIONS and MAX_CLIENT_SESSIONS."""
    sessions = _Sessions(offer, max_sessions)

    @asynccontextmanager
    async def lifespan(_: Server[Any]) -> AsyncIterator[None]:
        watch = asyncio.create_task(sessions.watch())
        try:
            yield None
        finally:
            watch.cancel()
            await sessions.end_all()
            await offer.close()

    async def find(context: Context) -> ServedSession:
        request: Any = context.request
        try:
            return sessions.find(request.headers[_SESSION], request.query_params)
        except ConfigError as e:
            raise MCPError(types.INVALID_PARAMS, str(e)) from e

    made = _server(offer, find, lifespan)
    made.middleware.append(_handshake_only)
    inner = made.streamable_http_app(
        host=HOST,
        streamable_http_path=PATH,
        session_idle_timeout=SESSION_IDLE_SECONDS,
        max_sessions=max_sessions or MAX_SESSIONS,
    )

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        name = dict(scope.get("headers", ())).get(_SESSION.encode(), b"").decode("latin-1")
        if name or scope["type"] != "http":
            with sessions.request(name) if name else nullcontext():
                await inner(scope, receive, send)
            if scope.get("method") == "DELETE":
                await sessions.end(name)
            return
        client = (scope.get("client") or ("",))[0]
        if sessions.full(client) and (spare := sessions.spare(client)):
            await inner(_end_request(scope, spare), _receive_nothing, _discard)
            await sessions.end(spare)
        if reason := sessions.full(client):
            await _refuse(send, reason)
            return

        with sessions.opening(client) as opened:

            async def send_noting_session(message: Message) -> None:
                if name := dict(message.get("headers", ())).get(_SESSION.encode()):
                    opened(name.decode("latin-1"))
                await send(message)

            await inner(scope, receive, send_noting_session)

    return app


def _end_request(scope: Scope, name: str) -> Scope:
    """Return the request that ends a session, in place of another request."""
    host = [(key, value) for key, value in scope["headers"] if key == b"host"]
    return {**scope, "method": "DELETE", "headers": [*host, (_SESSION.encode(), name.encode("latin-1"))]}


async def _receive_nothing() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}


async def _discard(message: Message) -> None:
    pass


async def _refuse(send: Send, reason: str) -> None:
    """Answer that no session can be opened, with an error that a client of the protocol shows."""
    error = types.JSONRPCError(jsonrpc="2.0", id=None, error=types.ErrorData(code=types.INTERNAL_ERROR, message=reason))
    headers = [(b"content-type", b"application/json"), (b"retry-after", str(int(SPARE_SECONDS)).encode())]
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body", "body": error.model_dump_json(by_alias=True).encode()})


async def serve_stdio(offer: ServerDefinition) -> None:
    """Serve one client over standard input and output until it disconnects."""
    made = build_server(offer)
    async with stdio_server() as (incoming, outgoing):
        await made.run(incoming, outgoing, made.create_initialization_options())


async def serve_http(offer: ServerDefinition, port: int) -> None:
    """Serve over HTTP on loopback until interrupted. Port 0 takes a free port. The URL is printed to standard error."""
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((HOST, port))
            listening.listen(128)  # who reads the address may connect at once
        except OSError as e:
            raise ConfigError(f"port {port} on {HOST} is not available ({e.strerror}); choose another one") from e
        print(f"{offer.name} is at http://{HOST}:{listening.getsockname()[1]}{PATH}", file=sys.stderr, flush=True)
        # The agent's model may think for longer than the default, after which an idle connection would be closed.
        config = uvicorn.Config(build_http_app(offer), log_level="warning", timeout_keep_alive=75)
        await uvicorn.Server(config).serve([listening])


async def _handshake_only(ctx: Context, call_next: CallNext) -> HandlerResult:
    """Ask a client of the protocol without sessions to use the earlier handshake."""
    if ctx.protocol_version in MODERN_PROTOCOL_VERSIONS:
        data = {"supported": list(HANDSHAKE_PROTOCOL_VERSIONS), "requested": ctx.protocol_version}
        raise MCPError(types.UNSUPPORTED_PROTOCOL_VERSION, "this server needs a session; send initialize first", data)
    return await call_next(ctx)


def _server(offer: ServerDefinition, find: FindSession, lifespan: Any) -> Server[Any]:
    async def list_tools(context: Context, _: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        session = await find(context)
        return types.ListToolsResult(tools=[_tool(spec, session.write_tools) for spec in session.tools.specs()])

    async def call_tool(context: Context, asked: types.CallToolRequestParams) -> types.CallToolResult:
        session = await find(context)
        spec, arguments = index_tools(session.tools.specs()).get(asked.name), asked.arguments or {}
        made = ToolCall(name=asked.name, arguments=arguments)
        if spec:
            made = ToolCall(name=spec.name, arguments=spec.resolve_aliases(arguments))
        try:
            text = await session.tools.call(made)
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
            raise MCPError(types.INVALID_PARAMS, f"there is no resource {did_you_mean(asked.uri, resources)}")
        text = resources[asked.uri]()
        contents = types.TextResourceContents(uri=asked.uri, mime_type="application/json", text=text)
        return types.ReadResourceResult(contents=[contents])

    return Server(
        offer.name,
        version=__version__,
        instructions=offer.instructions or None,
        lifespan=lifespan,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_resources=list_resources,
        on_read_resource=read_resource,
    )


def _tool(spec: ToolSpec, writes: frozenset[str] | None) -> types.Tool:
    hints = None if writes is None else types.ToolAnnotations(read_only_hint=spec.name not in writes)
    meta: dict[str, Any] = {ALIASES_KEY: spec.aliases} if spec.aliases else {}
    if spec.name_aliases:
        meta[NAME_ALIASES_KEY] = list(spec.name_aliases)
    return types.Tool(
        name=spec.name,
        description=spec.description,
        input_schema=spec.parameters,
        annotations=hints,
        _meta=meta or None,
    )
