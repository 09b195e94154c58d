"""Generators of the MCP task sets: tasks written by rules, with answers computed from the data.

`make` writes the tasks and the recorded answers that are part of the package (`mcp:python`, `mcp:polygon-replay`,
...). In its own folder it writes a TOML file for each set, which plays against replicas of the services with made-up
data.
"""
