"""The config of trackers, and what they receive about a run.

Addresses and API keys are read from the environment only.
"""

import importlib.util
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from understudy.core.errors import ConfigError, install_hint
from understudy.core.records import Record

TrackerName = Literal["wandb", "tensorboard", "mlflow", "trackio"]
_OTHER_MODULES: Mapping[TrackerName, str] = {"tensorboard": "tensorboardX"}
"""Modules of trackers with another name."""


def tracker_module(name: TrackerName) -> str:
    """Return the name of the module, and of the distribution, that a tracker needs."""
    return _OTHER_MODULES.get(name, name)


def validate_trackers(names: Iterable[TrackerName]) -> None:
    """Raise ConfigError if the module of a tracker is not installed."""
    for name in names:
        module = tracker_module(name)
        if not is_tracker_installed(name):
            raise ConfigError(
                f"trackers: the package {module} is not installed; {install_hint(name)}, or leave {name} out"
            )


def default_trackers() -> tuple[TrackerName, ...]:
    """Return the trackers of a run whose config does not set `trackers`: wandb if it is installed and has a key."""
    has_wandb = bool(os.environ.get("WANDB_API_KEY")) and is_tracker_installed("wandb")
    return ("wandb",) if has_wandb else ()


def is_tracker_installed(name: TrackerName) -> bool:
    """Return whether the module of a tracker can be imported."""
    spec = importlib.util.find_spec(tracker_module(name))
    return spec is not None and spec.origin is not None  # a folder that a tracker wrote here has no origin


class TrackingConfig(Record):
    """Names and options of a run in its trackers."""

    project: str = Field(default="understudy", min_length=1)
    """Project in wandb and trackio, experiment in MLflow."""
    name: str = ""
    """Name of the run in trackers. Empty means the name of its folder."""
    entity: str = ""
    """User or team in wandb. Empty means the default of the API key."""
    offline: bool = False
    """True if wandb only writes files to the run's folder, for `wandb sync`, and connects to no server."""


class TrackerRunInfo(Record):
    """What a tracker receives about its run."""

    id: str
    """Identifier of the run. It does not change when the run is resumed."""
    folder: Path
    config: dict[str, Any]
    tracking: TrackingConfig = TrackingConfig()

    @property
    def name(self) -> str:
        """The name of the run in trackers."""
        return self.tracking.name or self.folder.resolve().name
