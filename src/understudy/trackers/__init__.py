"""Trackers: metrics where people look. Each is a process of its own that follows the run's metrics.jsonl.

So nothing that a tracker's library does, not an exception, not a network that hangs, not a thread that it starts, can
touch the run; the file is always written, and is all that the run itself knows of.
"""

from understudy.trackers.follow import Trackers
from understudy.trackers.options import About, Tracker, TrackingConfig

__all__ = ["About", "Tracker", "Trackers", "TrackingConfig"]
