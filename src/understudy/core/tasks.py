"""Task: what a user wants, the initial state, and the gold solution. A task is one line of JSONL.

`gold` holds the assistant's turns of a perfect episode, calls and texts. If the user has tools, it also holds the
user's calls between these turns, as messages with the role user. The calls, executed on a fresh state, define the goal
state. The assistant's turns, played against the user, are the reference solution that SFT imitates. Tasks that have no
state, because nothing but their calls was recorded, hold the recorded results as messages with the role tool.
"""

import hashlib
import itertools
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import (
    Field,
    SerializationInfo,
    SerializerFunctionWrapHandler,
    ValidationError,
    field_validator,
    model_serializer,
)
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import InitErrorDetails

from understudy.core.errors import TaskError
from understudy.core.messages import Message, ToolCall
from understudy.core.records import Record

Split = Literal["train", "validation", "test"]
Difficulty = Literal["easy", "medium", "hard"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")
DIFFICULTIES: tuple[Difficulty, ...] = ("easy", "medium", "hard")
Persona = Literal["plain", "chatty", "terse"]
UserKind = Literal["scripted", "llm", "react", "verify", "reflection"]
"""Kinds of user simulators that a task may ask for. All but the first are played by a model."""
STORED_FIELDS = ("id", "domain", "split", "family", "difficulty")
"""Fields of a task that a file always has. A `Domain` sets most of them for the tasks that it makes."""


class Fact(Record):
    """Something the user knows. The user says it in the opening, or when the agent asks with one of the `keywords`."""

    text: str
    """The sentence with which the user tells the fact."""
    keywords: tuple[str, ...]
    """Lower-case words; a question with one of them asks for this fact."""
    in_opening: bool = False
    """Whether the opening message contains the fact."""


class SuccessCheck(Record):
    """A call of the user's own tool that shows whether a goal is reached."""

    call: ToolCall
    """The call, which only reads."""
    expected_output: str
    """Text that the tool's result contains if the goal is reached. "synced" is also in "not synced"."""
    success_text: str = "It works now."
    """What the user says if the goal is reached."""
    failure_text: str = "It still does not work."
    """What the user says if the goal is not reached."""


class UserGoal(Record):
    """One thing the user wants. The user raises it after the goals before it are settled."""

    text: str
    """The goal in words. The user also repeats it to correct a wrong proposal."""
    kind: Literal["action", "number", "text"] = "action"
    """`action`: the agent proposes an action and the user confirms it. `number` and `text`: the agent's statement
    answers the question; for `number` the statement must contain a number."""
    required_terms: tuple[str, ...] = ()
    """Terms that a correct proposal of the action must contain; "cancel|cancellation" accepts either."""
    accepted_steps: tuple[tuple[str, ...], ...] = ()
    """Intermediate steps that the user agrees to. Each is the tuple of terms that a correct proposal must contain."""
    success_check: SuccessCheck | None = None
    """If set, the user is satisfied only when this check passes; `required_terms` may then be empty."""
    facts: tuple[Fact, ...] = ()
    """What the user knows about this goal. The user tells these facts only while this goal is the current one."""
    contests_refusal: bool = False
    """Whether the user contests a first refusal before accepting it."""


class UserAction(Record):
    """A call of the user's own tool that the user makes when the agent asks for it."""

    call: ToolCall
    """The call of a tool of `Domain.user_tools`."""
    required_terms: tuple[str, ...] = Field(min_length=1)
    """Terms that a sentence must contain to ask for the action; "restart|reboot" accepts either. The first term is
    the object of the action. If the sentence says "it", the object may be in the sentence before. The sentence must be
    an instruction: a term, or the first word of the tool's name, may be its verb, as in "Please sync the reader".
    """
    read_only: bool = False
    """Whether the action only reads. The user then also performs it if the agent asks a question with the required
    terms.
    """
    reply_template: str = "{result}"
    """What the user says after the action; `{result}` is the tool's result."""


class Scenario(Record):
    """The user's side of a task. The agent never sees it."""

    instructions: str
    """The complete instructions in prose, for a user played by a language model or a person."""
    opening: str
    """The user's first message. If empty, the user must be a language model, which writes its own."""
    facts: tuple[Fact, ...] = ()
    """What the user knows and tells when asked, such as their name."""
    goals: tuple[UserGoal, ...] = ()
    """What the user wants, in order. Without goals the user leaves after the agent's first text that asks nothing."""
    user_actions: tuple[UserAction, ...] = ()
    """What the user can do with their own tools."""
    persona: Persona = "plain"
    """How the scripted user talks. It does not change what the user says about the task."""
    patience: int = Field(default=3, ge=1)
    """Number of unhelpful agent turns after which the user leaves."""
    user_kind: SkipJsonSchema[UserKind | None] = Field(default=None, exclude_if=lambda kind: kind is None)
    """The user simulator of this task if a model may play users. None means the one that the config names."""


class TaskLimits(Record):
    """Limits of the episodes of one task. None is no limit."""

    max_turns: int | None = Field(default=None, ge=1)
    """Maximum number of replies of the agent."""
    max_calls: int | None = Field(default=None, ge=0)
    """Maximum number of calls that are run."""
    max_tools: int | None = Field(default=None, ge=0)
    """Maximum number of different tools that the agent may call."""
    max_servers: int | None = Field(default=None, ge=0)
    """Maximum number of different servers whose tools the agent may call."""


class Task(Record):
    """One task. The module docstring describes `gold`."""

    id: str = ""
    """Unique name. A `Domain` sets it for tasks that its functions make, and for listed tasks without one."""
    domain: str = ""
    """Name of the domain, which the `Domain` sets."""
    split: Split = "train"
    """A `Domain` sets it from the rows that the task uses, or from a hash of the id. A listed task may set its own."""
    family: str = "task"
    """Kind of task. Results are reported for each family."""
    difficulty: Difficulty = "easy"
    """Level, which slices and curricula select."""
    scenario: Scenario
    """The user's side."""
    setup: dict[str, dict[str, Any]] = {}
    """Changes to the initial state of this task only: `{table: {id: fields}}`, as JSON merge patches (RFC 7386)."""
    gold: tuple[Message, ...]
    """The agent's turns of a perfect episode, in order, and between them the calls of the user's own tools. In tasks
    without a state, also the recorded results of the calls."""
    outputs: tuple[str, ...] = ()
    """Facts that the agent must tell the user; "available|in stock" accepts either."""
    must_call: tuple[str, ...] = Field(default=(), exclude_if=lambda tools: not tools)
    """Tools of which a call must succeed, besides the gold calls that change something; `server.*` is any of a server.
    They count where calls are compared with the gold calls."""
    limits: TaskLimits | None = Field(default=None, exclude_if=lambda limits: limits is None)
    """Limits of the task's own. They apply where calls are compared with the gold calls; sources with a state of their
    own ignore them."""

    @model_serializer(mode="wrap")
    def _serialize(self, serialize: SerializerFunctionWrapHandler, info: SerializationInfo) -> dict[str, Any]:
        """Return the fields. `STORED_FIELDS` are among them even if they have their default value."""
        fields: dict[str, Any] = serialize(self)
        if info.exclude_defaults and info.include is None:
            return {**{name: getattr(self, name) for name in STORED_FIELDS}, **fields}
        return fields

    @property
    def gold_calls(self) -> tuple[ToolCall, ...]:
        """The agent's gold calls, in order."""
        return tuple(call for turn in self.gold_turns for call in turn.tool_calls)

    @property
    def gold_turns(self) -> tuple[Message, ...]:
        """The agent's gold messages, in order."""
        return tuple(message for message in self.gold if message.role == "assistant")


ViolationKind = Literal[
    "unconfirmed",
    "forbidden",
    "negated_proposal",
    "bundled_proposal",
    "unnamed_write",
    "false_claim",
    "broken_promise",
    "contradiction",
    "forged_turn",
    "hidden_text",
]
"""Kinds of violations of the policy. `unconfirmed` is a write that was tried without consent, `forbidden` a call for
another customer's data. The user agreed to a proposal that was negated, that named actions that no call carries out, or
that did not name the write that followed. The agent claimed an action before any call took it, promised one that no
call takes, told an output beside facts that contradict it, wrote a turn of the user or of the system,
or hid words from the user."""
RewardPolicy = Literal["strict", "off"]
"""Whether violations count: `strict` multiplies the reward by the part `policy_compliance`."""


class Violation(Record):
    """One place where the agent broke the policy."""

    kind: ViolationKind
    message: int
    """Index of the agent's message in the transcript."""
    text: str
    """The call or the words that broke it."""


MAX_ROUNDING = 1e-9
"""A reward that differs less from 1 is 1: it is a sum of parts that was rounded."""


class Score(Record):
    """The result of an episode: a reward in [0, 1] and its parts."""

    reward: float
    parts: dict[str, float] = {}
    """Parts of the reward and values reported beside it, each in [0, 1]; 1 is best."""
    progress: float | None = None
    """Share of the goal that the episode reached, in [0, 1]; None if unknown. It is not part of the reward."""
    violations: tuple[Violation, ...] = Field(default=(), exclude_if=lambda found: not found)
    """Where the agent broke the policy."""
    shaping_bonus: float = 0.0
    """What reward shaping adds for the progress of a failed episode, if shaping is on. Evaluation never reads it."""

    @field_validator("reward")
    @classmethod
    def _round_to_one(cls, reward: float) -> float:
        return 1.0 if abs(reward - 1.0) <= MAX_ROUNDING else reward


def task_fingerprint(task: Task) -> str:
    """Return 16 hexadecimal digits of the task's SHA-256, to recognize a changed task with the same id."""
    return hashlib.sha256(task.model_dump_json().encode()).hexdigest()[:16]


def gold_digest(task: Task) -> bytes:
    """Return a digest of what decides the goal state of a task: its setup and its gold messages."""
    return hashlib.blake2b(task.model_dump_json(include={"setup", "gold"}).encode(), digest_size=16).digest()


def read_tasks(path: Path) -> list[Task]:
    """Read the tasks of a JSONL file.

    Raise TaskError if the file is missing or a line is damaged; no line is skipped.
    """
    if not path.is_file():
        raise TaskError(f"no task file at {path}; `understudy data freeze` writes the tasks of a domain")
    return parse_tasks(path.read_bytes(), path)


def parse_tasks(data: bytes, path: Path) -> list[Task]:
    """Return the tasks of JSONL. Raise TaskError with the `path` and the line number if a line is damaged."""
    tasks = []
    for number, line in enumerate(data.splitlines(), 1):
        try:
            tasks.append(require_stored_fields(Task.model_validate_json(line)))
        except ValidationError as e:
            raise TaskError(f"{path}:{number}: not a task: {e.errors(include_url=False)[0]['msg']}") from e
    return tasks


def write_tasks(path: Path, tasks: Iterable[Task]) -> None:
    """Write tasks as JSONL."""
    path.write_bytes(tasks_to_jsonl(tasks))


def tasks_to_jsonl(tasks: Iterable[Task]) -> bytes:
    """Return tasks as JSONL, one a line, without other fields than `STORED_FIELDS` that have their default value."""
    return "".join(task.model_dump_json(exclude_defaults=True) + "\n" for task in tasks).encode()


def require_stored_fields(task: Task) -> Task:
    """Return a task that was read. Raise `ValidationError` if it lacks one of `STORED_FIELDS`."""
    missing = [name for name in STORED_FIELDS if name not in task.model_fields_set]
    if missing:
        errors = [InitErrorDetails(type="missing", loc=(name,), input={}) for name in missing]
        raise ValidationError.from_exception_data("Task", errors)
    return task


def filter_tasks(
    tasks: Sequence[Task], families: Sequence[str] = (), difficulties: Sequence[str] = (), limit: int | None = None
) -> list[Task]:
    """Return the first `limit` tasks of the given families and difficulties. Empty means all of them."""
    chosen = [
        task
        for task in tasks
        if (not families or task.family in families) and (not difficulties or task.difficulty in difficulties)
    ]
    return chosen[:limit]


def interleave_families(tasks: Iterable[Task]) -> list[Task]:
    """Return the tasks round-robin over their families, so that every prefix is balanced. A family keeps its order."""
    families: dict[str, list[Task]] = {}
    for task in tasks:
        families.setdefault(task.family, []).append(task)
    rounds = itertools.zip_longest(*families.values())
    return [task for turn in rounds for task in turn if task is not None]


def iterate_epochs(tasks: Sequence[Task], seed: int) -> Iterator[Task]:
    """Yield the tasks endlessly, shuffled anew in every epoch. Yield nothing if there are no tasks."""
    for epoch in itertools.count() if tasks else ():
        yield from random.Random(f"{seed}/{epoch}").sample(tasks, len(tasks))


def split_from_id(identity: str) -> Split:
    """Return the split of a task without one, from a hash of its id: 70% train, 10% validation, 20% test.

    Adding tasks does not move a task to another split.
    """
    bucket = _hash_id(identity) % 10
    if bucket < 7:
        return "train"
    return "validation" if bucket == 7 else "test"


def assign_splits(given: Mapping[str, Split | None]) -> dict[str, Split]:
    """Return the split of each task by its id. A task whose given split is None has that of `split_from_id`.

    In a small set the hashes may select no task for validation or test. That split then takes a tenth or a fifth of the
    training tasks whose split was not given, those with the smallest hashes.
    """
    splits: dict[str, Split] = {identity: split or split_from_id(identity) for identity, split in given.items()}
    shares: Mapping[Split, int] = {"validation": 10, "test": 5}
    for split, share in shares.items():
        free = [identity for identity in splits if not given[identity] and splits[identity] == "train"]
        if split not in splits.values() and len(free) > 1:
            for identity in sorted(free, key=_hash_id)[: max(1, len(free) // share)]:
                splits[identity] = split
    return splits


def _hash_id(identity: str) -> int:
    return int.from_bytes(hashlib.sha256(identity.encode()).digest()[:4])
