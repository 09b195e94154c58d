"""Task: what a user wants, the world it happens in, and the gold episode that fulfils it. One line of JSONL.

`gold` holds the assistant's turns of a perfect episode, calls and texts; where the user has tools too, it also holds
what the user does with them in between, as messages of the user. The calls alone, run on a fresh state, define the
state to reach; the assistant's turns played against the user are the oracle, and what warm starts imitate.
"""

import hashlib
import itertools
import random
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from understudy.errors import TaskError
from understudy.messages import Message, ToolCall
from understudy.records import Record

Split = Literal["train", "validation", "test"]
Difficulty = Literal["easy", "medium", "hard"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")
DIFFICULTIES: tuple[Difficulty, ...] = ("easy", "medium", "hard")
Persona = Literal["plain", "chatty", "terse"]


class Fact(Record):
    """Something the user knows. It is said in the opening, or when an agent asks with one of the `cues`."""

    says: str
    """The sentence that reveals it."""
    cues: tuple[str, ...]
    """Lower-case words; a question that holds one of them asks for this fact."""
    opened: bool = False
    """Whether the opening message has told it already."""


class Proof(Record):
    """How the user notices that a wish is fulfilled: by trying it with a tool of their own."""

    call: ToolCall
    shows: str
    """What the result holds when all is well."""
    says: str = "It works now."
    fails: str = "It still does not work."


class Wish(Record):
    """One thing the user wants, brought up after the wishes before it are settled."""

    says: str
    """The wish in words; also how a wrong proposal is corrected."""
    kind: Literal["action", "number", "text"] = "action"
    """An action is proposed and confirmed; a question is answered by a statement, for `number` one with a number."""
    names: tuple[str, ...] = ()
    """What a right proposal of an action has to name; "cancel|cancellation" stands for either."""
    agrees: tuple[tuple[str, ...], ...] = ()
    """Steps on the way that the user says yes to, each by what a right proposal of it has to name."""
    proof: Proof | None = None
    """Where it is there, it fulfils the wish; `names` may then be empty, and no proposal fulfils it."""
    facts: tuple[Fact, ...] = ()
    """What the user knows about this wish, and tells while it is the one at hand."""
    contests: bool = False
    """Whether the user contests a first refusal before accepting it."""


class Deed(Record):
    """Something the user does with a tool of their own, when the agent tells them to."""

    call: ToolCall
    names: tuple[str, ...] = Field(min_length=1)
    """What a sentence that tells the user to do it has to name, the thing first; "restart|reboot" stands for either.
    Where it says "it", the thing may be named in the sentence before."""
    looks: bool = False
    """Whether it only looks: then it is also done where a text asks about what it shows."""
    says: str = "{result}"
    """What the user says then; `{result}` is what the tool shows."""


class Scenario(Record):
    """The user's side of a task: hidden from the agent."""

    instructions: str
    """The whole of it in prose, for a user played by a language model or a person."""
    opening: str
    """The first words; empty where the user, who then needs a model, is to find its own."""
    facts: tuple[Fact, ...] = ()
    wishes: tuple[Wish, ...] = ()
    deeds: tuple[Deed, ...] = ()
    persona: Persona = "plain"
    patience: int = Field(default=3, ge=1)
    """How many useless turns the user bears before leaving."""


class Task(Record):
    """One task; see the module's docstring for `gold`."""

    id: str
    domain: str
    split: Split
    family: str
    difficulty: Difficulty
    scenario: Scenario
    setup: dict[str, dict[str, Any]] = {}
    """Changes to the world before the episode: table -> id -> JSON merge patch."""
    gold: tuple[Message, ...]
    outputs: tuple[str, ...] = ()
    """Facts that the agent has to tell the user; "available|in stock" stands for either."""

    @property
    def actions(self) -> tuple[ToolCall, ...]:
        """The agent's gold calls, in order."""
        return tuple(call for turn in self.turns for call in turn.tool_calls)

    @property
    def turns(self) -> tuple[Message, ...]:
        """The agent's gold turns, in order."""
        return tuple(message for message in self.gold if message.role == "assistant")


class Score(Record):
    """What an episode earned: a reward in [0, 1], and the parts that it is made of or that are told beside it."""

    reward: float
    parts: dict[str, float] = {}
    """Each in [0, 1], 1 is best."""
    progress: float | None = None
    """How far the episode got, in [0, 1], where that is known: a share of what was asked for, no part of the reward."""
    credit: float = 0.0
    """What training adds for how far a failure got, where it is told to; evaluation does not read it."""


def fingerprint(task: Task) -> str:
    """What tells whether two tasks of one name are the same task."""
    return hashlib.sha256(task.model_dump_json().encode()).hexdigest()[:16]


def read_tasks(path: Path) -> list[Task]:
    """The tasks of a JSONL file. A damaged line is named with its number; nothing is skipped."""
    if not path.is_file():
        raise TaskError(f"there are no tasks at {path}; a domain writes its own by DOMAIN.freeze()")
    tasks = []
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            tasks.append(Task.model_validate_json(line))
        except ValidationError as e:
            raise TaskError(f"{path}:{number}: not a task: {e.errors(include_url=False)[0]['msg']}") from e
    return tasks


def write_tasks(path: Path, tasks: Iterable[Task]) -> None:
    """Write tasks as JSONL, a line each, without fields that hold their default."""
    text = "".join(task.model_dump_json(exclude_defaults=True) + "\n" for task in tasks)
    path.write_text(text, encoding="utf-8")


def select(
    tasks: Sequence[Task], families: Sequence[str] = (), difficulties: Sequence[str] = (), limit: int | None = None
) -> list[Task]:
    """The tasks of some families and difficulties (all where empty), the first `limit` of them."""
    kept = (t for t in tasks if t.family in (families or (t.family,)))
    return [t for t in kept if t.difficulty in (difficulties or (t.difficulty,))][:limit]


def epochs(tasks: Sequence[Task], seed: int) -> Iterator[Task]:
    """The tasks without end, each time in another order; nothing where there are none."""
    for epoch in itertools.count() if tasks else ():
        yield from random.Random(f"{seed}/{epoch}").sample(tasks, len(tasks))


def split_of(identity: str) -> Split:
    """The split of a task that names none, by its id, so that further tasks do not move it: 7 of 10, 1, and 2."""
    place = int.from_bytes(hashlib.sha256(identity.encode()).digest()[:4]) % 10
    return "train" if place < 7 else "validation" if place < 8 else "test"
