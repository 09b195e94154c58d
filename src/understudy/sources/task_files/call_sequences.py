"""Sequences of calls on MCP servers, in which a call may use the results of earlier ones: rows and dependent specs.

A row for SkyRL's MCP environment (`env_class` "MCPToolEnv", columns may be JSON text):

    {"prompt": [{"role": "system", …}, {"role": "user", …}], "reward_spec": {"ground_truth": {
     "task_id": "a", "complexity": "simple", "max_turns": 4, "success": {"must_call_tool": "fmp.fmp_get_quote"},
     "tool_sequence": [{"step": 1, "server": "fmp", "tool": "fmp_get_quote", "params": {"symbol": "AAPL"},
                        "analysis_requirements": {"extract": ["price"]}}],
     "analysis_rubric": {"final_answer_requirements": {"must_include": ["price"]}},
     "final_reference": {"facts": {"price": 41.5}, "citations": {"price": [1]}}, "limits": {"max_tools": 3}}}}

A dependent spec is a scenario with tasks: `{"dependent_dataset": [{scenario, turns, limits, tasks: [{task_id,
complexity, conversation, solution: {tool_sequence}}]}]}`.

`params` may hold references to earlier results (`step_references`). The sequence is played by an MCP environment that
has its servers, or without servers by comparing calls. Then each result shows the facts that were recorded, at the
places where the step extracts them (`sequence_steps`), and made-up values elsewhere (`sequence_results`). The agent
must tell the facts of `must_include` that have a value; if there are none, those of `grounded_from`. Without recorded
facts, a read whose result no later step uses is what the user wants to know, so the agent must tell it.
"""

import functools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from pydantic import ConfigDict, Field, ValidationError, model_validator

from understudy.core.items import InvalidField, Item, RowError, row_error_from_validation
from understudy.core.messages import Message, ToolCall
from understudy.core.records import Record
from understudy.core.tasks import Scenario, Split, Task, TaskLimits
from understudy.sources.readers import without_nulls
from understudy.sources.task_files.call_matching import with_answer
from understudy.sources.task_files.fact_texts import ShownResult, answer_of, fact_text, tellable_facts
from understudy.sources.task_files.inferred_tools import looks_up, only_reads
from understudy.sources.task_files.reference_expressions import parse_result, to_text
from understudy.sources.task_files.sequence_results import has_value, is_made_up, make_results
from understudy.sources.task_files.sequence_steps import (
    STEP_LABELS,
    SequenceStep,
    StepRequirements,
    define_names,
    defined_at,
    place_facts,
)
from understudy.sources.task_files.step_references import (
    Definition,
    find_references,
    replace_definitions,
    resolve_references,
    steps_of,
)
from understudy.sources.task_files.task_row import (
    TaskRow,
    call_arguments,
    decode_columns,
    difficulty_of,
    messages_of,
    read_one,
    result_text,
    split_of_row,
)

MCP_ENV_CLASS = "MCPToolEnv"
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


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
    """What the user asks for: their first message."""
    later_messages: tuple[str, ...] = ()
    """Further messages of the user. Only a user played by a model says them."""
    domain_policy: str = ""
    family: str = "task"
    complexity: int | str = ""
    split: Split | None = None
    steps: tuple[SequenceStep, ...]
    must_call: tuple[str, ...] = ()
    """Tools, or servers, that must be called besides the steps."""
    told: dict[str, str] = {}
    """Facts that the agent must tell, if they have a value: a reference for each name."""
    limits: SequenceLimits = SequenceLimits()

    @model_validator(mode="after")
    def _check_references(self) -> "CallSequence":
        for number, step in enumerate(self.steps, 1):
            for text in find_references(step.params):
                if not all(1 <= earlier < number for earlier in steps_of(text)):
                    raise ValueError(f"tool_sequence.{number - 1}: {text} does not refer to an earlier step")
        return self

    @classmethod
    def from_task(cls, task: Task) -> "CallSequence":
        """Return the gold calls of a task as a sequence."""
        steps = tuple(SequenceStep(tool=call.name, params=call.arguments) for call in task.gold_calls)
        return cls(id=task.id, prompt=task.scenario.instructions, steps=steps)

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
        results = make_results(self.id, self.steps, self._references())
        gold, shown = list[Message](), list[ShownResult]()
        for number, step in enumerate(self.steps):
            arguments = resolve_references(step.params, results[:number])
            call = ToolCall(name=step.name, arguments=arguments, id=f"gold_{number}")
            gold.append(Message(role="assistant", tool_calls=(call,)))
            if results[number] is not None:
                shown.append(ShownResult(arguments, result_text(results[number])))
                gold.append(Message(role="tool", content=shown[-1].text, tool_call_id=call.id))
        known = {name: text for name, text in self.told.items() if has_value(text, results)}
        told = dict(tellable_facts(resolve_references(known, results), shown))
        if told:
            gold.append(Message(role="assistant", content=answer_of(told)))
        task = Task(
            id=self.id,
            domain=domain,
            split=self.split or "train",
            difficulty=difficulty_of(self.complexity, len(self.steps)),
            scenario=Scenario(instructions="\n".join((self.prompt, *self.later_messages)), opening=self.prompt),
            gold=tuple(gold),
            outputs=tuple(dict.fromkeys(told.values() if told else self._last_reads(results))),
            must_call=self._required_reads(),
            limits=self.task_limits(),
        )
        return TaskRow(with_answer(task), self.split, self.domain_policy, content=self)

    def _references(self) -> list[str]:
        found = [text for step in self.steps for text in find_references(step.params)]
        return list(dict.fromkeys((*found, *self.told.values())))

    def _last_reads(self, results: Sequence[Any]) -> Iterator[str]:
        """Yield what reads show that no later step uses: made-up values, or one short recorded value."""
        used = {number for step in self.steps for text in find_references(step.params) for number in steps_of(text)}
        for number, (step, result) in enumerate(zip(self.steps, results, strict=True), 1):
            if number in used or not looks_up(step.name):
                continue
            if step.result is not None:
                yield from _single_fact(step.result)
            elif is_made_up(step):
                yield from _values(result)

    def _required_reads(self) -> tuple[str, ...]:
        """Return the reads that `must_call` names. Writes of gold are required anyway. Raise ValueError for others."""
        patterns = list[str]()
        for name in self.must_call:
            step = next((step for step in self.steps if name in (step.name, step.tool, step.server)), None)
            if step is None:
                raise ValueError(
                    f"success.must_call_tool: no step calls {name!r}, and without servers there is no other"
                )
            pattern = f"{name}.*" if name not in (step.name, step.tool) else step.name
            if only_reads(step.name):
                patterns.append(pattern)
        return tuple(patterns)


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
    truth = _truth(row)
    success, limits = truth.get("success"), truth.get("limits")
    rubric = _object(truth.get("analysis_rubric"))
    steps, defined = _read_steps(truth.get("tool_sequence", ()), "tool_sequence", rubric.get("steps"))
    reference, answer = _object(truth.get("final_reference")), _object(rubric.get("final_answer_requirements"))
    facts, citations = _object(reference.get("facts")), _object(reference.get("citations"))
    values = {
        "id": str(truth.get("task_id") or identity),
        **_prompt_values(row.get("prompt"), "prompt"),
        "family": row.get("data_source") or "row",
        "complexity": truth.get("complexity", ""),
        "split": split_of_row(row),
        "steps": [
            step if step.result_values else step.replace(result_values=known)
            for step, known in zip(steps, place_facts(facts, citations, defined), strict=True)
        ],
        "must_call": _listed(success.get("must_call_tool")) if isinstance(success, dict) else (),
        "told": truth.get("told") or _facts_to_tell(answer, facts, citations, defined),
        "limits": {"max_turns": truth.get("max_turns"), **(limits if isinstance(limits, dict) else {})},
    }
    return CallSequence.model_validate(values)


def _prompt_values(prompt: Any, field: str) -> dict[str, Any]:
    """Return the system message and the user's messages of a prompt. Raise `InvalidField` if the user says nothing."""
    messages = messages_of(prompt)
    said = [text for role, text in messages if role == "user"]
    if not said:
        raise InvalidField(field, "it has no message of the role user; at least one is needed")
    system = next((text for role, text in messages if role == "system"), "")
    return {"prompt": said[0], "later_messages": said[1:], "domain_policy": system}


def _read_steps(
    listed: Any, field: str, rubric: Any = None
) -> tuple[list[SequenceStep], list[Mapping[str, Definition]]]:
    """Return the steps with expressions in place of names, and the names that each step defines.

    `rubric` may list the requirements of steps that have none of their own. Raise `InvalidField`.
    """
    by_step = {each.get("step"): each for each in rubric or () if isinstance(each, dict)}
    steps, defined = list[SequenceStep](), list[Mapping[str, Definition]]()
    known: dict[str, Definition] = {}
    for number, raw in enumerate(_in_order(listed, field), 1):
        try:
            arguments = call_arguments(raw, f"{field}.{number - 1}", STEP_LABELS)
            step = SequenceStep.model_validate({**raw, "params": arguments})
            found = _object(by_step.get(number))
            required = raw.get("analysis_requirements") or found.get("analysis_requirements") or found
            names, fields = define_names(number, StepRequirements.model_validate(required), known)
            params = replace_definitions(step.params, known)
        except ValidationError as e:
            error = row_error_from_validation("", e, f"steps.{number - 1}")
            raise InvalidField(error.field, error.problem) from e
        except ValueError as e:
            raise InvalidField(f"{field}.{number - 1}", str(e)) from e
        steps.append(step.replace(params=params, result_fields=step.result_fields or fields))
        defined.append(names)
        known |= names
    return steps, defined


def _facts_to_tell(
    answer: Mapping[str, Any],
    facts: Mapping[str, Any],
    citations: Mapping[str, Any],
    defined: Sequence[Mapping[str, Definition]],
) -> dict[str, str]:
    """Return references to the facts that an answer must have. If facts are recorded, only those with a value count.

    A name of `must_include` that no step defines stands for the names of `grounded_from` that share a word with it. If
    there is no such fact either, all of `grounded_from` are told.
    """
    included, grounded = (_names(answer.get(group)) for group in ("must_include", "grounded_from"))
    all_names = {name for names in defined for name in names}
    meant = [
        name
        for each in included
        for name in ([each] if each in all_names else [other for other in grounded if _words(each) & _words(other)])
    ]
    for names in (meant, grounded):
        valued = [name for name in names if not facts or fact_text(facts.get(name))]
        found = {name: defined_at(name, citations, defined) for name in valued}
        if names is meant:
            _validate_definitions([name for name, each in found.items() if each is None], defined)
        if told := {name: f"${{{each.expression}}}" for name, each in found.items() if each}:
            return told
    return {}


def _validate_definitions(names: Sequence[str], defined: Sequence[Mapping[str, Definition]]) -> None:
    """Raise `InvalidField` if the definition of a name cannot be read."""
    for name in names:
        if problem := next((step[name].problem for step in defined if name in step), ""):
            raise InvalidField("analysis_rubric.final_answer_requirements.must_include", problem)


def _names(value: Any) -> list[str]:
    return [name for name in _listed(value) if isinstance(name, str)] if isinstance(value, list | str) else []


def _words(name: str) -> set[str]:
    """Return the words of a name such as "changesPercentage", in one form: "change" and "percent"."""
    words = (word.casefold() for word in _WORD.findall(name))
    return {"percent" if word in ("pct", "percentage") else word.removesuffix("s") for word in words}


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
    """Yield the sequences of a scenario's tasks, or what is wrong with one."""
    found = read_one(item.location, lambda: _Scenario.model_validate(without_nulls(dict(item.value))))
    if isinstance(found, RowError):
        yield found
        return
    for number, value in enumerate(found.value.tasks):
        yield read_one(f"{item.location}.tasks[{number}]", functools.partial(_read_spec_task, found.value, value))


def _read_spec_task(scenario: _Scenario, value: Mapping[str, Any]) -> CallSequence:
    task = _ScenarioTask.model_validate(value)
    limits = scenario.limits
    values = {
        "id": task.task_id,
        **_prompt_values(list(task.conversation), "conversation"),
        "family": scenario.scenario,
        "complexity": task.complexity,
        "steps": _read_steps(task.solution.tool_sequence, "solution.tool_sequence")[0],
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
    steps = (step.model_dump(exclude_defaults=True) for step in sequence.steps)
    said = ({"role": "user", "content": text} for text in (sequence.prompt, *sequence.later_messages))
    truth = {
        "task_id": sequence.id,
        "complexity": sequence.complexity,
        "success": {"must_call_tool": list(sequence.must_call)},
        "tool_sequence": [{"step": number, **step} for number, step in enumerate(steps, 1)],
        **({"told": sequence.told} if sequence.told else {}),
        "limits": sequence.limits.model_dump(exclude_none=True),
    }
    return SequenceRow(
        data_source=sequence.family,
        env_class=MCP_ENV_CLASS,
        prompt=(*system, *said),
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


def _single_fact(result: Any) -> Iterator[str]:
    """Yield a recorded result if it is one short value, or an object with only one."""
    parsed = parse_result(result)
    value = next(iter(parsed.values())) if isinstance(parsed, dict) and len(parsed) == 1 else parsed
    if text := fact_text(value):
        yield text


def _values(result: Any) -> Iterator[str]:
    """Yield the values in a made-up result. The items of a list are alike, so only the first counts."""
    if isinstance(result, dict | list):
        for inner in result.values() if isinstance(result, dict) else result[:1]:
            yield from _values(inner)
    else:
        yield to_text(result)


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _listed(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value or ()
