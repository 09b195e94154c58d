"""An MCP server with the standard library only, because importing the SDK takes a second.

`PlainServer` has what `unruly.py` uses of the SDK's `MCPServer`, under the same names: tools, progress and changes of
the tools, over stdio and streamable HTTP, in the protocol of 2026-07-28 and in the older ones. A tool that is a
function runs in its own thread, and one that is a coroutine blocks the server.
"""

import itertools
import json
import os
import sys
import threading
from collections.abc import Callable, Coroutine
from typing import Any

MODERN = "2026-07-28"
COMPLETE = {"resultType": "complete", "cacheScope": "private", "ttlMs": 0}
CO_COROUTINE = 128  # as in inspect, which is slow to import
TYPES = {int: "integer", float: "number", str: "string"}
Send = Callable[[dict[str, Any]], None]


class ToolError(Exception):
    """The error of a call, whose text the client gets."""


def TextResourceContents(uri: str, text: str) -> dict[str, Any]:
    return {"uri": uri, "text": text}


def EmbeddedResource(resource: dict[str, Any]) -> dict[str, Any]:
    return {"type": "resource", "resource": resource}


def ImageContent(data: str, mime_type: str) -> dict[str, Any]:
    return {"type": "image", "data": data, "mimeType": mime_type}


class Session:
    """The notifications of a client with an older protocol."""

    def __init__(self, send: Send) -> None:
        self._send = send

    async def send_tool_list_changed(self) -> None:
        self._send({"method": "notifications/tools/list_changed"})


class Context:
    """The notifications that a call may send."""

    def __init__(self, server: "PlainServer", send: Send, meta: dict[str, Any]) -> None:
        self.session, self._server, self._send, self._meta = Session(send), server, send, meta

    async def report_progress(self, progress: float, total: float, message: str) -> None:
        if "progressToken" in self._meta:
            params = {"progressToken": self._meta["progressToken"], "progress": progress, "total": total}
            self._send({"method": "notifications/progress", "params": {**params, "message": message}})

    async def notify_tools_changed(self) -> None:
        for listener in self._server.listeners:
            params = {"_meta": {"io.modelcontextprotocol/subscriptionId": listener}}
            self._send({"method": "notifications/tools/list_changed", "params": params})


class PlainServer:
    """A server of functions as tools."""

    def __init__(self, name: str) -> None:
        self._name, self._tools = name, dict[str, Callable[..., Any]]()
        self.listeners = list[Any]()
        self._capabilities = {"tools": {"listChanged": True}}
        self._writing = threading.Lock()

    def tool(self, **_: bool) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Return a decorator that offers a function as a tool, with the parameters of its annotations."""
        return lambda function: self._tools.setdefault(function.__name__, function)

    def remove_tool(self, name: str) -> None:
        del self._tools[name]

    def run(self, transport: str = "stdio", port: int = 0) -> None:
        """Serve until standard input ends, or without end over HTTP."""
        if transport == "streamable-http":
            self._capabilities = {"tools": {"listChanged": False}}
            self._serve_http(port)
        for line in sys.stdin:
            self._receive(json.loads(line), self._write, in_thread=True)

    def _write(self, message: dict[str, Any]) -> None:
        data = _encoded(message) + b"\n"
        with self._writing:
            while data:
                data = data[os.write(1, data) :]

    def _receive(self, message: dict[str, Any], send: Send, *, in_thread: bool) -> None:
        """Send the reply to a request. Notifications are ignored."""
        if "id" not in message:
            return
        method, params = message["method"], message.get("params") or {}
        function = self._tools.get(params.get("name", ""))
        if method == "subscriptions/listen":
            self.listeners.append(message["id"])
            shown = {"_meta": {"io.modelcontextprotocol/subscriptionId": message["id"]}, "notifications": {}}
            send({"method": "notifications/subscriptions/acknowledged", "params": shown})
        elif method != "tools/call" or function is None:
            send({"id": message["id"], **self._reply(method, params)})
        else:
            call = function, params, send, message["id"]
            if in_thread and not function.__code__.co_flags & CO_COROUTINE:
                threading.Thread(target=self._call, args=call, daemon=True).start()
            else:
                self._call(*call)

    def _reply(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        about = {"capabilities": self._capabilities, "serverInfo": {"name": self._name, "version": "1"}}
        if method == "initialize":
            return {"result": {"protocolVersion": params["protocolVersion"], **about}}
        if method == "server/discover":
            return {"result": {"supportedVersions": [MODERN], **about, **COMPLETE}}
        if method == "tools/list":
            return {"result": {"tools": [*map(_listed, self._tools.values())], **COMPLETE}}
        if method == "ping":
            return {"result": {}}
        return {"error": {"code": -32601, "message": f"Method not found: {method} {params.get('name', '')}"}}

    def _call(self, function: Callable[..., Any], params: dict[str, Any], send: Send, request: Any) -> None:
        given = params.get("arguments") or {}
        try:
            arguments = {name: kind(given[name]) for name, kind in _parameters(function).items()}
            if "context" in function.__annotations__:
                arguments["context"] = Context(self, send, params.get("_meta") or {})
            value = function(**arguments)
            result = _result(_awaited(value) if isinstance(value, Coroutine) else value)
        except Exception as e:  # noqa: BLE001
            text = f"Error executing tool {function.__name__}: {e}"
            result = {"content": [{"type": "text", "text": text}], "isError": True, "resultType": "complete"}
        send({"id": request, "result": result})

    def _serve_http(self, port: int) -> None:
        """Answer with events of a stream, and in the protocol of 2026-07-28 with JSON if there is only one message."""
        from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

        receive, sessions = self._receive, itertools.count()

        class Handler(BaseHTTPRequestHandler):
            protocol_version, wbufsize = "HTTP/1.1", -1

            def log_message(self, *_: object) -> None:
                pass

            def do_GET(self) -> None:
                self._answer(405, "text/plain", b"")

            def do_DELETE(self) -> None:
                self._answer(200, "text/plain", b"")

            def do_POST(self) -> None:
                message, sent = json.loads(self.rfile.read(int(self.headers["content-length"]))), list[bytes]()
                receive(message, lambda each: sent.append(_encoded(each)), in_thread=False)
                if not sent:
                    self._answer(202, "text/plain", b"")
                elif len(sent) == 1 and self.headers.get("mcp-protocol-version") == MODERN:
                    self._answer(200, "application/json", sent[0])
                else:
                    events = b"".join(b"event: message\r\ndata: " + each + b"\r\n\r\n" for each in sent)
                    headers = {"mcp-session-id": f"{next(sessions)}"} if message["method"] == "initialize" else {}
                    self._answer(200, "text/event-stream", events, **headers)

            def _answer(self, status: int, kind: str, body: bytes, **headers: str) -> None:
                self.send_response(status)
                headers |= {"content-type": kind, "content-length": str(len(body))}
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

        ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


def _encoded(message: dict[str, Any]) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **message}).encode()


def _parameters(function: Callable[..., Any]) -> dict[str, type]:
    return {name: kind for name, kind in function.__annotations__.items() if name not in ("return", "context")}


def _listed(function: Callable[..., Any]) -> dict[str, Any]:
    """Return a tool as `tools/list` lists it. All parameters are required."""
    properties = {name: {"type": TYPES[kind]} for name, kind in _parameters(function).items()}
    schema = {"type": "object", "properties": properties, **({"required": [*properties]} if properties else {})}
    listed = {"name": function.__name__, "description": function.__doc__, "inputSchema": schema}
    if function.__annotations__["return"] is str:
        text = {"type": "object", "properties": {"result": {"type": "string"}}, "required": ["result"]}
        return {**listed, "outputSchema": text}
    return listed


def _result(value: str | dict[str, Any] | list[Any]) -> dict[str, Any]:
    """Return the result of a call: its content, and the same as structured content unless it is a list."""
    parts = value if isinstance(value, list) else [value if isinstance(value, str) else json.dumps(value, indent=2)]
    result: dict[str, Any] = {"isError": False, "resultType": "complete"}
    result["content"] = [{"type": "text", "text": part} if isinstance(part, str) else part for part in parts]
    if not isinstance(value, list):
        result["structuredContent"] = value if isinstance(value, dict) else {"result": value}
    return result


def _awaited(work: Coroutine[Any, Any, Any]) -> Any:
    """Return the result of a coroutine that never waits."""
    try:
        work.send(None)
    except StopIteration as e:
        return e.value
    raise RuntimeError("a tool waits")
