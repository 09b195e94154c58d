"""Further reads: an agent that reads more than gold does must not lose reward: it cannot know what gold reads."""

import contextlib
import itertools
import re
from collections.abc import Collection, Iterable, Iterator, Sequence

from understudy.core.errors import ConfigError
from understudy.core.messages import ERROR_PREFIX, Message, ToolCall, format_call
from understudy.core.tasks import Task
from understudy.core.trajectory import Trajectory
from understudy.data.checks.probe import FixedRepliesAgent, check_limits, play_once
from understudy.envs.shown_values import pair_results
from understudy.envs.task_source import TaskSource
from understudy.evaluation.failures.case import reading_tools
from understudy.rollouts.rollout import EpisodeLimits

MAX_TASKS = 12
"""Tasks that are played: the first of each family, up to this number."""
MAX_FURTHER = 3
"""Further calls after a reply of gold."""
_WORD = re.compile(r"[\w-]+")
_DIGITS = re.compile(r"\d+")


async def find_costly_read(source: TaskSource, tasks: Sequence[Task]) -> str:
    """Return the first task whose gold turns lose reward by further reads, with these reads, or an empty text.

    Reads that a tool refuses are left out.
    """
    first: dict[str, Task] = {}
    for task in tasks:
        first.setdefault(task.family, task)
    limits = check_limits(source)
    for task in list(first.values())[:MAX_TASKS]:
        with contextlib.suppress(ConfigError):  # a benchmark's user without a model may answer gold texts only
            if found := await _find_costly_read(source, task, limits):
                return found
    return ""


async def _find_costly_read(source: TaskSource, task: Task, limits: EpisodeLimits) -> str:
    gold = await play_once(source, task, FixedRepliesAgent(task.gold_turns), limits)
    replies = list(_add_reads(gold, reading_tools(source, task)))
    if not gold.score or len(replies) == gold.num_turns:
        return ""
    episode = await play_once(source, task, FixedRepliesAgent(replies), limits)
    answers = [m.content for m in episode.messages if m.role == "tool"]
    calls = [call for reply in replies for call in reply.tool_calls]
    refused = {id(call) for call, answer in zip(calls, answers, strict=False) if answer.startswith(ERROR_PREFIX)}
    kept = [reply for reply in replies if not (_is_added(reply) and id(reply.tool_calls[0]) in refused)]
    if len(kept) < len(replies):
        episode = await play_once(source, task, FixedRepliesAgent(kept), limits)
    if episode.score and episode.reward < gold.reward:
        added = ", ".join(format_call(reply.tool_calls[0]) for reply in kept if _is_added(reply))
        return f"task {task.id}: with the further reads {added}, gold earns {episode.reward:g} for {gold.reward:g}"
    return ""


def _is_added(reply: Message) -> bool:
    return any(not call.id for call in reply.tool_calls)


def _add_reads(gold: Trajectory, reading: Collection[str]) -> Iterator[Message]:
    """Yield the replies of a gold episode. After one that only reads, make its calls again, and with values of the same
    form that results have shown: another order of the same customer, for example. Added calls have no id.
    """
    answers = {call.id: gold.messages[index].content for index, call in pair_results(gold.messages)}
    shown = dict[str, None]()
    for reply in (message for message in gold.messages if message.role == "assistant"):
        yield reply
        own = [answers.get(call.id, ERROR_PREFIX) for call in reply.tool_calls]
        shown |= dict.fromkeys(word for answer in own for word in _WORD.findall(answer))
        if all(call.name in reading for call in reply.tool_calls) and not any(a.startswith(ERROR_PREFIX) for a in own):
            further = (call for made in reply.tool_calls for call in (made, *_siblings(made, shown)))
            for call in itertools.islice(further, MAX_FURTHER):
                yield Message(role="assistant", tool_calls=(call.replace(id=""),))


def _siblings(call: ToolCall, shown: Iterable[str]) -> Iterator[ToolCall]:
    """Yield the call with another value that was shown, for each of its texts with digits."""
    for name, value in call.arguments.items():
        if isinstance(value, str) and _DIGITS.search(value):
            form = _DIGITS.sub("0", value)
            for other in shown:
                if other != value and _DIGITS.sub("0", other) == form:
                    yield call.replace(arguments={**call.arguments, name: other})
