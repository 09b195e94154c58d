"""Environments with `reset` and `step`, as sources of tasks: those of OpenEnv, and classes of your own.

The observation of `reset` is the user's first message. Without tools, an action is the text of a reply. With tools,
each call is one, and a text ends the episode. The reward is the sum of the rewards of all steps, also if a limit ends
the episode. `reward_range` scales it to 0 to 1, where 1 is a success. These environments have no gold solution.
"""

import functools
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, get_type_hints

from understudy.core.errors import ConfigError, RolloutError, TaskError, ToolError
from understudy.core.messages import ERROR_PREFIX, Message, ToolCall, ToolSpec
from understudy.core.tasks import SPLITS, Scenario, Score, Split, Task
from understudy.core.user_code import user_code
from understudy.envs.environment import StepResult, ToolEnvironment
from understudy.envs.task_source import FULL_SLICE, Slice, TaskSource, validate_slice
from understudy.envs.tools import AsyncToolkit, render_result
from understudy.envs.users import User

Rows = Mapping[Split, Mapping[str, Mapping[str, Any]]]
"""The arguments of `reset` for each task, by split and by name."""
_SPLIT_SEEDS: Mapping[Split, range] = {"train": range(700), "validation": range(700, 800), "test": range(800, 1000)}
SEEDS: Rows = {split: {f"seed-{seed}": {"seed": seed} for seed in seeds} for split, seeds in _SPLIT_SEEDS.items()}
"""The tasks of an environment that lists none: a thousand seeds."""
UNIT_RANGE = (0.0, 1.0)


@dataclass(frozen=True, slots=True)
class GymObservation:
    """What `reset` and `step` return."""

    text: str
    reward: float = 0.0
    done: bool = False


class GymEnvironment(Protocol):
    """Protocol of one episode of an environment."""

    async def reset(self) -> GymObservation:
        """Start the episode."""

    async def step(self, action: str | ToolCall) -> GymObservation:
        """Take an action: the text of a reply, or a call. Raise `ToolError` if it is not valid."""

    async def close(self) -> None:
        """Release the resources of the episode."""


class GymEpisode(ToolEnvironment):
    """One episode of a `GymEnvironment`."""

    def __init__(
        self,
        domain_policy: str,
        specs: Sequence[ToolSpec],
        environment: GymEnvironment,
        reward_range: tuple[float, float] = UNIT_RANGE,
    ) -> None:
        super().__init__(domain_policy, self, self, self._score, specs)
        self._environment, self._range = environment, reward_range
        self._return, self._done = 0.0, False

    def specs(self) -> Sequence[ToolSpec]:
        """Return the tools."""
        return self.tools

    async def call(self, call: ToolCall) -> str:
        """Take a call as the action, and return the observation. Raise `ToolError` if it is not valid."""
        if self._done:
            raise ToolError("the episode has ended")
        return self._observed(await self._environment.step(call))

    async def reply(self, transcript: Sequence[Message]) -> str | None:
        """Return the observation after a text. A text ends an episode that has tools."""
        if not transcript:
            return self._observed(await self._environment.reset())
        if self.tools:
            return None
        try:
            return self._observed(await self._environment.step(transcript[-1].content))
        except ToolError as e:
            return f"{ERROR_PREFIX}{e}"

    async def start(self) -> StepResult:
        """Return the first observation, and the score if the episode has already ended."""
        return await self._with_score(await super().start())

    async def step(self, reply: Message) -> StepResult:
        """Take the actions of a reply, and return the observations, and the score if the environment is done."""
        return await self._with_score(await super().step(reply))

    async def close(self) -> None:
        """Close the environment."""
        await self._environment.close()

    def _observed(self, observation: GymObservation) -> str:
        self._return += observation.reward
        self._done = observation.done
        return observation.text

    async def _with_score(self, step: StepResult) -> StepResult:
        return replace(step, score=await self.grade(ended=True)) if self._done and step.score is None else step

    def _score(self, transcript: Sequence[Message], ended: bool) -> Score:
        reward = scale_reward(self._return, *self._range)
        return Score(reward=reward, parts={"reward": reward, "within_limits": float(ended)})


@dataclass(frozen=True)
class GymSource(TaskSource):
    """The tasks of an environment with `reset` and `step`."""

    name: str
    open_environment: Callable[[Mapping[str, Any]], Any]
    """Returns a new `GymEnvironment`, or what a subclass plays. The argument is what its `reset` gets."""
    specs: Sequence[ToolSpec] = ()
    """The tools. Without any, an action is the text of a reply."""
    domain_policy: str = ""
    rows: Rows = field(default_factory=lambda: SEEDS)
    reward_range: tuple[float, float] = UNIT_RANGE
    """The least and the largest sum of rewards of an episode."""
    task_slice: Slice = FULL_SLICE
    own_notes: Sequence[str] = ()
    lacks_gold = True

    @property
    def tool_specs(self) -> tuple[ToolSpec, ...]:
        """The tools that the agent sees."""
        return self.task_slice.select_tools(self.specs)

    def notes(self) -> Sequence[str]:
        """Return what a user should know before an episode is played."""
        return self.own_notes

    def slice(self, task_slice: Slice) -> "GymSource":
        """Return this source narrowed to `task_slice`. Raise `ConfigError` for unknown names."""
        validate_slice(self.name, task_slice, self.families, [spec.name for spec in self.specs])
        return replace(self, task_slice=task_slice)

    @property
    def families(self) -> tuple[str, ...]:
        """The one family of the tasks."""
        return (Task.model_fields["family"].default,)

    def tasks(self, split: Split) -> list[Task]:
        """Return the tasks of a split that are in the slice."""
        return self.task_slice.select_tasks([task for task, _ in self._by_id.values() if task.split == split])

    def environment(self, task: Task, user: User | None = None, seed: int = 0) -> ToolEnvironment:
        """Return a new episode of `task`. The environment is its own user, so `user` is refused."""
        self.refuse_user(user)
        environment = self.open_environment(self.find_row(task))
        return GymEpisode(self.domain_policy, self.tool_specs, environment, self.reward_range)

    def refuse_user(self, user: User | None) -> None:
        """Raise ConfigError for a user, whom these environments do not have."""
        if user is not None:
            raise ConfigError(f"{self.name} answers itself and has no user to replace; leave out the user")

    def find_row(self, task: Task) -> Mapping[str, Any]:
        """Return the arguments of `reset` for a task. Raise TaskError if it is of another source."""
        if task.id not in self._by_id:
            raise TaskError(f"{self.name} has no task {task.id}")
        return self._by_id[task.id][1]

    def opening(self, identity: str, row: Mapping[str, Any]) -> str:
        """Return the user's first message, as far as it is known before an episode."""
        return f"{identity}: the environment gives the first message."

    def gold(self, row: Mapping[str, Any]) -> Sequence[Message]:
        """Return the agent's turns of a perfect episode, if they are known."""
        return ()

    def family(self, row: Mapping[str, Any]) -> str:
        """Return the family of a task."""
        return self.families[0]

    @functools.cached_property
    def _by_id(self) -> Mapping[str, tuple[Task, Mapping[str, Any]]]:
        return {task.id: (task, row) for task, row in self._make_tasks()}

    def _make_tasks(self) -> Iterator[tuple[Task, Mapping[str, Any]]]:
        for split in SPLITS:
            for name, row in self.rows.get(split, {}).items():
                identity = f"{self.name}/{name}"
                text = self.opening(identity, row)
                scenario = Scenario(instructions=text, opening=text)
                shown = {"family": self.family(row), "scenario": scenario, "gold": tuple(self.gold(row))}
                yield Task(id=identity, domain=self.name, split=split, **shown), row


def is_gym_class(value: object) -> bool:
    """Return whether a value is a class with `reset` and `step`."""
    return isinstance(value, type) and all(callable(getattr(value, name, None)) for name in ("reset", "step"))


def source_of_class(name: str, environment_class: type) -> GymSource:
    """Return the tasks of a class with `reset` and `step`, each of which is a seed.

    The class may have the attributes `domain_policy`, a text, and `reward_range`. If `step` takes one text, actions are
    the texts of replies; otherwise `step` is a tool. Raise ConfigError for a class that cannot be played.
    """
    step_tools = None if _takes_text(environment_class) else _step_toolkit(environment_class)
    takes_seed = _accepts(environment_class, "seed")
    no_seed = f"{environment_class.__name__}.reset takes no seed, so all tasks are the same, and runs do not repeat"
    return GymSource(
        name,
        lambda row: _PythonEnvironment(environment_class, row if takes_seed else {}, step_tools),
        step_tools.specs() if step_tools else (),
        getattr(environment_class, "domain_policy", ""),
        reward_range=parse_reward_range(name, getattr(environment_class, "reward_range", UNIT_RANGE)),
        own_notes=() if takes_seed else (no_seed,),
    )


def parse_reward_range(name: str, value: Any) -> tuple[float, float]:
    """Return a range of rewards. Raise ConfigError unless it is two finite numbers, the smaller one first."""
    try:
        low, high = map(float, value)
    except (TypeError, ValueError):
        low = high = math.nan
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ConfigError(f"reward_range of {name} is {value!r:.60}; give two finite numbers, such as (-1, 1)")
    return low, high


def scale_reward(reward: Any, low: float, high: float) -> float:
    """Return a reward as its place between `low` and `high`. Raise RolloutError if it is not between them."""
    share = (float(reward) - low) / (high - low)
    if not -1e-6 <= share <= 1.0 + 1e-6:
        raise RolloutError(
            f"the reward is {float(reward):g}, outside of reward_range = {low:g} to {high:g}; declare the range of the "
            "environment (docs/environments.md)",
            "grader",
            is_repeatable=False,
        )
    return min(1.0, max(0.0, share))


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    return list(inspect.signature(function).parameters.values())[1:]


def _accepts(environment_class: type, argument: str) -> bool:
    parameters = _parameters(environment_class.reset)  # type: ignore[attr-defined]
    return any(p.name == argument or p.kind is p.VAR_KEYWORD for p in parameters)


def _takes_text(environment_class: Any) -> bool:
    parameters = _parameters(environment_class.step)
    if not parameters:
        raise ConfigError(f"{environment_class.__name__}.step takes no action; give it a parameter, such as text: str")
    hint = get_type_hints(environment_class.step).get(parameters[0].name, str)
    return len(parameters) == 1 and hint is str


class _StepTools(AsyncToolkit, tools=False):
    """Base of toolkits whose one tool is the `step` of an environment."""

    def __init__(self, environment: Any) -> None:
        self._environment = environment
        self._observation: GymObservation | None = None

    async def take(self, call: ToolCall) -> GymObservation:
        """Return the observation after a call."""
        await self.call(call)
        assert self._observation is not None
        return self._observation

    def _keep(self, result: Any) -> str:
        self._observation = _read_step(result)
        return self._observation.text

    async def _keep_awaited(self, result: Any) -> str:
        return self._keep(await result)


def _step_toolkit(environment_class: Any) -> type[_StepTools]:
    @functools.wraps(environment_class.step)
    def step(self: _StepTools, **arguments: Any) -> Any:
        result = self._environment.step(**arguments)
        return self._keep_awaited(result) if inspect.isawaitable(result) else self._keep(result)

    return type(environment_class.__name__, (_StepTools,), {"step": step})


class _PythonEnvironment:
    """One episode of a class with `reset` and `step`, which may be coroutines."""

    def __init__(
        self, environment_class: Any, reset_arguments: Mapping[str, Any], step_tools: type[_StepTools] | None
    ) -> None:
        self._class, self._reset_arguments, self._step_tools = environment_class, reset_arguments, step_tools
        self._made: Any = None

    async def reset(self) -> GymObservation:
        """Make the environment, and return its first observation."""
        with user_code("environment", f"{self._class.__name__}.reset", self._class.reset):
            self._made = self._class()
            result = self._made.reset(**self._reset_arguments)
            result = await result if inspect.isawaitable(result) else result
            first = result[0] if isinstance(result, tuple) and len(result) == 2 else result
            return GymObservation(render_result("reset", "" if first is None else first))

    async def step(self, action: str | ToolCall) -> GymObservation:
        """Return the observation after an action. The model reads an exception of a call, as that of any tool."""
        if isinstance(action, ToolCall):
            assert self._step_tools is not None
            return await self._step_tools(self._made).take(action)
        refusal = None
        with user_code("environment", f"{self._class.__name__}.step", self._class.step):
            try:
                result = self._made.step(action)
                return _read_step(await result if inspect.isawaitable(result) else result)
            except ToolError as e:
                refusal = e
        raise refusal

    async def close(self) -> None:
        """Call `close` of the environment, if it has one."""
        close = getattr(self._made, "close", None)
        if callable(close):
            with user_code("environment", f"{self._class.__name__}.close", close):
                result = close()
                if inspect.isawaitable(result):
                    await result


def _read_step(result: Any) -> GymObservation:
    """Return what `step` returned, in the form of Gymnasium or of Gym."""
    if not isinstance(result, tuple) or len(result) not in (4, 5):
        raise TypeError(
            f"step returned {result!r:.100}; return (observation, reward, terminated, truncated, info), or "
            "(observation, reward, done, info)"
        )
    text, reward, *done, _ = result
    return GymObservation(render_result("step", "" if text is None else text), float(reward), any(map(bool, done)))
