"""MCP: any server of the Model Context Protocol as tools, and as an environment to train in.

All of the protocol is the official SDK's (https://github.com/modelcontextprotocol/python-sdk, package `mcp`).
"""
