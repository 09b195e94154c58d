"""The rollout loop: it plays one episode, applies limits and retries, and attributes faults."""

import asyncio
import hashlib
import inspect
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol, cast, runtime_checkable

from pydantic import Field

from understudy.core.errors import ConfigError, Fault, RolloutError, TaskError
from understudy.core.json_values import replace_surrogates
from understudy.core.messages import Message, ToolCall, ToolSpec
from understudy.core.records import Record
from understudy.core.secrets import mask_secrets
from understudy.core.tasks import Score, Task
from understudy.core.trajectory import StopReason, Stopwatch, Trajectory
from understudy.core.user_code import name_definition, user_code, wait_limit
from understudy.engines.process_group import SINGLE_PROCESS, ProcessGroup
from understudy.envs.environment import Environment, ExtendableEnvironment, StepResult
from understudy.rollouts.agent import Agent

EpisodeCallback = Callable[[Trajectory], None]
ProgressCallback = Callable[[int, int], None]
"""Gets the numbers of ended episodes and of all."""
_LOGGER = logging.getLogger(__name__)
_SENDERS: dict[str, tuple[Fault, str]] = {
    "tool": ("tool", "the result of {tool}"),
    "user": ("user", "a message of the user"),
}
_MEMBERS = ("tools", "start", "step", "grade", "close")
"""The members of an `Environment`."""


def report_nothing(ended: int, total: int) -> None:
    """A `ProgressCallback` without an effect."""


class EpisodeLimits(Record):
    """Limits at which an episode is truncated."""

    max_turns: int = Field(default=30, ge=1)
    """Maximum number of replies of the agent."""
    max_episode_tokens: int = Field(default=8192, ge=1)
    """Maximum number of tokens of an episode. An episode that reaches it gets no further reply. The limit does not
    apply to a model behind an API, whose tokens are unknown; the endpoint has its own limit."""
    max_invalid_replies: int = Field(default=0, ge=0)
    """An episode ends after so many replies in a row that have a call which cannot be parsed. 0 sets no limit."""
    max_message_chars: int = Field(default=250_000, ge=1)
    """Maximum number of characters of one message, with the arguments of its calls. A longer reply of the agent ends
    the episode as its token limit does. A longer result of a tool, or message of a user, is a fault of its sender:
    to read such a text can take minutes."""
    max_retries: int = Field(default=2, ge=0)
    """New attempts after an infrastructure fault before the episode is dropped."""
    max_step_seconds: float = Field(default=1800.0, gt=0.0)
    """Time limit in seconds of each start, step, grading and end of an environment, with its user, tools and grader. A
    call that takes longer is cancelled, and the episode has a fault of the component that did not return. An endpoint,
    an MCP server and a Python tool have shorter limits of their own. Code that never awaits cannot be cancelled."""


DEFAULT_LIMITS = EpisodeLimits()


class EnvironmentFactory(Protocol):
    """A `Domain`, or another factory of environments for tasks."""

    def environment(self, task: Task, *, seed: int) -> Environment:
        """Return a new environment for one episode of `task`."""


@runtime_checkable
class EpisodePlayer(Protocol):
    """Plays whole episodes, as a program does. An `Agent` gives one reply after the other."""

    async def play(
        self, task: Task, environment: "EpisodeEnvironment", limits: EpisodeLimits, episode: Trajectory
    ) -> None:
        """Play an episode: start the environment, and set the score and the stop reason of the episode."""


Player = Agent | EpisodePlayer
"""What plays episodes."""


@dataclass(frozen=True, slots=True)
class RolloutRequest:
    """Which agent plays in which environments, and how. The tasks are given beside it."""

    environments: EnvironmentFactory
    agent: Player
    limits: EpisodeLimits = DEFAULT_LIMITS
    seed: int = 0
    """The seed of each episode is a hash of this one, the task and the trial."""
    process_group: ProcessGroup = SINGLE_PROCESS
    """Each process plays its share of the episodes and gets all of them."""
    on_episode: EpisodeCallback = lambda episode: None
    """Called with each episode of this process that has ended."""
    on_progress: ProgressCallback = report_nothing
    """Called with the numbers of ended and of all episodes of this process so far."""


async def play_episode(
    environments: EnvironmentFactory, task: Task, agent: Player, limits: EpisodeLimits, seed: int
) -> Trajectory:
    """Play one episode of a task, and retry it after an infrastructure fault at most `limits.max_retries` times.

    Each attempt has its own seed, also for the user simulator, because an attempt with the same seed would fail again.
    A fault that every attempt would have, such as an unpaid account at an endpoint, is not retried.
    """
    for attempt in range(limits.max_retries + 1):
        episode, error = await attempt_episode(environments, task, agent, limits, seed + attempt)
        if error is None:
            break
        _LOGGER.info("task %s, attempt %d: fault of %s: %s", task.id, attempt + 1, episode.fault, episode.error)
        if not error.is_repeatable:
            break
    reward = episode.score.reward if episode.score else None
    _LOGGER.debug(
        "task %s, seed %d: %s, reward %s, %d turns",
        task.id,
        episode.seed,
        episode.stop_reason,
        reward,
        episode.num_turns,
    )
    return episode


async def attempt_episode(
    environments: EnvironmentFactory, task: Task, agent: Player, limits: EpisodeLimits, seed: int
) -> tuple[Trajectory, RolloutError | None]:
    """Play one episode of a task once. Return it and its fault, None if it has none."""
    for given in (environments, agent):
        if isinstance(given, type):
            raise ConfigError(
                f"{name_definition(given)} is a class; give an instance of it, such as {given.__name__}(...)"
            )
    episode = Trajectory(task.id, task.domain, task.family, task.difficulty, seed)
    try:
        with user_code("environment", "the environment", environments):
            environment = _validate_environment(environments.environment(task, seed=seed), environments)
        async with _closing(environment, limits):
            played = EpisodeEnvironment(environment, limits, episode)
            if isinstance(agent, EpisodePlayer):
                await agent.play(task, played, limits, episode)
            else:
                await _play(task, played, agent, limits, episode)
    except RolloutError as e:
        episode.score, episode.stop_reason = None, StopReason.FAULT
        episode.fault, episode.error = e.fault, replace_surrogates(mask_secrets(str(e)))
        episode.add_exceptions([e.report] if e.report else [])
        return episode, e
    return episode, None


def episode_seed(seed: int, task: Task, trial: int) -> int:
    """Return the seed of an episode, a 32-bit hash of its arguments that is equal in every process."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{task.id}/{trial}".encode()).digest()[:4])


async def rollout(
    task: Task, environment: Environment, agent: Player, limits: EpisodeLimits, seed: int = 0
) -> Trajectory:
    """Play one episode. An infrastructure fault ends it with `StopReason.FAULT` and without a score."""
    episode, _ = await attempt_episode(_SingleEnvironment(environment), task, agent, limits, seed)
    return episode


class _SingleEnvironment:
    """The factory of an environment that exists already."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment

    def environment(self, task: Task, *, seed: int) -> Environment:
        return self._environment


@asynccontextmanager
async def _closing(environment: Environment, limits: EpisodeLimits) -> AsyncIterator[None]:
    """Close the environment after the block. If the block has raised an error, one of closing is only logged."""
    has_ended = False
    try:
        yield
        has_ended = True
    finally:
        try:
            async with _limited("environment", "closing the environment", limits):
                await _call(environment, "close")
        except (ConfigError, RolloutError, TaskError) as e:
            if has_ended:
                raise
            _LOGGER.info("closing the environment after an error failed too: %s", mask_secrets(str(e)))


async def _play(
    task: Task, environment: "EpisodeEnvironment", agent: Agent, limits: EpisodeLimits, episode: Trajectory
) -> None:
    step = await environment.start()
    while step.score is None:
        stop = _limit_reached(episode, limits)
        reply: Message | None = None
        if stop:
            episode.observe(step.messages)  # record the results of the last reply, without tokens
        else:
            turns = episode.num_turns
            with Stopwatch(episode.timings, "agent"):
                reply = await agent.act(task, episode, step.messages, environment.tools)
            if reply is not None and episode.num_turns == turns:  # `limits.max_turns` would never end the episode
                raise RolloutError(
                    f"the agent {type(agent).__name__} returned a reply that is not in the episode; call "
                    "episode.observe(new) and episode.act(reply) before `return reply`",
                    "agent",
                )
        if reply is None or _message_chars(reply) > limits.max_message_chars:
            episode.score = await environment.grade(ended=False)
            episode.stop_reason = stop or StopReason.MAX_TOKENS
            return
        step = await environment.step(reply)
        await asyncio.sleep(0)  # agents and environments that never wait must not keep Ctrl-C from cancelling this
    episode.observe(step.messages)
    episode.score = step.score
    episode.stop_reason = StopReason.DONE


class EpisodeEnvironment:
    """The environment of one episode, with the limits of the episode. It attributes what goes wrong, and counts errors.

    The methods raise RolloutError with the component at fault.
    """

    def __init__(self, environment: Environment, limits: EpisodeLimits, episode: Trajectory) -> None:
        self._environment, self._limits, self._episode = environment, limits, episode

    @property
    def tools(self) -> Sequence[ToolSpec]:
        """The tools that the agent may call."""
        return self._environment.tools

    async def start(self) -> StepResult:
        """Start the episode."""
        return await self._answer("start", "the start of the environment", None)

    async def step(self, reply: Message) -> StepResult:
        """Answer one reply of the agent."""
        return self._note(await self._answer("step", "a step of the environment", reply, reply))

    async def extend_reply(self, call: ToolCall) -> StepResult | None:
        """Run a further call of the last reply. Return None if the environment takes whole replies only."""
        if not isinstance(self._environment, ExtendableEnvironment):
            return None
        with Stopwatch(self._episode.timings, "environment"):
            async with _limited("environment", "a call of a tool", self._limits):
                step = await self._environment.extend_reply(call)
        if step is None:
            return None
        if step.score is None:
            _validate_lengths(step.messages, Message(role="assistant", tool_calls=(call,)), self._limits)
        return self._note(step)

    def _note(self, step: StepResult) -> StepResult:
        for kind in step.error_kinds:
            self._episode.event_counts[kind] = self._episode.event_counts.get(kind, 0) + 1
        self._episode.add_exceptions(step.exceptions)
        return step

    async def grade(self, ended: bool) -> Score:
        """Return the score so far."""
        async with _limited("grader", "the grader of the environment", self._limits):
            score: Score = await _call(self._environment, "grade", ended=ended)
        return score

    async def _answer(self, method: str, what: str, reply: Message | None, *arguments: Message) -> StepResult:
        with Stopwatch(self._episode.timings, "environment"):
            async with _limited("environment", what, self._limits):
                result = await _call(self._environment, method, *arguments)
                step = _validate_result(method, self._environment, result)
        if step.score is None:
            _validate_lengths(step.messages, reply, self._limits)
        return step


@asynccontextmanager
async def _limited(component: Fault, what: str, limits: EpisodeLimits) -> AsyncIterator[None]:
    """Attribute an exception of an environment's method, or that it does not return, to the component at fault."""
    async with wait_limit(limits.max_step_seconds, "limits.max_step_seconds"):
        with user_code(component, what):
            yield


def _validate_environment(returned: object, source: EnvironmentFactory) -> Environment:
    """Return an episode that a source has returned. Raise RolloutError if it is none."""
    missing = [name for name in _MEMBERS if not hasattr(returned, name)]
    if isinstance(returned, type):
        error = f"the class {name_definition(returned)}; return an instance of it, such as {returned.__name__}(...)"
    elif missing:
        if inspect.iscoroutine(returned):
            returned.close()  # it is never awaited, which would be a warning
        found = "None" if returned is None else f"an object of {name_definition(type(returned))}"
        error = f"{found}, which has no {', '.join(missing)}; return an Environment"
    else:
        return cast(Environment, returned)
    raise RolloutError(f"environment of {name_definition(type(source))} returned {error}", "environment")


async def _call(environment: Environment, method: str, *arguments: object, **named: object) -> Any:
    """Call a coroutine of an environment. Raise RolloutError if it is none."""
    result = getattr(environment, method)(*arguments, **named)
    if inspect.isawaitable(result):
        return await result
    owner = name_definition(type(environment))
    raise RolloutError(f"{method} of {owner} is not a coroutine; define it with async def", "environment")


def _validate_result(method: str, environment: Environment, result: object) -> StepResult:
    """Return the result of an environment's method. Raise RolloutError if it is no StepResult."""
    if isinstance(result, StepResult):
        return result
    owner = name_definition(type(environment))
    raise RolloutError(f"{method} of {owner} returned {result!r:.100}; it must return a StepResult", "environment")


def _validate_lengths(messages: Sequence[Message], reply: Message | None, limits: EpisodeLimits) -> None:
    """Raise RolloutError if a message of the environment is too long. `reply` is the reply that it answers."""
    for message in messages:
        if (length := _message_chars(message)) > limits.max_message_chars:
            calls = reply.tool_calls if reply else ()
            tool = next((call.name for call in calls if call.id == message.tool_call_id), "") or "a tool"
            component, what = _SENDERS.get(message.role, ("environment", f"a message of role {message.role}"))
            raise RolloutError(
                f"{what.format(tool=tool)} has {length:,} characters; limits.max_message_chars = "
                f"{limits.max_message_chars:,}; shorten it, or raise the limit",
                component,
            )


def _message_chars(message: Message) -> int:
    return len(message.content) + sum(len(repr(call.arguments)) for call in message.tool_calls)


def _limit_reached(episode: Trajectory, limits: EpisodeLimits) -> StopReason | None:
    if 0 < limits.max_invalid_replies <= episode.num_invalid_replies:
        return StopReason.INVALID_REPLIES
    if episode.num_turns >= limits.max_turns:
        return StopReason.MAX_TURNS
    return StopReason.MAX_TOKENS if episode.num_tokens >= limits.max_episode_tokens else None
