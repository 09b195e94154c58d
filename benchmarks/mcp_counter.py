"""An MCP server with a counter, for `mcp_servers.py`."""

from mcp.server import MCPServer

server, state = MCPServer("counter"), {"count": 0}


@server.tool()
def add(amount: int) -> str:
    """Add to the count."""
    state["count"] += amount
    return f"the count is {state['count']}"


@server.tool()
def reset() -> str:
    """Set the count to 0."""
    state["count"] = 0
    return "done"


server.run()
