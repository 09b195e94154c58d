"""The prompt that asks a language model for a task, and the parser of its reply.

The prompt shows an example, a task that the domain's generator builds for the split, and the rows that it uses and that
these refer to. The model may use only these rows, so proposals stay within the users and rows of the split.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import Field, ValidationError
from pydantic_core import from_json

from understudy.core.items import row_error_from_validation
from understudy.core.messages import Message, tool_to_openai
from understudy.core.records import Record
from understudy.core.tasks import Scenario, Task
from understudy.data.verify import TaskIssue
from understudy.envs.domain import Domain
from understudy.envs.state import Table

_MAX_REFERENCE_DEPTH = 3
"""How many references between rows are followed: from an order to its user, the user's other orders, and their items.
"""

_ASK = """\
You write tasks that train an assistant which talks to users and calls tools. A program plays the user of your task and
runs every call of your gold turns on a real database, and your task is thrown away unless all of them work.

# What the assistant is told
{domain_policy}

# Its tools
{tools}

# How the user is played
- The user begins with `opening`, and sees only what the assistant says, never its calls.
- When the assistant asks with one of a fact's `keywords` (lower-case words), the user says that fact.
- A goal of kind "action" is granted when the assistant names all of the goal's `required_terms` and asks
  "Do you confirm?". The user then says yes, and the assistant may make that one change. No call may change anything
  without such a yes.
- A goal of kind "number" or "text" is a question, and ends with a statement that answers it.
- The user leaves after the last goal. A fact is known only if it stands in the opening, or is asked for.

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
    """The model's reply."""

    scenario: Scenario
    setup: dict[str, dict[str, Any]] = {}
    gold: tuple[Message, ...] = Field(min_length=1)
    outputs: tuple[str, ...] = ()


@dataclass(frozen=True)
class ProposalRequest:
    """The request: a task like the example, about the rows shown."""

    number: int
    domain: Domain
    example: Task
    max_calls: int
    max_turns: int
    seed: int

    def messages(self) -> tuple[Message, Message]:
        """Return the prompt."""
        tools = "\n".join(json.dumps(tool_to_openai(spec)) for spec in self.domain.tool_specs)
        schema = json.dumps(Proposal.model_json_schema())
        example = self.example.model_dump_json(exclude_defaults=True, include=set(Proposal.model_fields))
        about = _ABOUT.format(
            rows=json.dumps(select_rows(self.domain, self.example), indent=1),
            example=example,
            family=self.example.family,
            difficulty=self.example.difficulty,
            calls=self.max_calls,
            turns=self.max_turns,
        )
        ask = _ASK.format(domain_policy=self.domain.domain_policy, tools=tools, schema=schema)
        return Message(role="system", content=ask), Message(role="user", content=about)

    @property
    def sampling_seed(self) -> int:
        """The seed of the model's reply."""
        return self.seed * 1_000_003 + self.number

    @property
    def task_id(self) -> str:
        """The id of the proposed task."""
        like = self.example
        return f"{like.domain}/{like.split}/{like.family}/{like.difficulty}/model-{self.seed}-{self.number}"

    def parse_reply(self, reply: str) -> Task | TaskIssue:
        """Return the proposed task, or what is wrong with the reply."""
        try:
            value = from_json(json_object(reply), allow_inf_nan=False)
        except ValueError as e:
            return TaskIssue("unreadable", "", f"the reply holds no JSON object: {e}")
        try:
            proposal = Proposal.model_validate(value)
        except ValidationError as e:
            bad = row_error_from_validation("", e)
            return TaskIssue("malformed", bad.field, bad.problem)
        fields = {name: getattr(proposal, name) for name in Proposal.model_fields}
        return self._check_limits(self.example.replace(id=self.task_id, **fields))

    def _check_limits(self, task: Task) -> Task | TaskIssue:
        """Return the task, or its issue if it is too long, uses rows that were not shown, or its user has no goals."""
        if len(task.gold_calls) > self.max_calls or len(task.gold) > self.max_turns:
            return TaskIssue(
                "too long",
                "gold",
                f"{len(task.gold_calls)} calls in {len(task.gold)} messages; "
                f"allowed: {self.max_calls} calls in {self.max_turns} messages",
            )
        if not task.scenario.goals:
            return TaskIssue("malformed", "scenario.goals", "there are none; the user needs at least one")
        allowed = select_rows(self.domain, self.example)
        patched = [
            (table, key) for table in task.setup for key in task.setup[table] if table not in self.domain.shared_tables
        ]
        for table, key in (*patched, *self.domain.split_row_keys(task)):
            if key not in allowed.get(table, {}):
                return TaskIssue("hidden rows", "gold", f"it uses {table} {key!r}, which the prompt did not show")
        return task


def select_rows(domain: Domain, task: Task) -> dict[str, dict[str, Any]]:
    """Return the rows that a task uses, after its setup, and related rows, as JSON values by table and key.

    Related are the rows that refer to a row of the task, and then all rows that these refer to, up to
    `_MAX_REFERENCE_DEPTH` references away.
    """
    tables = domain.initial_state(task).tables()
    names = {text for call in task.gold_calls for text in _texts(call.arguments)} | set(_texts(task.setup))
    names |= _owners(domain, task, tables)
    found: dict[str, dict[str, Any]] = {}
    for _ in range(_MAX_REFERENCE_DEPTH):
        for name, table in tables.items():
            keys = [key for key in sorted(names) if key in table]
            rows = {key: table[key].model_dump(mode="json", exclude_defaults=True) for key in keys}
            found.setdefault(name, {}).update(rows)
        names |= set(_texts(found))
    return {name: table for name, table in found.items() if table}


def _owners(domain: Domain, task: Task, tables: Mapping[str, Table[Any]]) -> set[str]:
    """Return the keys of rows that refer to a row of the task, such as the user of an order."""
    about = {key for _, key in domain.split_row_keys(task)}
    own = (table for name, table in tables.items() if name not in domain.shared_tables)
    return {key for table in own for key, row in table.items() if about.intersection(_texts(row.model_dump()))}


def _texts(value: Any) -> Iterator[str]:
    """Yield all strings in a value, including keys."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from value
        for inner in value.values():
            yield from _texts(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner)


def json_object(reply: str) -> str:
    """Return the JSON object in a reply, without the model's thoughts and code fences."""
    said = reply.rpartition("</think>")[2]
    return said[said.find("{") : said.rfind("}") + 1]
