"""Tasks of an MCP environment: a line each, or a row of the form that SkyRL's MCP environment takes.

    {"id": "notes/1", "prompt": "Write down: milk.", "gold": [{"tool": "add_note", "arguments": {"text": "milk"}}],
     "check": {"state": [{"tool": "list_notes", "contains": "milk"}]}}

A row (`env_class: "MCPToolEnv"`, `reward_spec.method: "rule"`) says which tools a good episode calls, in order; that
and `success.must_call_tool` are checked. What else it holds, for a judge or of prices of one day, is passed over.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict, Field, ValidationError, field_validator

from understudy.data.items import Bad, Item, malformed, strict
from understudy.data.read import read
from understudy.errors import TaskError, nearest
from understudy.mcp.checks import CallPattern, CallsCheck, Check
from understudy.mcp.settings import Call, Limits
from understudy.messages import Message, ToolCall
from understudy.records import Record
from understudy.tasks import Difficulty, Scenario, Split, Task, split_of

MAX_TURNS: Mapping[Difficulty, int] = {"easy": 5, "medium": 8, "hard": 10}
"""Replies that an episode may have, where its task does not say."""
DONE = "Done."
"""The last gold turn of a task that gives none."""
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
    """What the user asks for."""
    family: str = "task"
    difficulty: Difficulty = "easy"
    split: Split | None = None
    """By its id if not given: 7 of 10 are for training, 1 for validation, 2 for tests."""
    policy: str = ""
    """What the agent is told, instead of the environment's policy."""
    setup: tuple[Call, ...] = ()
    """Calls before the episode, which the agent does not see."""
    gold: tuple[Call, ...] = ()
    """The agent's calls in a perfect episode, a reply each."""
    reply: str = DONE
    """What the agent says at the end of it."""
    check: Check
    limits: Limits = Limits()

    @property
    def turns(self) -> int:
        """How many replies the agent may give."""
        return self.limits.max_turns or MAX_TURNS[self.difficulty]

    def task(self, domain: str, names: Mapping[str, str]) -> Task:
        """The same as everything else takes it. `names` are what the agent is shown for what the gold calls."""
        calls = (ToolCall(name=names.get(call.tool, call.tool), arguments=call.arguments) for call in self.gold)
        turns = [Message(role="assistant", tool_calls=(call,)) for call in calls]
        return Task(
            id=self.id,
            domain=domain,
            split=self.split or split_of(self.id),
            family=self.family,
            difficulty=self.difficulty,
            scenario=Scenario(instructions=self.prompt, opening=self.prompt),
            gold=(*turns, Message(role="assistant", content=self.reply)),
        )


class _Part(Record):
    """A part of a row, of which only what is named is read."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class _Step(_Part):
    step: int
    server: str
    tool: str
    params: dict[str, Any] = {}

    @property
    def call(self) -> Call:
        return Call(tool=f"{self.server}.{self.tool}", arguments=self.params)


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


class MCPRow(_Part):
    """A row; see the module's docstring."""

    data_source: str = ""
    env_class: Literal["MCPToolEnv"]
    prompt: tuple[_Said, ...] = Field(min_length=1)
    reward_spec: _RewardSpec
    extra_info: dict[str, Any] = {}

    def task(self) -> MCPTask:
        """The row as a task. Its turns are those with calls; the answer is one more."""
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
            policy=self._last("system"),
            gold=tuple(steps),
            check=Check(calls=CallsCheck(must=_musts(steps, truth.success.must_call_tool), ordered=True)),
            limits=Limits(**limits),
        )

    def _last(self, role: str) -> str:
        return next((said.content for said in reversed(self.prompt) if said.role == role), "")


def read_mcp_tasks(path: Path) -> list[MCPTask]:
    """The tasks of a file. The first that is none is a `TaskError` that names its line; so is a second one of an id."""
    tasks = [item.value for item in strict(map(_item, read(path)))]
    seen: set[str] = set()
    for task in tasks:
        if task.id in seen:
            raise TaskError(f"{path}: two tasks have the id {task.id!r}; give each its own")
        seen.add(task.id)
    return tasks


def _item(item: Item[Any] | Bad) -> Item[MCPTask] | Bad:
    if isinstance(item, Bad):
        return item
    is_row = isinstance(item.value, dict) and "reward_spec" in item.value
    try:
        task = MCPRow.model_validate(item.value).task() if is_row else MCPTask.model_validate(item.value)
    except ValidationError as e:
        return malformed(item.where, e)
    placeholder = next(_placeholders(task.gold), None)
    if placeholder:
        return Bad(
            item.where, "tool_sequence", f"{placeholder!r} has to be filled in: gold calls are made as they stand"
        )
    return Item(item.where, task)


def _difficulty(truth: _Truth) -> Difficulty:
    if truth.complexity.lower() not in _COMPLEXITY:
        raise TaskError(f"task {truth.task_id}: unknown complexity {nearest(truth.complexity, _COMPLEXITY)}")
    return _COMPLEXITY[truth.complexity.lower()]


def _musts(steps: Iterable[Call], more: Iterable[str]) -> tuple[CallPattern, ...]:
    """The steps with their arguments, and tools that have to be called and are no step."""
    musts = [CallPattern(tool=step.tool, arguments=step.arguments) for step in steps]
    names = {name for must in musts for name in (must.tool, must.tool.rpartition(".")[2])}
    return (*musts, *(CallPattern(tool=tool) for tool in more if tool not in names))


def _placeholders(calls: Iterable[Call]) -> Iterator[str]:
    """Texts like `${step1.close}`, which stand for a result that nobody has."""
    values: list[Any] = [call.arguments for call in calls]
    while values:
        match values.pop():
            case str() as text if "${" in text:
                yield text
            case dict() as inner:
                values += inner.values()
            case list() as inner:
                values += inner
