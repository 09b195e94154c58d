"""trackio: a local database (TRACKIO_DIR), or the Space that TRACKIO_SPACE_ID of the environment names."""

from collections.abc import Mapping

import trackio

from understudy.trackers.options import About
from understudy.trackers.sink import Sink


def start(about: About) -> Sink:
    """The run of this name, new or gone on with; trackio knows runs by name, so the id is a part of it."""
    name = f"{about.name}-{about.id}"
    run = trackio.init(about.tracking.project, name, config=about.config, resume="allow", embed=False)

    def log(step: int, metrics: Mapping[str, float]) -> None:
        run.log(dict(metrics), step=step)

    return Sink(log, run.finish)
