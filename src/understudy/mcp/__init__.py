"""MCP: any server of the Model Context Protocol as tools, and as an environment to train in.

All of the protocol is the official SDK's (https://github.com/modelcontextprotocol/python-sdk, package `mcp`).
"""

from understudy.mcp.settings import Limits, ServerConfig
from understudy.mcp.source import MCPSource, open_domain
from understudy.mcp.toolkit import MCPToolkit

__all__ = ["Limits", "MCPSource", "MCPToolkit", "ServerConfig", "open_domain"]
