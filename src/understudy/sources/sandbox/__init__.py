"""Sandbox: a Python interpreter for untrusted code, in a separate process confined by Linux (`docs/mcp_servers.md`).

`interpreter` is the trusted side. `guest` runs in the process and confines itself before it runs any code; the modules
that it imports (`confine`, `landlock`, `syscalls`) use only the standard library.
"""
