"""Checks of sources and tasks before training.

check           plays the frozen tasks of a source with gold and with noop, and compares them
verify          checks that a task can be trained on
probe           plays calls and replies that no good agent makes; `invented_calls` makes the calls
repeated        environments of episodes that were played before
evidence        what gold reads, and which of its reads are needed
adversarial/    scripted strategies that must earn nothing
"""
