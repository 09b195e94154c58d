"""Evaluation of agents: results, statistics, comparisons, and why episodes failed.

Imports `core` to `runs`, without torch.
"""
