"""One episode to look at: what was said and done, what that changed in the database, what it earned and why.

What is not stored is found by playing the episode again (`replay`), which needs no model. Where that cannot be done,
the page says why, and shows what is stored.
"""

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import takewhile, zip_longest
from typing import Any

from understudy.domains.base import Domain, TaskSource
from understudy.domains.mixture import part_of
from understudy.edits import Edit, edits
from understudy.errors import TaskError
from understudy.failures.case import lay_open
from understudy.failures.causes import MEANING
from understudy.failures.rules import explain
from understudy.messages import Message, ToolCall, ToolSpec
from understudy.records import Record
from understudy.replay import Replay, Turn, replay
from understudy.rewards import untold
from understudy.tasks import Task
from understudy.trajectory import Trajectory

BESIDE = ("policy", "turns")
"""Parts of a domain's score that have no influence on the reward."""


class Call(Record):
    """One call, and what it came to."""

    name: str
    arguments: dict[str, Any] = {}
    malformed: str = ""
    result: str | None = None
    """None where the episode ended before it was there."""
    error: str = ""
    """Of which kind its error is; "" where it went well."""


class Said(Record):
    """One message. Results stand with their calls."""

    place: int
    """Among the episode's messages, from 0."""
    role: str
    content: str
    turn: int | None = None
    """Which of the agent's replies it is, from 1."""
    calls: tuple[Call, ...] = ()
    edits: tuple[Edit, ...] = ()
    """What its calls, or what the user did when told so, changed in the database."""


class Part(Record):
    """One part of the score, and why it is what it is."""

    name: str
    value: float
    strict: bool
    """Whether the reward is 0 without it."""
    why: str = ""


class Cause(Record):
    """What went wrong."""

    who: str
    what: str
    meaning: str
    place: int
    """The message that shows it."""
    evidence: str


class Goal(Record):
    """What the task asks for, and what is lacking."""

    instructions: str
    """What the user wants; the agent does not see it."""
    messages: tuple[Message, ...] = ()
    """The turns of a perfect episode."""
    edits: tuple[Edit, ...] = ()
    """What they change in the database."""
    lacking: tuple[Edit, ...] = ()
    """What the database that the episode left behind would still have to be changed by."""
    outputs: tuple[tuple[str, bool], ...] = ()
    """What is to be told to the user, and whether it was."""


class Page(Record):
    """All that is known of one episode."""

    task: str
    domain: str
    family: str
    difficulty: str
    seed: int
    version: int
    reward: float | None
    credit: float
    penalty: float
    progress: float | None
    parts: tuple[Part, ...]
    causes: tuple[Cause, ...]
    """Why it failed: the first is held for the cause."""
    stop: str | None
    fault: str | None
    error: str
    counts: dict[str, int]
    seconds: dict[str, float]
    said: tuple[Said, ...]
    goal: Goal | None
    notes: tuple[str, ...]
    """What cannot be shown, and why."""


@dataclass(frozen=True, slots=True)
class Scene:
    """An episode with what is known of where it was played."""

    episode: Trajectory
    task: Task | None
    source: TaskSource | None
    scripted: bool
    """Whether its user needed no model."""

    @property
    def tools(self) -> Sequence[ToolSpec]:
        """The tools that the agent was shown."""
        return part_of(self.source, self.task.domain).specs if self.source and self.task else ()


def page(scene: Scene) -> Page:
    """The page of an episode."""
    played, note = _replayed(scene)
    episode, score = scene.episode, scene.episode.score
    goal = _goal(scene, played)
    return Page(
        task=episode.task,
        domain=episode.domain,
        family=episode.family,
        difficulty=episode.difficulty,
        seed=episode.seed,
        version=episode.version,
        reward=score.reward if score else None,
        credit=score.credit if score else 0.0,
        penalty=episode.penalty,
        progress=score.progress if score else None,
        parts=tuple(_parts(scene, goal, played)),
        causes=tuple(_causes(scene, played)),
        stop=episode.stop,
        fault=episode.fault,
        error=episode.error,
        counts=episode.counts,
        seconds=episode.seconds,
        said=tuple(_said(scene, played)),
        goal=goal,
        notes=(note,) if note else (),
    )


def _replayed(scene: Scene) -> tuple[Replay | None, str]:
    """The replay, up to where it parts from the record; or None, and why."""
    if scene.source is None or scene.task is None:
        return None, f"task {scene.episode.task} is not found any more, so its database is not shown"
    domain = part_of(scene.source, scene.task.domain)
    if not isinstance(domain, Domain):
        return None, f"{domain.name} keeps its state to itself, so what calls changed in it is not shown"
    try:
        with ThreadPoolExecutor(1) as thread:  # who asks may have an event loop that runs
            playing = replay(scene.source, scene.task, scene.episode, scene.scripted)
            played = thread.submit(asyncio.run, playing).result()
    except TaskError as e:
        return None, f"the episode cannot be played again: {e}"
    if played.diverged:
        return None, f"played again, the episode comes out otherwise, so its database is not shown: {played.diverged}"
    return played, ""


def _said(scene: Scene, played: Replay | None) -> Iterator[Said]:
    """The messages, with results at their calls."""
    messages, changed = scene.episode.messages, _changed(scene, played)
    kinds = {turn.place: list(_kinds(turn)) for turn in played.turns} if played else {}
    number, shown = 0, 0
    for place, message in enumerate(messages):
        number += message.role == "assistant"
        if place < shown:
            continue
        results = _results(messages, place)
        shown = place + 1 + len(results)
        told = zip_longest(message.tool_calls, results, kinds.get(place, ()))
        yield Said(
            place=place,
            role=message.role,
            content=message.content,
            turn=number if message.role == "assistant" else None,
            calls=tuple(_call(call, result, kind) for call, result, kind in told),
            edits=changed.get(place, ()),
        )


def _results(messages: Sequence[Message], place: int) -> list[str]:
    """What the calls of a message showed, in their order: that is the order in which results come."""
    following = messages[place + 1 : place + 1 + len(messages[place].tool_calls)]
    return [message.content for message in takewhile(lambda message: message.role == "tool", following)]


def _call(call: ToolCall, result: str | None, kind: str | None) -> Call:
    """`kind` is of the error that the environment told; None where only the result tells of one."""
    if kind is None:
        refused = "refused" if result is not None and result.startswith("Error: ") else ""
        kind = "malformed" if call.malformed else refused
    return Call(name=call.name, arguments=call.arguments, malformed=call.malformed, result=result, error=kind)


def _kinds(turn: Turn) -> Iterator[str]:
    """The kind of each call's error, "" where there is none."""
    errors = iter(turn.errors)
    return (next(errors, "") if answer.content.startswith("Error: ") else "" for answer in _answers(turn))


def _answers(turn: Turn) -> Sequence[Message]:
    return turn.answers if turn.reply.tool_calls else ()


def _changed(scene: Scene, played: Replay | None) -> dict[int, tuple[Edit, ...]]:
    """What each reply edited, by its place."""
    domain = _domain(scene)
    if not played or not domain or not scene.task:
        return {}
    world, before, found = domain.initial(scene.task), dict[str, Any](), dict[int, tuple[Edit, ...]]()
    for turn in played.turns:
        found[turn.place] = edits(world, before, turn.changes)
        before = dict(turn.changes)
    return found


def _domain(scene: Scene) -> Domain | None:
    found = part_of(scene.source, scene.task.domain) if scene.source and scene.task else None
    return found if isinstance(found, Domain) else None


def _goal(scene: Scene, played: Replay | None) -> Goal | None:
    task, domain = scene.task, _domain(scene)
    if task is None:
        return None
    missed = untold(scene.episode.messages, task.outputs)
    told = tuple((output, output not in missed) for output in task.outputs)
    goal = Goal(instructions=task.scenario.instructions, messages=task.gold, outputs=told)
    if not domain or not played:
        return goal
    world, gold = domain.initial(task), domain.goal(task)
    left = played.turns[-1].changes if played.turns else {}
    return goal.replace(edits=edits(world, {}, gold), lacking=edits(world, left, gold))


def _causes(scene: Scene, played: Replay | None) -> Iterator[Cause]:
    """What went wrong, where it failed and there is something to go by."""
    score = scene.episode.score
    if (score and score.reward >= 1.0) or scene.task is None or scene.source is None:
        return
    known = played or Replay((), None, "not played again")
    failure = explain(lay_open(scene.source, scene.task, scene.episode, known, scene.scripted))
    for finding in (failure.cause, *failure.also):
        who, meaning = MEANING[finding.what]
        yield Cause(who=who, what=finding.what, meaning=meaning, place=finding.message, evidence=finding.evidence)


def _parts(scene: Scene, goal: Goal | None, played: Replay | None) -> Iterator[Part]:
    score = scene.episode.score
    for name, value in score.parts.items() if score else ():
        yield Part(name=name, value=value, strict=name not in BESIDE, why=_why(name, value, scene, goal, played))


def _why(name: str, value: float, scene: Scene, goal: Goal | None, played: Replay | None) -> str:
    """Why a part of a domain's score is what it is; "" where that is not known."""
    episode = scene.episode
    if name == "ended":
        return "the user ended it" if value else f"it was cut off: {episode.stop} after {episode.turns} replies"
    if goal is None or scene.task is None:
        return ""
    if name == "said" and goal.outputs:
        missed = [output for output, told in goal.outputs if not told]
        return f"never told: {', '.join(missed)}" if missed else "all was told that had to be"
    if name == "said":
        return "nothing had to be told"
    if name == "turns":
        return f"{episode.turns} replies, gold takes {len(scene.task.turns)}"
    if played is None:
        return ""
    if name == "state":
        count = len(goal.lacking)
        return f"{count} {'value is' if count == 1 else 'values are'} not as gold leaves them" if count else "as gold"
    broken = [kind for turn in played.turns for kind in turn.errors if kind in ("unconfirmed", "forbidden")]
    return f"{len(broken)} calls broke it" if name == "policy" and broken else ""
