"""Group: the episodes of one task side by side, and where each parts from the others."""

import itertools
from collections.abc import Mapping, Sequence

from understudy.messages import Message
from understudy.records import Record
from understudy.trajectory import Trajectory
from understudy.view import call_text

LONGEST = 160
"""Characters of a reply that stand in the table."""


class Reply(Record):
    """One reply in short."""

    message: int
    """Its place in the episode."""
    text: str
    calls: bool
    answer: str = ""
    """What came back: results, or what the user said."""
    bad: bool = False
    """Whether a tool refused, or could not read, one of its calls."""


class Member(Record):
    """One episode of a group."""

    number: int
    reward: float | None
    stop: str | None
    tokens: int
    """Sampled ones."""
    advantage: float | None = None
    apart: int | None = None
    """The turn, from 0, in which it is first otherwise than the episode looked at, what came back included."""
    replies: tuple[Reply, ...]


def neighbours(episodes: Mapping[int, Trajectory], number: int, size: int) -> list[int]:
    """The numbers of an episode's group in its step: those beside it of the same task, `size` at most."""
    order = list(episodes)
    place = start = order.index(number)
    while start and episodes[order[start - 1]].task == episodes[number].task:
        start -= 1
    start += (place - start) // size * size  # the same task twice in a row is two groups
    return [each for each in order[start : start + size] if episodes[each].task == episodes[number].task]


def grouped(episodes: Mapping[int, Trajectory], size: int) -> list[list[int]]:
    """The numbers of all groups of a step."""
    found: list[list[int]] = []
    for number in episodes:
        if not found or number not in found[-1]:
            found.append(neighbours(episodes, number, size))
    return found


def members(group: Mapping[int, Trajectory], looked_at: int, advantages: Mapping[int, float | None]) -> list[Member]:
    """The episodes of a group beside the one that is looked at."""
    return [
        Member(
            number=number,
            reward=episode.score.reward if episode.score else None,
            stop=episode.stop,
            tokens=sum(episode.mask),
            advantage=advantages.get(number),
            apart=apart(group[looked_at], episode),
            replies=tuple(_reply(turn, at) for at, turn in turns(episode)),
        )
        for number, episode in group.items()
    ]


def turns(episode: Trajectory) -> list[tuple[int, list[Message]]]:
    """The agent's replies, each with its place and with what came back."""
    places = [place for place, message in enumerate(episode.messages) if message.role == "assistant"]
    bounds = itertools.pairwise([*places, len(episode.messages)])
    return [(start, episode.messages[start:end]) for start, end in bounds]


def apart(one: Trajectory, other: Trajectory) -> int | None:
    """The first turn that is not the same in both; None where all are."""
    mine, theirs = turns(one), turns(other)
    for turn, ((_, first), (_, second)) in enumerate(zip(mine, theirs, strict=False)):
        if [*map(_bare, first)] != [*map(_bare, second)]:
            return turn
    return None if len(mine) == len(theirs) else min(len(mine), len(theirs))


def _bare(message: Message) -> Message:
    """The message without ids, which endpoints draw anew each time."""
    return message.replace(tool_calls=tuple(call.replace(id="") for call in message.tool_calls), tool_call_id="")


def _reply(turn: Sequence[Message], place: int) -> Reply:
    reply, *back = turn
    return Reply(
        message=place,
        text=_short("; ".join(map(call_text, reply.tool_calls)) or reply.content),
        calls=bool(reply.tool_calls),
        answer=_short(" ".join(message.content for message in back)),
        bad=any(message.role == "tool" and message.content.startswith("Error: ") for message in back),
    )


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
