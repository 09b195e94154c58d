"""From episodes to what is learned from them: demonstrations, pairs, judgements; each content once.

An episode is won if it earned the whole reward. One with a call that could not be read is left out of all: its
conversation does not hold what was written there. So is one that failed through no fault of the agent.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

from understudy.data.preferences import Demonstration, Judged, Preference, prompt
from understudy.messages import Message, ToolSpec
from understudy.trajectory import Stop, Trajectory

L = TypeVar("L", Demonstration, Preference, Judged)
By = Literal["domain", "family", "difficulty"]
Kind = tuple[str, str, str]
Shown = Callable[[str], Sequence[ToolSpec]]
"""The tools that an agent is shown in tasks of a domain."""


@dataclass
class Lessons(Generic[L]):
    """Conversations to learn from, and of which kind of task each is: domain, family, difficulty."""

    found: list[tuple[Kind, L]] = field(default_factory=list)
    left: Counter[str] = field(default_factory=Counter)
    """Those left out, by reason."""

    def __str__(self) -> str:
        rows = sorted(Counter(kind for kind, _ in self.found).items())
        lines = [
            f"  {domain:<12} {family:<28} {difficulty:<8} {count:>6,}" for (domain, family, difficulty), count in rows
        ]
        left = ", ".join(f"{count:,} {why}" for why, count in self.left.most_common())
        return "\n".join(lines + ([f"  left out: {left}"] if left else []))


def demonstrations(episodes: Iterable[Trajectory], shown: Shown) -> Lessons[Demonstration]:
    """The episodes that were won."""
    lessons, seen = Lessons[Demonstration](), set[Hashable]()
    for episode in _sound(episodes, lessons.left):
        if not won(episode):
            lessons.left["lost"] += 1
        elif _new(episode, seen, lessons.left):
            lesson = Demonstration(task=episode.task, messages=tuple(episode.messages), tools=_told(episode, shown))
            lessons.found.append((_kind(episode), lesson))
    return lessons


def judged(episodes: Iterable[Trajectory], shown: Shown) -> Lessons[Judged]:
    """All episodes: those that were won are wanted, the others are not."""
    lessons, seen = Lessons[Judged](), set[Hashable]()
    for episode in _sound(episodes, lessons.left):
        if _new(episode, seen, lessons.left):
            said = {"messages": tuple(episode.messages), "tools": _told(episode, shown)}
            lessons.found.append((_kind(episode), Judged(task=episode.task, **said, wanted=won(episode))))
    return lessons


def preferences(episodes: Iterable[Trajectory], shown: Shown, most: int) -> Lessons[Preference]:
    """Pairs of a won and a lost episode of one task that begin alike, at most `most` of a task; no episode twice."""
    lessons, seen = Lessons[Preference](), set[Hashable]()
    alike: dict[Hashable, tuple[list[Trajectory], list[Trajectory]]] = defaultdict(lambda: ([], []))
    for episode in _sound(episodes, lessons.left):
        if _new(episode, seen, lessons.left):
            begin = tuple(map(_content, prompt(tuple(episode.messages))))
            alike[episode.task, begin][not won(episode)].append(episode)
    for wins, losses in alike.values():
        pairs = list(zip(wins, losses, strict=False))[:most]
        lessons.left["without an episode that ended otherwise"] += len(wins) + len(losses) - 2 * len(pairs)
        for better, worse in pairs:
            both = {"chosen": tuple(better.messages), "rejected": tuple(worse.messages)}
            lesson = Preference(task=better.task, **both, tools=_told(better, shown))
            lessons.found.append((_kind(better), lesson))
    lessons.left = +lessons.left
    return lessons


def balanced(lessons: Lessons[L], most: int, by: By, seed: int) -> Lessons[L]:
    """At most `most` of each domain, or of each family or difficulty of a domain, drawn by the seed; order is kept."""
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for place, (kind, _) in enumerate(lessons.found):
        groups[kind[0], {"domain": "", "family": kind[1], "difficulty": kind[2]}[by]].append(place)
    kept: set[int] = set()
    for key, places in groups.items():
        kept.update(random.Random(f"{seed}/{key}").sample(places, min(most, len(places))))
    more = len(lessons.found) - len(kept)
    left = lessons.left + Counter({f"more than {most} of a {by}": more})
    return Lessons([each for place, each in enumerate(lessons.found) if place in kept], left)


def won(episode: Trajectory) -> bool:
    """Whether an episode earned the whole reward."""
    return episode.score is not None and episode.score.reward >= 1.0 - 1e-9


def _sound(episodes: Iterable[Trajectory], left: Counter[str]) -> Iterator[Trajectory]:
    for episode in episodes:
        if episode.stop is Stop.FAULT or episode.score is None:
            left[f"failed by the {episode.fault}"] += 1
        elif any(call.malformed for message in episode.messages for call in message.tool_calls):
            left["with calls that could not be read"] += 1
        elif not any(message.role == "assistant" for message in episode.messages):
            left["without a reply"] += 1
        else:
            yield episode


def _new(episode: Trajectory, seen: set[Hashable], left: Counter[str]) -> bool:
    """Whether no episode before had the same content."""
    content = tuple(map(_content, episode.messages))
    if content in seen:
        left["said before"] += 1
        return False
    seen.add(content)
    return True


def _content(message: Message) -> Hashable:
    """A message without the ids of its calls."""
    calls = tuple(call.model_dump_json(exclude={"id"}) for call in message.tool_calls)
    return message.role, message.content, calls


def _kind(episode: Trajectory) -> Kind:
    return episode.domain, episode.family, episode.difficulty


def _told(episode: Trajectory, shown: Shown) -> tuple[ToolSpec, ...]:
    """The tools as the agent was told of them: other names of arguments are read, and never shown."""
    return tuple(spec.replace(aliases={}) for spec in shown(episode.domain))
