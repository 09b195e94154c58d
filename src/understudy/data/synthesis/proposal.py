"""Proposals: the prompts that ask a language model for a task, and the parsers of its replies.

RowProposal    for a `Domain`. The prompt shows an example, a task that the domain's generator builds for the split, and
               the rows that it uses and that these refer to. The model may use only these rows, so proposals stay
               within the users and rows of the split.
CallProposal   for any other source. The prompt shows the tools and what an exploration has read. The model proposes a
               request, calls and the places of the facts. It may call only the tools that the agent has, and may name
               only those URLs and file paths that the prompt shows.

A reply is data: it is parsed as JSON and validated.
"""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import Field, ValidationError
from pydantic_core import from_json

from understudy.core.items import row_error_from_validation
from understudy.core.messages import Message, tool_to_openai
from understudy.core.records import Record
from understudy.core.tasks import Difficulty, Scenario, Split, Task
from understudy.data.checks.evidence import leaf_texts
from understudy.data.checks.issue import TaskIssue
from understudy.data.synthesis.call_plan import CallPlan, TaskLabels, build_planned_task, call_range
from understudy.data.synthesis.explore import Exploration, Observation
from understudy.envs.domain import Domain
from understudy.envs.state import Table
from understudy.envs.task_source import TaskSource

FAMILY = "proposed"
"""The family of tasks that a model proposes for a source whose tasks have no families of their own."""
MAX_OBSERVATIONS = 24
MAX_OBSERVATION_CHARACTERS = 700
_MAX_REFERENCE_DEPTH = 3
"""How many references between rows are followed: from an order to its user, the user's other orders, and their items.
"""
_PLACE = re.compile(r"://|^(?:[/~]|\.\.?[/\\]|[A-Za-z]:[\\/])")
"""Words that name a host or a file."""

_ROW_TASK = """\
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

_ABOUT_ROWS = """\
# The rows that your task may be about
{rows}

# A task about them, as an example
{example}

# What to write
A new task of the family {family!r} and the difficulty {difficulty!r}, about the same rows, that asks for something else
than the example, or has another outcome, in other words. At most {calls} calls and {turns} messages in `gold`.
"""

_CALL_TASK = """\
You write tasks that train an assistant which talks to users and calls tools. A program runs every call of your task on
the real tools, and your task is thrown away unless all of them work.

# What the assistant is told
{domain_policy}

# Its tools
{tools}

# Your reply
One JSON object and nothing else, by this schema. `prompt` is the user's only message, in the words of a user who does
not see the tools. `calls` are the assistant's calls in order, with complete arguments. `facts` are the places in the
results of what the assistant has to tell. `answer` is its last text, with {{1}}, {{2}}, … in place of the facts. A task
without facts must change something.
{schema}
"""

_ABOUT_CALLS = """\
# What some calls return
{observations}

{example}# What to write
A new task of {least} to {most} calls with at most {tools} different tools, about the data above, that asks for
something else than the examples. {reads}The prompt must not contain the facts. Name no URL and no file that is not
shown above.
"""


class Proposal(Record):
    """The model's reply."""

    scenario: Scenario
    setup: dict[str, dict[str, Any]] = {}
    gold: tuple[Message, ...] = Field(min_length=1)
    outputs: tuple[str, ...] = ()


@dataclass(frozen=True)
class ProposalRequest(ABC):
    """A request to a model for one task."""

    instructions: ClassVar[str]
    """The template of the system message."""
    reply_type: ClassVar[type[Record]]
    """The record whose JSON schema the reply must match."""

    number: int
    """The number of the proposal, from 0."""
    seed: int
    source: TaskSource
    example: Task | None
    """A task that the prompt shows."""
    max_calls: int

    @abstractmethod
    def user_message(self) -> str:
        """Return the second part of the prompt: what the task may be about, and what is asked for."""

    @abstractmethod
    async def build_task(self, proposal: Any) -> Task | TaskIssue:
        """Return the proposed task, or what is wrong with it. `proposal` is a `reply_type`."""

    @property
    def sampling_seed(self) -> int:
        """The seed of the model's reply."""
        return self.seed * 1_000_003 + self.number

    def messages(self) -> tuple[Message, Message]:
        """Return the prompt."""
        system = self.instructions.format(
            domain_policy=self.source.domain_policy,
            tools="\n".join(json.dumps(tool_to_openai(spec)) for spec in self.source.tool_specs),
            schema=json.dumps(self.reply_type.model_json_schema()),
        )
        return Message(role="system", content=system), Message(role="user", content=self.user_message())

    async def read_reply(self, reply: str) -> Task | TaskIssue:
        """Return the proposed task, or what is wrong with the reply. Thoughts and code fences are left out."""
        answer = reply.rpartition("</think>")[2]
        try:
            value = from_json(answer[answer.find("{") : answer.rfind("}") + 1], allow_inf_nan=False)
        except ValueError as e:
            return TaskIssue("unreadable", "", f"the reply holds no JSON object: {e}")
        try:
            proposal = self.reply_type.model_validate(value)
        except ValidationError as e:
            error = row_error_from_validation("", e)
            return TaskIssue("malformed", error.field, error.problem)
        return await self.build_task(proposal)

    def task_id(self, split: Split, family: str, difficulty: Difficulty) -> str:
        """Return the id of the proposed task."""
        return f"{self.source.name}/{split}/{family}/{difficulty}/model-{self.seed}-{self.number}"


@dataclass(frozen=True)
class RowProposal(ProposalRequest):
    """The request for a task like the example, about the rows that the prompt shows."""

    instructions = _ROW_TASK
    reply_type = Proposal

    source: Domain
    example: Task
    max_turns: int

    def user_message(self) -> str:
        """Return the rows, the example, and what to write."""
        return _ABOUT_ROWS.format(
            rows=json.dumps(select_rows(self.source, self.example), indent=1),
            example=self.example.model_dump_json(exclude_defaults=True, include=set(Proposal.model_fields)),
            family=self.example.family,
            difficulty=self.example.difficulty,
            calls=self.max_calls,
            turns=self.max_turns,
        )

    async def build_task(self, proposal: Proposal) -> Task | TaskIssue:
        """Return the task, or its issue if it is too long, uses rows that were not shown, or its user has no goals."""
        example = self.example
        fields = {name: getattr(proposal, name) for name in Proposal.model_fields}
        task = example.replace(id=self.task_id(example.split, example.family, example.difficulty), **fields)
        if len(task.gold_calls) > self.max_calls or len(task.gold) > self.max_turns:
            return TaskIssue(
                "too long",
                "gold",
                f"{len(task.gold_calls)} calls in {len(task.gold)} messages; "
                f"allowed: {self.max_calls} calls in {self.max_turns} messages",
            )
        if not task.scenario.goals:
            return TaskIssue("malformed", "scenario.goals", "there are none; the user needs at least one")
        allowed = select_rows(self.source, example)
        patched = [
            (table, key) for table in task.setup for key in task.setup[table] if table not in self.source.shared_tables
        ]
        for table, key in (*patched, *self.source.split_row_keys(task)):
            if key not in allowed.get(table, {}):
                return TaskIssue("hidden rows", "gold", f"it uses {table} {key!r}, which the prompt did not show")
        return task


@dataclass(frozen=True)
class CallProposal(ProposalRequest):
    """The request for a task about what an exploration has read."""

    instructions = _CALL_TASK
    reply_type = CallPlan

    exploration: Exploration
    difficulty: Difficulty
    max_tools: int
    min_reads: int

    def user_message(self) -> str:
        """Return the observations, the example, and what to write."""
        least, most = call_range(self.difficulty)
        return _ABOUT_CALLS.format(
            observations="\n".join(map(_observation_line, self._observations())),
            example=f"# A task, as an example\n{_example_line(self.example)}\n\n" if self.example else "",
            least=least,
            most=min(most, self.max_calls),
            tools=self.max_tools,
            reads=f"It must need the results of at least {self.min_reads} reads. " if self.min_reads else "",
        )

    async def build_task(self, proposal: CallPlan) -> Task | TaskIssue:
        """Return the task after its calls have run, or what is wrong with the plan."""
        split, family = self.exploration.split, self.example.family if self.example else FAMILY
        labels = TaskLabels(id=self.task_id(split, family, self.difficulty), split=split, family=family)
        return self._find_issue(proposal) or await build_planned_task(self.source, proposal, labels)

    def _find_issue(self, plan: CallPlan) -> TaskIssue | None:
        least, most = call_range(self.difficulty)
        if not least <= len(plan.calls) <= min(most, self.max_calls):
            problem = f"it has {len(plan.calls)} calls; {least} to {min(most, self.max_calls)} are asked for"
            return TaskIssue("too long" if len(plan.calls) > self.max_calls else "other difficulty", "calls", problem)
        allowed_tools = {spec.name for spec in self.source.tool_specs}
        for number, call in enumerate(plan.calls):
            if call.tool not in allowed_tools:
                return TaskIssue("unknown tool", f"calls.{number}", f"{call.tool!r} is none of the assistant's tools")
            for word in (word.strip("\"'(),.;") for text in leaf_texts(call.arguments) for word in text.split()):
                if _PLACE.search(word) and word not in self.exploration.shown:
                    return TaskIssue("hidden rows", f"calls.{number}", f"it names {word!r}, which was not shown")
        return None

    def _observations(self) -> list[Observation]:
        """Return the observations to show: others in each request."""
        observations = self.exploration.observations
        start = self.number * MAX_OBSERVATIONS % len(observations) if observations else 0
        return [*observations[start:], *observations[:start]][:MAX_OBSERVATIONS]


def _example_line(example: Task) -> str:
    calls = [{"tool": call.name, "arguments": call.arguments} for call in example.gold_calls]
    last = example.gold_turns[-1].content if example.gold_turns else ""
    return json.dumps({"prompt": example.scenario.instructions, "calls": calls, "last text": last})


def _observation_line(observation: Observation) -> str:
    result = observation.result
    if len(result) > MAX_OBSERVATION_CHARACTERS:
        result = f"{result[:MAX_OBSERVATION_CHARACTERS]} […]"
    return f"{observation.call.name}({json.dumps(observation.call.arguments)}) returns {result}"


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
