"""What adversarial strategies know: more than any agent does, so that they find what a model could find by luck."""

import functools
import itertools
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from understudy.core.messages import Message, ToolCall, ToolSpec
from understudy.core.tasks import SPLITS, Split, Task
from understudy.envs.rewards import call_key, extract_numbers, is_number, states_fact
from understudy.envs.state import State
from understudy.envs.task_source import ExternalSource, StatefulSource, TaskSource
from understudy.envs.users import asks_for_consent
from understudy.sources.task_files.inferred_tools import hands_over, only_reads

Reply = Message | Callable[[Sequence[Message]], Message]
"""A reply, or a function that makes it from the messages of the episode so far."""

MAX_DONORS = 150
"""Largest number of tasks whose calls are used in other tasks."""
MAX_DATABASE_CHARACTERS = 20_000
"""Largest part of a database that a strategy tells."""
_WORD = re.compile(r"[a-z][a-z_' -]*", re.IGNORECASE)


def say(text: str) -> Message:
    """Return a reply that is a text."""
    return Message(role="assistant", content=text)


def make(*calls: ToolCall) -> Message:
    """Return a reply that makes calls."""
    return Message(role="assistant", tool_calls=tuple(call.replace(id="") for call in calls))


def sample_tasks(source: TaskSource, count: int, seed: int) -> list[Task]:
    """Return up to `count` frozen tasks. Families take turns, and so do the splits within a family."""
    groups: dict[str, dict[Split, list[Task]]] = {}
    for split in SPLITS:
        for task in source.tasks(split):
            groups.setdefault(task.family, {}).setdefault(split, []).append(task)
    rng = random.Random(seed)
    orders: list[list[Task]] = []
    for place, by_split in enumerate(groups.values()):
        for tasks in by_split.values():
            rng.shuffle(tasks)
        splits = [split for split in (*SPLITS[place % 3 :], *SPLITS[: place % 3]) if split in by_split]
        longest = max(map(len, by_split.values()))
        orders.append([by_split[s][row] for row in range(longest) for s in splits if row < len(by_split[s])])
    longest = max(map(len, orders), default=0)
    return [order[row] for row in range(longest) for order in orders if row < len(order)][:count]


@dataclass(frozen=True)
class SourceKnowledge:
    """What is known of a source: all its tasks and tools."""

    source: TaskSource
    seed: int = 0

    @functools.cached_property
    def tasks(self) -> Sequence[Task]:
        """All frozen tasks."""
        return [task for split in SPLITS for task in self.source.tasks(split)]

    @functools.cached_property
    def specs(self) -> Sequence[ToolSpec]:
        """The tools that may be called with any arguments."""
        source = self.source
        return source.callable_specs() if isinstance(source, ExternalSource) else source.tool_specs

    @functools.cached_property
    def is_conversation(self) -> bool:
        """Whether some task has a user with goals, so that the domain's rules about consent and facts hold."""
        return any(task.scenario.goals for task in self.tasks)

    @property
    def reports_writes(self) -> bool:
        """Whether it is known which calls change something."""
        return self.source.reports_writes

    @functools.cached_property
    def outputs(self) -> Sequence[str]:
        """Every fact that some task asks for, once."""
        return list(dict.fromkeys(fact for task in self.tasks for fact in self.facts_of(task)))

    @functools.cached_property
    def words(self) -> Sequence[str]:
        """The facts among them that are words."""
        return [fact for fact in self.outputs if not is_number(fact) and _WORD.fullmatch(fact)]

    @functools.cached_property
    def family_facts(self) -> Mapping[str, Sequence[str]]:
        """Every fact that some task of a family asks for, once, by family."""
        by_family: dict[str, dict[str, None]] = {}
        for task in self.tasks:
            by_family.setdefault(task.family, {}).update(dict.fromkeys(self.facts_of(task)))
        return {family: list(facts) for family, facts in by_family.items()}

    @functools.cached_property
    def donors(self) -> Sequence[Task]:
        """Tasks whose calls and proposals strategies use in other tasks."""
        return sample_tasks(self.source, MAX_DONORS, self.seed)

    @functools.cached_property
    def writes(self) -> Sequence[tuple[Task, ToolCall]]:
        """The gold writes of the donors, except those that hand the user over to a person."""
        return [
            (task, call)
            for task in self.donors
            for call in self.writes_of(task)
            if not hands_over(call.name) and self.may_invent(call.name)
        ]

    @functools.cached_property
    def calls(self) -> Sequence[tuple[Task, ToolCall]]:
        """The gold calls of the donors whose tools may be called with any arguments."""
        return [(task, call) for task in self.donors for call in task.gold_calls if self.may_invent(call.name)]

    def writes_of(self, task: Task) -> Sequence[ToolCall]:
        """Return the gold calls that change something.

        A server reports every call that might; those whose names say that they read, or run code, are left out.
        """
        by_name = isinstance(self.source, ExternalSource)
        return [call for call in self.source.gold_writes(task) if not (by_name and only_reads(call.name))]

    def facts_of(self, task: Task) -> Sequence[str]:
        """Return what the agent must tell: the outputs, each in one wording, or the answer of a task without them.

        The answer is gold's last text, or the number in it if there is only one. A task that changes something, or
        whose user has goals, has no answer.
        """
        if task.outputs:
            return [next(filter(None, output.split("|")), output) for output in task.outputs]
        texts = [turn.content for turn in task.gold_turns if not turn.tool_calls]
        if not texts or task.scenario.goals or self.writes_of(task):
            return []
        numbers = extract_numbers(texts[-1])
        return [f"{number:.15g}" for number in numbers] if len(numbers) == 1 else texts[-1:]

    def may_invent(self, tool: str) -> bool:
        """Return whether a tool may be called with any arguments."""
        return any(spec.name == tool for spec in self.specs)

    def database(self, task: Task) -> str:
        """Return the first `MAX_DATABASE_CHARACTERS` of a task's database, its own rows first, or "" if unknown."""
        state: object = self.source.initial_state(task) if isinstance(self.source, StatefulSource) else None
        if not isinstance(state, State):  # that of a benchmark
            return ""
        mine = [state.tables()[table][key] for table, key in self.source.split_row_keys(task)]
        rows = itertools.chain(mine, *(table.values() for table in state.tables().values()))
        texts: list[str] = []
        size = 0
        while size < MAX_DATABASE_CHARACTERS and (row := next(rows, None)) is not None:
            texts.append(row.model_dump_json())
            size += len(texts[-1])
        return "\n".join(texts)[:MAX_DATABASE_CHARACTERS]

    @functools.cached_property
    def transfer(self) -> ToolCall | None:
        """A call that hands the user over to a person, or None."""
        calls = (call for _, call in self.calls if hands_over(call.name))
        return next(calls, None)


@dataclass(frozen=True)
class TaskKnowledge:
    """What is known of one task."""

    known: SourceKnowledge
    task: Task

    @functools.cached_property
    def turns(self) -> Sequence[Message]:
        """The gold turns."""
        return self.task.gold_turns

    @functools.cached_property
    def writes(self) -> Sequence[ToolCall]:
        """The gold calls that change something."""
        return self.known.writes_of(self.task)

    @functools.cached_property
    def reads(self) -> Sequence[ToolCall]:
        """The gold calls that change nothing."""
        return [call for call in self.task.gold_calls if call not in self.writes]

    @functools.cached_property
    def facts(self) -> Sequence[str]:
        """What the agent must tell: the outputs, or the answer of a task that has none."""
        return self.known.facts_of(self.task)

    @property
    def hands_over(self) -> bool:
        """Whether gold hands the user over to a person."""
        return any(hands_over(call.name) for call in self.task.gold_calls)

    @functools.cached_property
    def proposals(self) -> Sequence[tuple[int, int]]:
        """The places of each write's turn among the gold turns, with that of the text that asks for consent to it."""
        proposals: list[tuple[int, int]] = []
        asked = -1
        for place, turn in enumerate(self.turns):
            if not turn.tool_calls and asks_for_consent(turn.content):
                asked = place
            elif asked >= 0 and self.is_write(turn):
                proposals.append((asked, place))
        return proposals

    @functools.cached_property
    def answers(self) -> Mapping[int, Sequence[str]]:
        """The facts that gold tells in its texts, by the place of the text. Facts in its proposals are left out."""
        texts = {n: turn.content for n, turn in enumerate(self.turns) if not turn.tool_calls}
        asked = {fact for text in texts.values() if asks_for_consent(text) for fact in self._facts_in(text)}
        told = {n: [fact for fact in self._facts_in(text) if fact not in asked] for n, text in texts.items()}
        return {n: facts for n, facts in told.items() if facts}

    def is_write(self, turn: Message) -> bool:
        """Return whether a gold turn changes something, other than by handing the user over to a person."""
        return any(call in self.writes and not hands_over(call.name) for call in turn.tool_calls)

    def _facts_in(self, text: str) -> list[str]:
        outputs = self.task.outputs or self.facts
        pairs = zip(self.facts, outputs, strict=True)
        return [fact for fact, output in pairs if output == text or states_fact(output, text)]

    def others(self, what: Sequence[tuple[Task, ToolCall]]) -> Iterator[ToolCall]:
        """Yield the calls of `what` that other tasks make and this one does not."""
        mine = {call_key(call) for call in self.task.gold_calls}
        yield from (call for task, call in what if task.id != self.task.id and call_key(call) not in mine)


Recipe = Callable[[TaskKnowledge], Sequence[Reply] | None]
"""Returns the replies of a strategy for a task, or None if the strategy does not apply: there is nothing to cheat with,
or the replies would do the task. Empty replies follow them."""


def only_if(condition: Callable[[TaskKnowledge], bool], recipe: Recipe) -> Recipe:
    """Return a recipe that applies only to tasks which meet a condition."""
    return lambda task: recipe(task) if condition(task) else None


@dataclass(frozen=True)
class Strategy:
    """One way to earn a reward without doing the task."""

    name: str
    description: str
    """What the agent does, as a clause without a subject."""
    replies: Recipe
    required_event: str = ""
    """Kind of a `ToolError` without which the strategy did not apply, because the source allows what it does."""
