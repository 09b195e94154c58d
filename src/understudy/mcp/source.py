"""MCPSource: the tasks and episodes of an MCP environment, `find("mcp:notes.toml")`.

Tools are listed once, by a server of its own or from the cassettes; from then on all episodes show the same ones.
"""

import asyncio
import dataclasses
import functools
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from understudy.domains.base import WHOLE, Slice, refuse_unknown
from understudy.errors import ConfigError, TaskError
from understudy.mcp.cassette import Cassette, cassette_path, read_offers, write_offers
from understudy.mcp.catalogue import Catalogue, Offers, specs_of
from understudy.mcp.environment import MCPEnvironment, prepare
from understudy.mcp.pool import Pools, Starter
from understudy.mcp.reply import Reply
from understudy.mcp.settings import EnvironmentConfig, ServerConfig, load_environment
from understudy.mcp.tasks import MCPTask, read_mcp_tasks
from understudy.mcp.toolkit import MCPToolkit
from understudy.messages import ToolSpec
from understudy.tasks import Split, Task, epochs, select
from understudy.users import MakeUser, NoUser, User

T = TypeVar("T")
_SHIPPED = Path(__file__).parent / "servers" / "tasks"


def open_domain(reference: str) -> "MCPSource":
    """The environment in a TOML file, or one of those that are shipped, by its name."""
    shipped = _SHIPPED / f"{reference}.toml"
    return MCPSource(Shared(load_environment(shipped if shipped.is_file() else Path(reference).expanduser())))


class Shared:
    """What all slices of an environment have in common: tasks, tools, sessions, cassettes, and what gold leads to."""

    def __init__(self, config: EnvironmentConfig) -> None:
        self.config = config
        self.pools = Pools(config.servers)
        self._cassettes: dict[str, Cassette] = {}
        self._goals: dict[str, Sequence[Reply | None]] = {}
        self._locks: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, asyncio.Lock]] = WeakKeyDictionary()

    @functools.cached_property
    def tasks(self) -> dict[str, MCPTask]:
        """The tasks by id."""
        return {task.id: task for task in read_mcp_tasks(Path(self.config.tasks))}

    @functools.cached_property
    def offers(self) -> Offers:
        """What the servers offer: as recorded, or as ones that are started for it say."""
        tape = self.config.cassette
        if tape.mode in ("replay", "extend") and (recorded := read_offers(Path(tape.folder))) is not None:
            return recorded
        if tape.mode == "replay":
            raise ConfigError(f"there are no cassettes in {tape.folder}; record them by cassette.mode = 'record'")
        offers = _apart(_listed(self.config.servers))
        if tape.mode != "off":
            write_offers(Path(tape.folder), offers)
        return offers

    def kit(self, task: MCPTask, catalogue: Catalogue) -> MCPToolkit:
        """The tools of one episode."""
        return MCPToolkit(
            self.config.servers,
            limits=self.config.limits.narrowed(task.limits),
            catalogue=catalogue,
            pools=self.pools,
            cassette=self._cassette(task.id),
            mode=self.config.cassette.mode,
        )

    async def goal(self, task: MCPTask, catalogue: Catalogue) -> Sequence[Reply | None]:
        """What the checks of the state show after the gold calls, which run once for each task."""
        if not any(check.by_gold for check in task.check.state):
            return [None] * len(task.check.state)
        locks = self._locks.setdefault(asyncio.get_running_loop(), {})
        async with locks.setdefault(task.id, asyncio.Lock()):
            if task.id not in self._goals:
                self._goals[task.id] = await self._gold(task, catalogue)
        return self._goals[task.id]

    async def _gold(self, task: MCPTask, catalogue: Catalogue) -> Sequence[Reply | None]:
        async with self.kit(task, catalogue) as kit:
            await prepare(kit, task.id, [*task.setup, *task.gold])
            return [await kit.perform(check) if check.by_gold else None for check in task.check.state]

    def _cassette(self, task: str) -> Cassette | None:
        tape = self.config.cassette
        if tape.mode == "off":
            return None
        if task not in self._cassettes:
            self._cassettes[task] = Cassette(cassette_path(Path(tape.folder), task))
        return self._cassettes[task]


@dataclass(frozen=True)
class MCPSource:
    """One environment; `part` narrows it."""

    shared: Shared
    part: Slice = WHOLE
    user: MakeUser | None = None
    """Makes the users of episodes; without it they say the task and nothing more."""

    @property
    def name(self) -> str:
        """The environment's name."""
        return self.shared.config.name

    @property
    def families(self) -> tuple[str, ...]:
        """The families of the tasks."""
        return tuple(dict.fromkeys(task.family for task in self.shared.tasks.values()))

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """The tools that the agent is shown."""
        return self._catalogue.specs

    @property
    def policy(self) -> str:
        """What the agent is told, or if that is each task's own matter, what it is told at the first."""
        own = (task.policy for task in self.shared.tasks.values() if task.policy)
        return self.shared.config.policy or next(own, "")

    def with_users(self, user: MakeUser) -> "MCPSource":
        """The same with users who may answer."""
        return dataclasses.replace(self, user=user)

    def slice(self, part: Slice) -> "MCPSource":
        """The same narrowed to `part`; a name that is not there is a `ConfigError`."""
        refuse_unknown(self.name, part, self.families, [spec.name for spec in self.specs] if part.tools else [])
        return dataclasses.replace(self, part=part)

    def tasks(self, split: Split) -> list[Task]:
        """The tasks of a split, those of the slice."""
        names = {name: entry.spec.name for name, entry in self._catalogue.every.items()}
        tasks = [task.task(self.name, names) for task in self.shared.tasks.values()]
        return select([t for t in tasks if t.split == split], self.part.families, self.part.difficulties)

    def stream(self, split: Split, seed: int = 0) -> Iterator[Task]:
        """The tasks of the slice in endless epochs, each shuffled anew."""
        return epochs(self.tasks(split), seed)

    def rows(self, task: Task) -> Sequence[tuple[str, str]]:
        """None: what a server holds is not known here."""
        return ()

    def environment(self, task: Task, user: User | None = None, seed: int = 0) -> MCPEnvironment:
        """A fresh episode of `task`."""
        mine = self.shared.tasks.get(task.id)
        if mine is None:
            raise TaskError(f"task {task.id} is none of {self.name}, whose tasks are in {self.shared.config.tasks}")
        made = user or (self.user(task.scenario, seed, None) if self.user else NoUser(mine.prompt))
        kit, goal = self.shared.kit(mine, self._catalogue), functools.partial(self.shared.goal, mine, self._catalogue)
        return MCPEnvironment(mine, kit, mine.policy or self.policy, made, goal, self.shared.config.reward)

    @functools.cached_property
    def _catalogue(self) -> Catalogue:
        config = self.shared.config
        return Catalogue(self.shared.offers, config.servers, config.names, self.part.tools)


async def _listed(servers: Mapping[str, ServerConfig]) -> dict[str, tuple[ToolSpec, ...]]:
    offers: dict[str, tuple[ToolSpec, ...]] = {}
    for name, config in servers.items():
        session = await Starter(name, config).start()
        offers[name] = specs_of(session.tools, session.clean)
        session.close()
        await session.closed()
    return offers


def _apart(work: Coroutine[Any, Any, T]) -> T:
    """What a coroutine gives, in an event loop of its own: there may be one running already."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()
