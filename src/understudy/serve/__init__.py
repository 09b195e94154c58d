"""A chat-completions server for a local model, with token-exact conversations.

It imports `core`, `formats` and `engines`.
"""
