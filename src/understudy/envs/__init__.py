"""The contract of environments: state, tools, rewards, users, task sources, and `Domain`.

This package imports only `core`, `formats` and `clients`.
"""
