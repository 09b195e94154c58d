"""Environments of TRL's `environment_factory`, as the episodes of a `ToolDataset`.

As in TRL, public methods are tools, `reset` gets the columns of the row and may return a text, which is appended to the
prompt, and `get_reward` gives the reward. The first reply without calls ends the episode. Other than in TRL, each
episode has an object of its own, and an episode that a limit ends earns 0.
"""

import functools
import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from understudy.core.errors import TaskError
from understudy.core.messages import Message
from understudy.sources.environments.gym import UNIT_RANGE, parse_reward_range, scale_reward
from understudy.sources.tool_dataset import ToolEpisode, ToolExample

_OWN = ("reset", "get_reward")


def is_trl_class(value: object) -> bool:
    """Return whether a value is a class with `reset` and `get_reward`."""
    return isinstance(value, type) and all(callable(getattr(value, name, None)) for name in _OWN)


def episode_of_trl(environment_class: Any) -> type[ToolEpisode]:
    """Return the episodes of an environment class. Raise TaskError if a tool has no free name, or cannot be one."""
    members = inspect.getmembers(environment_class, inspect.isfunction)
    tools = {name: method for name, method in members if name not in _OWN and name[0] != "_"}
    for name in tools:
        if hasattr(ToolEpisode, name) or name == "example":
            raise TaskError(f"{environment_class.__name__}.{name} has a name that ToolEpisode uses; rename the tool")
    low, high = parse_reward_range(environment_class.__name__, getattr(environment_class, "reward_range", UNIT_RANGE))

    def __init__(self: Any, example: ToolExample) -> None:
        self._environment = environment_class()
        said = self._environment.reset(**_row(environment_class, example))
        ToolEpisode.__init__(self, example.replace(prompt=f"{example.prompt}{said or ''}"))

    def reward(self: Any, transcript: Sequence[Message]) -> float | Awaitable[float]:
        found = self._environment.get_reward()
        return _awaited(found) if inspect.isawaitable(found) else scale_reward(found, low, high)

    async def _awaited(found: Awaitable[Any]) -> float:
        return scale_reward(await found, low, high)

    methods: dict[str, Any] = {name: _delegate(name, method) for name, method in tools.items()}
    return type(environment_class.__name__, (ToolEpisode,), {**methods, "__init__": __init__, "reward": reward})


def _delegate(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def tool(self: Any, **arguments: Any) -> Any:
        return getattr(self._environment, name)(**arguments)

    return tool


def _row(environment_class: Any, example: ToolExample) -> dict[str, Any]:
    """Return what `reset` gets: `info`, and the prompt if the method takes it and `info` has none."""
    parameters = inspect.signature(environment_class.reset).parameters.values()
    takes_prompt = any(p.name == "prompt" or p.kind is p.VAR_KEYWORD for p in parameters)
    prompt = {"prompt": [{"role": "user", "content": example.prompt}]} if takes_prompt else {}
    return {**prompt, **example.info}
