"""Values that every package uses: messages, tasks, trajectories, records, errors, files and settings.

It imports no other package.
"""
