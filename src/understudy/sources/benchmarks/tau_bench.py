"""tau-bench (github.com/sierra-research/tau-bench) from your own checkout: `load("tau-bench:PATH#retail")`.

The tasks, the tools, the wiki and the reward are tau-bench's. The rollout loop is this package's. The reward
(`EnvOption.calculate_reward` of tau_bench/envs/base.py) is 1 if the database equals the one after the gold actions and
each output is part of a text to the user. Data is copied on write, row by row; tau-bench itself reads it three times an
episode.

Differences from tau-bench: all calls of a reply run, not only the first; the error for an unknown tool is this
package's; `calculate` computes no powers.

Users are language models or people; see `gold_user`.
"""

import contextlib
import copy
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from understudy.core.errors import ConfigError, ToolError, did_you_mean
from understudy.core.messages import Message, ToolCall, ToolSpec
from understudy.core.tasks import Difficulty, Scenario, Score, Split, Task, gold_digest
from understudy.envs.environment import StepResult, ToolEnvironment
from understudy.envs.rewards import product_score
from understudy.envs.task_source import FULL_SLICE, Slice, TaskSource, validate_slice
from understudy.envs.users import User, UserFactory, make_user
from understudy.sources.benchmarks.checkout import import_submodule, locate_domain, register_package
from understudy.sources.benchmarks.forked_tables import FrozenTables, RowChanges
from understudy.sources.benchmarks.gold_user import GoldUser

FAMILIES = ("change", "tell", "nothing")
"""change: the database must change. tell: only something must be said. nothing: doing nothing earns the full reward."""
TRANSFER_TOOL = "transfer_to_human_agents"
"""The tool that ends an episode: `terminate_tools` of tau_bench/envs/*/env.py."""
RESPOND_ACTION = "respond"
"""The action in tau-bench's data that means a text to the user."""
STOP_MARKER = "###STOP###"
"""The mark that ends the episode in a user's message."""
DEFAULT_ANSWER = "Done."
"""The last gold text of tasks without required outputs."""
_MODULES: Mapping[Split, str] = {"train": "tasks_train", "validation": "tasks_dev", "test": "tasks_test"}
# The agent sees these exceptions as errors of its call, as in tau-bench, whose tools leave most checks to Python.
TOOL_EXCEPTIONS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    NameError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
)


def open_domain(reference: str) -> "TauBench":
    """Load the domain at `PATH#name`."""
    root, name = locate_domain(reference, "tau-bench", "tau_bench/envs")
    return TauBench(root, name)


@dataclass(frozen=True)
class TauBench(TaskSource):
    """A domain of a checkout, narrowed by `task_slice`. Splits are tau-bench's; its `dev` is `validation` here."""

    root: Path
    domain: str
    task_slice: Slice = FULL_SLICE
    families: tuple[str, ...] = FAMILIES
    user_factory: UserFactory | None = None
    """Makes the users of episodes. Without it, the user of `gold_user` is used."""
    reports_writes = True

    @property
    def name(self) -> str:
        """The names of the benchmark and the domain."""
        return f"tau-bench-{self.domain}"

    @property
    def lacks_users(self) -> bool:
        """Whether no users are set: the benchmark has no scripts for them."""
        return self.user_factory is None

    def with_users(self, user_factory: UserFactory) -> "TauBench":
        """Return this domain with other users."""
        return replace(self, user_factory=user_factory)

    def slice(self, task_slice: Slice) -> "TauBench":
        """Return this domain narrowed to `task_slice`. Raise `ConfigError` for an unknown name."""
        validate_slice(self.name, task_slice, FAMILIES, self._tools, self.has_brief_policy)
        return replace(self, task_slice=task_slice)

    def tasks(self, split: Split) -> list[Task]:
        """Return the tasks of a split that the slice selects. The list is empty if the checkout has no such split."""
        return self.task_slice.select_tasks(self._tasks(split))

    def environment(self, task: Task, user: User | None = None, seed: int = 0) -> ToolEnvironment:
        """Return a new episode of `task`. Without a user, the user of `gold_user` is used."""
        data, goal = self._world.fork(), self.gold_changes(task)

        def grade(transcript: Sequence[Message], ended: bool) -> Score:
            same = float(self._world.changes(data) == goal)
            return product_score(
                {
                    "state_match": same,
                    "facts_told": outputs_told(transcript, task.outputs),
                    "within_limits": float(ended),
                }
            )

        tools = TauBenchTools(self._tools, self._all_specs, data)
        return TauBenchEnvironment(
            self.domain_policy, tools, StopMarkerUser(user or self._user(task, seed)), grade, self.tool_specs
        )

    def _user(self, task: Task, seed: int) -> User:
        return make_user(self.user_factory, task.scenario, seed, None) if self.user_factory else GoldUser(task)

    def gold_changes(self, task: Task) -> RowChanges:
        """Return the changes that the gold calls make (cached). As in tau-bench, a gold call with an error changes
        nothing."""
        key = gold_digest(task)
        if key not in self._goals:
            self._goals[key] = self._run_gold(task.gold_calls)
        return self._goals[key]

    def gold_writes(self, task: Task) -> tuple[ToolCall, ...]:
        """Return the gold calls that change the database."""
        data, writes = self._world.fork(), list[ToolCall]()
        tools, before = TauBenchTools(self._tools, self._all_specs, data), self._world.changes(data)
        for call in task.gold_calls:
            with contextlib.suppress(ToolError):  # the writes of a failed call before its error remain
                tools.call_sync(call)
            if (after := self._world.changes(data)) != before:
                writes.append(call)
            before = after
        return tuple(writes)

    def lookup_text(self, task: Task) -> str:
        """Return the database: the gold actions of many tasks leave out the calls that only read."""
        return self._database_text

    @property
    def tool_specs(self) -> tuple[ToolSpec, ...]:
        """The agent's tools."""
        return self.task_slice.select_tools(self._all_specs)

    @functools.cached_property
    def domain_policy(self) -> str:
        """Return the wiki, which is the system prompt of tau-bench's tool-calling agent; for `brief`, the rules."""
        if self.task_slice.domain_policy == "full":
            return str(self._load("wiki").WIKI)
        return "\n".join(self._load("rules").RULES)

    @property
    def has_brief_policy(self) -> bool:
        """Whether the checkout has rules for the domain, which are its brief policy."""
        return bool(self._load("rules").RULES)

    def to_task(self, id: str, split: Split, raw: Mapping[str, Any]) -> Task:
        """Convert a task of tau-bench, with the keys `actions`, `outputs` and `instruction`."""
        actions = [a for a in raw["actions"] if a["name"] not in (TRANSFER_TOOL, RESPOND_ACTION)]
        calls = tuple(ToolCall(name=a["name"], arguments=a["kwargs"]) for a in actions)
        outputs = tuple(raw["outputs"])
        gold = (*(Message(role="assistant", tool_calls=(call,)) for call in calls), _closing(outputs))
        changed = bool(self._run_gold(calls))
        return Task(
            id=id,
            domain=self.name,
            split=split,
            family="change" if changed else "tell" if outputs else "nothing",
            difficulty=difficulty_by_calls(len(calls)),
            scenario=Scenario(instructions=raw["instruction"], opening=""),
            gold=gold,
            outputs=outputs,
        )

    def _run_gold(self, calls: Sequence[ToolCall]) -> RowChanges:
        data = self._world.fork()
        tools = TauBenchTools(self._tools, self._all_specs, data)
        for call in calls:
            with contextlib.suppress(ToolError):
                tools.call_sync(call)
        return self._world.changes(data)

    @functools.cached_property
    def _tasks(self) -> Callable[[Split], list[Task]]:
        return functools.cache(self._read_tasks)

    def _read_tasks(self, split: Split) -> list[Task]:
        if not (self._folder / f"{_MODULES[split]}.py").is_file():
            return []
        module = self._load(_MODULES[split])
        listed = next((value for name, value in vars(module).items() if name.startswith("TASKS")), None)
        if not isinstance(listed, list):
            raise ConfigError(f"{module.__name__} has no list whose name begins with TASKS")
        return [self.to_task(f"{split}-{i}", split, raw.model_dump()) for i, raw in enumerate(listed)]

    @functools.cached_property
    def _world(self) -> FrozenTables:
        return FrozenTables(self._load("data").load_data(), tau_bench_canonical)

    @functools.cached_property
    def _database_text(self) -> str:
        return json.dumps(self._load("data").load_data(), default=str)

    @functools.cached_property
    def _goals(self) -> dict[bytes, RowChanges]:
        return {}

    @functools.cached_property
    def _tools(self) -> dict[str, Any]:
        return {tool.get_info()["function"]["name"]: tool for tool in self._load("tools").ALL_TOOLS}

    @functools.cached_property
    def _all_specs(self) -> tuple[ToolSpec, ...]:
        about = (tool.get_info()["function"] for tool in self._tools.values())
        return tuple(ToolSpec(name=a["name"], description=a["description"], parameters=a["parameters"]) for a in about)

    @property
    def _folder(self) -> Path:
        return self.root / "tau_bench" / "envs" / self.domain

    def _load(self, module: str) -> Any:
        """Import a module of the domain's package. The packages above it import litellm in their top modules."""
        register_package("tau_bench", self.root / "tau_bench")
        register_package("tau_bench.envs", self.root / "tau_bench" / "envs")
        register_package(f"tau_bench.envs.{self.domain}", self._folder)
        return import_submodule(f"tau_bench.envs.{self.domain}.{module}")


class TauBenchTools:
    """tau-bench's tools on the data of one episode. As in tau-bench, the writes of a failed call before its error
    remain.
    """

    def __init__(self, tools: Mapping[str, Any], specs: Sequence[ToolSpec], data: dict[str, Any]) -> None:
        self._tools, self._specs, self._data = tools, specs, data

    def specs(self) -> Sequence[ToolSpec]:
        """The tools in tau-bench's order."""
        return self._specs

    async def call(self, call: ToolCall) -> str:
        """Run one call. Raise `ToolError` for an answer that begins with "Error: "."""
        return self.call_sync(call)

    def call_sync(self, call: ToolCall) -> str:
        """Run one call synchronously."""
        if call.name not in self._tools:
            raise ToolError(f"unknown tool {did_you_mean(call.name, self._tools)}", "unknown_tool")
        validate_expression(call)
        arguments = copy.deepcopy(call.arguments)  # tools may store them in the data and change them there
        try:
            answer = str(self._tools[call.name].invoke(data=self._data, **arguments))  # a tool may answer None
        except TOOL_EXCEPTIONS as e:
            raise ToolError(str(e)) from e
        if answer.startswith("Error: "):
            raise ToolError(answer.removeprefix("Error: "))
        return answer


def validate_expression(call: ToolCall) -> None:
    """Raise if `calculate` is given a power: `9**9**9` would block the process for hours.

    Both benchmarks describe only + - * / to models, and evaluate any expression of these characters with Python.
    """
    if call.name == "calculate" and "**" in str(call.arguments.get("expression")):
        raise ToolError("invalid characters in expression")


class TauBenchEnvironment(ToolEnvironment):
    """An episode that also ends after a transfer to a human."""

    async def step(self, reply: Message) -> StepResult:
        """Return the next observation. After a transfer, end the episode with its score."""
        return await self._end_after_transfer(reply.tool_calls, await super().step(reply))

    async def extend_reply(self, call: ToolCall) -> StepResult:
        """Run a further call of the last reply, as `step` does."""
        return await self._end_after_transfer([call], await super().extend_reply(call))

    async def _end_after_transfer(self, calls: Sequence[ToolCall], step: StepResult) -> StepResult:
        if any(call.name == TRANSFER_TOOL and not call.parse_error for call in calls):
            return replace(step, score=await self.grade(ended=True))
        return step


class StopMarkerUser:
    """A user who leaves instead of saying one of tau-bench's end marks."""

    def __init__(self, user: User, markers: Sequence[str] = (STOP_MARKER,)) -> None:
        self._user, self._marks = user, markers

    async def reply(self, transcript: Sequence[Message]) -> str | None:
        """Return the user's text, or None if it holds an end mark."""
        said = await self._user.reply(transcript)
        return None if said is not None and any(mark in said for mark in self._marks) else said


def outputs_told(transcript: Sequence[Message], outputs: Sequence[str]) -> float:
    """Return 1.0 if each output is part of a text to the user, ignoring case and commas."""
    texts = [m.content.lower().replace(",", "") for m in transcript if m.role == "assistant" and not m.tool_calls]
    return float(all(any(output.lower() in text for text in texts) for output in outputs))


def tau_bench_canonical(value: Any) -> str:
    """Return the text that tau-bench hashes: the order of keys does not matter, the order in lists does, and 1 differs
    from 1.0."""
    return repr(_hashable(value))


def difficulty_by_calls(calls: int) -> Difficulty:
    """Return the difficulty of a task: easy for up to 2 gold calls, medium for up to 6, hard for more."""
    return "easy" if calls <= 2 else "medium" if calls <= 6 else "hard"


def _closing(outputs: Sequence[str]) -> Message:
    """Return the last gold text: the outputs."""
    return Message(role="assistant", content="; ".join(outputs) or DEFAULT_ANSWER)


def _hashable(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple((key, _hashable(inner)) for key, inner in sorted(value.items(), key=lambda item: item[0]))
    if isinstance(value, list):
        return tuple(map(_hashable, value))
    return tuple(sorted(map(_hashable, value))) if isinstance(value, set) else value
