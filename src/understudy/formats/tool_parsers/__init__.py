"""Tool parsers: one module per syntax in which model families write calls as text.

Each module parses and writes its syntax.

A module has `OPENINGS` (how a call begins: its first character and a pattern for the rest), `read_calls`, which adds
the construct that begins there to the scan and returns where it ends, and `render_reply_text`, its inverse.
"""
