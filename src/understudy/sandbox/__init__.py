"""A Python interpreter for code that nobody vouches for: a process of its own that Linux holds in.

`interpreter` is the side that is trusted, `guest` runs in the process and confines itself before it runs anything; what
it imports until then (`confine`, `landlock`, `syscalls`) is the standard library only. `docs/mcp-servers.md` says what
is held by which layer, and what is not.
"""
