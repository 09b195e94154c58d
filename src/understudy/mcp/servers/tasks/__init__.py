"""Task sets: for each of our servers, and for several at once, tasks made by rule whose answers are computed.

`mcp:polygon`, `mcp:fmp`, `mcp:tavily`, `mcp:slack`, `mcp:python` and `mcp:several` play against servers with made-up
data on this machine; `mcp:polygon-replay` and so on against recorded answers alone. `make` writes all of it anew.
"""
