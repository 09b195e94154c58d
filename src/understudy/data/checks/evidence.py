"""Evidence: what the gold agent reads in an episode, and which of its reads are needed.

A read is a gold call that changes nothing. A read is needed if, of all results and user texts before, only its result
states some value that the gold agent then uses: an argument of a later call, or an output that it tells the user.
Without such a read the agent cannot know the value, except by guessing or computing it. Reads that are needed for
another reason, such as one whose numbers are only summed up, are not counted, so the count is a lower bound.

Published: demonstrations with many reads before each write improved Qwen3-4B on tau2 more than RL did (WRIT,
arXiv 2606.02908).
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from understudy.core.errors import TaskError
from understudy.core.messages import Message, ToolCall
from understudy.core.tasks import Task
from understudy.envs.rewards import MAX_FREE_TERM, extract_numbers, is_number, states_fact
from understudy.envs.shown_values import OUTPUT, UnshownValue, find_unshown_value, leaf_values, pair_results
from understudy.envs.task_source import ExternalSource, TaskSource, explain_default, find_default
from understudy.rollouts.agent import GoldAgent
from understudy.rollouts.rollout import EpisodeLimits, rollout
from understudy.sources.task_files.inferred_tools import hands_over, only_reads

_LIMITS = EpisodeLimits(max_turns=100)
_WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class Evidence:
    """The reads and writes of a task's gold episode."""

    read_results: tuple[str, ...]
    """The result of each read."""
    writes: int
    """Number of calls that change something."""
    needed: Mapping[int, str]
    """The reads that are needed (see the module docstring), by their places among the agent's calls, and a value that
    only this read shows."""

    @property
    def reads(self) -> int:
        """Number of calls that change nothing."""
        return len(self.read_results)

    @property
    def needed_reads(self) -> int:
        """Number of reads that are needed."""
        return len(self.needed)

    @property
    def words(self) -> int:
        """Number of words that the reads return."""
        return sum(len(_WORD.findall(result)) for result in self.read_results)


async def play_evidence(source: TaskSource, task: Task) -> Evidence:
    """Play the gold turns and return their evidence. Raise TaskError if the episode fails.

    All calls of a source that does not report its writes count as reads.
    """
    episode = await rollout(task, source.environment(task), GoldAgent(), _LIMITS)
    if episode.score is None:
        raise TaskError(f"task {task.id}: its gold episode failed ({episode.fault}): {episode.error}")
    return find_evidence(task, episode.messages, source.gold_writes(task))


def find_evidence(task: Task, messages: Sequence[Message], writes: Sequence[ToolCall]) -> Evidence:
    """Return the evidence in the messages of a gold episode. `writes` are its calls that change something."""
    calls = dict(pair_results(messages))
    left = [(call.name, call.arguments) for call in writes]
    reads = []
    for index, call in calls.items():
        if (call.name, call.arguments) in left:
            left.remove((call.name, call.arguments))
        else:
            reads.append(index)
    places = {index: place for place, index in enumerate(sorted(calls))}
    needed = dict[int, str]()
    for value, before in _used_values(task, messages):
        stating = [i for i in range(before) if messages[i].role in ("user", "tool") and _states(value, messages[i])]
        if len(stating) == 1 and stating[0] in reads:
            needed.setdefault(places[stating[0]], value)
    return Evidence(tuple(messages[index].content for index in reads), len(writes), needed)


def _used_values(task: Task, messages: Sequence[Message]) -> Iterator[tuple[str, int]]:
    """Yield the values that the agent uses, each with the index of the message that uses it."""
    for index, message in enumerate(messages):
        for call in message.tool_calls:
            yield from ((value, index) for value in leaf_texts(call.arguments))
    for output in task.outputs:
        texts = (i for i, m in enumerate(messages) if m.role == "assistant" and not m.tool_calls and _states(output, m))
        yield output, next(texts, len(messages))


def _states(value: str, message: Message) -> bool:
    return states_fact(value, message.content)


def leaf_texts(value: Any) -> Iterator[str]:
    """Yield the texts and numbers in a JSON value, as text."""
    return map(str, leaf_values(value))


def find_unshown_argument(source: TaskSource, task: Task, messages: Sequence[Message]) -> UnshownValue | None:
    """Return the first argument of a required gold call, or number to tell, that an agent cannot know, or None.

    `messages` are a gold episode. A number to tell is unknown too if results show it only with their default values.

    Calls that hand the user over take free text. A server reports each call that might write; those whose names say
    that they read are left out.
    """
    by_name = isinstance(source, ExternalSource)
    required = [
        call
        for call in source.required_calls(task)
        if not hands_over(call.name) and not (by_name and only_reads(call.name))
    ]
    if unshown := find_unshown_value(source, task, messages, required):
        return unshown
    texts = "\n".join(message.content for message in messages if message.role in ("system", "user", "tool"))
    numbers = [output for output in task.outputs if is_number(output) and not _may_be_counted(output)]
    hidden = [output for output in numbers if not states_fact(output, texts)]
    found = (output for output in hidden if find_default(source, task, output))
    return next((UnshownValue("", OUTPUT, output) for output in found), None)


def _may_be_counted(output: str) -> bool:
    """Return whether a number to tell is small and whole: it may be a count, or the time between two moments."""
    return all(number.is_integer() and abs(number) <= MAX_FREE_TERM for number in extract_numbers(output))


def describe_unshown(unshown: UnshownValue, source: TaskSource, task: Task) -> str:
    """Return what is wrong with a task whose gold needs a value that nothing shows, and what to do."""
    if field := find_default(source, task, unshown.value):
        needs = f"that the gold call of {unshown.tool} needs" if unshown.tool else "that the agent must tell"
        return f"nothing shows {unshown} {needs}, {explain_default(field)}"
    if not unshown.tool:
        return (
            f"nothing shows {unshown}, nor numbers that it follows from, so the agent could only guess it; correct the "
            "output, record the result that shows it, or let gold read it"
        )
    return (
        f"nothing shows {unshown} before the gold call of {unshown.tool}; name the database with data.sources, record "
        "the result that shows it, let gold read it, or let the user or the policy say it"
    )
