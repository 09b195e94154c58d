"""Domain: where tasks and episodes come from. A domain is one folder whose package holds `DOMAIN = Domain(...)`.

    __init__.py  state.py  tools.py  policy.md  policy_brief.md  tasks.py  tasks/{train,validation,test}.jsonl

`find` gives a shipped domain by its folder's name, anybody else's by `module:attribute`, a benchmark's by
`benchmark:PATH#domain`, out of your own checkout, and an MCP environment by `mcp:file.toml`. Each is a `TaskSource`;
what `module:attribute` names may be any.
"""

import dataclasses
import functools
import importlib
import itertools
import pkgutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal, Protocol

from understudy import domains
from understudy.environment import ConsentGate, Environment, ToolEnvironment
from understudy.errors import ConfigError, TaskError, ToolError, nearest
from understudy.imported import imported
from understudy.messages import Message, ToolSpec
from understudy.records import Record
from understudy.rewards import product, progress, said_outputs, same_state
from understudy.state import State
from understudy.tasks import DIFFICULTIES, Difficulty, Score, Split, Task, read_tasks, select, write_tasks
from understudy.tools import Toolkit
from understudy.users import MakeUser, ScriptedUser, User

FROZEN: Mapping[Split, int] = {"train": 500, "validation": 100, "test": 100}
"""How many tasks the frozen splits of a shipped domain hold."""
REMEMBERED = 20_000
"""How many tasks' goals a domain keeps: a run without end meets new tasks without end."""
BENCHMARKS: Mapping[str, str] = {
    "tau-bench": "understudy.integrations.tau_bench",
    "tau2": "understudy.integrations.tau2_bench",
}
"""What stands before `:PATH#domain`, and the module whose `open_domain` opens it."""
OPENED: Mapping[str, str] = {**BENCHMARKS, "mcp": "understudy.mcp.source", "mix": "understudy.domains.mixture"}
"""The same, and what stands before the TOML file of an MCP environment, and before the domains of a mixture."""


class Slice(Record):
    """A part of a domain: which tasks, and what the agent is shown. Empty means all."""

    families: tuple[str, ...] = ()
    """Families whose tasks are in it; of a mixture also as `domain/family`."""
    difficulties: tuple[Difficulty, ...] = ()
    """Difficulties whose tasks are in it."""
    tools: tuple[str, ...] = ()
    """Tools that the agent is shown and may call; a task whose gold calls another one is invalid."""
    policy: Literal["full", "brief"] = "full"
    """`full` is policy.md; `brief` is policy_brief.md, for small models and short contexts."""


WHOLE = Slice()


def refuse_unknown(
    name: str, part: Slice, families: Collection[str], tools: Collection[str], brief: bool = False
) -> None:
    """A family or a tool of `part` that the source called `name` does not have is a `ConfigError`.

    So is the brief policy, unless the source says that it has one.
    """
    for kind, given, known in (("family", part.families, families), ("tool", part.tools, tools)):
        for wrong in sorted(set(given) - set(known)):
            raise ConfigError(f"{name} has no {kind} {nearest(wrong, known)}")
    if part.policy != "full" and not brief:
        raise ConfigError(f"{name} has no {part.policy} policy; use slice.policy=full")


class TaskSource(Protocol):
    """Where tasks and episodes come from: a `Domain`, or a benchmark that brings its own tools and grades."""

    @property
    def name(self) -> str:
        """What tasks and results are filed under."""

    @property
    def families(self) -> Sequence[str]:
        """The kinds of tasks that there are."""

    @property
    def specs(self) -> Sequence[ToolSpec]:
        """The tools that the agent is shown."""

    @property
    def policy(self) -> str:
        """What the agent is told of its job."""

    def with_users(self, user: MakeUser) -> "TaskSource":
        """The same with other users."""

    def slice(self, part: Slice) -> "TaskSource":
        """The same narrowed to `part`; a name that is not there is a `ConfigError`."""

    def tasks(self, split: Split) -> list[Task]:
        """The frozen tasks of a split, those of the slice."""

    def stream(self, split: Split, seed: int = 0) -> Iterator[Task]:
        """Tasks of the slice without end, the same for the same seed; none where the split has none."""

    def environment(self, task: Task, user: User | None = None, seed: int = 0) -> Environment:
        """A fresh episode of `task`; without a user, with the one that needs no model."""

    def rows(self, task: Task) -> Sequence[tuple[str, str]]:
        """The rows (table, id) that `task` is about and that must belong to its split alone."""


_MEMBERS = {name for name in vars(TaskSource) if not name.startswith("_")}


class Generate(Protocol):
    """A domain's endless supply of tasks."""

    def __call__(
        self, split: Split, seed: int, families: Sequence[str], difficulties: Sequence[Difficulty]
    ) -> Iterator[Task]:
        """Tasks over the split's own users and entities, the same for the same seed, round-robin over the families."""


class Grade(Protocol):
    """A domain's reward."""

    def __call__(
        self,
        task: Task,
        state: State,
        goal: Mapping[str, Any],
        gate: ConsentGate,
        transcript: Sequence[Message],
        ended: bool,
    ) -> Score:
        """Score an episode by its final state and what was said.

        `goal` are the changes that gold's calls make (`state.changes()` are the episode's), `gate.violations` counts
        calls that broke the policy, and `ended` is False where a limit cut the episode off.
        """


class Make(Protocol):
    """One task of a domain's endless supply, by what its id says."""

    def __call__(self, split: Split, seed: int, family: str, difficulty: Difficulty, number: int) -> Task:
        """The task that `Generate` gives at this place."""


@dataclass(frozen=True)
class Domain:
    """A world, its tools, policy and tasks; `part` narrows them."""

    package: str
    """The folder's import name (`__name__` in its `__init__`)."""
    world: Callable[[], State]
    """Makes the initial state."""
    toolkit: Callable[[State], Toolkit]
    generate: Generate
    families: tuple[str, ...]
    device: Callable[[State], Toolkit] | None = None
    """Tools of the user's own, on the same state, such as a phone."""
    shared: tuple[str, ...] = ()
    """Tables that all splits share, such as a catalogue; the rows of all others belong to one split."""
    make: Make | None = None
    """Makes one task of the supply again, where tasks have ids of `supply`; without it only frozen ones are found."""
    part: Slice = WHOLE
    user: MakeUser = ScriptedUser
    """Makes the user of an episode."""
    grade: Grade | None = None
    """Scores an episode; without it `score` does. Gold has to earn 1.0, and doing nothing 0.0."""

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.package.rpartition(".")[2]

    def slice(self, part: Slice) -> "Domain":
        """The same domain narrowed to `part`; a name that the domain does not have is a `ConfigError`."""
        refuse_unknown(self.name, part, self.families, [spec.name for spec in self._all_specs], brief=True)
        return dataclasses.replace(self, part=part)

    def with_users(self, user: MakeUser) -> "Domain":
        """The same domain with other users."""
        return dataclasses.replace(self, user=user)

    def tasks(self, split: Split) -> list[Task]:
        """The frozen tasks of a split, those of the slice."""
        return select(read_tasks(self._split(split)), self.part.families, self.part.difficulties)

    def sample(self, split: Split, count: int, seed: int = 0) -> list[Task]:
        """`count` freshly generated tasks of the slice, over the split's own users and entities."""
        return list(itertools.islice(self.stream(split, seed), count))

    def stream(self, split: Split, seed: int = 0) -> Iterator[Task]:
        """Generated tasks of the slice without end."""
        return self.generate(split, seed, self.part.families or self.families, self.part.difficulties or DIFFICULTIES)

    def freeze(self) -> None:
        """Write the frozen splits anew: what the generator gives first for seed 0."""
        for split, count in FROZEN.items():
            write_tasks(self._split(split), self.sample(split, count))

    def environment(self, task: Task, user: User | None = None, seed: int = 0) -> ToolEnvironment:
        """A fresh episode of `task`, with the domain's user unless another one is given."""
        return self.environment_on(self.initial(task), task, user, seed)

    def environment_on(self, state: State, task: Task, user: User | None = None, seed: int = 0) -> ToolEnvironment:
        """The same on a given state, for those who want to watch it change."""
        transcript = list[Message]()
        gate = ConsentGate(self.toolkit(state), state, transcript)
        grade = functools.partial(self.grade or score, task, state, self.goal(task), gate)
        device = self.device(state) if self.device else None
        if task.scenario.deeds and not device:
            raise TaskError(f"task {task.id}: its user has deeds to do, but {self.name} has no tools for users")
        user = user or self.user(task.scenario, seed, device)
        return ToolEnvironment(self.policy, gate, user, grade, self.specs, transcript)

    def initial(self, task: Task) -> State:
        """A fresh state of the world with the task's setup applied. One that does not fit is a `TaskError`."""
        state = self._world.fork()
        try:
            state.patch(task.setup)
        except TaskError as e:
            raise TaskError(f"task {task.id}: its setup does not fit: {e}") from e
        return state

    def goal(self, task: Task) -> Mapping[str, Any]:
        """The changes that the task's gold calls make; cached. Gold that a tool refuses is a `TaskError`."""
        if task.id not in self._goals:
            if len(self._goals) >= REMEMBERED:
                self._goals.clear()
            self._goals[task.id] = self.fulfilled(task).changes()
        return self._goals[task.id]

    def rows(self, task: Task) -> list[tuple[str, str]]:
        """The rows that a task is about: those of its setup, and those that its gold calls name."""
        named = {text for call in task.actions for value in call.arguments.values() for text in _strings(value)}
        found: list[tuple[str, str]] = []
        for table, rows in self._world.tables().items():
            if table not in self.shared:
                found += ((table, key) for key in sorted(task.setup.get(table, {}).keys() | (named & rows.keys())))
        return found

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """The tools that the agent is shown."""
        return tuple(spec for spec in self._all_specs if not self.part.tools or spec.name in self.part.tools)

    @property
    def policy(self) -> str:
        """What the agent is told of its job."""
        return self._texts[self.part.policy]

    def fulfilled(self, task: Task) -> State:
        """The state after the task's gold calls, the agent's and the user's. A refused one is a `TaskError`."""
        state = self.initial(task)
        toolkits = {"assistant": self.toolkit(state), "user": self.device(state) if self.device else None}
        for role, call in ((message.role, call) for message in task.gold for call in message.tool_calls):
            toolkit = toolkits[role]
            if toolkit is None:
                raise TaskError(f"task {task.id}: the user calls {call.name}, but {self.name} has no tools for users")
            try:
                toolkit.run(call)
            except ToolError as e:
                raise TaskError(f"task {task.id}: the gold call {call.name}({call.arguments}) is refused: {e}") from e
        return state

    def _split(self, split: Split) -> Path:
        return self._file("tasks") / f"{split}.jsonl"

    def _file(self, name: str) -> Path:
        return Path(str(resources.files(self.package))) / name

    @functools.cached_property
    def _world(self) -> State:
        return self.world()

    @functools.cached_property
    def _goals(self) -> dict[str, Mapping[str, Any]]:
        return {}

    @functools.cached_property
    def _all_specs(self) -> tuple[ToolSpec, ...]:
        return self.toolkit(self._world.fork()).specs()

    @functools.cached_property
    def _texts(self) -> dict[str, str]:
        files = {key: self._file(name) for key, name in {"full": "policy.md", "brief": "policy_brief.md"}.items()}
        for path in files.values():
            if not path.is_file():
                raise TaskError(f"domain {self.name} has no {path.name}; write what the agent is told to {path}")
        return {key: path.read_text(encoding="utf-8").strip() for key, path in files.items()}


def score(
    task: Task, state: State, goal: Mapping[str, Any], gate: ConsentGate, transcript: Sequence[Message], ended: bool
) -> Score:
    """The strict reward: the right final state, every output said, and an episode that no limit cut off.

    Told beside it: `policy`, 1.0 where no call broke it, and `turns`, the gold turns as a share of those it took.
    """
    strict = {"state": same_state(state, goal), "said": said_outputs(transcript, task.outputs), "ended": float(ended)}
    turns = sum(message.role == "assistant" for message in transcript)
    beside = {"policy": float(not gate.violations), "turns": min(1.0, len(task.turns) / max(1, turns))}
    return product(strict, beside).replace(progress=progress(state, goal, transcript, task.outputs))


def interleave(families: Sequence[str], difficulties: Sequence[Difficulty]) -> Iterator[tuple[str, Difficulty, int]]:
    """Family, difficulty and number without end: no two are the same, and any prefix is balanced over families."""
    for index in itertools.count():
        for turn in range(len(difficulties)):
            for place, family in enumerate(families):
                yield family, difficulties[(turn + place) % len(difficulties)], index


def names() -> list[str]:
    """The shipped domains: the folders of this package."""
    return sorted(m.name for m in pkgutil.iter_modules(domains.__path__) if m.ispkg)


def find(name: str) -> TaskSource:
    """A shipped domain by name, `module:attribute`, `benchmark:PATH#domain`, `mcp:file.toml`, or `mix:` of several."""
    module, _, attribute = name.partition(":")
    if module in OPENED:
        opened: TaskSource = importlib.import_module(OPENED[module]).open_domain(attribute)
        return opened
    if not attribute:
        if name not in names():
            others = "'module:attribute' for your own, or 'tau-bench:PATH#retail' for a benchmark's"
            raise ConfigError(f"unknown domain {nearest(name, names())}, or {others}")
        module, attribute = f"{domains.__name__}.{name}", "DOMAIN"
    found = imported(f"{module}:{attribute}")
    if isinstance(found, type):
        raise ConfigError(f"{name!r} is a class; name an object of it, such as DOMAIN = {attribute}(...)")
    if lacking := sorted(_MEMBERS - set(dir(found))):
        kind, members = type(found).__name__, ", ".join(lacking)
        raise ConfigError(f"{name!r} is a {kind}, no source of tasks: it has no {members}; see domains.base.TaskSource")
    source: TaskSource = found
    return source


def find_domain(name: str) -> Domain:
    """`find` where states of the world are made, which takes a `Domain`; any other source is a `ConfigError`."""
    found = find(name)
    if not isinstance(found, Domain):
        raise ConfigError(
            f"{name!r} is no Domain, whose world can be looked at; allowed: {', '.join(names())}, or one of your own"
        )
    return found


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings(item)
