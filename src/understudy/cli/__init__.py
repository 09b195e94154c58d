"""The command line, with one small module per verb.

It imports the other packages only when a verb runs, so that each verb loads only what it needs.
"""
