"""Environments made for other frameworks, as sources of tasks, with their own rewards. See docs/environments.md."""
