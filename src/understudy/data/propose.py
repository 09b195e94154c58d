"""A task asked of a language model: what it is told, and how its reply is read.

A proposal is about rows that it is shown: those of a task that the domain's generator gives for the split, as that task
sets them up, and what they refer to. So proposals stay within the split's own users and rows.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import Field, ValidationError
from pydantic_core import from_json

from understudy.data.items import malformed
from understudy.data.verify import Fault
from understudy.domains.base import Domain
from understudy.messages import Message, spec_to_wire
from understudy.records import Record
from understudy.state import Table
from understudy.tasks import Scenario, Task

_REACH = 3
"""How far references between rows are followed: from an order to its user, the user's others, and what was ordered."""

_ASK = """\
You write tasks that train an assistant which talks to users and calls tools. A program plays the user of your task and
runs every call of your gold turns on a real database, and your task is thrown away unless all of them work.

# What the assistant is told
{policy}

# Its tools
{tools}

# How the user is played
- The user begins with `opening`, and sees only what the assistant says, never its calls.
- When the assistant asks with one of a fact's `cues` (lower-case words), the user says that fact.
- A wish of kind "action" is granted when the assistant names all of the wish's `names` and asks "Do you confirm?". The
  user then says yes, and the assistant may make that one change. No call may change anything without such a yes.
- A wish of kind "number" or "text" is a question, and ends with a statement that answers it.
- The user leaves after the last wish. A fact is known only if it stands in the opening, or is asked for.

# Your reply
One JSON object and nothing else, by this schema. `gold` holds the assistant's messages in order, each with either one
text or calls; `outputs` what it has to tell (numbers plain, as "12.50"); `setup` changes rows as JSON merge patches.
{schema}
"""

_ABOUT = """\
# The rows that your task may be about
{rows}

# A task about them, as an example
{example}

# What to write
A new task of the family {family!r} and the difficulty {difficulty!r}, about the same rows, that asks for something else
than the example, or has another outcome, in other words. At most {calls} calls and {turns} messages in `gold`.
"""


class Proposal(Record):
    """What a model replies with."""

    scenario: Scenario
    setup: dict[str, dict[str, Any]] = {}
    gold: tuple[Message, ...] = Field(min_length=1)
    outputs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Brief:
    """What is asked for: a task like the example, about rows that the model is shown."""

    number: int
    domain: Domain
    example: Task
    max_calls: int
    max_turns: int
    seed: int

    def messages(self) -> tuple[Message, Message]:
        """What the model is told."""
        tools = "\n".join(json.dumps(spec_to_wire(spec)) for spec in self.domain.specs)
        schema = json.dumps(Proposal.model_json_schema())
        example = self.example.model_dump_json(exclude_defaults=True, include=set(Proposal.model_fields))
        about = _ABOUT.format(
            rows=json.dumps(shown(self.domain, self.example), indent=1),
            example=example,
            family=self.example.family,
            difficulty=self.example.difficulty,
            calls=self.max_calls,
            turns=self.max_turns,
        )
        ask = _ASK.format(policy=self.domain.policy, tools=tools, schema=schema)
        return Message(role="system", content=ask), Message(role="user", content=about)

    @property
    def sampling_seed(self) -> int:
        """The seed of the model's reply: the proposal's own."""
        return self.seed * 1_000_003 + self.number

    @property
    def identity(self) -> str:
        """The proposed task's id."""
        like = self.example
        return f"{like.domain}/{like.split}/{like.family}/{like.difficulty}/model-{self.seed}-{self.number}"

    def read(self, reply: str) -> Task | Fault:
        """The proposed task."""
        try:
            value = from_json(_object(reply), allow_inf_nan=False)
        except ValueError as e:
            return Fault("unreadable", "", f"the reply holds no JSON object: {e}")
        try:
            proposal = Proposal.model_validate(value)
        except ValidationError as e:
            bad = malformed("", e)
            return Fault("malformed", bad.field, bad.problem)
        fields = {name: getattr(proposal, name) for name in Proposal.model_fields}
        return self._limited(self.example.replace(id=self.identity, **fields))

    def _limited(self, task: Task) -> Task | Fault:
        """The task, if it is of the size and about the rows that were asked for, and has a user who wants something."""
        if len(task.actions) > self.max_calls or len(task.gold) > self.max_turns:
            return Fault("too long", "gold", f"{len(task.actions)} calls in {len(task.gold)} messages")
        if not task.scenario.wishes:
            return Fault("malformed", "scenario.wishes", "there are none, so the user wants nothing")
        allowed = shown(self.domain, self.example)
        for table, key in self.domain.rows(task):
            if key not in allowed.get(table, {}):
                return Fault("hidden rows", "gold", f"it is about {table} {key!r}, which was not shown")
        return task


def shown(domain: Domain, task: Task) -> dict[str, dict[str, Any]]:
    """The rows that a task names, as it sets them up, those that refer to them, and all that these refer to."""
    tables = domain.initial(task).tables()
    names = {text for call in task.actions for text in _texts(call.arguments)} | set(_texts(task.setup))
    names |= _owners(domain, task, tables)
    found: dict[str, dict[str, Any]] = {}
    for _ in range(_REACH):
        for name, table in tables.items():
            keys = [key for key in sorted(names) if key in table]
            kept = {key: table[key].model_dump(mode="json", exclude_defaults=True) for key in keys}
            found.setdefault(name, {}).update(kept)
        names |= set(_texts(found))
    return {name: table for name, table in found.items() if table}


def _owners(domain: Domain, task: Task, tables: Mapping[str, Table[Any]]) -> set[str]:
    """Keys of rows that refer to a row that the task is about, such as the user whose order it is."""
    about = {key for _, key in domain.rows(task)}
    own = (table for name, table in tables.items() if name not in domain.shared)
    return {key for table in own for key, row in table.items() if about.intersection(_texts(row.model_dump()))}


def _texts(value: Any) -> Iterator[str]:
    """All strings in a value, keys too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from value
        for inner in value.values():
            yield from _texts(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner)


def _object(reply: str) -> str:
    """The JSON object in a reply: what a model thinks before it, and a fence around it, are left out."""
    said = reply.rpartition("</think>")[2]
    return said[said.find("{") : said.rfind("}") + 1]
