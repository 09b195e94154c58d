"""Dialects: how model families write calls as text. One module a family, and each both writes and reads.

A module has `OPENINGS` (what a call begins with: its first character, and a pattern for the rest), `read`, which takes
what begins there into the scan and gives where it ends, and `write`, the inverse.
"""
