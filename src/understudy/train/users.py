"""The user simulators of a training run."""

from understudy.clients.chat import Budget
from understudy.core.errors import ConfigError
from understudy.envs.task_source import TaskSource, list_sources
from understudy.envs.users import UserSimulatorFactory
from understudy.runs.config import TrainConfig
from understudy.sources.benchmarks.gold_user import USERS_TO_CHOOSE


def make_users(config: TrainConfig, source: TaskSource, budget: Budget | None = None) -> UserSimulatorFactory:
    """Return the users of a run. `budget` counts their cost.

    Raise ConfigError if a person would play them, if their endpoint cannot be used, or if tasks lack scripted users.
    """
    if config.user.kind == "human":
        raise ConfigError("user.kind = 'human': no person can play the users of a training run; choose another kind")
    users = UserSimulatorFactory(config.user, config.endpoints, budget)
    lacking = [leaf.name for leaf in list_sources(source) if leaf.lacks_users]
    if users.is_scripted and lacking:
        raise ConfigError(f"{lacking[0]} has no scripted users; {USERS_TO_CHOOSE}")
    return users
