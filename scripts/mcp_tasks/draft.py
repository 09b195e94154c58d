"""Draft: a task without an id, and the generator of task sets."""

import random
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from support.replica.channels import CHANNELS, channel_id
from support.replica.market import Company, companies
from understudy.core.tasks import SPLITS, Difficulty, Split
from understudy.domains.authoring.phrases import PhraseSampler
from understudy.sources.mcp.checks import AnswerCheck, CallPattern, CallsCheck, TaskCheck
from understudy.sources.mcp.config import MCPCall
from understudy.sources.mcp.tasks import MCPTask

COUNTS: Mapping[Split, int] = {"train": 14, "validation": 2, "test": 4}
"""Tasks of each family."""
READS = tuple(
    CallPattern(tool=t) for t in ("polygon_*", "fmp_*", "tavily_*", "slack_auth_*", "slack_list_*", "slack_get_*")
)


@dataclass(frozen=True)
class Draft:
    """A question, the gold calls that answer it, the gold answer, and what is checked."""

    prompt: str
    gold: tuple[MCPCall, ...]
    reply: str
    number: float | None = None
    text: str = ""
    """Words that the answer must hold. The answer is limited in length, so that guesses cannot be listed."""
    alone: str = ""
    """The complete answer, for questions with few possible answers."""
    must: MCPCall | None = None
    """A call that must be made exactly."""
    tolerance: float = 0.005


@dataclass(frozen=True)
class Family:
    """One kind of task. `make` receives the companies and channels of the split, in the task's order."""

    name: str
    difficulty: Difficulty
    make: "Callable[[Pick], Draft]"


@dataclass(frozen=True)
class Pick:
    """The subject of a task. Splits share no company and no channel."""

    rng: random.Random
    phrases: PhraseSampler
    companies: tuple[Company, ...]
    channels: tuple[str, ...]

    def ask(self, *texts: str) -> str:
        """Return one of the phrases of the question. Every third one is held out for the test split."""
        return self.phrases.choose(texts)

    @property
    def company(self) -> Company:
        """The company of the task."""
        return self.companies[0]

    @property
    def channel(self) -> str:
        """The channel of the task."""
        return self.channels[0]


def call(tool: str, **arguments: Any) -> MCPCall:
    """Return a call of a tool."""
    return MCPCall(tool=tool, arguments=arguments)


def tasks(server: str, families: tuple[Family, ...]) -> Iterator[MCPTask]:
    """Yield all tasks of a set. The result is deterministic."""
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
                    final_answer=draft.reply,
                    check=_check(draft, writes=server in ("slack", "several")),
                )


def _pick(server: str, family: str, split: Split, number: int) -> Pick:
    shuffling = random.Random(f"{server}/{family}/{split}")
    some, rooms = _share(list(companies().values()), split), _share(list(CHANNELS), split)
    shuffling.shuffle(some)
    shuffling.shuffle(rooms)
    rng = random.Random(f"{server}/{family}/{split}/{number}")
    phrases = PhraseSampler(f"{server}/{family}/{split}/{number}", split)
    return Pick(rng, phrases, _turned(some, number), _turned(rooms, number))


def _share(whole: list[Any], split: Split) -> list[Any]:
    """Return a split's part of `items`: of every ten, seven for train, one for validation and two for test."""
    places = {"train": range(7), "validation": range(7, 8), "test": range(8, 10)}[split]
    return [each for place, each in enumerate(whole) if place % 10 in places]


def _turned(whole: list[Any], number: int) -> tuple[Any, ...]:
    return tuple(whole[(number + place) % len(whole)] for place in range(len(whole)))


def _check(draft: Draft, writes: bool) -> TaskCheck:
    """Return the criteria: the answer, and that the required call is the only one that changes anything."""
    answer: tuple[AnswerCheck, ...] = ()
    if draft.number is not None:
        answer = (AnswerCheck(number=draft.number, tolerance=draft.tolerance),)
    elif draft.alone:
        answer = (AnswerCheck(regex=rf"^\W*{re.escape(draft.alone)}\W*$"),)
    elif draft.text:
        answer = (AnswerCheck(text=draft.text, max_characters=len(draft.text) + 40),)
    must = (_pattern(draft.must),) if draft.must else ()
    return TaskCheck(answer=answer, calls=CallsCheck(required=must, allowed=READS) if writes else None)


def _pattern(sent: MCPCall) -> CallPattern:
    """Return the pattern of a call that sends exactly this message, to the channel by its ID or its name."""
    name = next(name for name in CHANNELS if channel_id(name) == sent.arguments["channel"])
    others = {key: value for key, value in sent.arguments.items() if key != "channel"}
    either = f"^({sent.arguments['channel']}|#?{name})$"
    return CallPattern(tool=sent.tool, arguments=others, argument_patterns={"channel": either})
