"""Strategies that users write: functions that `check --adversarial --strategy module:attribute` names."""

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace

from understudy.core.errors import ConfigError, RolloutError
from understudy.core.imports import import_object
from understudy.core.messages import Message
from understudy.core.user_code import user_code
from understudy.data.checks.adversarial.knowledge import Recipe, Reply, Strategy, TaskKnowledge
from understudy.data.checks.adversarial.suite import STRATEGIES


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
