"""Tasks of an MCP environment: JSON lines, or rows for SkyRL's MCP environment.

    {"id": "notes/1", "prompt": "Write down: milk.", "gold": [{"tool": "add_note", "arguments": {"text": "milk"}}],
     "check": {"state": [{"tool": "list_notes", "contains": "milk"}]}}

A row (`env_class: "MCPToolEnv"`, `reward_spec.method: "rule"`) lists the tools that the agent must call, in order. The
tools of `success.must_call_tool` must be called too. Other fields, such as those for a judge, are ignored.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import ConfigDict, Field, ValidationError, field_validator, model_validator

from understudy.core.errors import TaskError, did_you_mean
from understudy.core.items import Item, RowError, items_or_raise, row_error_from_validation
from understudy.core.messages import Message, ToolCall
from understudy.core.readers import read_rows
from understudy.core.records import Record
from understudy.core.tasks import Difficulty, Scenario, Split, Task
from understudy.envs.mcp.checks import CallPattern, CallsCheck, TaskCheck
from understudy.envs.mcp.config import MCPCall, MCPLimits

MAX_TURNS: Mapping[Difficulty, int] = {"easy": 5, "medium": 8, "hard": 10}
"""Default of `max_turns`, by difficulty."""
SPARE_TURNS = 3
"""Replies beyond those of gold that a task without a limit of its own allows."""
DEFAULT_FAMILY = "task"
"""Default of `family`."""
DEFAULT_ANSWER = "Done."
"""Default of `final_answer`."""
_COMPLEXITY: Mapping[str, Difficulty] = {
    "easy": "easy",
    "simple": "easy",
    "medium": "medium",
    "moderate": "medium",
    "unknown": "medium",
    "hard": "hard",
    "difficult": "hard",
    "complex": "hard",
}


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
    """Facts that the agent must tell, as in `Task.outputs`: a tool must have shown a word before the agent says it."""
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


class _Part(Record):
    """A part of a row. Fields that are not named here are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class _Step(_Part):
    step: int
    server: str
    tool: str
    params: dict[str, Any] = {}

    @property
    def call(self) -> MCPCall:
        return MCPCall(tool=f"{self.server}.{self.tool}", arguments=self.params)


class _Success(_Part):
    must_call_tool: tuple[str, ...] = ()

    @field_validator("must_call_tool", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value or ()


class _RowLimits(_Part):
    max_turns: int | None = None
    max_calls: int | None = None
    max_tools: int | None = None
    max_servers: int | None = None


class _Truth(_Part):
    task_id: str
    complexity: str = "medium"
    max_turns: int | None = Field(default=None, ge=1)
    success: _Success = _Success()
    tool_sequence: tuple[_Step, ...] = ()
    limits: _RowLimits = _RowLimits()


class _RewardSpec(_Part):
    method: Literal["rule"]
    ground_truth: _Truth


class _Said(_Part):
    role: Literal["system", "user"]
    content: str


class SkyRLMCPRow(_Part):
    """A row; see the module's docstring."""

    data_source: str = ""
    env_class: Literal["MCPToolEnv"]
    prompt: tuple[_Said, ...] = Field(min_length=1)
    reward_spec: _RewardSpec
    extra_info: dict[str, Any] = {}

    def to_task(self) -> MCPTask:
        """Convert the row to a task. It allows one turn for each gold call and one for the answer."""
        truth = self.reward_spec.ground_truth
        steps = [step.call for step in sorted(truth.tool_sequence, key=lambda step: step.step)]
        given = truth.limits.max_turns or truth.max_turns
        limits = truth.limits.model_dump(exclude_none=True) | ({"max_turns": given + 1} if given else {})
        split = self.extra_info.get("split")
        return MCPTask(
            id=truth.task_id,
            prompt=self._last("user"),
            family=self.data_source or "row",
            difficulty=_difficulty(truth),
            split=split if split in ("train", "validation", "test") else None,
            domain_policy=self._last("system"),
            gold=tuple(steps),
            check=TaskCheck(calls=CallsCheck(required=_musts(steps, truth.success.must_call_tool), ordered=True)),
            limits=MCPLimits(**limits),
        )

    def _last(self, role: str) -> str:
        return next((said.content for said in reversed(self.prompt) if said.role == role), "")


def read_mcp_tasks(path: Path) -> list[MCPTask]:
    """Read the tasks of a file. Raise `TaskError` with the line number for an invalid task or a repeated id."""
    tasks = [item.value for item in items_or_raise(map(_item, read_rows(path)))]
    seen: set[str] = set()
    for task in tasks:
        if task.id in seen:
            raise TaskError(f"{path}: two tasks have the id {task.id!r}; ids must be unique")
        seen.add(task.id)
    return tasks


def _item(item: Item[Any] | RowError) -> Item[MCPTask] | RowError:
    if isinstance(item, RowError):
        return item
    is_row = isinstance(item.value, dict) and "reward_spec" in item.value
    try:
        task = SkyRLMCPRow.model_validate(item.value).to_task() if is_row else MCPTask.model_validate(item.value)
    except ValidationError as e:
        return row_error_from_validation(item.location, e)
    placeholder = next(_placeholders(task.gold), None)
    if placeholder:
        return RowError(
            item.location, "tool_sequence", f"{placeholder!r} must be replaced by a value: gold calls are made as given"
        )
    return Item(item.location, task)


def _difficulty(truth: _Truth) -> Difficulty:
    if truth.complexity.lower() not in _COMPLEXITY:
        raise TaskError(f"task {truth.task_id}: unknown complexity {did_you_mean(truth.complexity, _COMPLEXITY)}")
    return _COMPLEXITY[truth.complexity.lower()]


def _musts(steps: Iterable[MCPCall], more: Iterable[str]) -> tuple[CallPattern, ...]:
    """Return the steps with their arguments, and the required tools that are not steps."""
    musts = [CallPattern(tool=step.tool, arguments=step.arguments) for step in steps]
    names = {name for must in musts for name in (must.tool, must.tool.rpartition(".")[2])}
    return (*musts, *(CallPattern(tool=tool) for tool in more if tool not in names))


def _placeholders(calls: Iterable[MCPCall]) -> Iterator[str]:
    """Yield texts such as `${step1.close}`, which stand for results that the file does not hold."""
    values: list[Any] = [call.arguments for call in calls]
    while values:
        match values.pop():
            case str() as text if "${" in text:
                yield text
            case dict() as inner:
                values += inner.values()
            case list() as inner:
                values += inner
