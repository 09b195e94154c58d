"""MCP: the tools of any Model Context Protocol server, and environments that use these tools.

The protocol is implemented by the official SDK (https://github.com/modelcontextprotocol/python-sdk, package `mcp`).
"""
