"""Assess: evaluations from the command line, kept so that they can be gone on with, scored again, and compared.

sitting     one evaluation: who plays what, its folder, and all that it comes to
rescore     episodes that were stored, scored again by the environment of today
compare     two evaluations side by side
stored      episodes on disk with what made them, an evaluation's or a run's
why         why those failed; forks what they are gone on with from
inspect_log the episodes as a log that Inspect reads
cli         the verbs `understudy eval` and `understudy compare`
"""
