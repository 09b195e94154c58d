"""Clients of chat-completions endpoints: requests, retries, a reply cache and costs.

It imports only `core` and `formats`.
"""
