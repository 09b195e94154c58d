"""What a tracker's library is to us."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sink:
    """Takes the metrics of one step after another, and is closed."""

    log: Callable[[int, Mapping[str, float]], object]
    close: Callable[[], object]
