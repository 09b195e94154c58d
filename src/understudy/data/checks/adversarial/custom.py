"""Strategies that users write: functions that `check --adversarial --strategy module:attribute` names."""

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace

from understudy.core.errors import ConfigError, RolloutError
from understudy.core.imports import import_object
from understudy.core.messages import Message
from understudy.core.user_code import user_code
from understudy.data.checks.adversarial.knowledge import Reply, Strategy, TaskKnowledge
from understudy.data.checks.adversarial.suite import STRATEGIES


def load_strategies(references: Sequence[str]) -> tuple[Strategy, ...]:
    """Return `STRATEGIES` and those that references of the form `module:attribute` name.

    An attribute is a `Strategy`, or a function like `Strategy.replies`, whose name and first line of documentation
    become those of the strategy. Exceptions of its code become RolloutErrors with the fault "agent". Raise ConfigError
    if an attribute is neither, or if its name is taken.
    """
    found = list(STRATEGIES)
    for reference in references:
        strategy = _load_strategy(reference)
        if any(strategy.name == other.name for other in found):
            raise ConfigError(f"there are two strategies called {strategy.name}; rename the one of {reference}")
        found.append(strategy)
    return tuple(found)


def _load_strategy(reference: str) -> Strategy:
    made = import_object(reference)
    if not isinstance(made, Strategy):
        if not inspect.isfunction(made):
            raise ConfigError(
                f"{reference!r} is a {type(made).__name__}; a strategy is a function that takes a TaskKnowledge and "
                "returns replies or None, or a Strategy"
            )
        documentation = (inspect.getdoc(made) or reference).splitlines()[0]
        made = Strategy(made.__name__, documentation[:1].lower() + documentation[1:].rstrip("."), made)
    return replace(made, replies=functools.partial(_find_replies, f"the strategy {reference}", made.replies))


def _find_replies(
    what: str, function: Callable[[TaskKnowledge], Sequence[Reply] | None], task: TaskKnowledge
) -> Sequence[Reply] | None:
    with user_code("agent", what):
        found: object = function(task)
    if found is None:
        return None
    if not isinstance(found, list | tuple) or not all(isinstance(each, Message) or callable(each) for each in found):
        raise RolloutError(
            f"{what} returned {found!r:.100}; it must return a list of messages or functions, or None", "agent"
        )
    return [reply if isinstance(reply, Message) else functools.partial(_make_reply, what, reply) for reply in found]


def _make_reply(what: str, function: Callable[[Sequence[Message]], Message], messages: Sequence[Message]) -> Message:
    with user_code("agent", what):
        made: object = function(messages)
    if not isinstance(made, Message):
        raise RolloutError(f"a reply of {what} is {made!r:.100}; it must be a Message", "agent")
    return made
