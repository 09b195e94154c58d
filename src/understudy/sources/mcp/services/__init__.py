"""Tools of web services, as MCP servers offer them.

The module of each service names the public API documentation that it follows.
"""
