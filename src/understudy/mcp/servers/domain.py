"""Domain: a domain as an MCP server. Each session is the world of one task, or the untouched world.

A client over HTTP chooses by `?task=ID` in the address, or by `?split=test&index=3`; all others by the options of the
command. The tools are the agent's, without the consent of a user: who needs that plays the episode in an environment.
What the session has changed is the resource `understudy://state`.
"""

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from understudy.domains.base import Domain
from understudy.errors import ConfigError, nearest
from understudy.mcp.serve import Narrowed, Offer, Served
from understudy.messages import ToolCall, ToolSpec
from understudy.records import Record
from understudy.state import State
from understudy.tasks import SPLITS, Split, Task
from understudy.tools import Toolkit, Tools

STATE = "understudy://state"
USER = "user_"
"""What stands before the names of the user's tools, for both may have one of the same name."""


class Choice(Record):
    """Which world a session is in: that of a task, by its id, or by its place in a split; else the untouched one."""

    task: str = ""
    split: str = ""
    index: int = 0


def domain_offer(domain: Domain, choice: Choice, tools: Sequence[str] = (), user_tools: bool = False) -> Offer:
    """The domain as a server. `tools` narrows it, `user_tools` adds those of the user's own device."""
    tasks, world = functools.cache(domain.tasks), domain.world()
    if user_tools and not domain.device:
        raise ConfigError(f"the users of {domain.name} have no tools of their own")

    def open_session(parameters: Mapping[str, str]) -> Served:
        task = find_task(domain.name, tasks, _chosen(parameters) if parameters else choice)
        state = domain.initial(task) if task else world.fork()
        kit: Tools = domain.toolkit(state)
        if user_tools and domain.device:
            kit = Both(domain.toolkit(state), domain.device(state))
        shown = Narrowed(kit, tools) if tools else kit
        return Served(shown, resources={STATE: lambda: json.dumps(changes(state))})

    open_session({})
    return Offer(domain.name, open_session, domain.policy)


class Both:
    """The agent's tools and, as `user_NAME`, the user's, on one state."""

    def __init__(self, agent: Toolkit, user: Toolkit) -> None:
        self._agent, self._user = agent, user
        theirs = (spec.replace(name=USER + spec.name) for spec in user.specs())
        self._specs = (*agent.specs(), *theirs)

    def specs(self) -> tuple[ToolSpec, ...]:
        """The agent's, then the user's."""
        return self._specs

    async def call(self, call: ToolCall) -> str:
        """Run a call of either."""
        if call.name.startswith(USER):
            return await self._user.call(call.replace(name=call.name.removeprefix(USER)))
        return await self._agent.call(call)


def find_task(name: str, tasks: Callable[[Split], Sequence[Task]], choice: Choice) -> Task | None:
    """The task that is chosen among a domain's; None where none is."""
    if choice.index and (choice.task or not choice.split):
        raise ConfigError(f"index {choice.index} needs a split, and no task")
    if choice.split and choice.split not in SPLITS:
        raise ConfigError(f"there is no split {nearest(choice.split, SPLITS)}")
    splits = [split for split in SPLITS if choice.split in ("", split)]
    if choice.task:
        found = next((task for split in splits for task in tasks(split) if task.id == choice.task), None)
        if not found:
            raise ConfigError(f"{name} has no task {choice.task!r} in {', '.join(splits)}")
        return found
    if not choice.split:
        return None
    count = len(tasks(splits[0]))
    if not 0 <= choice.index < count:
        raise ConfigError(f"index {choice.index}: the split {choice.split} has the tasks 0 to {count - 1}")
    return tasks(splits[0])[choice.index]


def changes(state: State) -> dict[str, Any]:
    """What differs from the initial world, as JSON: rows by table and id, null where one was deleted; values."""
    found: dict[str, Any] = {}
    for name, value in state.changes().items():
        rows = value.items() if name in state.tables() else None
        found[name] = value if rows is None else {k: r and r.model_dump(mode="json") for k, r in rows}
    return found


def _chosen(parameters: Mapping[str, str]) -> Choice:
    wrong = sorted(parameters.keys() - Choice.model_fields.keys())
    if wrong:
        raise ConfigError(f"the address has no parameter {nearest(wrong[0], Choice.model_fields)}")
    index = parameters.get("index", "0")
    if not index.isdecimal() or len(index) > 9:
        raise ConfigError(f"index {index!r} is not a number")
    return Choice(task=parameters.get("task", ""), split=parameters.get("split", ""), index=int(index))
