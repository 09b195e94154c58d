"""Strategies that users write: functions that `check --adversarial --strategy module:attribute` names."""

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace

from understudy.core.errors import ConfigError, RolloutError, did_you_mean
from understudy.core.imports import import_object
from understudy.core.messages import Message, ToolSpec
from understudy.core.tasks import Task
from understudy.core.trajectory import Trajectory
from understudy.core.user_code import user_code
from understudy.data.checks.adversarial.knowledge import Recipe, Reply, SourceKnowledge, Strategy, TaskKnowledge
from understudy.data.checks.adversarial.suite import STRATEGIES
from understudy.data.checks.probe import FixedRepliesAgent
from understudy.envs.task_source import TaskSource, find_source


def load_strategies(references: Sequence[str]) -> tuple[Strategy, ...]:
    """Return `STRATEGIES` and those that references of the form `module:attribute` name.

    An attribute is a `Strategy`, or a function like `Strategy.replies`, whose name and first line of documentation
    become those of the strategy. Exceptions of its code become RolloutErrors with the fault "agent". Raise ConfigError
    if an attribute is neither, or if its name is taken.
    """
    strategies = list(STRATEGIES)
    for reference in references:
        strategy = _load_strategy(reference)
        if any(strategy.name == other.name for other in strategies):
            raise ConfigError(f"there are two strategies called {strategy.name}; rename the one of {reference}")
        strategies.append(strategy)
    return tuple(strategies)


def find_strategy(name: str) -> Strategy:
    """Return one of `STRATEGIES` by its name, or the one that `module:attribute` names. Raise ConfigError if there is
    none."""
    if ":" in name:
        return _load_strategy(name)
    known = {strategy.name: strategy for strategy in STRATEGIES}
    if name not in known:
        raise ConfigError(f"there is no strategy {did_you_mean(name, known)}, or module:attribute")
    return known[name]


class StrategyAgent:
    """An agent that plays a strategy on the tasks of one source."""

    def __init__(self, strategy: Strategy, source: TaskSource) -> None:
        self._strategy = strategy
        self._source = source

    async def act(
        self, task: Task, episode: Trajectory, new_messages: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> Message:
        """Append and return the next reply of the strategy. Raise ConfigError if it does not apply to the task."""
        leaf = find_source(self._source, task.domain)
        replies = self._strategy.replies(TaskKnowledge(SourceKnowledge(leaf), task))
        if replies is None:
            raise ConfigError(
                f"the strategy {self._strategy.name} does not apply to task {task.id}; give another --task"
            )
        return await FixedRepliesAgent(replies).act(task, episode, new_messages, tools)


def _load_strategy(reference: str) -> Strategy:
    strategy = import_object(reference)
    if not isinstance(strategy, Strategy):
        if not inspect.isfunction(strategy):
            raise ConfigError(
                f"{reference!r} is a {type(strategy).__name__}; a strategy is a function that takes a TaskKnowledge "
                "and returns replies or None, or a Strategy"
            )
        documentation = (inspect.getdoc(strategy) or reference).splitlines()[0]
        description = documentation[:1].lower() + documentation[1:].rstrip(".")
        strategy = Strategy(strategy.__name__, description, strategy)
    return replace(strategy, replies=functools.partial(_find_replies, f"the strategy {reference}", strategy.replies))


def _find_replies(what: str, function: Recipe, task: TaskKnowledge) -> Sequence[Reply] | None:
    with user_code("agent", what):
        replies: object = function(task)
    if replies is None:
        return None
    if not isinstance(replies, list | tuple) or not all(isinstance(one, Message) or callable(one) for one in replies):
        raise RolloutError(
            f"{what} returned {replies!r:.100}; it must return a list of messages or functions, or None", "agent"
        )
    return [reply if isinstance(reply, Message) else functools.partial(_make_reply, what, reply) for reply in replies]


def _make_reply(what: str, function: Callable[[Sequence[Message]], Message], messages: Sequence[Message]) -> Message:
    with user_code("agent", what):
        reply: object = function(messages)
    if not isinstance(reply, Message):
        raise RolloutError(f"a reply of {what} is {reply!r:.100}; it must be a Message", "agent")
    return reply
