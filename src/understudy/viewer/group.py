"""Group: the episodes of one task in a step side by side, and where each parts from the others."""

from collections.abc import Sequence

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
    """Its place in the step, from 1."""
    reward: float | None
    stop: str | None
    tokens: int
    """Sampled ones."""
    advantage: float | None = None
    apart: int | None = None
    """The turn, from 0, in which it is first otherwise than the episode looked at, what came back included."""
    replies: tuple[Reply, ...]


def bounds(episodes: Sequence[Trajectory], place: int, size: int) -> tuple[int, int]:
    """The group [start, end) of an episode in its step: neighbours of the same task, `size` at most."""
    task, start, end = episodes[place].task, place, place + 1
    while start and episodes[start - 1].task == task:
        start -= 1
    while end < len(episodes) and episodes[end].task == task:
        end += 1
    start += (place - start) // size * size  # the same task twice in a row is two groups
    return start, min(end, start + size)


def groups(episodes: Sequence[Trajectory], size: int) -> list[tuple[int, int]]:
    """The groups of a step, each as its bounds."""
    found, place = list[tuple[int, int]](), 0
    while place < len(episodes):
        found.append(bounds(episodes, place, size))
        place = found[-1][1]
    return found


def members(
    episodes: Sequence[Trajectory], first: int, looked_at: int, advantages: Sequence[float | None] | None
) -> list[Member]:
    """The episodes of a group, the first of which is the step's episode number `first`."""
    own = episodes[looked_at]
    return [
        Member(
            number=first + place,
            reward=episode.score.reward if episode.score else None,
            stop=episode.stop,
            tokens=sum(episode.mask),
            advantage=advantages[place] if advantages else None,
            apart=apart(own, episode),
            replies=tuple(_reply(turn, at) for at, turn in turns(episode)),
        )
        for place, episode in enumerate(episodes)
    ]


def turns(episode: Trajectory) -> list[tuple[int, list[Message]]]:
    """The agent's replies, each with its place and with what came back."""
    places = [place for place, message in enumerate(episode.messages) if message.role == "assistant"]
    ends = [*places[1:], len(episode.messages)]
    return [(start, episode.messages[start:end]) for start, end in zip(places, ends, strict=True)]


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
        bad=any(m.role == "tool" and m.content.startswith("Error: ") for m in back),
    )


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
