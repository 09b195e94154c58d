"""tau2-bench (github.com/sierra-research/tau2-bench) from your own checkout: `load("tau2:PATH#telecom")`.

The tasks, the policies, the tools of agent and user, and the reward are tau2's (see `tau2_episode`). The rollout loop
is this package's. Databases are copied on write, row by row; tau2 itself parses them three times an episode.

Differences from tau2: the user speaks first (tau2's agent starts with "Hi! How can I help you today?"), the initial
conversation of a task is part of the system message, and tool errors never end an episode.

Users are language models or people (see `gold_user`). `with_users` sets them, and gives them tau2's user tools.
"""

import contextlib
import functools
import importlib.util
import inspect
import itertools
import json
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from understudy.core.errors import ConfigError, TaskError, ToolError
from understudy.core.messages import Message, ToolCall, ToolSpec
from understudy.core.tasks import SPLITS, Scenario, Split, Task
from understudy.envs.environment import ToolEnvironment
from understudy.envs.task_source import FULL_SLICE, Slice, TaskSource, validate_slice
from understudy.envs.users import User, UserFactory, make_user
from understudy.sources.benchmarks.checkout import import_submodule, locate_domain, register_package
from understudy.sources.benchmarks.forked_tables import FrozenTables, RowChanges
from understudy.sources.benchmarks.gold_user import GoldUser
from understudy.sources.benchmarks.tau2_episode import (
    STOP_MARKERS,
    AssertionJudge,
    Tau2Grader,
    Tau2Tools,
    needs_judge,
    tau2_canonical,
)
from understudy.sources.benchmarks.tau_bench import DEFAULT_ANSWER, StopMarkerUser, difficulty_by_calls

FAMILIES = ("change", "tell", "nothing", "judged")
"""change: the state must change. tell: only something must be said. nothing: doing nothing earns the full reward.
judged: a language model judges the transcript, so a judge is required."""


def open_domain(reference: str) -> "Tau2Bench":
    """Load the domain at `PATH#name`."""
    root, name = locate_domain(reference, "tau2", "src/tau2/domains")
    return Tau2Bench(root, name)


@dataclass(frozen=True)
class Tau2Bench(TaskSource):
    """A domain of a checkout, narrowed by `task_slice`. Without splits, all tasks are in `test`."""

    root: Path
    domain: str
    task_slice: Slice = FULL_SLICE
    judge: AssertionJudge | None = None
    families: tuple[str, ...] = FAMILIES
    user_factory: UserFactory | None = None
    """Makes the users of episodes. Without it, the user of `gold_user` is used."""
    raw_tasks: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """tau2's task objects by task id."""

    @property
    def name(self) -> str:
        """The names of the benchmark and the domain."""
        return f"tau2-{self.domain}"

    @property
    def lacks_users(self) -> bool:
        """Whether no users are set: the benchmark has no scripts for them."""
        return self.user_factory is None

    def with_users(self, user_factory: UserFactory) -> "Tau2Bench":
        """Return this domain with other users."""
        return replace(self, user_factory=user_factory)

    def slice(self, task_slice: Slice) -> "Tau2Bench":
        """Return this domain narrowed to `task_slice`. Raise `ConfigError` for an unknown name."""
        validate_slice(self.name, task_slice, FAMILIES, [spec.name for spec in self._all_specs])
        return replace(self, task_slice=task_slice)

    def tasks(self, split: Split) -> list[Task]:
        """Return the tasks of a split that the slice selects. There is no validation split."""
        return self.task_slice.select_tasks(self._tasks(split))

    def environment(self, task: Task, user: User | None = None, seed: int = 0) -> ToolEnvironment:
        """Return a new episode of `task`. Without a user, the user of `gold_user` is used."""
        raw = self._raw(task)
        if needs_judge(raw.evaluation_criteria) and self.judge is None:
            raise TaskError(
                f"task {task.id} needs a judge of its transcript; pass Tau2Bench(..., judge=...), or leave such tasks "
                "out with slice.families=change,tell,nothing"
            )
        state = self._start(raw)
        agent, user_tools = self._side(state, "assistant"), self._side(state, "user", getattr(raw, "user_tools", None))
        grader = self._grader(raw, state, [agent, user_tools])
        policy = "\n\n".join(filter(None, (state.policy, _earlier_text(grader.history))))
        player = StopMarkerUser(self._player(task, seed, user, user_tools), STOP_MARKERS)
        return ToolEnvironment(policy, agent, player, grader.score, self.tool_specs)

    def to_task(self, id: str, split: Split, raw: Any) -> Task:
        """Convert a task of tau2: an object of tau2, a row of its tasks.json, or a row of tau-bench.

        Raise `TaskError` for a row that has the id of another task of tau2.
        """
        raw = self._to_raw(id, raw) if isinstance(raw, Mapping) else raw
        if any(own.id == id and own != raw for own in self._everything):
            raise TaskError(f"task {id}: {self.name} has another task with this id; rename that of the row")
        self.raw_tasks[id] = raw
        criteria, history = raw.evaluation_criteria, self._history(raw)
        turns = tuple(_gold(raw))
        instructions = "\n\n".join(filter(None, (str(raw.user_scenario), _earlier_text(history))))
        return Task(
            id=id,
            domain=self.name,
            split=split,
            family="judged" if needs_judge(criteria) else self._family(raw),
            difficulty=difficulty_by_calls(len(criteria.actions or ()) if criteria else 0),
            scenario=Scenario(instructions=instructions, opening=""),
            gold=turns,
            outputs=tuple(criteria.communicate_info or ()) if criteria else (),
        )

    @property
    def tool_specs(self) -> tuple[ToolSpec, ...]:
        """The agent's tools."""
        return self.task_slice.select_tools(self._all_specs)

    @property
    def domain_policy(self) -> str:
        """Return tau2's policy of the domain without its instructions on turns and JSON."""
        return str(self._first.policy)

    def _to_raw(self, id: str, row: Mapping[str, Any]) -> Any:
        """Return the object of tau2 for a row."""
        if "evaluation_criteria" not in row:  # a row of tau-bench
            actions = [{"name": each["name"], "arguments": each["kwargs"]} for each in row["actions"]]
            numbered = [{"action_id": f"{number}", **each} for number, each in enumerate(actions)]
            criteria = {"actions": numbered, "communicate_info": row["outputs"]}
            row = {"user_scenario": {"instructions": row["instruction"]}, "evaluation_criteria": criteria}
        return import_submodule("tau2.data_model.tasks").Task.model_validate({**row, "id": id})

    def _raw(self, task: Task) -> Any:
        for split in SPLITS if task.id not in self.raw_tasks else ():  # a task of a file
            self._tasks(split)
        if task.id not in self.raw_tasks:
            raise TaskError(f"task {task.id} is not a task of {self.name}; use a task that its `tasks` returned")
        return self.raw_tasks[task.id]

    def _family(self, raw: Any) -> str:
        """Return the family of a task, from the score parts that an agent without replies and calls does not earn."""
        silent = self._grader(raw, self._start(raw), []).score((), ended=True)
        lacking = {name for name, part in silent.parts.items() if part < 1.0}
        return "nothing" if not lacking else "tell" if lacking == {"communicate"} else "change"

    def _grader(self, raw: Any, state: Any, sides: Sequence[Tau2Tools]) -> Tau2Grader:
        history = self._history(raw)
        before = self._side(state, "assistant")
        for call in (call for message in history for call in message.tool_calls):
            before.calls.append(before.call_type(name=call.name, arguments=call.arguments))

        def same_state() -> bool:
            return self._changes(state) == self._goal(raw)

        return Tau2Grader(raw.evaluation_criteria, state, same_state, [before, *sides], history, self.judge)

    def _player(self, task: Task, seed: int, user: User | None, user_tools: Tau2Tools) -> User:
        """Make the user. A user object given by the caller has no tools, so it cannot play tasks in which the user
        acts."""
        raw = self._raw(task)
        if user and any(action.requestor == "user" for action in _actions(raw)):
            raise ConfigError(
                f"the user of task {raw.id} of {self.name} needs tools, and {type(user).__name__} has none; "
                "set the users with with_users"
            )
        if user:
            return user
        if not self.user_factory:
            return GoldUser(task, _acts(raw, user_tools))
        return make_user(self.user_factory, task.scenario, seed, user_tools if user_tools.tool_specs else None)

    def _side(self, state: Any, requestor: str, include: Sequence[str] | None = None) -> Tau2Tools:
        specs = self._all_specs if requestor == "assistant" else self._user_specs
        listed = [spec for spec in specs if include is None or spec.name in include]
        return Tau2Tools(state, import_submodule("tau2.data_model.message").ToolCall, requestor, listed)

    def _start(self, raw: Any) -> Any:
        """Return tau2's environment in the task's initial state. If the task has initialization data, they are merged
        into the databases.
        """
        begin = raw.initial_state
        data = begin.initialization_data if begin else None
        databases = [world.fork(full_copy=data is not None) for world in self._worlds]
        state = self._module.get_environment(*databases)
        actions, history = (begin.initialization_actions, begin.message_history) if begin else (None, None)
        state.set_state(data, actions, history or [])
        return state

    def _history(self, raw: Any) -> list[Message]:
        found = raw.initial_state.message_history if raw.initial_state else None
        if found and (found[-1].role != "assistant" or found[-1].tool_calls):
            raise TaskError(
                f"task {raw.id} of {self.name} starts in the middle of the agent's turn, which is not supported"
            )
        return [_message(message) for message in found or ()]

    def _changes(self, state: Any) -> list[RowChanges]:
        kits = [kit for kit in (state.tools, state.user_tools) if kit is not None]
        return [world.changes(kit.db) for world, kit in zip(self._worlds, kits, strict=True)]

    def _goal(self, raw: Any) -> list[RowChanges]:
        key = id(raw)
        if key not in self._goals:
            self._goals[key] = self._run_gold(raw)
        return self._goals[key]

    def _run_gold(self, raw: Any) -> list[RowChanges]:
        """Run the gold actions, and return the changes. As in tau2, errors are ignored, and databases are not
        synchronized."""
        state = self._start(raw)
        side = {who: self._side(state, who) for who in ("assistant", "user")}
        state.sync_tools = lambda: None
        for action in _actions(raw):
            with contextlib.suppress(ToolError):
                side[action.requestor].call_sync(ToolCall(name=action.name, arguments=action.arguments))
        return self._changes(state)

    @functools.cached_property
    def _tasks(self) -> Callable[[Split], list[Task]]:
        return functools.cache(self._read_tasks)

    def _read_tasks(self, split: Split) -> list[Task]:
        ids = set(self._splits.get(split, ()))
        return [self.to_task(raw.id, split, raw) for raw in self._everything if raw.id in ids]

    @functools.cached_property
    def _everything(self) -> list[Any]:
        """Load tau2's tasks of all splits."""
        try:
            return list(self._module.get_tasks(None))
        except FileNotFoundError as e:
            raise ConfigError(f"the checkout {self.root} lacks a file of {self.domain}: {e.filename}") from e

    @functools.cached_property
    def _splits(self) -> dict[str, Sequence[str]]:
        """Return task ids by split: tau2's `train` and `test`; if there are none, all tasks are in `test`."""
        named = (self._module.get_tasks_split() if hasattr(self._module, "get_tasks_split") else None) or {}
        return dict(named) if "test" in named else {"test": [raw.id for raw in self._everything]}

    @functools.cached_property
    def _goals(self) -> dict[int, list[RowChanges]]:
        return {}

    @functools.cached_property
    def _worlds(self) -> list["Tau2Database"]:
        kits = (self._first.tools, self._first.user_tools)
        return [Tau2Database(kit.db) for kit in kits if kit is not None]

    @functools.cached_property
    def _first(self) -> Any:
        """Return an environment whose databases are never changed."""
        try:
            return self._module.get_environment()
        except ModuleNotFoundError as e:
            raise ConfigError(f"{self.name} needs the module {e.name}; see the README of tau2-bench") from e
        except FileNotFoundError as e:
            raise ConfigError(f"the checkout {self.root} lacks a file of {self.domain}: {e.filename}") from e

    @functools.cached_property
    def _all_specs(self) -> tuple[ToolSpec, ...]:
        return tuple(map(_spec, self._first.get_tools()))

    @functools.cached_property
    def _user_specs(self) -> tuple[ToolSpec, ...]:
        return tuple(map(_spec, self._first.get_user_tools())) if self._first.user_tools is not None else ()

    @functools.cached_property
    def _module(self) -> Any:
        """Import the domain's environment module without tau2's top module, which imports litellm and all agents."""
        if importlib.util.find_spec("loguru"):
            import_submodule("loguru").logger.disable("tau2")
        register_package("tau2", self.root / "src" / "tau2")
        module = import_submodule(f"tau2.domains.{self.domain}.environment")
        if next(iter(inspect.signature(module.get_environment).parameters), "") != "db":
            raise ConfigError(f"{self.name} is not supported: its get_environment does not take a database")
        return module


class Tau2Database:
    """A database of tau2 (a pydantic model) that can be forked."""

    def __init__(self, database: Any) -> None:
        tables = {name: getattr(database, name) for name in type(database).model_fields}
        self._rows = FrozenTables(tables, tau2_canonical)
        self._whole = pickle.dumps(database)
        self._shell = pickle.dumps(database.model_copy(update=dict.fromkeys(tables)))

    def fork(self, full_copy: bool) -> Any:
        """Return a database that may be changed. `whole` copies it in full, for callers that dump it."""
        if full_copy:
            return pickle.loads(self._whole)
        database = pickle.loads(self._shell)
        for name, table in self._rows.fork().items():
            setattr(database, name, table)
        return database

    def changes(self, database: Any) -> RowChanges:
        """Return how a fork differs from the database."""
        return self._rows.changes({name: getattr(database, name) for name in type(database).model_fields})


def _actions(raw: Any) -> Sequence[Any]:
    return (raw.evaluation_criteria.actions or ()) if raw.evaluation_criteria else ()


def _gold(raw: Any) -> Iterator[Message]:
    """Return the gold agent's turns: its actions one by one, a text before each action of the user, and the facts to
    tell."""
    for who, actions in itertools.groupby(_actions(raw), key=lambda action: action.requestor):
        if who == "user":
            wanted = "; ".join(action.get_func_format() for action in actions)
            yield Message(role="assistant", content=f"Please do this: {wanted}")
            continue
        for action in actions:
            call = ToolCall(name=action.name, arguments=action.arguments)
            yield Message(role="assistant", tool_calls=(call,))
    facts = raw.evaluation_criteria.communicate_info if raw.evaluation_criteria else None
    yield Message(role="assistant", content="; ".join(facts or ()) or DEFAULT_ANSWER)


def _acts(raw: Any, user_tools: Tau2Tools) -> Callable[[int], Any]:
    """Return the user's gold actions after each gold text, in order. As in tau2, actions that fail are skipped."""
    groups = itertools.groupby(_actions(raw), key=lambda action: action.requestor)
    blocks = [list(actions) for who, actions in groups if who == "user"]

    async def act(turn: int) -> None:
        for action in blocks[turn] if turn < len(blocks) else ():
            try:
                user_tools.call_sync(ToolCall(name=action.name, arguments=action.arguments))
            except ToolError:
                continue

    return act


def _spec(tool: Any) -> ToolSpec:
    about = tool.openai_schema["function"]
    return ToolSpec(name=about["name"], description=about["description"], parameters=about["parameters"])


def _message(message: Any) -> Message:
    """Convert a message of tau2."""
    if message.role == "tool":
        return Message(role="tool", content=message.content or "", tool_call_id=message.id)
    calls = (ToolCall(id=c.id, name=c.name, arguments=c.arguments) for c in message.tool_calls or ())
    return Message(role=message.role, content=message.content or "", tool_calls=tuple(calls))


def _earlier_text(messages: Sequence[Message]) -> str:
    """Render the initial conversation as text."""
    lines = []
    for message in messages:
        calls = [f"{call.name}({json.dumps(call.arguments)})" for call in message.tool_calls]
        lines.append(f"{message.role}: {' '.join(filter(None, (message.content, *calls)))}")
    return "\n".join(("The conversation so far:", *lines)) if lines else ""
