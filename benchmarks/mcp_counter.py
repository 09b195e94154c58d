"""A server that counts, for `mcp_servers.py` to play with."""

from mcp.server import MCPServer

server, state = MCPServer("counter"), {"count": 0}


@server.tool()
def add(amount: int) -> str:
    """Add to the count."""
    state["count"] += amount
    return f"the count is {state['count']}"


@server.tool()
def reset() -> str:
    """Begin anew."""
    state["count"] = 0
    return "done"


server.run()
