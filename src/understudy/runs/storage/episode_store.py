"""EpisodeStore: stores episodes as they end, so that an interrupted or killed evaluation can be resumed.

The folder has `spec.json`, the spec of the evaluation, and `episodes.jsonl`. Episodes that failed by a fault that is
not the agent's are not stored, and are played again. All episodes of a folder have the same spec.
"""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Generic, TypeVar

from pydantic import ValidationError

from understudy.clients.cost import COST_FILE
from understudy.core.errors import ConfigError, no_such_path
from understudy.core.files import RETRY_HINT, append_bytes, atomic_write, os_errors_as_config_errors, repair_jsonl
from understudy.core.records import Record
from understudy.core.settings import config_differences
from understudy.core.trajectory import StopReason, Trajectory, read_trajectories, trajectory_to_jsonl
from understudy.runs.config import TrainConfig

R = TypeVar("R", bound=Record)
SPEC_FILE, EPISODES_FILE, REPORT_FILE = "spec.json", "episodes.jsonl", "report.json"
"""Files of an evaluation's folder, see `evaluation.runner`."""
REPLY_CACHE_FOLDER = "replies"
"""Folder of the replies of endpoints. It is removed when the evaluation is finished."""


class EpisodeStore(Generic[R]):
    """The stored episodes of a folder. With `strip_tokens` they are stored without their tokens.

    Raise ConfigError if the folder has another spec, is damaged, or cannot be written.
    """

    def __init__(self, folder: Path, spec: R, strip_tokens: bool = False) -> None:
        self.folder, self._strip_tokens = folder, strip_tokens
        self._file = folder / EPISODES_FILE
        with os_errors_as_config_errors(folder, RETRY_HINT):
            folder.mkdir(parents=True, exist_ok=True)
            self._begin(spec)
            repair_jsonl(self._file)
        self.episodes = {(episode.task_id, episode.seed): episode for episode in read_episodes(self._file)}

    def find(self, task: str, seeds: Iterable[int]) -> Trajectory | None:
        """Return the stored episode of a task with one of these seeds, or None."""
        return next((self.episodes[task, seed] for seed in seeds if (task, seed) in self.episodes), None)

    def add(self, episode: Trajectory) -> Trajectory:
        """Store an episode unless it ended by a fault that is not the agent's. Return it as it is stored.

        Raise ConfigError if it cannot be written. The file is then unchanged.
        """
        if episode.stop_reason is StopReason.FAULT:
            return episode
        stored = strip_tokens(episode) if self._strip_tokens else episode
        with os_errors_as_config_errors(self.folder, "continue with --resume"):
            append_bytes(self._file, trajectory_to_jsonl(stored))
        self.episodes[stored.task_id, stored.seed] = stored
        return stored

    def add_missing(self, episodes: Iterable[Trajectory]) -> None:
        """Store the episodes that are not stored yet."""
        for episode in episodes:
            if (episode.task_id, episode.seed) not in self.episodes:
                self.add(episode)

    def _begin(self, spec: R) -> None:
        head = self.folder / SPEC_FILE
        if not head.exists():
            atomic_write(head, spec.model_dump_json(indent=1) + "\n")
        validate_same_spec(self.folder, spec)


def strip_tokens(episode: Trajectory) -> Trajectory:
    """Return the episode without its tokens, which use most of its memory."""
    branches = [replace(branch, tokens=[], mask=[], logprobs=[], sampling_masks=[]) for branch in episode.branches]
    return replace(episode, tokens=[], mask=[], logprobs=[], sampling_masks=[], branches=branches)


def with_reply_cache(config: TrainConfig, folder: Path) -> TrainConfig:
    """Return the config with a reply cache in the folder for each endpoint that has none."""
    cache = str(folder / REPLY_CACHE_FOLDER)
    cached = {
        name: each if each.cache_dir else each.replace(cache_dir=cache) for name, each in config.endpoints.items()
    }
    return config.replace(endpoints=cached)


def validate_same_spec(folder: Path, spec: Record) -> None:
    """Raise ConfigError if the folder was started with another spec."""
    if changed := config_differences(read_store_spec(folder, type(spec)), spec):
        text = f"{folder} was started with different options (stored / given): {'; '.join(changed)}"
        raise ConfigError(f"{text}; give the stored options, or remove the folder to start again")


def has_progress(folder: Path) -> bool:
    """Return whether the folder has an episode or a paid reply."""
    files = (folder / EPISODES_FILE, folder / COST_FILE)
    return any(file.is_file() and file.stat().st_size for file in files)


def read_store_spec(folder: Path, spec_type: type[R]) -> R:
    """Return the spec of a folder. Raise ConfigError if it is missing or damaged."""
    try:
        return spec_type.model_validate_json((folder / SPEC_FILE).read_bytes())
    except OSError as e:
        why = f"it has no readable {SPEC_FILE}" if folder.exists() else no_such_path(str(folder))
        raise ConfigError(f"{folder} is not a folder of stored episodes: {why}") from e
    except ValidationError as e:
        raise ConfigError(f"{folder / SPEC_FILE} is damaged; remove its folder to start again") from e


def read_episodes(file: Path) -> list[Trajectory]:
    """Return the episodes of a JSONL file. Raise ConfigError for a damaged line."""
    whole, damaged = read_trajectories(file)
    if damaged:
        raise ConfigError(f"{damaged[0]}; remove that line (its episode is then missing or played again)")
    return whole
