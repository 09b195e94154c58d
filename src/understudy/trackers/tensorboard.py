"""TensorBoard: event files in the run's folder, by tensorboardX, which needs no torch."""

import time
from collections.abc import Mapping

from tensorboardX import SummaryWriter

from understudy.trackers.options import About
from understudy.trackers.sink import Sink


def start(about: About) -> Sink:
    """A further event file of the run; TensorBoard shows all of a folder as one run."""
    # its files are named by the second: one that goes on within that would write over the one before
    writer = SummaryWriter(str(about.folder / "trackers" / "tensorboard"), filename_suffix=f".{time.time_ns()}")

    def log(step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            writer.add_scalar(name, value, step)
        writer.flush()

    return Sink(log, writer.close)
