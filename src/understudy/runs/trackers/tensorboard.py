"""TensorBoard: writes event files to the run's folder by tensorboardX, which does not need torch."""

import time
from collections.abc import Mapping

from tensorboardX import SummaryWriter

from understudy.runs.trackers.config import TrackerRunInfo
from understudy.runs.trackers.sink import MetricSink


def start_tracker(about: TrackerRunInfo) -> MetricSink:
    """Open a new event file of the run. TensorBoard shows all event files of a folder as one run."""
    # tensorboardX names files by the second: a run resumed within that second would overwrite the file
    writer = SummaryWriter(str(about.folder / "trackers" / "tensorboard"), filename_suffix=f".{time.time_ns()}")

    def log(step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            writer.add_scalar(name, value, step)
        writer.flush()

    return MetricSink(log, writer.close)
