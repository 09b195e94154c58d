"""An MCP server with state and faults. Its first argument names the fault that it starts with.

It speaks the protocol with the standard library, and with `--sdk` as its last argument by the SDK's server.
"""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

if sys.argv[-1] == "--sdk":
    from mcp.server import MCPServer
    from mcp.server.mcpserver import Context
    from mcp.server.mcpserver.exceptions import ToolError
    from mcp.types import EmbeddedResource, ImageContent, TextResourceContents
else:
    from plain_server import Context, EmbeddedResource, ImageContent, TextResourceContents, ToolError
    from plain_server import PlainServer as MCPServer

server = MCPServer("unruly")
state = {"count": 0}
WIRE = os.dup(1)  # the SDK redirects file descriptor 1 while it serves
WRONG = sys.argv[1] if len(sys.argv) > 1 else ""


@server.tool()
def add(amount: int) -> str:
    """Add to the count."""
    state["count"] += amount
    return f"the count is {state['count']}"


@server.tool()
def count() -> dict[str, int]:
    """Return the count."""
    return dict(state)


@server.tool()
def reset() -> str:
    """Set the count to 0."""
    state["count"] = 0
    return "done"


@server.tool()
def fail(reason: str) -> str:
    """Fail with a reason."""
    raise ToolError(reason)


@server.tool(structured_output=False)
def document() -> list[Any]:
    """Return a text, a document and a picture."""
    resource = TextResourceContents(uri="notes://1", text="milk")
    picture = ImageContent(data="AAAA", mime_type="image/png")
    return ["see", EmbeddedResource(resource=resource), picture]


@server.tool()
def say(text: str) -> str:
    """Return the text."""
    return text


@server.tool()
def secret() -> str:
    """Return the API key of the server's environment."""
    return f"the key is {os.environ.get('NOTES_KEY', 'nothing')}"


@server.tool()
def write(path: str, text: str) -> str:
    """Write a file."""
    Path(path).write_text(text, encoding="utf-8")
    return f"wrote {path}"


@server.tool()
def sleep(seconds: float) -> str:
    """Sleep."""
    time.sleep(seconds)
    return "awake"


@server.tool()
async def block(seconds: float) -> str:
    """Block the event loop."""
    time.sleep(seconds)  # noqa: ASYNC251
    return "back"


@server.tool()
async def work(context: Context) -> str:
    """Report progress in two steps."""
    await context.report_progress(1, 2, "half")
    await context.report_progress(2, 2, "whole")
    return "worked"


@server.tool()
def die() -> str:
    """Exit without an answer."""
    os._exit(3)


@server.tool()
def stumble() -> str:
    """Exit at the first call of all, and answer later calls."""
    marker = Path(os.environ["MARKER"])
    if not marker.exists():
        marker.touch()
        os._exit(3)
    return "steady"


@server.tool()
def flood() -> str:
    """Write notifications without end."""
    while True:
        os.write(WIRE, b'{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}\n' * 100)


@server.tool()
def garble(lines: int) -> str:
    """Write lines that are no messages, and then answer."""
    for number in range(lines):
        os.write(WIRE, b"line %d\n" % number)
    return "garbled"


@server.tool()
def babble(megabytes: int) -> str:
    """Return a long text."""
    return "x" * (megabytes << 20)


@server.tool()
async def change(context: Context) -> str:
    """Remove a tool and send the notification."""
    server.remove_tool("count")
    await context.notify_tools_changed()  # the protocol since 2026-07-28; the next line is for older versions
    await context.session.send_tool_list_changed()
    return "changed"


if WRONG == "lingers":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    server.run("stdio")
if WRONG == "silent":
    sys.stdin.read()
if WRONG in ("lingers", "silent"):
    while True:  # even after the client has disconnected
        time.sleep(60)
if WRONG == "exits":
    print("the disk is full", file=sys.stderr)
    sys.exit(1)
if WRONG == "noisy":
    print("Welcome to the unruly server!", flush=True)
if WRONG == "other":
    server.remove_tool("count")
if WRONG == "http":
    server.run("streamable-http", port=int(sys.argv[2]))
server.run()
