"""MCP: tools behind the Model Context Protocol, by the official SDK."""
