"""What can be set about how replies are read."""

from pydantic import Field

from understudy.records import Record


class FormatConfig(Record):
    """How replies are read."""

    tolerant: bool = True
    """Broken calls are repaired where there is one way to, and other dialects are read; without, they are errors."""
    repair_penalty: float = Field(default=0.0, ge=0.0, le=0.5)
    """Taken off the reward that is trained on for each reply that was repaired, 0.5 at most; never in evaluation."""
