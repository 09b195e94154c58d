"""The episodes of one task side by side, and the turn at which each diverges."""

import itertools
from collections.abc import Iterator, Mapping, Sequence

from understudy.core.messages import Message, strip_endpoint_data
from understudy.core.records import Record
from understudy.core.trajectory import Trajectory
from understudy.runs.storage.trained_episodes import EpisodeTrainingData
from understudy.viewer.episodes.training_view import reply_advantages
from understudy.viewer.run_text import format_call

MAX_REPLY_CHARS = 160
"""Largest number of characters of a reply in the table."""


class ReplySummary(Record):
    """One reply of the agent, shortened."""

    message_index: int
    """The index of the reply in the episode's messages."""
    text: str
    calls: bool
    response: str = ""
    """The results of its calls, or the user's answer, shortened."""
    advantage: float | None = None
    """The mean of its tokens' advantages; None if the episode was not trained on."""
    has_error: bool = False
    """Whether one of its calls returned an error."""


class GroupMember(Record):
    """One episode of a group."""

    number: int
    reward: float | None
    stop: str | None
    tokens: int
    """The number of sampled tokens."""
    diverges_at: int | None = None
    """The first turn, from 0, whose reply or response differs from the current episode's; None if none differs."""
    replies: tuple[ReplySummary, ...]


def group_numbers(episodes: Mapping[int, Trajectory], number: int, size: int) -> list[int]:
    """Return the numbers of the episodes in an episode's group.

    A group has at most `size` consecutive stored episodes of one task.
    """
    order = list(episodes)
    place = start = order.index(number)
    while start and episodes[order[start - 1]].task_id == episodes[number].task_id:
        start -= 1
    start += (place - start) // size * size  # consecutive groups of one task are separate
    return [each for each in order[start : start + size] if episodes[each].task_id == episodes[number].task_id]


def group_members(
    group: Mapping[int, Trajectory], current: int, trained: Mapping[int, EpisodeTrainingData]
) -> list[GroupMember]:
    """Return the episodes of a group, each compared with the episode `current`."""
    return [
        GroupMember(
            number=number,
            reward=episode.score.reward if episode.score else None,
            stop=episode.stop_reason,
            tokens=episode.num_sampled_tokens,
            diverges_at=first_divergence(group[current], episode),
            replies=tuple(_replies(episode, trained.get(number))),
        )
        for number, episode in group.items()
    ]


def _replies(episode: Trajectory, trained: EpisodeTrainingData | None) -> Iterator[ReplySummary]:
    advantages = reply_advantages(episode, trained) if trained else []
    for index, (place, turn) in enumerate(split_turns(episode)):
        yield _reply(turn, place).replace(advantage=advantages[index] if index < len(advantages) else None)


def split_turns(episode: Trajectory) -> list[tuple[int, list[Message]]]:
    """Return the agent's replies: the message index, and the reply with the messages that follow it."""
    bounds = itertools.pairwise([*episode.reply_indices, len(episode.messages)])
    return [(start, episode.messages[start:end]) for start, end in bounds]


def first_divergence(one: Trajectory, other: Trajectory) -> int | None:
    """Return the first turn, from 0, that differs between two episodes; None if none differs."""
    turns, other_turns = split_turns(one), split_turns(other)
    for turn, ((_, first), (_, second)) in enumerate(zip(turns, other_turns, strict=False)):
        if [*map(_without_call_ids, first)] != [*map(_without_call_ids, second)]:
            return turn
    return None if len(turns) == len(other_turns) else min(len(turns), len(other_turns))


def _without_call_ids(message: Message) -> Message:
    """Return the message without call ids and other data that endpoints generate anew for each request."""
    message = strip_endpoint_data(message)
    return message.replace(tool_calls=tuple(call.replace(id="") for call in message.tool_calls), tool_call_id="")


def _reply(turn: Sequence[Message], place: int) -> ReplySummary:
    reply, *back = turn
    return ReplySummary(
        message_index=place,
        text=_short("; ".join(map(format_call, reply.tool_calls)) or reply.content),
        calls=bool(reply.tool_calls),
        response=_short(" ".join(message.content for message in back)),
        has_error=any(message.role == "tool" and message.content.startswith("Error: ") for message in back),
    )


def _short(text: str) -> str:
    return text if len(text) <= MAX_REPLY_CHARS else f"{text[: MAX_REPLY_CHARS - 1]}…"
