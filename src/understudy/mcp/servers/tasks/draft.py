"""Draft: a task before it has an id, and what the sets are made with."""

import random
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from understudy.mcp.checks import AnswerCheck, CallPattern, CallsCheck, Check
from understudy.mcp.servers.replica.channels import CHANNELS
from understudy.mcp.servers.replica.market import Company, companies
from understudy.mcp.settings import Call
from understudy.mcp.tasks import MCPTask
from understudy.tasks import SPLITS, Difficulty, Split

COUNTS: Mapping[Split, int] = {"train": 14, "validation": 2, "test": 4}
"""Tasks of each family."""
READS = tuple(
    CallPattern(tool=t) for t in ("polygon_*", "fmp_*", "tavily_*", "slack_auth_*", "slack_list_*", "slack_get_*")
)


@dataclass(frozen=True)
class Draft:
    """What is asked, the calls that find it out, what is said then, and what has to be true."""

    prompt: str
    gold: tuple[Call, ...]
    reply: str
    number: float | None = None
    text: str = ""
    """Words that the answer holds; a short one, so that guesses cannot be listed."""
    alone: str = ""
    """All that the answer may hold, where there are few to guess from."""
    must: Call | None = None
    """A call that has to be made just so."""
    tolerance: float = 0.005


@dataclass(frozen=True)
class Family:
    """One kind of task: `make` gets the split's companies and channels in an order of their own, first comes first."""

    name: str
    difficulty: Difficulty
    make: "Callable[[Pick], Draft]"


@dataclass(frozen=True)
class Pick:
    """What the n-th task of a family and split is about. Splits share no company and no channel."""

    rng: random.Random
    companies: tuple[Company, ...]
    channels: tuple[str, ...]

    @property
    def company(self) -> Company:
        """The company that it is about."""
        return self.companies[0]

    @property
    def channel(self) -> str:
        """The channel that it is about."""
        return self.channels[0]


def call(tool: str, **arguments: Any) -> Call:
    """A call of a tool."""
    return Call(tool=tool, arguments=arguments)


def tasks(server: str, families: tuple[Family, ...]) -> Iterator[MCPTask]:
    """All tasks of a set, the same each time."""
    for split in SPLITS:
        for family in families:
            for number in range(COUNTS[split]):
                draft = family.make(_pick(server, family.name, split, number))
                identity = f"{server}-{family.name}-{split}-{number:02}"
                yield MCPTask(
                    id=identity,
                    prompt=draft.prompt,
                    family=family.name,
                    difficulty=family.difficulty,
                    split=split,
                    gold=draft.gold,
                    reply=draft.reply,
                    check=_check(draft, writes=server in ("slack", "several")),
                )


def _pick(server: str, family: str, split: Split, number: int) -> Pick:
    shuffling = random.Random(f"{server}/{family}/{split}")
    some, rooms = _share(list(companies().values()), split), _share(list(CHANNELS), split)
    shuffling.shuffle(some)
    shuffling.shuffle(rooms)
    rng = random.Random(f"{server}/{family}/{split}/{number}")
    return Pick(rng, _turned(some, number), _turned(rooms, number))


def _share(whole: list[Any], split: Split) -> list[Any]:
    """A split's part: of ten, seven are for training, one for validation, two for tests."""
    places = {"train": range(7), "validation": range(7, 8), "test": range(8, 10)}[split]
    return [each for place, each in enumerate(whole) if place % 10 in places]


def _turned(whole: list[Any], number: int) -> tuple[Any, ...]:
    return tuple(whole[(number + place) % len(whole)] for place in range(len(whole)))


def _check(draft: Draft, writes: bool) -> Check:
    """The answer, and the calls: the one that has to be made, and beside it none that changes anything."""
    answer: tuple[AnswerCheck, ...] = ()
    if draft.number is not None:
        answer = (AnswerCheck(number=draft.number, tolerance=draft.tolerance),)
    elif draft.alone:
        answer = (AnswerCheck(regex=rf"^\W*{re.escape(draft.alone)}\W*$"),)
    elif draft.text:
        answer = (AnswerCheck(text=draft.text, longest=len(draft.text) + 40),)
    must = (CallPattern(tool=draft.must.tool, arguments=draft.must.arguments),) if draft.must else ()
    return Check(answer=answer, calls=CallsCheck(must=must, may=READS) if writes else None)
