"""Tasks of an MCP environment: JSON lines, or rows for SkyRL's MCP environment.

    {"id": "notes/1", "prompt": "Write down: milk.", "gold": [{"tool": "add_note", "arguments": {"text": "milk"}}],
     "check": {"state": [{"tool": "list_notes", "contains": "milk"}]}}

Rows and dependent specs list the calls that the agent must make, in order (`task_files.call_sequences`). The tools and
servers of `success.must_call_tool` must be called too. Arguments and outputs may refer to results of earlier calls; the
environment makes the calls once, and then the references are values.
"""

import contextlib
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from pydantic import ValidationError, model_validator

from understudy.core.errors import TaskError
from understudy.core.items import Item, RowError, items_or_raise, row_error_from_validation
from understudy.core.messages import Message, ToolCall
from understudy.core.records import Record
from understudy.core.tasks import Difficulty, Scenario, Split, Task
from understudy.sources.mcp.checks import CallPattern, CallsCheck, TaskCheck
from understudy.sources.mcp.config import MCPCall, MCPLimits
from understudy.sources.mcp.tool_result import ToolResult
from understudy.sources.readers import read_rows
from understudy.sources.task_files.call_matching import first_alternative
from understudy.sources.task_files.call_sequences import CallSequence, is_sequence, read_sequences
from understudy.sources.task_files.fact_texts import ShownResult, tellable_facts
from understudy.sources.task_files.step_references import find_references, resolve_references
from understudy.sources.task_files.task_row import difficulty_of

MAX_TURNS: Mapping[Difficulty, int] = {"easy": 5, "medium": 8, "hard": 10}
"""Default of `max_turns`, by difficulty."""
SPARE_TURNS = 3
"""Replies beyond those of gold that a task without a limit of its own allows."""
DEFAULT_FAMILY = "task"
"""Default of `family`."""
DEFAULT_ANSWER = "Done."
"""Default of `final_answer`."""


class MCPTask(Record):
    """One task."""

    id: str
    prompt: str
    """The user's request."""
    family: str = DEFAULT_FAMILY
    difficulty: Difficulty = "easy"
    split: Split | None = None
    """Default: by a hash of the id, 70% train, 10% validation, 20% test."""
    domain_policy: str = ""
    """The agent's rules, in place of the environment's."""
    setup: tuple[MCPCall, ...] = ()
    """Calls before the episode that the agent does not see."""
    gold: tuple[MCPCall, ...] = ()
    """The agent's calls in a perfect episode, one for each reply."""
    final_answer: str = DEFAULT_ANSWER
    """The agent's last text in a perfect episode."""
    outputs: tuple[str, ...] = ()
    """Facts that the agent must tell, as in `Task.outputs`: a tool must have shown each before. A reference such as
    `${step1.price}` is a fact of a gold call's result. For a number that the agent works out, use `check.answer`."""
    check: TaskCheck = TaskCheck()
    limits: MCPLimits = MCPLimits()

    @model_validator(mode="after")
    def _requires_something(self) -> Self:
        if self.check.requires_nothing and not self.outputs:
            raise ValueError(
                "an agent that does nothing would pass: add outputs, check.answer, check.state or check.calls.required"
            )
        return self

    @classmethod
    def from_task(cls, task: Task, writes: Sequence[MCPCall], reads: Sequence[CallPattern]) -> "MCPTask":
        """Return the MCP task of a `Task` that no task file of the environment lists.

        The agent must tell the task's outputs and make the calls `writes`, those of gold that may change something.
        All its other calls must match `reads`. Raise `TaskError` if doing nothing would then be enough.
        """
        required = tuple(CallPattern(tool=call.tool, arguments=call.arguments) for call in writes)
        turns = max(MAX_TURNS[task.difficulty], len(task.gold_turns) + SPARE_TURNS)
        try:
            return cls(
                id=task.id,
                prompt=task.scenario.opening or task.scenario.instructions,
                family=task.family,
                difficulty=task.difficulty,
                split=task.split,
                gold=tuple(MCPCall(tool=call.name, arguments=call.arguments) for call in task.gold_calls),
                final_answer=task.gold_turns[-1].content if task.gold_turns else DEFAULT_ANSWER,
                outputs=task.outputs,
                check=TaskCheck(calls=CallsCheck(required=required, allowed=tuple(reads))),
                limits=MCPLimits(max_turns=turns),
            )
        except ValidationError as e:
            raise TaskError(f"task {task.id}: {row_error_from_validation('', e).problem}") from e

    @property
    def has_references(self) -> bool:
        """Whether gold calls or outputs use results of gold calls: `${step1.field}`."""
        texts = [*(call.arguments for call in self.gold), *self.outputs]
        return any(True for text in texts for _ in find_references(text))

    def with_results(self, made: Sequence[tuple[MCPCall, ToolResult]]) -> "MCPTask":
        """Return the task with the gold calls as they were made, in the checks that require them too, and with the
        facts of their results in place of references in outputs.

        Raise `TaskError` if no output has a value that an agent can tell.
        """
        gold = [call for call, _ in made]
        resolved = list(zip(self.gold, gold, strict=True))
        required = [
            next(
                (pattern.replace(arguments=new.arguments) for old, new in resolved if _requires(pattern, old)), pattern
            )
            for pattern in (self.check.calls.required if self.check.calls else ())
        ]
        calls = self.check.calls and self.check.calls.replace(required=tuple(required))
        task = self.replace(gold=tuple(gold), check=self.check.replace(calls=calls))
        if not any(True for _ in find_references(list(self.outputs))):
            return task
        problems = list[str]()
        outputs = tuple(self._outputs_of(made, problems))
        if not outputs:
            why = problems[0] if problems else f"no result shows a short text or a number at {', '.join(self.outputs)}"
            raise TaskError(f"outputs: {why:.300}; so there is no fact to tell")
        answer = (
            "; ".join(map(first_alternative, outputs)) if self.final_answer == DEFAULT_ANSWER else self.final_answer
        )
        return task.replace(outputs=outputs, final_answer=answer)

    def _outputs_of(self, made: Sequence[tuple[MCPCall, ToolResult]], problems: list[str]) -> list[str]:
        """Return the outputs with the values of references. Values that cannot be told are left out.

        Why a reference has no value is added to `problems`.
        """
        shown = [ShownResult(call.arguments, result.text) for call, result in made]
        outputs = list[str]()
        for text in self.outputs:
            try:
                value = resolve_references(text, [result.value for _, result in made])
            except ValueError as e:
                problems.append(f"{text}: {e}")
                continue
            told = [value] if value == text else [fact for _, fact in tellable_facts({text: value}, shown)]
            outputs += (fact for fact in told if fact not in outputs)
        return outputs

    @property
    def max_turns(self) -> int:
        """The number of replies that the agent may give."""
        return self.limits.max_turns or MAX_TURNS[self.difficulty]

    def to_task(self, domain: str, split: Split, shown_names: Mapping[str, str]) -> Task:
        """Convert to a `Task`. `shown_names` maps the tools of gold calls to the names that the agent sees."""
        calls = (ToolCall(name=shown_names.get(call.tool, call.tool), arguments=call.arguments) for call in self.gold)
        turns = [Message(role="assistant", tool_calls=(call,)) for call in calls]
        return Task(
            id=self.id,
            domain=domain,
            split=split,
            family=self.family,
            difficulty=self.difficulty,
            scenario=Scenario(instructions=self.prompt, opening=self.prompt),
            gold=(*turns, Message(role="assistant", content=self.final_answer)),
            outputs=self.outputs,
        )


def from_sequence(sequence: CallSequence, servers: Collection[str] = ()) -> MCPTask:
    """Return the task of a sequence of calls on `servers`. It allows one turn for each call and one for the answer."""
    calls = tuple(MCPCall(tool=step.name, arguments=step.params) for step in sequence.steps)
    missing = (CallPattern(tool=pattern) for pattern in sequence.missing_calls(servers))
    limits = sequence.task_limits()
    return MCPTask(
        id=sequence.id,
        prompt=sequence.prompt,
        family=sequence.family,
        difficulty=difficulty_of(sequence.complexity, len(calls)),
        split=sequence.split,
        domain_policy=sequence.domain_policy,
        gold=calls,
        outputs=tuple(dict.fromkeys(sequence.told.values())),
        check=TaskCheck(calls=CallsCheck(required=(*_patterns(calls), *missing), ordered=True)),
        limits=MCPLimits(**limits.model_dump(exclude_none=True)) if limits else MCPLimits(),
    )


@contextlib.contextmanager
def naming_task(task: MCPTask) -> Iterator[None]:
    """Add the task's id to a `TaskError` of the block."""
    try:
        yield
    except TaskError as e:
        raise TaskError(f"task {task.id}: {e}") from e


def read_mcp_tasks(path: Path, servers: Collection[str] = ()) -> list[MCPTask]:
    """Read the tasks of a file. Raise `TaskError` with the line number for an invalid task or a repeated id.

    `servers` are the names of the environment's servers.
    """
    rows = enumerate(read_rows(path))
    found = itertools.chain.from_iterable(_read(item, f"{path.stem}/{number}", servers) for number, item in rows)
    tasks = [item.value for item in items_or_raise(found)]
    seen: set[str] = set()
    for task in tasks:
        if task.id in seen:
            raise TaskError(f"{path}: two tasks have the id {task.id!r}; ids must be unique")
        seen.add(task.id)
    return tasks


def _read(item: Item[Any] | RowError, identity: str, servers: Collection[str]) -> Iterator[Item[MCPTask] | RowError]:
    """Yield the tasks of a row."""
    if isinstance(item, RowError):
        yield item
        return
    try:
        if isinstance(item.value, dict) and is_sequence(item.value):
            for found in read_sequences(item, identity):
                if isinstance(found, RowError):
                    yield found
                else:
                    yield Item(found.location, from_sequence(found.value, servers))
        else:
            yield Item(item.location, MCPTask.model_validate(item.value))
    except ValidationError as e:
        yield row_error_from_validation(item.location, e)


def _requires(pattern: CallPattern, call: MCPCall) -> bool:
    return pattern.tool == call.tool and pattern.arguments == call.arguments


def _patterns(calls: Iterable[MCPCall]) -> Iterator[CallPattern]:
    return (CallPattern(tool=call.tool, arguments=call.arguments) for call in calls)
