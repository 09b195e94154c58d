"""Call plans: a request and the calls that answer it, for any source whose tools can be called.

A plan says which results hold the facts to be told, not what they are. The calls run in an episode of the source, and
their results fix the facts. So neither rules nor a model can put a false fact into a task.
"""

import re
from collections.abc import Sequence
from typing import Any

from pydantic import Field
from pydantic_core import from_json

from understudy.core.errors import RolloutError, TaskError
from understudy.core.messages import Message, ToolCall
from understudy.core.records import Record
from understudy.core.tasks import Difficulty, Scenario, Split, Task
from understudy.data.checks.issue import TOOL_ERROR_ISSUES, TaskIssue
from understudy.envs.rewards import states_fact
from understudy.envs.task_source import TaskSource

MAX_FACT_WORDS = 8
MAX_FACT_CHARACTERS = 60
_LABELLED_LINE = re.compile(r"\s*[-*]?\s*([A-Za-z][\w /-]{0,40})\s*[:=]\s*(\S.*)")
_PLAIN_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_CALLS_OF: dict[Difficulty, tuple[int, int]] = {"easy": (1, 1), "medium": (2, 3), "hard": (4, 10_000)}

Path = tuple[str | int, ...]


class PlannedCall(Record):
    """One call of a plan."""

    tool: str
    arguments: dict[str, Any] = {}


class FactPlace(Record):
    """The place of a fact in the result of a call."""

    call: int = Field(ge=1)
    """The number of the call, from 1."""
    path: Path = ()
    """Keys and list positions in a JSON result, or the label of a line "label: value"; empty is the whole result."""


class CallPlan(Record):
    """A request and the calls that answer it."""

    prompt: str = Field(min_length=1)
    """What the user asks for."""
    calls: tuple[PlannedCall, ...] = Field(min_length=1)
    facts: tuple[FactPlace, ...] = ()
    """The facts that the assistant has to tell."""
    answer: str = "Done."
    """The assistant's last text, with {1}, {2}, … in place of the facts."""


class TaskLabels(Record):
    """What a task is called: everything but its content."""

    id: str
    split: Split
    family: str


def difficulty_of_calls(calls: int) -> Difficulty:
    """Return the difficulty of a task by its gold calls: 1 is easy, 2 and 3 are medium, more are hard."""
    return next(level for level, (least, most) in _CALLS_OF.items() if least <= calls <= most)


def call_range(difficulty: Difficulty) -> tuple[int, int]:
    """Return the least and the largest number of gold calls of a difficulty."""
    return _CALLS_OF[difficulty]


async def build_planned_task(source: TaskSource, plan: CallPlan, labels: TaskLabels) -> Task | TaskIssue:
    """Run the calls of a plan and return its task, or why it is none."""
    calls = [ToolCall(name=call.tool, arguments=call.arguments) for call in plan.calls]
    results = await run_calls(source, calls, labels.split)
    for number, result in enumerate(results, 1):
        if isinstance(result, TaskIssue):
            return TaskIssue(result.kind, f"calls.{number - 1}", result.problem)
    texts = [result for result in results if isinstance(result, str)]
    facts = []
    for number, place in enumerate(plan.facts):
        fact = read_fact(texts[place.call - 1], place.path) if place.call <= len(texts) else None
        if fact is None:
            where = " ".join(map(str, place.path)) or "the whole result"
            return TaskIssue("unknown fact", f"facts.{number}", f"call {place.call} shows no fact at {where}")
        if states_fact(fact, plan.prompt):
            return TaskIssue("guessable", f"facts.{number}", f"the prompt itself says {fact!r}")
        facts.append(fact)
    answer = plan.answer
    for number, fact in enumerate(facts, 1):
        if f"{{{number}}}" not in answer:
            return TaskIssue("malformed", "answer", f"it has no place {{{number}}} for the fact {number}")
        answer = answer.replace(f"{{{number}}}", fact)
    return _task(source, plan, labels, calls, facts, answer)


def _task(
    source: TaskSource,
    plan: CallPlan,
    labels: TaskLabels,
    calls: Sequence[ToolCall],
    facts: Sequence[str],
    answer: str,
) -> Task:
    turns = (Message(role="assistant", tool_calls=(call,)) for call in calls)
    return Task(
        id=labels.id,
        domain=source.name,
        split=labels.split,
        family=labels.family,
        difficulty=difficulty_of_calls(len(calls)),
        scenario=Scenario(instructions=plan.prompt, opening=plan.prompt),
        gold=(*turns, Message(role="assistant", content=answer)),
        outputs=tuple(dict.fromkeys(facts)),
    )


async def run_calls(source: TaskSource, calls: Sequence[ToolCall], split: Split) -> list[str | TaskIssue]:
    """Run calls in order in a new episode. Return the result of each, or why it failed.

    A fault of the server, and a call that ends the episode, fail all calls from there on.
    """
    probe = probe_task(source, split, calls)
    found: list[str | TaskIssue] = []
    if not calls:
        return found
    try:
        environment = source.environment(probe)
    except TaskError as e:
        return [TaskIssue("unknown tool", "calls", str(e))] * len(calls)
    try:
        await environment.start()
        for number, turn in enumerate(probe.gold_turns):
            step = await environment.step(_with_id(turn, number))
            text = step.messages[-1].content if step.messages else ""
            if step.error_kinds:
                found.append(TaskIssue(TOOL_ERROR_ISSUES.get(step.error_kinds[0], "gold refused"), "calls", text))
            elif step.score is not None:
                found.append(TaskIssue("gold refused", "calls", f"{turn.tool_calls[0].name} ends the episode"))
            else:
                found.append(text)
            if step.score is not None:
                break
    except RolloutError as e:
        found.append(TaskIssue("fault", "calls", str(e)))
    finally:
        await environment.close()
    return found + [found[-1] if isinstance(found[-1], TaskIssue) else TaskIssue("gold refused", "calls", "")] * (
        len(calls) - len(found)
    )


def probe_task(source: TaskSource, split: Split, calls: Sequence[ToolCall]) -> Task:
    """Return a task in whose episode calls are run to see what they return."""
    return Task(
        id=f"{source.name}/probe",
        domain=source.name,
        split=split,
        scenario=Scenario(instructions="Hello.", opening="Hello."),
        gold=tuple(Message(role="assistant", tool_calls=(call,)) for call in calls),
        outputs=("probe",),
    )


def _with_id(turn: Message, number: int) -> Message:
    return turn.replace(tool_calls=tuple(call.replace(id=f"call_{number}") for call in turn.tool_calls))


def read_fact(result: str, path: Path) -> str | None:
    """Return the fact at a place of a result as text, or None if there is none that an agent can tell."""
    value = read_result(result)
    for key in path:
        if isinstance(value, dict) and str(key) in value:
            value = value[str(key)]
        elif isinstance(value, list) and isinstance(key, int) and 0 <= key < len(value):
            value = value[key]
        else:
            return None
    return fact_text(value)


def read_result(result: str) -> Any:
    """Return a result as a JSON value: parsed, or an object of its lines "label: value", or its only line."""
    try:
        return from_json(result, allow_inf_nan=False)
    except ValueError:
        pass
    lines = [line for line in result.splitlines() if line.strip()]
    labelled = {found[1].strip(): found[2].strip() for line in lines if (found := _LABELLED_LINE.fullmatch(line))}
    return labelled or (lines[0].strip() if len(lines) == 1 else None)


def fact_text(value: Any) -> str | None:
    """Return a scalar as the text of an output, or None: truth values, long texts and texts with "|" are no facts."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    text = str(value).strip()
    if not isinstance(value, str):
        return text if _PLAIN_NUMBER.fullmatch(text) else None
    short = len(text) <= MAX_FACT_CHARACTERS and len(text.split()) <= MAX_FACT_WORDS
    return text if short and re.search(r"\w", text) and "|" not in text and "\n" not in text else None
