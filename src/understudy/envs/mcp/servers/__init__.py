"""MCP servers: four web services, a sandboxed Python interpreter, and every domain.

The module of each web service names the public API documentation that it follows.
"""
