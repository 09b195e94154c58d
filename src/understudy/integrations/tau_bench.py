"""tau-bench (github.com/sierra-research/tau-bench) out of your own checkout: `find("tau-bench:PATH#retail")`.

Its tasks, tools and wiki, in our rollout, with a reward that is its own (`Env.calculate_reward` of
tau_bench/envs/base.py): the database ends up as the gold actions leave it, and each output is part of something said to
the user. Data is copied row by row, where tools touch it, instead of being read anew three times an episode.

It differs where our rollout does: all calls of a reply run, not the first alone, a call of an unknown tool is answered
in our words, and powers are not calculated. Users are language models or people; see `rehearsal`.
"""

import copy
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from understudy.domains.base import WHOLE, Slice, refuse_unknown
from understudy.environment import Step, ToolEnvironment
from understudy.errors import ConfigError, ToolError, nearest
from understudy.integrations.checkout import bare, load, locate
from understudy.integrations.rehearsal import Rehearsal
from understudy.integrations.rows import Changes, Frozen
from understudy.messages import Message, ToolCall, ToolSpec
from understudy.rewards import product
from understudy.tasks import Difficulty, Scenario, Score, Split, Task, epochs, select
from understudy.users import MakeUser, User

FAMILIES = ("change", "tell", "nothing")
"""The database has to change; something has to be said and no more; doing nothing earns the whole reward."""
TERMINAL = "transfer_to_human_agents"
"""The tool that ends an episode: `terminate_tools` of tau_bench/envs/*/env.py."""
RESPOND = "respond"
"""What tau-bench calls saying something, among its actions."""
STOP = "###STOP###"
"""A user's message that holds it ends the episode."""
DONE = "Done."
"""The last gold turn, where nothing has to be said."""
_MODULES: Mapping[Split, str] = {"train": "tasks_train", "validation": "tasks_dev", "test": "tasks_test"}
# Whatever a tool stumbles over is shown to the agent, as tau-bench does; its tools leave most checks to Python.
RAISED = (
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
    """The domain at `PATH#name`."""
    root, name = locate(reference, "tau-bench", "tau_bench/envs")
    return TauBench(root, name)


@dataclass(frozen=True)
class TauBench:
    """One domain of a checkout; `part` narrows it. Splits are the checkout's, its `dev` being our `validation`."""

    root: Path
    domain: str
    part: Slice = WHOLE
    families: tuple[str, ...] = FAMILIES
    user: MakeUser | None = None
    """Makes the users of episodes; without it there is one for the gold turns and for silence alone."""

    @property
    def name(self) -> str:
        """The benchmark's and the domain's."""
        return f"tau-bench-{self.domain}"

    def with_users(self, user: MakeUser) -> "TauBench":
        """The same domain with other users."""
        return replace(self, user=user)

    def slice(self, part: Slice) -> "TauBench":
        """The same domain narrowed to `part`; a name that it does not have is a `ConfigError`."""
        refuse_unknown(self.name, part, FAMILIES, self._tools, brief=True)
        return replace(self, part=part)

    def tasks(self, split: Split) -> list[Task]:
        """The tasks of a split, those of the slice; none where the checkout has no such split."""
        return select(self._tasks(split), self.part.families, self.part.difficulties)

    def stream(self, split: Split, seed: int = 0) -> Iterator[Task]:
        """The tasks of the slice in endless epochs, each shuffled anew."""
        return epochs(self.tasks(split), seed)

    def environment(self, task: Task, user: User | None = None, seed: int = 0) -> ToolEnvironment:
        """A fresh episode of `task`; without a user, with one for the gold turns and for silence alone."""
        data, goal = self._world.fork(), self.goal(task)

        def grade(transcript: Sequence[Message], ended: bool) -> Score:
            same = float(self._world.changes(data) == goal)
            return product({"state": same, "said": said(transcript, task.outputs), "ended": float(ended)})

        tools = TauTools(self._tools, self._all_specs, data)
        return TauEnvironment(self.policy, tools, UntilStop(user or self._user(task, seed)), grade, self.specs)

    def _user(self, task: Task, seed: int) -> User:
        return self.user(task.scenario, seed, None) if self.user else Rehearsal(task)

    def goal(self, task: Task) -> Changes:
        """The changes that the gold calls make; kept. Gold that a tool refuses changes nothing, as in tau-bench."""
        if task.id not in self._goals:
            self._goals[task.id] = self._run_gold(task.actions)[0]
        return self._goals[task.id]

    def refused(self, task: Task) -> list[str]:
        """What gold calls of the task are answered with errors: tau-bench passes over them."""
        return self._run_gold(task.actions)[1]

    def rows(self, task: Task) -> Sequence[tuple[str, str]]:
        """None: tau-bench's splits share users and orders."""
        return ()

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """The tools that the agent is shown."""
        return tuple(spec for spec in self._all_specs if not self.part.tools or spec.name in self.part.tools)

    @functools.cached_property
    def policy(self) -> str:
        """The wiki, which is all that tau-bench's tool-calling agent is told; for `brief` the rules."""
        if self.part.policy == "full":
            return str(self._load("wiki").WIKI)
        if rules := self._load("rules").RULES:
            return "\n".join(rules)
        raise ConfigError(f"{self.name} has no rules to use as its brief policy; use slice.policy=full")

    def task(self, id: str, split: Split, raw: Mapping[str, Any]) -> Task:
        """A task of tau-bench, with the keys `actions`, `outputs` and `instruction`, as ours."""
        actions = [a for a in raw["actions"] if a["name"] not in (TERMINAL, RESPOND)]
        calls = tuple(ToolCall(name=a["name"], arguments=a["kwargs"]) for a in actions)
        outputs = tuple(raw["outputs"])
        gold = (*(Message(role="assistant", tool_calls=(call,)) for call in calls), _closing(outputs))
        changed = bool(self._run_gold(calls)[0])
        return Task(
            id=id,
            domain=self.name,
            split=split,
            family="change" if changed else "tell" if outputs else "nothing",
            difficulty=difficulty(len(calls)),
            scenario=Scenario(instructions=raw["instruction"], opening=""),
            gold=gold,
            outputs=outputs,
        )

    def _run_gold(self, calls: Sequence[ToolCall]) -> tuple[Changes, list[str]]:
        data, refused = self._world.fork(), list[str]()
        tools = TauTools(self._tools, self._all_specs, data)
        for call in calls:
            try:
                tools.run(call)
            except ToolError as e:
                refused.append(f"{call.name}: {e}")
        return self._world.changes(data), refused

    @functools.cached_property
    def _tasks(self) -> Callable[[Split], list[Task]]:
        return functools.cache(self._read_tasks)

    def _read_tasks(self, split: Split) -> list[Task]:
        if not (self._folder / f"{_MODULES[split]}.py").is_file():
            return []
        module = self._load(_MODULES[split])
        listed = next((value for name, value in vars(module).items() if name.startswith("TASKS")), None)
        if not isinstance(listed, list):
            raise ConfigError(f"{module.__name__} holds no list whose name begins with TASKS")
        return [self.task(f"{split}-{i}", split, raw.model_dump()) for i, raw in enumerate(listed)]

    @functools.cached_property
    def _world(self) -> Frozen:
        return Frozen(self._load("data").load_data(), canonical)

    @functools.cached_property
    def _goals(self) -> dict[str, Changes]:
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
        """A module of the domain's package. The packages above it import litellm in their top modules; these do not."""
        bare("tau_bench", self.root / "tau_bench")
        bare("tau_bench.envs", self.root / "tau_bench" / "envs")
        bare(f"tau_bench.envs.{self.domain}", self._folder)
        return load(f"tau_bench.envs.{self.domain}.{module}")


class TauTools:
    """tau-bench's tools on one episode's data. What a call has written before it fails stays written, as there."""

    def __init__(self, tools: Mapping[str, Any], specs: Sequence[ToolSpec], data: dict[str, Any]) -> None:
        self._tools, self._specs, self._data = tools, specs, data

    def specs(self) -> Sequence[ToolSpec]:
        """The tools in tau-bench's order."""
        return self._specs

    async def call(self, call: ToolCall) -> str:
        """Run one call; an answer that begins with "Error: " is a `ToolError`."""
        return self.run(call)

    def run(self, call: ToolCall) -> str:
        """`call` for callers that are not asynchronous."""
        if call.name not in self._tools:
            raise ToolError(f"unknown tool {nearest(call.name, self._tools)}", "unknown_tool")
        refuse_powers(call)
        arguments = copy.deepcopy(call.arguments)  # tools put them into the data as they are, and change them there
        try:
            answer = self._tools[call.name].invoke(data=self._data, **arguments)
        except RAISED as e:
            raise ToolError(str(e)) from e
        if answer.startswith("Error: "):
            raise ToolError(answer.removeprefix("Error: "))
        return str(answer)


def refuse_powers(call: ToolCall) -> None:
    """Raise for a power in what `calculate` is to compute: for `9**9**9` all episodes of the process would wait hours.

    Both benchmarks tell models of + - * / alone, and leave whatever is made of these characters to Python.
    """
    if call.name == "calculate" and "**" in str(call.arguments.get("expression")):
        raise ToolError("invalid characters in expression")


class TauEnvironment(ToolEnvironment):
    """An episode that a transfer to a human ends as well."""

    async def step(self, reply: Message) -> Step:
        """As ever; after a transfer with the score."""
        step = await super().step(reply)
        if any(call.name == TERMINAL and not call.malformed for call in reply.tool_calls):
            return replace(step, score=await self.grade(ended=True))
        return step


class UntilStop:
    """A user who leaves instead of saying one of the marks that tau-bench's users end with."""

    def __init__(self, user: User, marks: Sequence[str] = (STOP,)) -> None:
        self._user, self._marks = user, marks

    async def reply(self, transcript: Sequence[Message]) -> str | None:
        """What the user says, None where it holds a mark."""
        said = await self._user.reply(transcript)
        return None if said is not None and any(mark in said for mark in self._marks) else said


def said(transcript: Sequence[Message], outputs: Sequence[str]) -> float:
    """1.0 when each output, in lower case, is part of a text to the user, commas left out."""
    texts = [m.content.lower().replace(",", "") for m in transcript if m.role == "assistant" and not m.tool_calls]
    return float(all(any(output.lower() in text for text in texts) for output in outputs))


def canonical(value: Any) -> str:
    """What tau-bench hashes, as text: order of keys does not matter, order in lists does, and 1 is not 1.0."""
    return repr(_hashable(value))


def difficulty(calls: int) -> Difficulty:
    """By the number of gold calls: up to 2, up to 6, and more."""
    return "easy" if calls <= 2 else "medium" if calls <= 6 else "hard"


def _closing(outputs: Sequence[str]) -> Message:
    """The last gold turn: what has to be said."""
    return Message(role="assistant", content="; ".join(outputs) or DONE)


def _hashable(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple((key, _hashable(inner)) for key, inner in sorted(value.items(), key=lambda item: item[0]))
    if isinstance(value, list):
        return tuple(map(_hashable, value))
    return tuple(sorted(map(_hashable, value))) if isinstance(value, set) else value
