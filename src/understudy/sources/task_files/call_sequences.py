"""Sequences of calls on MCP servers, in which a call may use the results of earlier ones: rows and dependent specs.

A row for SkyRL's MCP environment (`env_class` "MCPToolEnv", columns may be JSON text):

    {"prompt": [{"role": "system", …}, {"role": "user", …}], "reward_spec": {"ground_truth": {
     "task_id": "a", "complexity": "simple", "max_turns": 4, "success": {"must_call_tool": "fmp.fmp_get_quote"},
     "tool_sequence": [{"step": 1, "server": "fmp", "tool": "fmp_get_quote", "params": {"symbol": "AAPL"}}],
     "limits": {"max_tools": 3}}}}

A dependent spec is a scenario with tasks: `{"dependent_dataset": [{scenario, turns, limits, tasks: [{task_id,
complexity, conversation, solution: {tool_sequence}}]}]}`.

`params` may hold references to earlier results (`step_references`). The sequence is played by an MCP environment that
has its servers, or without servers by comparing calls. Then the references stand for results that nobody recorded, so
those are made up: the result of a step has each field that a later step refers to, with a value that is random but the
same in every run. An agent must read it to use it. A read whose result no later step uses is what the user wants to
know, so the agent must tell it.
"""

import functools
import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

from pydantic import AliasChoices, ConfigDict, Field, model_validator

from understudy.core.items import InvalidField, Item, RowError
from understudy.core.json_values import parse_index
from understudy.core.messages import Message, ToolCall
from understudy.core.records import Record
from understudy.core.tasks import Scenario, Split, Task, TaskLimits
from understudy.sources.task_files.call_matching import with_answer
from understudy.sources.task_files.inferred_tools import looks_up
from understudy.sources.task_files.step_references import (
    StepReference,
    find_references,
    parse_reference,
    parse_result,
    resolve_references,
)
from understudy.sources.task_files.task_row import (
    TaskRow,
    decode_columns,
    difficulty_of,
    messages_of,
    prompt_texts,
    read_one,
    result_text,
    split_of_row,
    without_nulls,
)

MCP_ENV_CLASS = "MCPToolEnv"
MAX_FACT_CHARACTERS = 60
"""Longest recorded result of a last read that an agent must tell."""
MAX_PLACE_DIGITS = 3
"""Digits of the largest place in a made-up list. A longer number is a key."""
_LETTERS = "bcdfghjklmnpqrstvwxz"


class SequenceStep(Record):
    """One call of a sequence. Other keys, such as requirements of an analysis, are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    server: str = ""
    tool: str = Field(min_length=1)
    params: dict[str, Any] = Field(default={}, validation_alias=AliasChoices("params", "arguments", "kwargs"))
    result: Any = None
    """What the tool returned, if it was recorded."""

    @property
    def name(self) -> str:
        """The tool with its server, such as "slack.send_message"."""
        return f"{self.server}.{self.tool}" if self.server else self.tool


class SequenceLimits(Record):
    """Limits of an episode. None sets no limit."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    max_turns: int | None = Field(default=None, ge=1)
    max_calls: int | None = Field(default=None, ge=1)
    max_tools: int | None = Field(default=None, ge=1)
    max_servers: int | None = Field(default=None, ge=1)


class CallSequence(Record):
    """A task that is a sequence of calls."""

    id: str = Field(min_length=1)
    prompt: str = Field(min_length=1)
    """What the user asks for."""
    domain_policy: str = ""
    family: str = "task"
    complexity: int | str = ""
    split: Split | None = None
    steps: tuple[SequenceStep, ...]
    must_call: tuple[str, ...] = ()
    """Tools, or servers, that must be called besides the steps."""
    limits: SequenceLimits = SequenceLimits()

    @model_validator(mode="after")
    def _check_references(self) -> "CallSequence":
        for number, step in enumerate(self.steps, 1):
            for text in find_references(step.params):
                if not 1 <= parse_reference(text).step < number:
                    raise ValueError(f"tool_sequence.{number - 1}: {text} does not refer to an earlier step")
        return self

    @classmethod
    def from_task(cls, task: Task) -> "CallSequence":
        """Return the gold calls of a task as a sequence."""
        steps = tuple(SequenceStep(tool=call.name, params=call.arguments) for call in task.gold_calls)
        return cls(id=task.id, prompt=task.scenario.instructions, steps=steps)

    @property
    def has_references(self) -> bool:
        """Whether an argument uses the result of an earlier step."""
        return any(True for step in self.steps for _ in find_references(step.params))

    def missing_calls(self, servers: Collection[str] = ()) -> tuple[str, ...]:
        """Return the patterns of `must_call` that no step matches. A server's is `server.*`."""
        names = {name for step in self.steps for name in (step.name, step.tool, step.server)}
        missing = (name for name in self.must_call if name not in names)
        return tuple(f"{name}.*" if name in servers else name for name in missing)

    def task_limits(self) -> TaskLimits | None:
        """Return the limits, if there are any. The turns that the row allows are for calls; one more is for the
        answer."""
        given = self.limits.model_dump(exclude_none=True)
        if "max_turns" in given:
            given["max_turns"] += 1
        return TaskLimits(**given) if given else None

    def to_task_row(self, domain: str = "") -> TaskRow:
        """Return the sequence with its task, whose gold calls have values in place of references.

        Raise ValueError if a reference is not in a recorded result.
        """
        results = self._results()
        gold = list[Message]()
        for number, step in enumerate(self.steps):
            call = ToolCall(
                name=step.name, arguments=resolve_references(step.params, results[:number]), id=f"gold_{number}"
            )
            gold.append(Message(role="assistant", tool_calls=(call,)))
            if results[number] is not None:
                gold.append(Message(role="tool", content=result_text(results[number]), tool_call_id=call.id))
        task = Task(
            id=self.id,
            domain=domain,
            split=self.split or "train",
            difficulty=difficulty_of(self.complexity, len(self.steps)),
            scenario=Scenario(instructions=self.prompt, opening=self.prompt),
            gold=tuple(gold),
            outputs=tuple(dict.fromkeys(self._told(results))),
            limits=self.task_limits(),
        )
        return TaskRow(with_answer(task), self.split, self.domain_policy, content=self)

    def _results(self) -> list[Any]:
        """Return the recorded results of the steps, or made-up ones with the fields that later steps refer to."""
        references = self._references()
        made_up = [self._made_up(number, references) for number in range(1, len(self.steps) + 1)]
        return [made if step.result is None else step.result for step, made in zip(self.steps, made_up, strict=True)]

    def _told(self, results: list[Any]) -> Iterator[str]:
        """Yield the results of reads that no later step uses. They are told if they are made up, or one short value."""
        used = {reference.step for reference in self._references()}
        for number, (step, result) in enumerate(zip(self.steps, results, strict=True), 1):
            if step.result is None and number not in used and looks_up(step.name):
                yield result["result"]
            elif step.result is not None and number not in used and looks_up(step.name):
                yield from _single_fact(step.result)

    def _references(self) -> set[StepReference]:
        return {parse_reference(text) for step in self.steps for text in find_references(step.params)}

    def _made_up(self, number: int, references: Collection[StepReference]) -> Any:
        paths = sorted(reference.path for reference in references if reference.step == number)
        if not paths and not looks_up(self.steps[number - 1].name):
            return None
        if paths == [()]:
            return self._token(number, ("result",))
        made: Any = {}
        for path in filter(None, paths or [("result",)]):
            made = _with_value(made, path, self._token(number, path))
        return made

    def _token(self, number: int, path: tuple[str, ...]) -> str:
        """Return a word for the value at `path` in the result of a step, which cannot be guessed from the task."""
        digest = hashlib.sha256(json.dumps([self.id, number, path]).encode()).digest()
        return "".join(_LETTERS[byte % len(_LETTERS)] for byte in digest[:8])


@runtime_checkable
class SequenceSource(Protocol):
    """Protocol of a task source that plays sequences of calls from files: an MCP environment."""

    def has_tool(self, name: str) -> bool:
        """Return whether the agent can call a tool by this name, with or without its server."""

    def add_task(self, sequence: CallSequence, split: Split) -> Task:
        """Convert a sequence to a task that the source plays from then on. Raise `TaskError` if it cannot."""

    async def record_sequence(self, sequence: CallSequence) -> CallSequence:
        """Return a sequence with values in place of references, and the results of its calls.

        Raise `TaskError` if it calls a tool that the source does not have, if a call fails, or if a reference has no
        value.
        """


def is_sequence_row(row: Mapping[str, Any]) -> bool:
    """Return whether a row has a sequence of calls on MCP servers."""
    truth = _truth(decode_columns(row))
    return "tool_sequence" in truth or ("success" in truth and row.get("env_class") == MCP_ENV_CLASS)


def is_spec_row(row: Mapping[str, Any]) -> bool:
    """Return whether a row is a scenario of dependent specs."""
    return "scenario" in row and isinstance(row.get("tasks"), list)


def is_sequence(row: Mapping[str, Any]) -> bool:
    """Return whether a row has sequences of calls, in one of the two shapes."""
    return is_spec_row(row) or is_sequence_row(row)


def read_sequences(item: Item[Any], identity: str) -> Iterator[Item[CallSequence] | RowError]:
    """Yield the sequences of a row of either shape, or what is wrong. `identity` is the id of one without an id."""
    if not isinstance(item.value, dict):
        yield RowError(item.location, "", f"{item.value!r:.80} is not an object")
    elif is_sequence_row(item.value):
        yield read_one(item.location, lambda: _read_sequence(item.value, identity))
    else:
        yield from _read_spec(item)


def _read_sequence(row: Mapping[str, Any], identity: str) -> CallSequence:
    row = decode_columns(row)
    system, request = prompt_texts(row.get("prompt"))
    truth = _truth(row)
    success, limits = truth.get("success"), truth.get("limits")
    values = {
        "id": str(truth.get("task_id") or identity),
        "prompt": request,
        "domain_policy": system,
        "family": row.get("data_source") or "row",
        "complexity": truth.get("complexity", ""),
        "split": split_of_row(row),
        "steps": _in_order(truth.get("tool_sequence", ()), "tool_sequence"),
        "must_call": _listed(success.get("must_call_tool")) if isinstance(success, dict) else (),
        "limits": {"max_turns": truth.get("max_turns"), **(limits if isinstance(limits, dict) else {})},
    }
    return CallSequence.model_validate(values)


class _Solution(Record):
    tool_sequence: tuple[dict[str, Any], ...] = Field(min_length=1)


class _ScenarioTask(Record):
    task_id: str = Field(min_length=1)
    complexity: int | str = ""
    conversation: tuple[dict[str, Any], ...]
    solution: _Solution


class _Scenario(Record):
    scenario: str
    turns: int = Field(ge=1)
    limits: SequenceLimits = SequenceLimits()
    tasks: tuple[dict[str, Any], ...]


def _read_spec(item: Item[Mapping[str, Any]]) -> Iterator[Item[CallSequence] | RowError]:
    """Yield the sequences of a scenario's tasks, or what is wrong with one. All that the user says is the prompt."""
    found = read_one(item.location, lambda: _Scenario.model_validate(without_nulls(dict(item.value))))
    if isinstance(found, RowError):
        yield found
        return
    for number, value in enumerate(found.value.tasks):
        yield read_one(f"{item.location}.tasks[{number}]", functools.partial(_read_spec_task, found.value, value))


def _read_spec_task(scenario: _Scenario, value: Mapping[str, Any]) -> CallSequence:
    task = _ScenarioTask.model_validate(value)
    said = [text for role, text in messages_of(list(task.conversation)) if role == "user"]
    if not said:
        raise InvalidField("conversation", "it has no message of the role user; at least one is needed")
    limits = scenario.limits
    values = {
        "id": task.task_id,
        "prompt": "\n".join(said),
        "family": scenario.scenario,
        "complexity": task.complexity,
        "steps": _in_order(task.solution.tool_sequence, "solution.tool_sequence"),
        "limits": (limits if limits.max_turns else limits.replace(max_turns=scenario.turns)).model_dump(),
    }
    return CallSequence.model_validate(values)


class SequenceRow(Record):
    """A sequence as a row for SkyRL's MCP environment."""

    data_source: str
    env_class: str
    prompt: tuple[dict[str, str], ...]
    reward_spec: dict[str, Any]
    extra_info: dict[str, Any] = {}


def to_sequence_row(sequence: CallSequence) -> SequenceRow:
    """Return a sequence as a row, which `read_sequences` reads back as an equal one."""
    system = [{"role": "system", "content": sequence.domain_policy}] if sequence.domain_policy else []
    steps = (step.model_dump(exclude_none=True) for step in sequence.steps)
    truth = {
        "task_id": sequence.id,
        "complexity": sequence.complexity,
        "success": {"must_call_tool": list(sequence.must_call)},
        "tool_sequence": [{"step": number, **step} for number, step in enumerate(steps, 1)],
        "limits": sequence.limits.model_dump(exclude_none=True),
    }
    return SequenceRow(
        data_source=sequence.family,
        env_class=MCP_ENV_CLASS,
        prompt=(*system, {"role": "user", "content": sequence.prompt}),
        reward_spec={"method": "rule", "ground_truth": truth},
        extra_info={"split": sequence.split} if sequence.split else {},
    )


def _truth(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the object of a decoded row that holds its sequence."""
    specs = (row.get(name) for name in ("reward_spec", "reward_model"))
    truths = (decode_columns(spec).get("ground_truth") for spec in specs if isinstance(spec, dict))
    return next((truth for truth in truths if isinstance(truth, dict)), row)


def _in_order(steps: Any, field: str) -> list[dict[str, Any]]:
    """Return the steps by their numbers. Steps without numbers are in the given order. Raise `InvalidField`."""
    if not isinstance(steps, list | tuple) or not all(isinstance(step, dict) for step in steps):
        raise InvalidField(field, "it must be a list of calls")
    numbers = [step.get("step", place) for place, step in enumerate(steps, 1)]
    if sorted(numbers, key=str) != sorted(range(1, len(steps) + 1), key=str):
        problem = f"its steps have the numbers {', '.join(map(str, numbers))}; they must be numbered 1, 2, 3, …"
        raise InvalidField(field, problem)
    return [step for _, step in sorted(zip(numbers, steps, strict=True), key=lambda pair: int(pair[0]))]


def _with_value(made: Any, path: tuple[str, ...], value: Any) -> Any:
    """Return a made-up result with a value at a path. Digits are places in lists, filled up to the place."""
    if not path:
        return value
    part, *rest = path
    place = parse_index(part)
    if place is None or len(part) > MAX_PLACE_DIGITS:
        fields = made if isinstance(made, dict) else {}
        return {**fields, part: _with_value(fields.get(part), tuple(rest), value)}
    items = list(made) if isinstance(made, list) else []
    items += [{}] * (place + 1 - len(items))
    items[place] = _with_value(items[place], tuple(rest), value)
    return items


def _single_fact(result: Any) -> Iterator[str]:
    """Yield a recorded result if it is one short value, or an object with only one."""
    parsed = parse_result(result)
    value = next(iter(parsed.values())) if isinstance(parsed, dict) and len(parsed) == 1 else parsed
    is_fact = isinstance(value, str | int | float) and not isinstance(value, bool)
    if is_fact and 0 < len(str(value)) <= MAX_FACT_CHARACTERS:
        yield str(value)


def _listed(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value or ()
