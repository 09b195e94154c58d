"""The spec of an evaluation, stored as `spec.json` in its folder: which agent plays which tasks, and how."""

from pathlib import Path
from typing import Any

from pydantic import field_validator

from understudy.core.records import Record
from understudy.core.version import __version__
from understudy.runs.config import TrainConfig, missing_added_keys
from understudy.runs.storage.episode_store import EPISODES_FILE, REPORT_FILE, SPEC_FILE, read_store_spec


class EvalSpec(Record):
    """Which agent plays which tasks. Split, tasks, trials and seed are those of the config's `eval`."""

    name: str
    """Name of the agent in tables."""
    agent: str
    """`model`, `api`, `human`, `module:attribute`, or the name of an agent without a model."""
    checkpoint: str = ""
    """Folder of the checkpoint that holds the model's weights. Empty means the weights of `config.model`."""
    repeats: int = 1
    """Number of times that each trial of each task is played, with other episode seeds each time."""
    wordings: dict[str, str] = {}
    """Wordings of the system message, one for each repeat, see `evaluation.prompt_variants`. Empty plays all repeats
    with the message as written."""
    judge_failures: bool = False
    """True if the failure judge is asked for the cause of each failure."""
    version: str = __version__
    config: TrainConfig

    @field_validator("config", mode="before")
    @classmethod
    def _read_earlier(cls, stored: Any) -> Any:
        """Give keys that the earlier version of a stored spec did not know the values with which it played."""
        if not isinstance(stored, dict):
            return stored
        return stored | {name: stored.get(name, {}) | keys for name, keys in missing_added_keys(stored).items()}


def read_spec(folder: Path) -> EvalSpec:
    """Return the spec of the evaluation in a folder."""
    return read_store_spec(folder, EvalSpec)


def is_eval_folder(folder: Path) -> bool:
    """Return whether the folder holds an evaluation, finished or not, even one whose spec is lost."""
    is_finished = all((folder / name).is_file() for name in (EPISODES_FILE, REPORT_FILE))
    return is_finished or (folder / SPEC_FILE).is_file()
