"""trackio: a local database (TRACKIO_DIR), or the Hugging Face Space named by TRACKIO_SPACE_ID."""

from collections.abc import Mapping

import trackio

from understudy.runs.trackers.config import TrackerRunInfo
from understudy.runs.trackers.sink import MetricSink


def start_tracker(about: TrackerRunInfo) -> MetricSink:
    """Continue or start the trackio run.

    trackio identifies runs by name, so the name contains the id.
    """
    name = f"{about.name}-{about.id}"
    run = trackio.init(about.tracking.project, name, config=about.config, resume="allow", embed=False)

    def log(step: int, metrics: Mapping[str, float]) -> None:
        run.log(dict(metrics), step=step)

    return MetricSink(log, run.finish)
