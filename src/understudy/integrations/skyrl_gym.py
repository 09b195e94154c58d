"""Environments for stock SkyRL (https://docs.skyrl.ai): every domain, benchmark and MCP environment as a skyrl-gym one.

    from understudy.integrations import skyrl_gym
    skyrl_gym.register()                    # in the process that generates, such as SkyRL's entry point on Ray

makes the environments known that the rows of `understudy data convert` name. By SkyRL's own function, the first is

    register(id="tau_bench", entry_point="understudy.integrations.skyrl_gym:TaskEnv", kwargs={"dialect": "json"})

A row names its source and holds its task; see `data.rows`. SkyRL calls `init`, `step` and `close` in a pool of threads
(`environment.skyrl_gym.max_env_workers`), and a thread waits while the environment works. What is asynchronous here,
servers and users behind an endpoint, runs in one event loop in a thread of its own.

What stock SkyRL cannot do, and our rollout as its generator can: a fault of the machinery (`RolloutError`) ends SkyRL's
step, because it has no episode without a reward, and none is trained as 0 here. An episode whose context is full ends
without being scored, and SkyRL takes its reward for 0.
"""

import dataclasses
import functools
import hashlib
from collections.abc import Mapping
from typing import Any

import skyrl_gym
from pydantic import ValidationError
from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput

from understudy.domains.base import Slice, TaskSource, find
from understudy.errors import ConfigError, RolloutError, TaskError, nearest
from understudy.formats.options import Dialect
from understudy.integrations.background import Background
from understudy.integrations.text_episode import Said, TextEpisode
from understudy.records import Record
from understudy.tasks import Task
from understudy.users import Cast, UserConfig

ENV_CLASSES = ("tau_bench", "MCPToolEnv")
"""What rows say in their column `env_class`: of domains and benchmarks, and of MCP environments."""
MAX_TURNS = 30
"""Replies of an episode where SkyRL does not say; it always does, by `generator.max_turns`."""
_BACKGROUND = Background()
_ROWS = "as `understudy data convert` writes them"


class TaskEnvConfig(Record):
    """What can be set about the environments, by `register`, or where SkyRL's config was given a section for them."""

    source: str = ""
    """Where tasks are played, instead of what their rows name: a domain, `module:attribute`, `mcp:file.toml`."""
    slice: Slice = Slice()
    """What of it the agent is shown: its tools, and how long a policy. Which tasks there are, the rows say."""
    user: UserConfig = UserConfig()
    """Who the agent speaks to. `user.chat.concurrency` and SkyRL's `max_env_workers` both limit how many at once."""
    dialect: Dialect = "hermes"
    """How the model is told to write calls; `hermes` is the way of Qwen2.5 and Qwen3. Others are read all the same, but
    not where their marks are special tokens of the tokenizer, which SkyRL takes out of replies."""
    seed: int = 0
    """Users follow from it and the task: the same ones in all episodes of a task."""


class TaskEnv(BaseTextEnv):  # type: ignore[misc]
    """One episode of the task in a row."""

    def __init__(self, env_config: Any = None, extras: Mapping[str, Any] | None = None, **settings: Any) -> None:
        """`extras` are the row's other columns and `max_turns`. Nothing is opened before `init`."""
        super().__init__()
        extras = extras or {}
        self._config = _config({**settings, **_plain(env_config)})
        self._task, self._named = _task(extras)
        self.max_turns = int(extras.get("max_turns", MAX_TURNS))
        self._episode: TextEpisode | None = None

    def init(self, prompt: list[Said]) -> tuple[list[Said], dict[str, Any]]:
        """The policy with the tools, and the user's opening, instead of the row's prompt, which shows no tools."""
        return _BACKGROUND.run(self._begin()), {}

    def step(self, action: str) -> BaseTextEnvStepOutput:
        """Answer a reply. The reward comes with the last one; until then it is 0."""
        self.turns += 1
        episode = self._begun()
        said = _BACKGROUND.run(self._reply(episode, action))
        score = episode.score
        return BaseTextEnvStepOutput(
            observations=said,
            reward=score.reward if score else 0.0,
            done=score is not None,
            metadata=dict(score.parts) if score else {},
        )

    def close(self) -> None:
        """Give back what the episode holds; nothing where it was never begun."""
        if self._episode:
            _BACKGROUND.run(self._episode.close())

    def get_metrics(self) -> dict[str, Any]:
        """Numbers under the domain's name, such as `retail/success_rate`, of which SkyRL shows the means.

        An episode that SkyRL ended has failed. The parts of the score are those of the episodes that have one.
        """
        episode = self._begun()
        score = episode.score
        numbers = {
            "success_rate": float(score is not None and score.reward == 1.0),
            "average_reward": score.reward if score else 0.0,
            "turns": float(episode.turns),
            "tool_errors": float(episode.errors.total()),
            "malformed_replies": float(episode.replies["malformed"]),
        }
        numbers |= {f"parts/{name}": part for name, part in score.parts.items()} if score else {}
        return {f"{self._task.domain}/{name}": number for name, number in numbers.items()}

    def _begun(self) -> TextEpisode:
        if self._episode is None:
            raise TaskError(f"task {self._task.id}: step before init; SkyRL's generator calls init first")
        return self._episode

    async def _begin(self) -> list[Said]:
        source = _source(self._config.source or self._named, self._config.model_dump_json())
        environment = source.environment(self._task, seed=_seed(self._config.seed, self._task))
        self._episode = TextEpisode(environment, dialect=self._config.dialect, max_turns=self.max_turns)
        try:
            return await self._episode.start()
        except RolloutError:
            await self._episode.close()
            raise

    async def _reply(self, episode: TextEpisode, action: str) -> list[Said]:
        try:
            return await episode.step(action)
        except RolloutError:
            await episode.close()  # SkyRL closes no environment that has failed
            raise


def register(**settings: Any) -> None:
    """Register the environments of all rows with skyrl-gym; `settings` are the keys of `TaskEnvConfig`.

    Raises ConfigError for a wrong one, here rather than in the first episode.
    """
    _config(settings)
    for name in ENV_CLASSES:
        skyrl_gym.register(id=name, entry_point=f"{__name__}:{TaskEnv.__name__}", kwargs=settings)


@functools.lru_cache(maxsize=64)
def _source(name: str, config: str) -> TaskSource:
    """The source of a config as JSON. Only the background's thread asks, so none is opened twice."""
    settings = TaskEnvConfig.model_validate_json(config)
    source, users = find(name).slice(settings.slice), Cast(settings.user)
    return source if users.scripted else source.with_users(users)


def _config(settings: Mapping[str, Any]) -> TaskEnvConfig:
    for key in settings.keys() - TaskEnvConfig.model_fields.keys():
        raise ConfigError(f"the environments have no setting {nearest(key, TaskEnvConfig.model_fields)}")
    try:
        config = TaskEnvConfig.model_validate(settings)
    except ValidationError as e:
        first = e.errors(include_url=False)[0]
        raise ConfigError(f"the environments' {'.'.join(map(str, first['loc']))}: {first['msg']}") from e
    if config.user.kind == "human":
        raise ConfigError("the environments' user.kind = 'human': nobody is at a prompt there; choose another kind")
    return config


def _plain(section: Any) -> dict[str, Any]:
    """A section of SkyRL's config: its dataclass where somebody has added one, else a mapping, empty as it comes."""
    return dataclasses.asdict(section) if dataclasses.is_dataclass(section) else dict(section or {})  # type: ignore[arg-type]


def _task(extras: Mapping[str, Any]) -> tuple[Task, str]:
    """The task of a row, and the source that the row names."""
    try:
        task = Task.model_validate_json(extras["reward_spec"]["ground_truth"])
        return task, extras["extra_info"]["source"]
    except KeyError as e:
        raise TaskError(f"the row has no {e}; it needs reward_spec.ground_truth and extra_info.source, {_ROWS}") from e
    except ValidationError as e:
        raise TaskError(f"reward_spec.ground_truth of the row is not a task as JSON, {_ROWS}") from e


def _seed(seed: int, task: Task) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}/{task.id}".encode()).digest()[:4])
