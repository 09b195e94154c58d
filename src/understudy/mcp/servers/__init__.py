"""Our MCP servers: four services on the network, a Python interpreter in a sandbox, and every domain.

The services of others are asked as their public documentation says; where that is stands in each module.
"""
