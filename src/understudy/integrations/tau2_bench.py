"""tau2-bench (github.com/sierra-research/tau2-bench) out of your own checkout: `find("tau2:PATH#telecom")`.

Its tasks, policies, and tools of agent and user, in our rollout, with its own reward (see `tau2_episode`). Databases
are copied row by row, where tools touch them, instead of being parsed anew three times an episode.

It differs where our rollout does: the user speaks first (tau2's agent says "Hi! How can I help you today?" before
that), a conversation that a task begins with stands in the system message, and no number of tool errors ends an
episode. Users are language models or people; see `rehearsal`. Those who act are made by `with_users`.
"""

import functools
import importlib.util
import inspect
import itertools
import json
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from understudy.domains.base import WHOLE, Slice, refuse_unknown
from understudy.environment import ToolEnvironment
from understudy.errors import ConfigError, TaskError, ToolError
from understudy.integrations.checkout import bare, load, locate
from understudy.integrations.rehearsal import Rehearsal
from understudy.integrations.rows import Changes, Frozen
from understudy.integrations.tau2_episode import MARKS, Grader, Judge, Side, canonical, needs_judge
from understudy.integrations.tau_bench import DONE, UntilStop, difficulty
from understudy.messages import Message, ToolCall, ToolSpec
from understudy.tasks import Scenario, Split, Task, epochs, select
from understudy.users import MakeUser, User

FAMILIES = ("change", "tell", "nothing", "judged")
"""The state has to change; something has to be said and no more; doing nothing earns the whole reward; a language model
judges the transcript, so that a judge has to be given."""


def open_domain(reference: str) -> "Tau2":
    """The domain at `PATH#name`."""
    root, name = locate(reference, "tau2", "src/tau2/domains")
    return Tau2(root, name)


@dataclass(frozen=True)
class Tau2:
    """One domain of a checkout; `part` narrows it. A domain that is not split has all its tasks in `test`."""

    root: Path
    domain: str
    part: Slice = WHOLE
    judge: Judge | None = None
    families: tuple[str, ...] = FAMILIES
    user: MakeUser | None = None
    """Makes the users of episodes; without it there is one for the gold turns and for silence alone."""
    raw: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """tau2's own tasks by our ids."""

    @property
    def name(self) -> str:
        """The benchmark's and the domain's."""
        return f"tau2-{self.domain}"

    def with_users(self, user: MakeUser) -> "Tau2":
        """The same domain with other users."""
        return replace(self, user=user)

    def slice(self, part: Slice) -> "Tau2":
        """The same domain narrowed to `part`; a name that it does not have is a `ConfigError`."""
        refuse_unknown(self.name, part, FAMILIES, [spec.name for spec in self._all_specs])
        return replace(self, part=part)

    def tasks(self, split: Split) -> list[Task]:
        """The tasks of a split, those of the slice; there is no validation split."""
        return select(self._tasks(split), self.part.families, self.part.difficulties)

    def stream(self, split: Split, seed: int = 0) -> Iterator[Task]:
        """The tasks of the slice in endless epochs, each shuffled anew."""
        return epochs(self.tasks(split), seed)

    def environment(self, task: Task, user: User | None = None, seed: int = 0) -> ToolEnvironment:
        """A fresh episode of `task`; without a user, with one for the gold turns and for silence alone."""
        raw = self._raw(task)
        if needs_judge(raw.evaluation_criteria) and self.judge is None:
            raise TaskError(
                f"task {task.id}: a language model judges its transcript: give Tau2(..., judge=...), or leave such "
                "tasks out: slice.families=change,tell,nothing"
            )
        state = self._start(raw)
        agent, hands = self._side(state, "assistant"), self._side(state, "user", raw.user_tools)
        grader = self._grader(raw, state, [agent, hands])
        policy = "\n\n".join(filter(None, (state.policy, _earlier_text(grader.earlier))))
        player = UntilStop(self._player(task, seed, user, hands), MARKS)
        return ToolEnvironment(policy, agent, player, grader.score, self.specs)

    def task(self, id: str, split: Split, raw: Any) -> Task:
        """One of tau2's tasks as ours."""
        self.raw[id] = raw
        criteria, history = raw.evaluation_criteria, self._history(raw)
        turns = tuple(_gold(raw))
        instructions = "\n\n".join(filter(None, (str(raw.user_scenario), _earlier_text(history))))
        return Task(
            id=id,
            domain=self.name,
            split=split,
            family="judged" if needs_judge(criteria) else self._family(raw),
            difficulty=difficulty(len(criteria.actions or ()) if criteria else 0),
            scenario=Scenario(instructions=instructions, opening=""),
            gold=turns,
            outputs=tuple(criteria.communicate_info or ()) if criteria else (),
        )

    def refused(self, task: Task) -> list[str]:
        """What gold actions of the task fail: tau2 passes over them."""
        return self._run_gold(self._raw(task))[1]

    def rows(self, task: Task) -> Sequence[tuple[str, str]]:
        """None: tau2's splits share customers and orders."""
        return ()

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """The tools that the agent is shown."""
        return tuple(spec for spec in self._all_specs if not self.part.tools or spec.name in self.part.tools)

    @property
    def policy(self) -> str:
        """tau2's policy of the domain, without what its agents are told of turns and JSON."""
        return str(self._first.policy)

    def _raw(self, task: Task) -> Any:
        if task.id not in self.raw:
            raise TaskError(f"task {task.id} is none of {self.name}: only those that its `tasks` has given are known")
        return self.raw[task.id]

    def _family(self, raw: Any) -> str:
        """What silence lacks."""
        silent = self._grader(raw, self._start(raw), []).score((), ended=True)
        lacking = {name for name, part in silent.parts.items() if part < 1.0}
        return "nothing" if not lacking else "tell" if lacking == {"communicate"} else "change"

    def _grader(self, raw: Any, state: Any, sides: Sequence[Side]) -> Grader:
        history = self._history(raw)
        before = self._side(state, "assistant")
        for call in (call for message in history for call in message.tool_calls):
            before.calls.append(before.call_type(name=call.name, arguments=call.arguments))

        def same_state() -> bool:
            return self._changes(state) == self._goal(raw)

        return Grader(raw.evaluation_criteria, state, same_state, [before, *sides], history, self.judge)

    def _player(self, task: Task, seed: int, user: User | None, hands: Side) -> User:
        """Who plays the user. One that is given whole has no hands, so that it plays no task in which the user acts."""
        raw = self._raw(task)
        if user and any(action.requestor == "user" for action in _actions(raw)):
            raise ConfigError(
                f"task {raw.id} of {self.name} has a user who acts, and {type(user).__name__} was given no tools; "
                "let with_users make the users"
            )
        made = user or (self.user and self.user(task.scenario, seed, hands if hands.listed else None))
        return made or Rehearsal(task, _acts(raw, hands))

    def _side(self, state: Any, requestor: str, include: Sequence[str] | None = None) -> Side:
        specs = self._all_specs if requestor == "assistant" else self._user_specs
        listed = [spec for spec in specs if include is None or spec.name in include]
        return Side(state, load("tau2.data_model.message").ToolCall, requestor, listed)

    def _start(self, raw: Any) -> Any:
        """tau2's environment in the task's initial state. Initial data are merged into a database as a whole."""
        begin = raw.initial_state
        data = begin.initialization_data if begin else None
        databases = [world.fork(whole=data is not None) for world in self._worlds]
        state = self._module.get_environment(*databases)
        actions, history = (begin.initialization_actions, begin.message_history) if begin else (None, None)
        state.set_state(data, actions, history or [])
        return state

    def _history(self, raw: Any) -> list[Message]:
        found = raw.initial_state.message_history if raw.initial_state else None
        if found and (found[-1].role != "assistant" or found[-1].tool_calls):
            raise TaskError(f"task {raw.id} of {self.name} begins in the middle of the agent's turn; no task here may")
        return [_message(message) for message in found or ()]

    def _changes(self, state: Any) -> list[Changes]:
        kits = [kit for kit in (state.tools, state.user_tools) if kit is not None]
        return [world.changes(kit.db) for world, kit in zip(self._worlds, kits, strict=True)]

    def _goal(self, raw: Any) -> list[Changes]:
        key = id(raw)
        if key not in self._goals:
            self._goals[key] = self._run_gold(raw)[0]
        return self._goals[key]

    def _run_gold(self, raw: Any) -> tuple[list[Changes], list[str]]:
        """tau2's reference: without the synchronization of both sides that follows a call in an episode."""
        state, refused = self._start(raw), list[str]()
        side = {who: self._side(state, who) for who in ("assistant", "user")}
        state.sync_tools = lambda: None
        for action in _actions(raw):
            try:
                side[action.requestor].run(ToolCall(name=action.name, arguments=action.arguments))
            except ToolError as e:
                refused.append(f"{action.name}: {e}")
        return self._changes(state), refused

    @functools.cached_property
    def _tasks(self) -> Callable[[Split], list[Task]]:
        return functools.cache(self._read_tasks)

    def _read_tasks(self, split: Split) -> list[Task]:
        ids = set(self._splits.get(split, ()))
        return [self.task(raw.id, split, raw) for raw in self._everything if raw.id in ids]

    @functools.cached_property
    def _everything(self) -> list[Any]:
        """tau2's tasks, those of all its splits."""
        try:
            return list(self._module.get_tasks(None))
        except FileNotFoundError as e:
            raise ConfigError(f"the checkout {self.root} lacks a file of {self.domain}: {e.filename}") from e

    @functools.cached_property
    def _splits(self) -> dict[str, Sequence[str]]:
        """Ids by split: tau2's `train` and `test`, or where there is no such split everything in `test`."""
        named = (self._module.get_tasks_split() if hasattr(self._module, "get_tasks_split") else None) or {}
        return dict(named) if "test" in named else {"test": [raw.id for raw in self._everything]}

    @functools.cached_property
    def _goals(self) -> dict[int, list[Changes]]:
        return {}

    @functools.cached_property
    def _worlds(self) -> list["World"]:
        kits = (self._first.tools, self._first.user_tools)
        return [World(kit.db) for kit in kits if kit is not None]

    @functools.cached_property
    def _first(self) -> Any:
        """An environment whose databases nobody touches."""
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
        """The domain's environment module, without tau2's top module, which imports litellm and all its agents."""
        if importlib.util.find_spec("loguru"):
            load("loguru").logger.disable("tau2")
        bare("tau2", self.root / "src" / "tau2")
        module = load(f"tau2.domains.{self.domain}.environment")
        if next(iter(inspect.signature(module.get_environment).parameters), "") != "db":
            raise ConfigError(f"{self.name} cannot be played here: its get_environment takes no database of ours")
        return module


class World:
    """A database of tau2, a pydantic model, and forks of it."""

    def __init__(self, database: Any) -> None:
        tables = {name: getattr(database, name) for name in type(database).model_fields}
        self._rows = Frozen(tables, canonical)
        self._whole = pickle.dumps(database)
        self._shell = pickle.dumps(database.model_copy(update=dict.fromkeys(tables)))

    def fork(self, whole: bool) -> Any:
        """A database to be changed at will; `whole` for those who dump it, which a fork row by row cannot bear."""
        if whole:
            return pickle.loads(self._whole)
        database = pickle.loads(self._shell)
        for name, table in self._rows.fork().items():
            setattr(database, name, table)
        return database

    def changes(self, database: Any) -> Changes:
        """How a fork differs from the database."""
        return self._rows.changes({name: getattr(database, name) for name in type(database).model_fields})


def _actions(raw: Any) -> Sequence[Any]:
    return (raw.evaluation_criteria.actions or ()) if raw.evaluation_criteria else ()


def _gold(raw: Any) -> Iterator[Message]:
    """The agent's turns: its gold actions one by one, a request before those of the user, and what has to be said."""
    for who, actions in itertools.groupby(_actions(raw), key=lambda action: action.requestor):
        if who == "user":
            wanted = "; ".join(action.get_func_format() for action in actions)
            yield Message(role="assistant", content=f"Please do this: {wanted}")
            continue
        for action in actions:
            call = ToolCall(name=action.name, arguments=action.arguments)
            yield Message(role="assistant", tool_calls=(call,))
    facts = raw.evaluation_criteria.communicate_info if raw.evaluation_criteria else None
    yield Message(role="assistant", content="; ".join(facts or ()) or DONE)


def _acts(raw: Any, hands: Side) -> Callable[[int], Any]:
    """What the user does after each gold text: its gold actions in order; one that fails is passed over, as in tau2."""
    groups = itertools.groupby(_actions(raw), key=lambda action: action.requestor)
    blocks = [list(actions) for who, actions in groups if who == "user"]

    async def act(turn: int) -> None:
        for action in blocks[turn] if turn < len(blocks) else ():
            try:
                hands.run(ToolCall(name=action.name, arguments=action.arguments))
            except ToolError:
                continue

    return act


def _spec(tool: Any) -> ToolSpec:
    about = tool.openai_schema["function"]
    return ToolSpec(name=about["name"], description=about["description"], parameters=about["parameters"])


def _message(message: Any) -> Message:
    """A message of tau2 as ours."""
    if message.role == "tool":
        return Message(role="tool", content=message.content or "", tool_call_id=message.id)
    calls = (ToolCall(id=c.id, name=c.name, arguments=c.arguments) for c in message.tool_calls or ())
    return Message(role=message.role, content=message.content or "", tool_calls=tuple(calls))


def _earlier_text(messages: Sequence[Message]) -> str:
    """A conversation that goes on, to read."""
    lines = []
    for message in messages:
        calls = [f"{call.name}({json.dumps(call.arguments)})" for call in message.tool_calls]
        lines.append(f"{message.role}: {' '.join(filter(None, (message.content, *calls)))}")
    return "\n".join(("The conversation so far:", *lines)) if lines else ""
