"""Environments: the state, tools, users and rewards of an episode, and the domains and benchmarks that define tasks.

This package imports only `core`, `formats` and `clients`.
"""
