"""SOPBench (github.com/Leezekun/SOPBench) from your own checkout: `sopbench:PATH#bank`, one of its seven domains.

Tasks, tools, policies and the evaluator are those of the checkout, with its defaults: all tools, and structured
constraints. A reward of 1 is its `success`. As without a user model there, the user answers the first text with all
that is known; the next text ends the episode, instead of the tool `exit_conversation`. Other differences: `limits`
apply instead of 20 turns and 10 calls, calls must fit their schemas, and all calls of a reply count, where SOPBench
evaluates only the first. A call that is refused or fails ends in a reward of 0, as there.

Gold is the first order of calls in the task's graph of actions that the evaluator accepts. Where the request must be
refused, gold is a text, so doing nothing earns 1: the family `nothing`. A hash of the id gives the split.
"""

import ast
import copy
import functools
import itertools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from understudy.core.errors import ConfigError, ToolError, did_you_mean
from understudy.core.messages import Message, ToolCall, ToolSpec
from understudy.core.tasks import SPLITS, Task, assign_splits
from understudy.core.user_code import tool_code, user_code
from understudy.sources.benchmarks.checkout import import_submodule, register_package
from understudy.sources.environments.graded import GradedSource
from understudy.sources.task_files.call_matching import validate_arguments

_MAX_ORDERS = 200
"""How many orders of calls are tried as gold."""
_KEYS = ("user_prompt", "user_known", "action_should_succeed", "directed_action_graph")
_CODE = "the code of SOPBench"
_SETUP = "full", "structured"
"""SOPBench's options `default_constraint_option` and `constraint_descr_format`."""


@dataclass(frozen=True)
class SOPBench(GradedSource):
    """The tasks of a domain. Those of which no gold is found are left out, which `notes` says."""

    golds: dict[str, Sequence[Message]] = field(default_factory=dict, repr=False, compare=False)
    """The gold turns by row, which take seconds to find."""
    families = ("act", "nothing")
    lacks_gold = False

    def family(self, row: Mapping[str, Any]) -> str:
        """Return whether the requested action must be done."""
        return "act" if row["action_should_succeed"] else "nothing"

    def gold(self, row: Mapping[str, Any]) -> Sequence[Message]:
        """Return the agent's turns of a perfect episode, or nothing if none is found."""
        if row["name"] not in self.golds:
            self.golds[row["name"]] = super().gold(row)
        return self.golds[row["name"]]

    def notes(self) -> Sequence[str]:
        """Name the tasks that are left out."""
        known = [row for rows in self.rows.values() for row in rows.values()]
        names = sorted(row["name"] for row in known if not self.gold(row))
        return [f"{len(names)} of {len(known)} tasks have no gold: {', '.join(names)}"] if names else []

    def _make_tasks(self) -> Iterator[tuple[Task, Mapping[str, Any]]]:
        return (made for made in super()._make_tasks() if made[0].gold)


def open_domain(reference: str) -> SOPBench:
    """Return the tasks of `PATH#DOMAIN`. Raise ConfigError if they cannot be found."""
    path, _, domain = reference.partition("#")
    root = Path(os.path.expanduser(path)).resolve()
    known = sorted(file.name.removesuffix("_tasks.json") for file in root.glob("data/*_tasks.json"))
    if not path or not known or not (root / "env" / "evaluator.py").is_file():
        raise ConfigError(f"sopbench:{reference}: {path or 'it'} is no checkout of SOPBench; write sopbench:PATH#bank")
    if domain not in known:
        raise ConfigError(f"sopbench:{reference}: unknown domain {did_you_mean(domain, known)}")
    register_package("env", root / "env")
    rows = _read_rows(root / "data" / f"{domain}_tasks.json")
    splits = assign_splits(dict.fromkeys(rows))
    with user_code("environment", _CODE):
        defaults = import_submodule("env.task").task_default_dep_full(domain, *_SETUP, dependency_verb_dep_orig=True)
    return SOPBench(
        f"sopbench-{domain}",
        lambda row: _Session(domain, row, defaults),
        _Session(domain, next(iter(rows.values())), defaults).specs(),
        rows={split: {name: row for name, row in rows.items() if splits[name] == split} for split in SPLITS},
    )


def _read_rows(file: Path) -> dict[str, Mapping[str, Any]]:
    """Return the rows of a file by name. Raise ConfigError for another form."""
    try:
        by_goal = json.loads(file.read_text(encoding="utf-8"))
        found = [(f"{goal}-{number}", goal, row) for goal, rows in by_goal.items() for number, row in enumerate(rows)]
        lacking = next((f"{name} lacks {key}" for name, _, row in found for key in _KEYS if key not in row), "")
    except (OSError, ValueError, TypeError, AttributeError) as e:
        raise ConfigError(f"{file} cannot be read: {e}; take the file of SOPBench") from e
    if lacking or not found:
        raise ConfigError(f"{file}: {lacking or 'it has no tasks'}; take the file of SOPBench")
    return {name: {**row, "user_goal": goal, "name": name} for name, goal, row in found}


class _Session:
    """One episode of a task."""

    def __init__(self, domain: str, row: Mapping[str, Any], defaults: Sequence[Any]) -> None:
        self._domain, self._row, self._defaults = domain, row, defaults
        self._results, self._has_answered = list[tuple[ToolCall, str]](), False

    def specs(self) -> Sequence[ToolSpec]:
        """Return the tools of the domain."""
        tools = (tool["function"] for tool in self._assistant["tools"])
        return [ToolSpec(**{key: tool[key] for key in ("name", "description", "parameters")}) for tool in tools]

    def prompt(self) -> Sequence[Message]:
        """Return SOPBench's system prompt and the user's request."""
        system = Message(role="system", content=self._assistant["instructions"])
        return system, Message(role="user", content=self._row["user_prompt"])

    def gold(self) -> Sequence[Message]:
        """Return calls that the evaluator accepts, if there are any, and the texts that end the episode."""
        texts = [Message(role="assistant", content="Done.")] * 2
        if not self._row["action_should_succeed"]:
            return texts
        for order in itertools.islice(self._orders(), _MAX_ORDERS):
            calls = _Session(self._domain, self._row, self._defaults)._find_calls(order)
            if calls is not None:
                return [*(Message(role="assistant", tool_calls=(call,)) for call in calls), *texts]
        return ()

    async def start(self) -> None:
        """Make the database."""
        assert self._system

    async def call(self, call: ToolCall) -> str:
        """Run a call."""
        result = self._run(call)
        self._results.append((call, result))
        return result

    async def reply(self, transcript: Sequence[Message]) -> str | None:
        """Return what the user knows, and None after the second text."""
        if self._has_answered:
            return None
        self._has_answered = True
        return f"Here is all the information I can provide:\n{json.dumps(self._row['user_known'], indent=4)}"

    async def grade(self, written: Sequence[Message]) -> float:
        """Return 1 if no call was refused or failed, and the evaluator accepts all."""
        if sum(len(message.tool_calls) for message in written) != len(self._results):
            return 0.0
        return float(self._evaluate(self._results))

    async def close(self) -> None:
        """Do nothing: there are no resources to release."""

    @functools.cached_property
    def _initialized(self) -> Any:
        with user_code("environment", _CODE):
            initialize = import_submodule("env.task").task_initializer
            return initialize(self._domain, self._row, *self._defaults, None, "prompt", False, _SETUP[1])

    @property
    def _system(self) -> Any:
        return self._initialized[0]

    @property
    def _assistant(self) -> Mapping[str, Any]:
        assistant: Mapping[str, Any] = self._initialized[2]
        return assistant

    def _run(self, call: ToolCall) -> str:
        """Return the result of a call as in SOPBench's recorded episodes. Raise ToolError if it is refused or fails."""
        validate_arguments(call, self.specs())
        with tool_code(call.name):
            return str(getattr(self._system, call.name)(**copy.deepcopy(dict(call.arguments))))

    def _evaluate(self, calls: Sequence[tuple[ToolCall, str]]) -> bool:
        """Return SOPBench's `success` of the calls and their results."""
        listed = [
            {"tool_name": call.name, "arguments": copy.deepcopy(dict(call.arguments)), "content": _parse(result)}
            for call, result in calls
        ]
        final = {"final_database": self._system.data}
        with user_code("grader", _CODE):
            evaluate = import_submodule("env.evaluator").evaluator_function_directed_graph
            return bool(evaluate(self._domain, self._row, [], listed, final, _SETUP[0])["success"])

    def _orders(self) -> Iterator[Sequence[int]]:
        """Yield orders in which the graph's functions may be called, as numbers of nodes."""
        graph = self._row["directed_action_graph"]

        def before(node: int) -> Iterator[tuple[int, ...]]:
            needed = [target for source, target in graph["connections"] if source == node]
            if graph["nodes"][node] == "or":
                yield from itertools.chain.from_iterable(map(before, needed))
                return
            own = () if isinstance(graph["nodes"][node], str) else (node,)
            for parts in itertools.product(*map(before, needed)):
                yield (*itertools.chain.from_iterable(parts), *own)

        return (tuple(dict.fromkeys(order)) for order in before(0))

    def _find_calls(self, order: Sequence[int]) -> Sequence[ToolCall] | None:
        """Return the calls of nodes, with values that the user knows or a result shows, unless they do not succeed."""
        known = dict(self._row["user_known"])
        calls = list[tuple[ToolCall, str]]()
        for node in order:
            name, keys = self._row["directed_action_graph"]["nodes"][node]
            call = ToolCall(name=name, arguments={to: known[key] for to, key in keys.items() if key in known})
            try:
                calls.append((call, self._run(call)))
            except ToolError:
                return None
            shown = _parse(calls[-1][1])
            shown = shown[-1] if isinstance(shown, tuple) else shown
            known = {**shown, **known} if isinstance(shown, dict) else known
        return [call for call, _ in calls] if self._evaluate(calls) else None


def _parse(result: str) -> Any:
    """Return the value that a result shows, or the text if it shows none."""
    try:
        return ast.literal_eval(result)
    except (ValueError, SyntaxError, RecursionError):
        return result
