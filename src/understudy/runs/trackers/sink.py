"""The interface to a tracker's library."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MetricSink:
    """Two functions: `log` takes a step and its metrics, `close` ends the tracker."""

    log: Callable[[int, Mapping[str, float]], object]
    close: Callable[[], object]
