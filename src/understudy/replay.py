"""An episode that was recorded, played once more: what its environment makes of the same replies today.

The agent's replies are those of the record, and nothing is sampled. Scripted users speak anew, with the episode's seed;
of others the words are taken from the record. Whatever then comes out otherwise than it was recorded is a divergence,
and from there on nothing that is found says anything about the episode.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from understudy.domains.base import Domain, TaskSource
from understudy.domains.mixture import part_of
from understudy.environment import Environment, Step
from understudy.errors import RolloutError
from understudy.messages import Message
from understudy.state import State
from understudy.tasks import Score, Task
from understudy.trajectory import Stop, Trajectory
from understudy.users import RecordedUser

_LEFT_OPEN = "…"
"""What a recorded user says where a limit cut the episode off before its words were recorded."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One reply of the agent, and what it led to."""

    place: int
    """The reply's place in the episode's messages, from 0."""
    reply: Message
    answers: tuple[Message, ...]
    errors: tuple[str, ...]
    """The kinds of tool errors, in the order of the calls that had one."""
    changes: Mapping[str, Any]
    """All that differs from the world after it; empty where the source shows no state."""


@dataclass(frozen=True, slots=True)
class Replay:
    """What a recorded episode comes to today."""

    turns: tuple[Turn, ...]
    score: Score | None
    """None where it has diverged."""
    diverged: str = ""
    """What came out otherwise, and where."""


async def replay(source: TaskSource, task: Task, episode: Trajectory, scripted: bool = True) -> Replay:
    """Play a record once more; `scripted` says whether its user needed no model."""
    domain = part_of(source, task.domain)
    if not scripted and task.scenario.deeds:
        return Replay((), None, "what its user did with tools of their own is not in the record")
    user = None if scripted else RecordedUser(_words(episode))
    state = domain.initial(task) if isinstance(domain, Domain) else None
    if isinstance(domain, Domain) and state is not None:
        environment: Environment = domain.environment_on(state, task, user, episode.seed)
    else:
        environment = domain.environment(task, user, episode.seed)
    try:
        return await _played(environment, state, episode)
    except RolloutError as e:
        return Replay((), None, f"the environment failed: {e}")
    finally:
        await environment.close()


async def _played(environment: Environment, state: State | None, episode: Trajectory) -> Replay:
    step = await environment.start()
    seen, turns = list(step.messages), list[Turn]()
    for reply in (message for message in episode.messages if message.role == "assistant"):
        if step.score is not None:
            return Replay(tuple(turns), None, f"it ends before message {len(seen) + 1}")
        place = len(seen)
        step = await environment.step(reply)
        turns.append(Turn(place, reply, step.messages, step.errors, state.changes() if state else {}))
        seen += [reply, *step.messages]
    if difference := _difference(episode.messages, seen):
        return Replay(tuple(turns), None, difference)
    score, difference = await _graded(environment, step, episode.stop)
    return Replay(tuple(turns), score, difference)


async def _graded(environment: Environment, step: Step, stop: Stop | None) -> tuple[Score | None, str]:
    if stop is not Stop.DONE:
        return await environment.grade(ended=False), ""
    return step.score, "" if step.score else "it goes on where it ended then"


def _words(episode: Trajectory) -> list[str]:
    said = [message.content for message in episode.messages if message.role == "user"]
    return said if episode.stop is Stop.DONE else [*said, _LEFT_OPEN]


def _difference(recorded: Sequence[Message], seen: Sequence[Message]) -> str:
    """Where the record and what is seen now part; what the agent is told of its job may have changed."""
    for place, (then, now) in enumerate(zip(recorded, seen, strict=False)):
        if then != now and then.role != "system":
            return f"message {place + 1} ({then.role}) was {_short(then)}, and is {_short(now)}"
    return "" if len(recorded) <= len(seen) else f"it ends before message {len(seen) + 1}"


def _short(message: Message) -> str:
    return repr(message.content[:80])
