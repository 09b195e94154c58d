"""MCP server of a domain. Each session has its own copy of the database, of one task or in its initial state.

An HTTP client chooses the task in the URL: `?task=ID` or `?split=test&index=3`. The default is the choice of the
command's options. The tools are the agent's. No user confirms a change here; episodes that need that run in an
environment. The resource `understudy://state` lists the changes of the session.
"""

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from understudy.core.errors import ConfigError, did_you_mean
from understudy.core.messages import ToolCall, ToolSpec
from understudy.core.records import Record
from understudy.core.tasks import SPLITS, Split, Task
from understudy.envs.domain import Domain
from understudy.envs.state import State
from understudy.envs.tools import Toolkit, ToolProvider
from understudy.sources.mcp.server import FilteredTools, ServedSession, ServerDefinition

STATE_URI = "understudy://state"
USER_TOOL_PREFIX = "user_"
"""Prefix of the names of the user's tools. The agent may have a tool with the unprefixed name."""


class InitialStateChoice(Record):
    """The database with which a session starts: that of a task, or the initial one if no task is chosen."""

    task: str = ""
    """A task's ID."""
    split: str = ""
    """The split of the task, alone or with `task`."""
    index: int = 0
    """The position of the task in `split`, from 0."""


def domain_server(
    domain: Domain, choice: InitialStateChoice, tools: Sequence[str] = (), user_tools: bool = False
) -> ServerDefinition:
    """Return the server of a domain.

    `choice` chooses the database of sessions whose URL has no parameters. `tools` names the tools to offer, all if
    empty. `user_tools` adds the user's tools. Raise `ConfigError` for an unknown task, or if the user has no tools.
    """
    tasks, world = functools.cache(domain.tasks), domain.build_world()
    if user_tools and not domain.user_tools:
        raise ConfigError(f"the domain {domain.name} has no user tools; leave out --user-tools")

    def open_session(parameters: Mapping[str, str]) -> ServedSession:
        task = choose_task(domain.name, tasks, _chosen(parameters) if parameters else choice)
        state = domain.initial_state(task) if task else world.fork()
        kit: ToolProvider = domain.toolkit(state)
        if user_tools and domain.user_tools:
            kit = CombinedTools(domain.toolkit(state), domain.user_tools(state))
        shown = FilteredTools(kit, tools) if tools else kit
        return ServedSession(shown, resources={STATE_URI: lambda: json.dumps(state_changes(state))})

    open_session({})
    return ServerDefinition(domain.name, open_session, domain.domain_policy)


class CombinedTools:
    """The agent's tools and the user's tools on one state. A user's tool NAME is called `user_NAME`."""

    def __init__(self, agent: Toolkit, user: Toolkit) -> None:
        self._agent, self._user = agent, user
        theirs = (spec.replace(name=USER_TOOL_PREFIX + spec.name) for spec in user.specs())
        self._specs = (*agent.specs(), *theirs)

    def specs(self) -> tuple[ToolSpec, ...]:
        """Return the agent's tools, then the user's."""
        return self._specs

    async def call(self, call: ToolCall) -> str:
        """Run a call of an agent's or a user's tool. Raise `ToolError` if it is rejected."""
        if call.name.startswith(USER_TOOL_PREFIX):
            return await self._user.call(call.replace(name=call.name.removeprefix(USER_TOOL_PREFIX)))
        return await self._agent.call(call)


def choose_task(name: str, tasks: Callable[[Split], Sequence[Task]], choice: InitialStateChoice) -> Task | None:
    """Return the chosen task of a domain, or None. Raise `ConfigError` if there is no such task."""
    if choice.index and (choice.task or not choice.split):
        raise ConfigError(f"index {choice.index} is a position in a split; give a split, and no task")
    if choice.split and choice.split not in SPLITS:
        raise ConfigError(f"unknown split {did_you_mean(choice.split, SPLITS)}")
    splits = [split for split in SPLITS if choice.split in ("", split)]
    if choice.task:
        found = next((task for split in splits for task in tasks(split) if task.id == choice.task), None)
        if not found:
            raise ConfigError(f"{name} has no task with the ID {choice.task!r} in {', '.join(splits)}")
        return found
    if not choice.split:
        return None
    count = len(tasks(splits[0]))
    if not 0 <= choice.index < count:
        raise ConfigError(f"index {choice.index} is out of range; the split {choice.split} has tasks 0 to {count - 1}")
    return tasks(splits[0])[choice.index]


def state_changes(state: State) -> dict[str, Any]:
    """Return the differences from the initial state as JSON: changed rows by table and ID, and changed values.

    A deleted row is None.
    """
    found: dict[str, Any] = {}
    for name, value in state.changes().items():
        rows = value.items() if name in state.tables() else None
        found[name] = value if rows is None else {k: r and r.model_dump(mode="json") for k, r in rows}
    return found


def _chosen(parameters: Mapping[str, str]) -> InitialStateChoice:
    wrong = sorted(parameters.keys() - InitialStateChoice.model_fields.keys())
    if wrong:
        raise ConfigError(f"unknown parameter in the URL: {did_you_mean(wrong[0], InitialStateChoice.model_fields)}")
    index = parameters.get("index", "0")
    if not index.isdecimal() or len(index) > 9:
        raise ConfigError(f"index {index!r} is invalid; give a whole number from 0")
    return InitialStateChoice(task=parameters.get("task", ""), split=parameters.get("split", ""), index=int(index))
