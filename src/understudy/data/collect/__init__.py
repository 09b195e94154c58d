"""Collect training conversations from episodes, played now by any agent or stored by a run.

collect plays and stores episodes and writes the files; build_examples selects demonstrations, preference pairs and
labeled examples, with limits for each kind of task.
"""
