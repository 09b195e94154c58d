"""Probe: plays a task source with calls and replies that no good agent makes, and names the code that raises.

    calls      each tool with unknown ids, empty and huge values and wrong types, one call a reply
    replies    empty, garbled and very long texts instead of an answer
    episodes   a seeded random agent that mixes gold turns, gold calls with a changed argument, and both of the above

Each exception is reported once for each place in the code, with the shortest episode that raises it.
"""

import random
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from understudy.core.errors import ConfigError, TaskError, TimeLimitError
from understudy.core.messages import Message, ToolCall, ToolSpec, assign_call_ids, format_call
from understudy.core.tasks import Task
from understudy.core.trajectory import StopReason, Trajectory
from understudy.core.user_code import MAX_TEXT_LENGTH
from understudy.data.checks.invented_calls import invent_calls
from understudy.envs.task_source import ExternalSource, TaskSource
from understudy.rollouts.agent import Agent
from understudy.rollouts.rollout import EpisodeLimits, attempt_episode

Item = TypeVar("Item")

CHECK_STEP_SECONDS = 60.0
"""Time limit in seconds of a step of a check. A run waits longer, but a check should end soon if a call hangs."""

TEXTS: tuple[str, ...] = (
    "",
    "no-such-word",
    '{"answer": [1, 2',
    "-1e999 0x1F 1/0 NaN",
    "\u200b \u202e\u540d \U0001f600 \\ % {0} </s>",
    "word 7, " * 2000,
)
"""Replies that are no answers."""


class HangingError(TaskError):
    """A call did not return within its time limit, so a check cannot go on."""


@dataclass(frozen=True)
class ProbeLimits:
    """How much `probe` plays."""

    max_tasks: int = 12
    """Tasks that garbled replies and the random agent are tried on: the first of each family, up to this number."""
    calls_per_tool: int = 12
    texts: int = len(TEXTS)
    random_episodes: int = 1
    """Episodes of the random agent on each of these tasks."""
    random_turns: int = 10
    max_replays: int = 40
    """Episodes that are played to leave out replies of one that raises."""


_EXTERNAL = ProbeLimits(max_tasks=1, calls_per_tool=3, texts=0, random_episodes=0, max_replays=3)
"""Limits for servers, whose episodes take seconds and whose rewards are not a user's code."""


@dataclass
class ProbeResult:
    """What `probe` found."""

    lost_episodes: list[str] = field(default_factory=list)
    """Exceptions that end an episode without a score: those of rewards, users, environments and servers."""
    tool_exceptions: list[str] = field(default_factory=list)
    """Exceptions of tools, whose text the model reads."""
    num_calls: int = 0
    num_episodes: int = 0
    known: set[tuple[str, ...]] = field(default_factory=set)
    """The places that are reported."""


class FixedRepliesAgent:
    """An agent that gives the same replies in every episode, then empty ones.

    A reply may be a function of the messages so far.
    """

    def __init__(self, replies: Sequence[Message | Callable[[Sequence[Message]], Message]]) -> None:
        self._replies = replies

    async def act(
        self, task: Task, episode: Trajectory, new_messages: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> Message:
        """Append and return the next reply."""
        episode.observe(new_messages)
        turn = episode.num_turns
        reply = self._replies[turn] if turn < len(self._replies) else Message(role="assistant")
        message = assign_call_ids(reply if isinstance(reply, Message) else reply(episode.messages), turn)
        episode.act(message)
        return message


async def probe(
    source: TaskSource,
    tasks: Sequence[Task],
    known: Iterable[tuple[str, ...]] = (),
    track: Callable[[Iterable[Any], str], Iterable[Any]] = lambda items, what: items,
    max_step_seconds: float | None = None,
) -> ProbeResult:
    """Play invented calls, garbled replies and random episodes on some of `tasks`, all of one source.

    Nothing is played if there are no tasks. The same tasks give the same result. Exceptions at the `known` places
    (`exception_places`) are not reported. `max_step_seconds` is as in `check_limits`. Raise HangingError if a call
    reaches its time limit.
    """
    result = ProbeResult(known=set(known))
    external = isinstance(source, ExternalSource)
    specs = source.callable_specs() if isinstance(source, ExternalSource) else source.tool_specs
    limits = _EXTERNAL if external else ProbeLimits()
    first: dict[str, Task] = {}
    for task in tasks:
        first.setdefault(task.family, task)
    chosen = list(first.values())[: limits.max_tasks]
    if chosen:
        values = _known_values(chosen)
        calls = {spec.name: invent_calls(spec, values, limits.calls_per_tool) for spec in specs}
        episodes = list(_episodes(chosen, calls, limits, in_one_reply=external))
        for task, replies in track(episodes, "trying unusual calls and replies"):
            await _play_probe(source, task, replies, limits, result, check_limits(source, max_step_seconds))
    return result


def check_limits(source: TaskSource, max_step_seconds: float | None = None) -> EpisodeLimits:
    """Return the limits of the episodes of a check.

    Without `max_step_seconds`, a step may take `CHECK_STEP_SECONDS`, or as long as in a run if the tools of `source`
    run outside of this process.
    """
    limits = EpisodeLimits(max_turns=100, max_retries=0)
    if max_step_seconds is None:
        max_step_seconds = limits.max_step_seconds if isinstance(source, ExternalSource) else CHECK_STEP_SECONDS
    return limits.replace(max_step_seconds=max_step_seconds)


async def play_once(source: TaskSource, task: Task, agent: Agent, limits: EpisodeLimits) -> Trajectory:
    """Play one episode of a check. Raise HangingError if a call reaches its time limit: others may take as long."""
    episode, error = await attempt_episode(source, task, agent, limits, seed=0)
    if isinstance(error, TimeLimitError):
        raise HangingError(f"task {task.id}: {episode.error}; the check ends here, because others may take as long")
    return episode


def exception_places(episode: Trajectory) -> Iterator[tuple[str, ...]]:
    """Yield the place of each exception of an episode, and of its fault."""
    yield from ((report.what, report.exception.partition(":")[0], report.location) for report in episode.exceptions)
    if episode.stop_reason is StopReason.FAULT and not any(e.component == episode.fault for e in episode.exceptions):
        yield (episode.fault or "", episode.error.partition(";")[0])  # what follows, such as a server's log, may differ


def _known_values(tasks: Sequence[Task]) -> Mapping[str, Sequence[Any]]:
    """Return the arguments of the tasks' gold calls by their names."""
    known: dict[str, list[Any]] = {}
    for task in tasks:
        for call in task.gold_calls:
            for name, value in call.arguments.items():
                known.setdefault(name, []).append(value)
    return known


def _episodes(
    tasks: Sequence[Task], calls: Mapping[str, Sequence[ToolCall]], limits: ProbeLimits, *, in_one_reply: bool
) -> Iterator[tuple[Task, Sequence[Message]]]:
    """Yield tasks with the replies to play on them."""
    if in_one_reply:
        every = tuple(call for made in calls.values() for call in made)
        if every:
            yield tasks[0], [Message(role="assistant", tool_calls=every)]
    else:
        for number, made in enumerate(calls.values()):
            yield tasks[number % len(tasks)], [_calling(call) for call in made]
    for task in tasks:
        yield from ((task, [Message(role="assistant", content=text)]) for text in TEXTS[: limits.texts])
        for number in range(limits.random_episodes):
            yield task, _random_replies(task, calls, limits, random.Random(f"{task.id}/{number}"))


def _random_replies(
    task: Task, calls: Mapping[str, Sequence[ToolCall]], limits: ProbeLimits, rng: random.Random
) -> list[Message]:
    """Return replies of an agent that follows the gold turns half of the time."""
    gold, replies = list(task.gold_turns), list[Message]()
    invented = [call for made in calls.values() for call in made]
    while len(replies) < limits.random_turns:
        drawn = rng.random()
        if drawn < 0.5 and gold:
            replies.append(gold.pop(0))
        elif drawn < 0.7 and task.gold_calls:
            replies.append(_calling(_changed(rng.choice(task.gold_calls), invented, rng)))
        elif drawn < 0.9 and invented:
            replies.append(_calling(rng.choice(invented)))
        else:
            replies.append(Message(role="assistant", content=rng.choice(TEXTS)))
    return replies


def _changed(call: ToolCall, invented: Sequence[ToolCall], rng: random.Random) -> ToolCall:
    """Return a call with one argument replaced by one of an invented call."""
    others = [each.arguments for each in invented if each.name == call.name and each.arguments]
    if not others:
        return call
    name, value = rng.choice(list(rng.choice(others).items()))
    return call.replace(arguments={**call.arguments, name: value})


def _calling(call: ToolCall) -> Message:
    return Message(role="assistant", tool_calls=(call,))


async def _play_probe(
    source: TaskSource,
    task: Task,
    replies: Sequence[Message],
    limits: ProbeLimits,
    result: ProbeResult,
    episode_limits: EpisodeLimits,
) -> None:
    try:
        episode = await _play(source, task, replies, episode_limits)
    except HangingError:
        raise
    except TaskError as e:
        result.lost_episodes.append(str(e))
        return
    except ConfigError:  # the user of a benchmark without a user model answers gold texts only
        return
    result.num_episodes += 1
    result.num_calls += sum(len(reply.tool_calls) for reply in replies)
    for place in exception_places(episode):
        if place in result.known:
            continue
        result.known.add(place)
        report = next(
            (each for each in episode.exceptions if place[0] == each.what and place[-1] == each.location), None
        )

        async def raises(shorter: Sequence[Message], place: tuple[str, ...] = place) -> bool:
            return place in exception_places(await _play(source, task, shorter, episode_limits))

        shown = _format_replies(await _shorten(replies, raises, limits.max_replays))
        if report and report.component == "tool":
            text = f"{report} at {shown}; the model reads this exception; to refuse a call, raise ToolError(text)"
            result.tool_exceptions.append(text)
        else:
            why = str(report or " ".join(episode.error.split())[:MAX_TEXT_LENGTH])
            result.lost_episodes.append(f"task {task.id}: {why} after {shown}")


async def _play(source: TaskSource, task: Task, replies: Sequence[Message], limits: EpisodeLimits) -> Trajectory:
    return await play_once(source, task, FixedRepliesAgent(replies), limits.replace(max_turns=len(replies) + 20))


async def _shorten(
    replies: Sequence[Message], raises: Callable[[Sequence[Message]], Awaitable[bool]], max_replays: int
) -> Sequence[Message]:
    """Return fewer replies, or fewer calls of a single reply, that still raise."""
    if await raises([]):
        return []
    if len(replies) != 1:
        return await _shorten_list(replies, raises, max_replays)
    (reply,) = replies

    async def calls_raise(calls: Sequence[ToolCall]) -> bool:
        return await raises([reply.replace(tool_calls=tuple(calls))])

    calls = await _shorten_list(reply.tool_calls, calls_raise, max_replays)
    return [reply.replace(tool_calls=tuple(calls))]


async def _shorten_list(
    items: Sequence[Item], raises: Callable[[Sequence[Item]], Awaitable[bool]], max_replays: int
) -> Sequence[Item]:
    """Keep the half that raises as long as there is one. Then leave out each item without which the rest raises."""
    replays = 0
    while len(items) > 1:
        middle = len(items) // 2
        for half in (items[:middle], items[middle:]):
            replays += 1
            if await raises(half):
                items = half
                break
        else:
            break
    for index in reversed(range(len(items) if len(items) > 1 else 0)):
        replays += 1
        shorter = [*items[:index], *items[index + 1 :]]
        if replays <= max_replays and await raises(shorter):
            items = shorter
    return items


def _format_replies(replies: Sequence[Message]) -> str:
    shown = [
        ", ".join(map(format_call, reply.tool_calls)) if reply.tool_calls else f"the reply {reply.content[:40]!r}"
        for reply in replies
    ]
    return ", then ".join(shown) or "empty replies"
