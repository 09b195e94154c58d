"""MCPSource: the tasks and episodes of an MCP environment, `load("mcp:notes.toml")`.

Tools are listed once, by a server or from the cassette. All episodes show the same tools.
"""

import asyncio
import dataclasses
import functools
import os
import time
from collections import defaultdict
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from understudy.core.errors import ConfigError, TaskError, did_you_mean
from understudy.core.event_loop import LoopLocal, run_async
from understudy.core.messages import ToolCall, ToolSpec
from understudy.core.tasks import Split, Task, assign_splits
from understudy.envs.rewards import FactRules
from understudy.envs.task_source import FULL_SLICE, ExternalSource, Slice, validate_slice
from understudy.envs.users import OpeningOnlyUser, User, UserFactory, make_user
from understudy.sources.mcp.cassette import Cassette
from understudy.sources.mcp.catalog import (
    CatalogEntry,
    ServerTools,
    ToolCatalog,
    is_allowed,
    matches_any,
    pattern_note,
    sanitized_specs,
)
from understudy.sources.mcp.checks import CallPattern
from understudy.sources.mcp.config import MCPCall, MCPEnvironmentConfig, MCPServerConfig, load_environment_config
from understudy.sources.mcp.environment import MCPEnvironment, find_mcp_fact_rules
from understudy.sources.mcp.folder import write_environment
from understudy.sources.mcp.pool import SessionPools, SessionStarter
from understudy.sources.mcp.secrets import missing_variables
from understudy.sources.mcp.tasks import DEFAULT_FAMILY, MCPTask, from_sequence, naming_task, read_mcp_tasks
from understudy.sources.mcp.tool_result import ToolResult
from understudy.sources.mcp.toolkit import MCPToolkit
from understudy.sources.task_files.call_sequences import CallSequence
from understudy.sources.task_files.step_references import resolve_references

T = TypeVar("T")
C = TypeVar("C", MCPCall, CallPattern)
_SHIPPED = Path(__file__).parent / "servers" / "tasks"


def open_domain(reference: str) -> "MCPTaskSource":
    """Load the environment in a TOML file, or a shipped one by name.

    If it has aliases, its servers are started once to check them.
    """
    shipped = _SHIPPED / f"{reference}.toml"
    config = load_environment_config(shipped if shipped.is_file() else Path(os.path.expanduser(reference)))
    source = MCPTaskSource(MCPEnvironmentResources(config))
    if config.aliases:
        _ = source.tool_specs  # a wrong alias is an error here, and not during the first episode
    return source


class MCPEnvironmentResources:
    """The tasks, tools, sessions, cassette and gold results of an environment. All slices of the environment share
    them.
    """

    def __init__(self, config: MCPEnvironmentConfig) -> None:
        self.config = config
        self.pools = SessionPools(config.servers)
        self.added: dict[str, MCPTask] = {}
        """Tasks of other files, by id."""
        self.server_notes: list[str] = []
        """What a user should know of the servers that were started to list their tools."""
        self._goals: dict[str, Sequence[ToolResult | None]] = {}
        self._locks = LoopLocal[defaultdict[str, asyncio.Lock]](lambda: defaultdict(asyncio.Lock))

    @functools.cached_property
    def listed_tasks(self) -> list[MCPTask]:
        """The tasks as the file lists them. They need no server."""
        return read_mcp_tasks(Path(self.config.tasks), self.config.server_names) if self.config.tasks else []

    @functools.cached_property
    def tasks(self) -> dict[str, MCPTask]:
        """The tasks by id. References in their gold calls are values, and aliases are the tools and parameters."""
        tasks = [resolve_task_aliases(task, self._full_catalog) for task in self.listed_tasks]
        return {task.id: task for task in self.resolve(tasks)}

    def resolve(self, tasks: Sequence[MCPTask]) -> list[MCPTask]:
        """Return the tasks with values in place of references in gold calls. For this, the gold calls are made.

        Raise `TaskError` if a call fails, or its result lacks a field that is referred to.
        """
        if not any(task.has_references for task in tasks):
            return list(tasks)
        _ = self._full_catalog  # which must not be made in the other thread
        return _run_in_thread(self._resolve(tasks))

    async def _resolve(self, tasks: Sequence[MCPTask]) -> list[MCPTask]:
        resolved, pools = list[MCPTask](), SessionPools(self.config.servers)  # of the loop that this coroutine runs in
        for task in tasks:
            made = await self.make_gold_calls(task, pools) if task.has_references else []
            with naming_task(task):
                resolved.append(task.with_results(made) if made else task)
        return resolved

    async def make_gold_calls(
        self, task: MCPTask, pools: SessionPools | None = None
    ) -> list[tuple[MCPCall, ToolResult]]:
        """Make the gold calls of a task once, with values in place of references, and return them with their results.

        Raise `TaskError` if a call fails, or its result lacks a field that is referred to.
        """
        made = list[tuple[MCPCall, ToolResult]]()
        async with self.toolkit(task, self._full_catalog, pools) as kit:
            with naming_task(task):
                await kit.set_up(task.setup)
                for call in task.gold:
                    try:
                        arguments = resolve_references(call.arguments, [result.value for _, result in made])
                    except ValueError as e:
                        raise TaskError(f"{call.tool}: {e}") from e
                    call = call.replace(arguments=arguments)
                    (result,) = await kit.run_calls([call])
                    made.append((call, result))
        return made

    @functools.cached_property
    def _full_catalog(self) -> ToolCatalog:
        config = self.config
        return ToolCatalog(self.server_tools, config.servers, config.tool_naming, aliases=config.aliases)

    def find_task(self, task_id: str) -> MCPTask | None:
        """Return the task with this id, or None."""
        return self.added.get(task_id) or self.tasks.get(task_id)

    @functools.cached_property
    def server_tools(self) -> ServerTools:
        """Return the servers' tools, from the recording or from servers started for this."""
        tape = self.config.cassette
        recorded = self.cassette.server_tools if self.cassette and tape.mode != "record" else None
        if recorded is not None:
            if set(recorded) != set(self.config.servers):
                raise ConfigError(
                    f"{tape.file} is a recording of the servers {', '.join(sorted(recorded))}, but the environment has "
                    f"{', '.join(sorted(self.config.servers))}; use the recorded names, or record again"
                )
            return recorded
        if tape.mode == "replay":
            raise ConfigError(f"there is no recording in {tape.file}; record one by cassette.mode = 'record'")
        texts = [text for server in self.config.servers.values() for text in server.filled_texts]
        if missing := missing_variables(texts):
            raise ConfigError(
                f"these environment variables of the MCP servers' settings are not set: {', '.join(missing)}; set them"
            )
        server_tools = _run_in_thread(_list_tools(self.config.servers, self.server_notes))
        if self.cassette:
            self.cassette.record_server_tools(server_tools)
        return server_tools

    @functools.cached_property
    def cassette(self) -> Cassette | None:
        """The recorded answers."""
        tape = self.config.cassette
        return None if tape.mode == "off" else Cassette(Path(tape.file), self.config.servers)

    def toolkit(self, task: MCPTask, catalog: ToolCatalog, pools: SessionPools | None = None) -> MCPToolkit:
        """Return the tools of one episode. `pools` replace those of the environment."""
        return MCPToolkit(
            self.config.servers,
            limits=self.config.limits.override(task.limits),
            catalog=catalog,
            pools=pools or self.pools,
            cassette=self.cassette.task(task.id) if self.cassette else None,
            mode=self.config.cassette.mode,
        )

    async def expected_states(self, task: MCPTask, catalog: ToolCatalog) -> Sequence[ToolResult | None]:
        """Return the results of the state checks after the gold calls, which run once for each task."""
        if not any(check.expects_gold_result for check in task.check.state):
            return [None] * len(task.check.state)
        async with self._locks.get()[task.id]:
            if task.id not in self._goals:
                self._goals[task.id] = await self._gold(task, catalog)
        return self._goals[task.id]

    async def _gold(self, task: MCPTask, catalog: ToolCatalog) -> Sequence[ToolResult | None]:
        async with self.toolkit(task, catalog) as kit:
            with naming_task(task):
                await kit.run_calls([*task.setup, *task.gold])
                checks = task.check.state
                return [await kit.call_internal(check) if check.expects_gold_result else None for check in checks]


@dataclass(frozen=True)
class MCPTaskSource(ExternalSource):
    """One environment, narrowed by `task_slice`."""

    resources: MCPEnvironmentResources
    task_slice: Slice = FULL_SLICE
    user_factory: UserFactory | None = None
    """Creates the user of an episode. If it is None, the user only gives the task."""
    reports_writes = True

    @property
    def name(self) -> str:
        """The environment's name."""
        return self.resources.config.name

    @property
    def families(self) -> tuple[str, ...]:
        """The families of the tasks; that of a task without one if there are no tasks yet."""
        tasks = (*self.resources.listed_tasks, *self.resources.added.values())
        return tuple(dict.fromkeys(task.family for task in tasks)) or (DEFAULT_FAMILY,)

    @property
    def tool_specs(self) -> tuple[ToolSpec, ...]:
        """The agent's tools."""
        return self._catalog.specs

    @property
    def domain_policy(self) -> str:
        """The agent's rules. If each task has its own, those of the first task."""
        own = (task.domain_policy for task in self.resources.listed_tasks if task.domain_policy)
        return self.resources.config.domain_policy or next(own, "")

    def task_policy(self, task: Task) -> str:
        """Return the rules of a task: its own, or the environment's."""
        mine = self.resources.find_task(task.id)
        return (mine.domain_policy if mine else "") or self.domain_policy

    def with_users(self, user_factory: UserFactory) -> "MCPTaskSource":
        """Return this environment with user simulators from `user_factory`."""
        return dataclasses.replace(self, user_factory=user_factory)

    def slice(self, task_slice: Slice) -> "MCPTaskSource":
        """Return this environment narrowed to `task_slice`. Raise `ConfigError` for an unknown name."""
        validate_slice(
            self.name, task_slice, self.families, [spec.name for spec in self.tool_specs] if task_slice.tools else []
        )
        return dataclasses.replace(self, task_slice=task_slice)

    def has_tool(self, name: str) -> bool:
        """Return whether the agent can call a tool by this name, with or without its server."""
        shown = {spec.name for spec in self.tool_specs}
        return self._names.get(name) in shown

    def add_task(self, sequence: CallSequence, split: Split) -> Task:
        """Convert a sequence of another file to a task that this environment plays from then on.

        Raise `TaskError` if it calls a tool that no server has, if a reference has no value, or if a task of this
        environment has the id.
        """
        id = sequence.id
        task = self._to_mcp_task(sequence.replace(split=split))
        if id in self.resources.tasks:
            raise TaskError(f"task {id}: {self.resources.config.tasks} has a task with this id; rename one of them")
        (task,) = self.resources.resolve([task])
        self.resources.added[id] = task
        return task.to_task(self.name, split, self._names)

    async def record_sequence(self, sequence: CallSequence) -> CallSequence:
        """Return a sequence with values in place of references, and the results of its calls on the servers.

        Raise `TaskError` if it calls a tool that no server has, if a call fails, or if a reference has no value.
        """
        made = await self.resources.make_gold_calls(self._to_mcp_task(sequence))
        steps = (
            step.replace(params=call.arguments, result=result.text)
            for step, (call, result) in zip(sequence.steps, made, strict=True)
        )
        return sequence.replace(steps=tuple(steps))

    def _to_mcp_task(self, sequence: CallSequence) -> MCPTask:
        task = from_sequence(sequence, self.resources.config.server_names)
        for call in task.gold:
            if call.tool not in self._catalog.all_entries:
                known = did_you_mean(call.tool, self._catalog.all_entries)
                raise TaskError(f"task {task.id}: no server of {self.name} has a tool {known}")
        return resolve_task_aliases(task, self._catalog)

    def tasks(self, split: Split) -> list[Task]:
        """Return the tasks of a split that the slice selects."""
        names = self._names
        rows = self.resources.tasks
        splits = assign_splits({key: row.split for key, row in rows.items()})
        tasks = [row.to_task(self.name, splits[key], names) for key, row in rows.items()]
        return self.task_slice.select_tasks([task for task in tasks if task.split == split])

    def callable_specs(self) -> tuple[ToolSpec, ...]:
        """Return the tools of servers that serve one episode, and those that only read. None if answers are recorded.

        Any other tool could change a server that other programs use too.
        """
        config = self.resources.config
        if config.cassette.mode != "off":
            return ()
        return tuple(
            entry.spec
            for entry in self._catalog.shown_entries
            if config.servers[entry.server].owns_state
            or matches_any(entry.tool, config.servers[entry.server].read_only_tools)
        )

    def starts_servers(self) -> bool:
        """Return whether there is a server that serves a single episode and is not reset."""
        servers = self.resources.config.servers.values()
        return self.resources.config.cassette.mode != "replay" and any(s.owns_state and not s.reset for s in servers)

    def environment(self, task: Task, user: User | None = None, seed: int = 0) -> MCPEnvironment:
        """Return a new episode of `task`. A task that the environment's file does not list is played by `from_task`."""
        mine = self.resources.find_task(task.id) or self._unlisted(task)
        made = user or (
            make_user(self.user_factory, task.scenario, seed, None)
            if self.user_factory
            else OpeningOnlyUser(mine.prompt)
        )
        kit = self.resources.toolkit(mine, self._catalog)
        goal = functools.partial(self.resources.expected_states, mine, self._catalog)
        return MCPEnvironment(mine, kit, self.task_policy(task), made, goal, self.resources.config.reward)

    def notes(self) -> Sequence[str]:
        """Return which tools are left out and why, what is not checked of arguments and results, what the start of a
        server takes, and the limits of a recording."""
        if self.resources.config.cassette.mode != "replay":
            return (*self._catalog.notes, *self.resources.server_notes)
        return (
            *self._catalog.notes,
            "cassette.mode = 'replay': a call that is not recorded is a fault, and its episode has no score; "
            "to train, use 'extend' or 'off'",
        )

    def fact_rules(self, task: Task) -> FactRules:
        """Return what counts as telling the task's outputs."""
        return find_mcp_fact_rules(self.resources.find_task(task.id) or self._unlisted(task))

    @property
    def _names(self) -> dict[str, str]:
        """The name that the agent sees of each tool, by all of its names."""
        return {name: entry.spec.name for name, entry in self._catalog.all_entries.items()}

    def gold_writes(self, task: Task) -> tuple[ToolCall, ...]:
        """Return the gold calls that may change something: those of servers with state, beyond `read_only_tools`."""
        known = self._catalog.all_entries
        return tuple(c for c in task.gold_calls if c.name not in known or not self._is_read_only(known[c.name]))

    async def read_resources(self, limit: int) -> list[str]:
        """Return the texts of up to `limit` resources of each server; none if a recording replaces the servers."""
        if self.resources.config.cassette.mode == "replay":
            return []
        texts: list[str] = []
        for name, config in self.resources.config.servers.items():
            session = await SessionStarter(name, config).start()
            try:
                texts += await session.read_resources(limit)
            finally:
                session.close()
                await session.wait_closed()
        return texts

    def write_folder(self, folder: Path, tasks: Sequence[Task]) -> None:
        """Write a folder with this environment, in which these tasks of it are listed instead of its own."""
        write_environment(self.resources.config, map(self._unlisted, tasks), folder)

    def _unlisted(self, task: Task) -> MCPTask:
        """Return a task that the environment's file does not list. Raise `TaskError` if it cannot be played."""
        if task.domain != self.name:
            raise TaskError(f"task {task.id} is of the domain {task.domain!r}, and {self.name} cannot play it")
        if unknown := [call.name for call in task.gold_calls if call.name not in self._catalog.all_entries]:
            raise TaskError(f"task {task.id}: a gold call names {unknown[0]!r}, which no server of {self.name} has")
        known = self._catalog.all_entries
        writes = [MCPCall(tool=known[c.name].full_name, arguments=c.arguments) for c in self.gold_writes(task)]
        entries = {entry.full_name: entry for entry in known.values()}
        reads = [CallPattern(tool=name) for name, entry in entries.items() if self._is_read_only(entry)]
        return resolve_task_aliases(MCPTask.from_task(task, writes, reads), self._catalog)

    def _is_read_only(self, entry: CatalogEntry) -> bool:
        config = self.resources.config.servers[entry.server]
        return config.isolation == "shared" or matches_any(entry.tool, config.read_only_tools)

    @functools.cached_property
    def _catalog(self) -> ToolCatalog:
        config = self.resources.config
        return ToolCatalog(
            self.resources.server_tools, config.servers, config.tool_naming, self.task_slice.tools, config.aliases
        )


def resolve_task_aliases(task: MCPTask, catalog: ToolCatalog) -> MCPTask:
    """Return the task with the tools' names and parameters in place of aliases.

    A pattern that matches several tools stays as it is. `CallPattern.matches` compares it with the aliases too.
    """

    def resolve(call: C) -> C:
        entry = catalog.all_entries.get(call.tool)
        if entry is None:
            return call
        call = call.replace(arguments=entry.spec.resolve_aliases(call.arguments))
        if isinstance(call, CallPattern):
            call = call.replace(argument_patterns=entry.spec.resolve_aliases(call.argument_patterns))
        return call.replace(tool=entry.full_name) if call.tool in entry.aliases else call

    check = task.check
    calls = check.calls and check.calls.replace(
        required=tuple(map(resolve, check.calls.required)),
        allowed=None if check.calls.allowed is None else tuple(map(resolve, check.calls.allowed)),
        forbidden=tuple(map(resolve, check.calls.forbidden)),
    )
    return task.replace(
        setup=tuple(map(resolve, task.setup)),
        gold=tuple(map(resolve, task.gold)),
        check=check.replace(calls=calls, state=tuple(map(resolve, check.state))),
    )


async def _list_tools(servers: Mapping[str, MCPServerConfig], notes: list[str]) -> dict[str, tuple[ToolSpec, ...]]:
    """Start the servers and return their tools. Add what a user should know of results and starts to `notes`."""

    async def list_one(name: str, config: MCPServerConfig) -> tuple[tuple[ToolSpec, ...], list[str], str]:
        begun = time.perf_counter()
        session = await SessionStarter(name, config).start()
        seconds = time.perf_counter() - begun
        tools = sanitized_specs(name, session.tools, session.sanitize)
        allowed = [tool for tool in session.tools if is_allowed(config, tool.name)]
        patterns = [pattern_note("results", name, tool.name, tool.output_schema) for tool in allowed]
        session.close()
        await session.wait_closed()
        start = f"{name!r} ({seconds:.1f} s now)" if config.owns_state and not config.reset else ""
        return tools, patterns, start

    listed = await asyncio.gather(*(list_one(name, config) for name, config in servers.items()))
    notes += (note for _, patterns, _ in listed for note in patterns if note)
    if starts := [start for *_, start in listed if start]:
        notes.append(
            f"isolation = 'episode': each episode starts {', '.join(starts)}; set isolation = 'shared' for a server "
            "whose tools keep no state"
        )
    return {name: tools for name, (tools, *_) in zip(servers, listed, strict=True)}


def _run_in_thread(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in an event loop in another thread, and return its result.

    This thread may already have a running event loop.
    """
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(run_async, work).result()
