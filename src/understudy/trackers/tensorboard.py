"""TensorBoard: event files in the run's folder, by tensorboardX, which needs no torch."""

from collections.abc import Mapping

from tensorboardX import SummaryWriter

from understudy.trackers.options import About
from understudy.trackers.sink import Sink


def start(about: About) -> Sink:
    """A further event file of the run; TensorBoard shows all of a folder as one run."""
    writer = SummaryWriter(str(about.folder / "trackers" / "tensorboard"))

    def log(step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            writer.add_scalar(name, value, step)
        writer.flush()

    return Sink(log, writer.close)
