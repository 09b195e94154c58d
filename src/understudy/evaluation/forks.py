"""Forks of stored episodes: resolve a reference such as `21/5@3` to the episode, its task and its config."""

import re
from dataclasses import dataclass, replace
from pathlib import Path

from understudy.core.errors import ConfigError
from understudy.core.messages import strip_endpoint_data
from understudy.core.tasks import Task
from understudy.envs.users import UserSimulatorFactory
from understudy.evaluation.request_logs import is_request_log, open_request_log
from understudy.evaluation.stored_episodes import StoredEpisodes, open_stored_episodes
from understudy.rollouts.fork import Fork, fork_at
from understudy.runs.config import TrainConfig
from understudy.runs.eval_spec import is_eval_folder
from understudy.runs.targets import Target

_REFERENCE = re.compile(r"(?:(?P<name>[^/@]+)/)?(?P<number>\d+)(?:@(?P<turn>\d+))?")


@dataclass(frozen=True, slots=True)
class ForkPoint:
    """A fork with the task and the config to continue it with."""

    fork: Fork
    task: Task
    config: TrainConfig
    """The given config. For an episode of another eval set or of a log, with the domain, data and slice of that
    episode."""


def resolve_fork(target: Target, reference: str, config: TrainConfig, task: str = "") -> ForkPoint:
    """Return the fork that a reference names in the folder of a run or an evaluation.

    The reference is `STEP/EPISODE@TURN` in a run and `EPISODE@TURN` in an evaluation or a log of `serve --log`, whose
    tools answer with what was recorded. The turn is 1 if it is not given. `config` is the folder's config, possibly
    with another model or other users. Raise ConfigError for another kind of target, for a `task`, and for an episode
    that is not stored.
    """
    if task:
        raise ConfigError(f"--fork {reference} plays the task of its episode; leave out --task {task}")
    is_log = is_request_log(target.path)
    if not is_log and target.kind not in ("run", "evaluation"):
        text = (
            f"--fork {reference} names an episode of a run, an evaluation or a log, but {target.text} is none of them"
        )
        raise ConfigError(f"{text}; give one")
    stored, number, turn = _named(open_request_log(target.path) if is_log else target.path, reference)
    episode = stored.episode(number)
    found = stored.task(episode)
    if found is None:
        raise ConfigError(
            f"{target.text} does not store the task {episode.task_id}, so an episode of it cannot be forked"
        )
    where = (
        {name: getattr(stored.config, name) for name in ("domain", "data", "slice", "reward")}
        if stored.eval_set or is_log
        else {}
    )
    own = not is_log and (stored.config.model, stored.config.format) == (config.model, config.format)
    if _agent_endpoint(stored.config) != _agent_endpoint(config):
        episode = replace(episode, messages=list(map(strip_endpoint_data, episode.messages)))
    user = stored.config.user if is_log else config.user
    fork = fork_at(episode, turn, UserSimulatorFactory(user, config.endpoints), own)
    return ForkPoint(fork, found, config.replace(**where))


def _agent_endpoint(config: TrainConfig) -> tuple[str, str] | None:
    """Return the address and the model of the agent's endpoint, None if it is not set."""
    endpoint = config.endpoints.get(config.agent_endpoint)
    return (endpoint.base_url, endpoint.model) if endpoint else None


def _named(folder: Path, reference: str) -> tuple[StoredEpisodes, int, int]:
    match, of_run = _REFERENCE.fullmatch(reference), not is_eval_folder(folder)
    if not match or (of_run and not match["name"]):
        shape = "STEP/EPISODE@TURN, such as 21/5@3" if of_run else "EPISODE@TURN, such as 5@3"
        raise ConfigError(f"--fork {reference!r} is not of the form {shape}")
    return open_stored_episodes(folder, match["name"] or ""), int(match["number"]), int(match["turn"] or 1)
