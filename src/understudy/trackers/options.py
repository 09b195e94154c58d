"""Which trackers there are, and what each is told of a run. Addresses and keys are in the environment, never here."""

from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from understudy.records import Record

Tracker = Literal["wandb", "tensorboard", "mlflow", "trackio"]


class TrackingConfig(Record):
    """How trackers name what they are sent."""

    project: str = Field(default="understudy", min_length=1)
    """Of wandb and trackio the project, of mlflow the experiment."""
    name: str = ""
    """What the run is called there; its folder's name unless given."""
    entity: str = ""
    """The user or team on wandb; the key's own unless given."""
    offline: bool = False
    """Whether wandb keeps its files in the run's folder, for `wandb sync`, and asks no server."""


class About(Record):
    """A run, as its trackers are told of it."""

    id: str
    """The same each time the run is resumed."""
    folder: Path
    config: dict[str, Any]
    tracking: TrackingConfig = TrackingConfig()

    @property
    def name(self) -> str:
        """What the run is called."""
        return self.tracking.name or self.folder.resolve().name
