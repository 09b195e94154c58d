"""MCP servers of this package: a sandboxed Python interpreter, every domain, and the web services of `services`."""
