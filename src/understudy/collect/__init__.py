"""Conversations to learn from, out of episodes: played now by any agent, or stored by a run.

episodes   where the episodes come from, and how those of an interrupted attempt are kept
lessons    which of them are demonstrations, pairs or judgements, how many of each kind of task, and what is left out
cli        the verb `understudy data collect`
"""
