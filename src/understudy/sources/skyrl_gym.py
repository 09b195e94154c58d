"""Environments for stock SkyRL (https://docs.skyrl.ai): every domain, benchmark and MCP environment for skyrl-gym.

`register` registers the environments that the rows of `understudy data convert` name:

    from understudy.sources import skyrl_gym
    skyrl_gym.register()                    # in the process that generates, such as SkyRL's entry point on Ray

SkyRL's own function does the same:

    register(id="tau_bench", entry_point="understudy.sources.skyrl_gym:TaskEnv", kwargs={"tool_format": "json"})

A row names its source and holds its task; see `sources.task_files.skyrl_rows`. SkyRL calls `init`, `step` and `close` in
threads (`environment.skyrl_gym.max_env_workers`), and a thread blocks while the environment works. Asynchronous work
(servers, users behind an endpoint) runs in one event loop in a separate thread.

Stock SkyRL has three limits. The generator of `train.skyrl` does not have them.
- An infrastructure fault (`RolloutError`) stops the step, because each episode of SkyRL needs a reward, and a fault
  must not be trained as 0.
- An episode whose context is full ends without a score, and SkyRL uses a reward of 0.
- SkyRL tokenizes messages as text, control tokens included. Text that looks like one is escaped here
  (`formats.control_text.escape_control_text`). Control tokens of other forms are not, and neither are replies, which
  SkyRL tokenizes again if it has a custom chat template.
"""

import dataclasses
import functools
import hashlib
from collections.abc import Mapping
from typing import Any

import skyrl_gym
from pydantic import ValidationError
from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput

from understudy.clients.chat import Endpoints
from understudy.core.errors import ConfigError, RolloutError, TaskError, did_you_mean
from understudy.core.event_loop import BACKGROUND_LOOP
from understudy.core.records import Record
from understudy.core.tasks import Task
from understudy.envs.task_source import STRICT_REWARD, PolicyRewardConfig, Slice, TaskSource, with_reward_policy
from understudy.envs.users import UserConfig, UserSimulatorFactory
from understudy.formats.options import ToolFormat
from understudy.sources.loading import load_source
from understudy.sources.text_episode import TextEpisode, TextMessage

ENV_CLASSES = ("tau_bench", "MCPToolEnv")
"""Values of the column `env_class`: `tau_bench` for domains and benchmarks, `MCPToolEnv` for MCP environments."""
MAX_TURNS = 30
"""Replies of an episode if SkyRL does not set `generator.max_turns`."""
_ROWS = "as `understudy data convert` writes them"


class TaskEnvConfig(Record):
    """Settings of the environments, given to `register` or as a section of SkyRL's config."""

    source: str = ""
    """The task source: a domain, `module:attribute` or `mcp:file.toml`. If it is empty, each row names its source."""
    slice: Slice = Slice()
    """`tools` and `domain_policy` of the slice apply to the agent. The rows determine the tasks."""
    reward: PolicyRewardConfig = STRICT_REWARD
    user: UserConfig = UserConfig()
    """The user simulator. The endpoint's `max_concurrency` and SkyRL's `max_env_workers` limit concurrent users."""
    endpoints: Endpoints = {}
    """Endpoints by name, for `user.endpoint`."""
    tool_format: ToolFormat = "hermes"
    """The format of tool calls in the system message; Qwen2.5 and Qwen3 use `hermes`. Other formats are parsed too,
    unless their marks are special tokens, which SkyRL removes from replies."""
    seed: int = 0
    """The seed of users. All episodes of a task have the same user."""


class TaskEnv(BaseTextEnv):  # type: ignore[misc]
    """One episode of a row's task."""

    def __init__(self, env_config: Any = None, extras: Mapping[str, Any] | None = None, **settings: Any) -> None:
        """`extras` holds the row's other columns and `max_turns`. Resources are opened by `init`."""
        super().__init__()
        extras = extras or {}
        self._config = _config({**settings, **_plain(env_config)})
        self._task, self._named = _task(extras)
        self.max_turns = int(extras.get("max_turns", MAX_TURNS))
        self._episode: TextEpisode | None = None

    def init(self, prompt: list[TextMessage]) -> tuple[list[TextMessage], dict[str, Any]]:
        """Return the policy with the tools, and the user's opening. The row's prompt is ignored, as it has no tools."""
        return BACKGROUND_LOOP.run(self._begin()), {}

    def step(self, action: str) -> BaseTextEnvStepOutput:
        """Answer a reply. The last step has the episode's reward, others have 0."""
        self.turns += 1
        episode = self._begun()
        said = BACKGROUND_LOOP.run(self._reply(episode, action))
        score = episode.score
        return BaseTextEnvStepOutput(
            observations=said,
            reward=score.reward if score else 0.0,
            done=score is not None,
            metadata=dict(score.parts) if score else {},
        )

    def close(self) -> None:
        """Release the episode's resources."""
        if self._episode:
            BACKGROUND_LOOP.run(self._episode.close())

    def get_metrics(self) -> dict[str, Any]:
        """Return metrics under the domain's name, such as `retail/success_rate`. SkyRL averages them.

        An episode that SkyRL ended counts as a failure. Only scored episodes have the parts of the score.
        """
        episode = self._begun()
        score = episode.score
        numbers = {
            "success_rate": float(score is not None and score.reward == 1.0),
            "average_reward": score.reward if score else 0.0,
            "turns": float(episode.num_turns),
            "tool_errors": float(episode.error_counts.total()),
            "malformed_replies": float(episode.reply_counts["malformed"]),
        }
        numbers |= {f"parts/{name}": part for name, part in score.parts.items()} if score else {}
        return {f"{self._task.domain}/{name}": number for name, number in numbers.items()}

    def _begun(self) -> TextEpisode:
        if self._episode is None:
            raise TaskError(f"task {self._task.id}: step before init; SkyRL's generator calls init first")
        return self._episode

    async def _begin(self) -> list[TextMessage]:
        source = _source(self._config.source or self._named, self._config.model_dump_json())
        environment = source.environment(self._task, seed=_seed(self._config.seed, self._task))
        self._episode = TextEpisode(environment, tool_format=self._config.tool_format, max_turns=self.max_turns)
        try:
            return await self._episode.start()
        except RolloutError:
            await self._episode.close()
            raise

    async def _reply(self, episode: TextEpisode, action: str) -> list[TextMessage]:
        try:
            return await episode.step(action)
        except RolloutError:
            await episode.close()  # SkyRL closes no environment that has failed
            raise


def register(**settings: Any) -> None:
    """Register the environments of all rows with skyrl-gym. `settings` are keys and values of `TaskEnvConfig`.

    Raise ConfigError if a setting is invalid.
    """
    _config(settings)
    for name in ENV_CLASSES:
        skyrl_gym.register(id=name, entry_point=f"{__name__}:{TaskEnv.__name__}", kwargs=settings)


@functools.lru_cache(maxsize=64)
def _source(name: str, config: str) -> TaskSource:
    """Return the source of a config given as JSON. Only the background thread calls it, so none is opened twice."""
    settings = TaskEnvConfig.model_validate_json(config)
    source = with_reward_policy(load_source(name), settings.reward).slice(settings.slice)
    users = UserSimulatorFactory(settings.user, settings.endpoints)
    return source if users.is_scripted else source.with_users(users)


def _config(settings: Mapping[str, Any]) -> TaskEnvConfig:
    for key in settings.keys() - TaskEnvConfig.model_fields.keys():
        raise ConfigError(f"unknown environment setting {did_you_mean(key, TaskEnvConfig.model_fields)}")
    try:
        config = TaskEnvConfig.model_validate(settings)
    except ValidationError as e:
        first = e.errors(include_url=False)[0]
        raise ConfigError(f"environment setting {'.'.join(map(str, first['loc']))}: {first['msg']}") from e
    if config.user.kind == "human":
        raise ConfigError(
            "environment setting user.kind = 'human' needs a terminal, and SkyRL has none; choose another kind"
        )
    return config


def _plain(section: Any) -> dict[str, Any]:
    """Convert a section of SkyRL's config, a dataclass or a mapping."""
    return dataclasses.asdict(section) if dataclasses.is_dataclass(section) else dict(section or {})  # type: ignore[arg-type]


def _task(extras: Mapping[str, Any]) -> tuple[Task, str]:
    """Return a row's task and source."""
    try:
        task = Task.model_validate_json(extras["reward_spec"]["ground_truth"])
        return task, extras["extra_info"]["source"]
    except KeyError as e:
        raise TaskError(f"the row has no {e}; it needs reward_spec.ground_truth and extra_info.source, {_ROWS}") from e
    except ValidationError as e:
        raise TaskError(f"reward_spec.ground_truth of the row is not a task as JSON, {_ROWS}") from e


def _seed(seed: int, task: Task) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}/{task.id}".encode()).digest()[:4])
