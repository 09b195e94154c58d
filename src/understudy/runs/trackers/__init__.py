"""Experiment trackers: wandb, TensorBoard, MLflow and trackio.

Each tracker is a process of its own that follows the run's metrics.jsonl. Exceptions, network timeouts and threads of
a tracker's library therefore cannot affect the run.
"""

from understudy.runs.trackers.config import (
    TrackerName,
    TrackerRunInfo,
    TrackingConfig,
    default_trackers,
    tracker_module,
    validate_trackers,
)
from understudy.runs.trackers.processes import TrackerProcesses

__all__ = [
    "TrackerName",
    "TrackerProcesses",
    "TrackerRunInfo",
    "TrackingConfig",
    "default_trackers",
    "tracker_module",
    "validate_trackers",
]
