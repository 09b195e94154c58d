"""Replay of a recorded episode in its environment.

The agent's replies come from the record; nothing is sampled. Scripted users run again with the episode's seed; the
messages of other users come from the record. Any difference from the record is a divergence, and results after it say
nothing about the episode.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from understudy.core.errors import RolloutError
from understudy.core.messages import Message
from understudy.core.tasks import Score, Task
from understudy.core.trajectory import StopReason, Trajectory
from understudy.envs.environment import Environment, StepResult
from understudy.envs.state import State
from understudy.envs.task_source import StatefulSource, TaskSource, find_source
from understudy.envs.users import ReplayUser

_LEFT_OPEN = "…"
"""Placeholder for the next message of a recorded user, if a limit ended the episode before that message was recorded.
"""


@dataclass(frozen=True, slots=True)
class ReplayedTurn:
    """One reply of the agent and its effects."""

    message_index: int
    """Index of the reply in the episode's messages, from 0."""
    reply: Message
    tool_results: tuple[Message, ...]
    errors: tuple[str, ...]
    """Kinds of tool errors, in the order of the failed calls."""
    state_changes: Mapping[str, Any]
    """Differences from the initial state after the turn; empty if the task source exposes no state."""


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """Result of a replay."""

    turns: tuple[ReplayedTurn, ...]
    score: Score | None
    """Score of the replayed episode; None if the replay diverged."""
    divergence: str = ""
    """Description of the first difference; empty if there is none."""


async def replay_episode(
    task_source: TaskSource, task: Task, episode: Trajectory, scripted_user: bool = True
) -> ReplayResult:
    """Replay a recorded episode. `scripted_user` is True if the episode's user was scripted.

    Faults of the environment are reported as a divergence.
    """
    domain = find_source(task_source, task.domain)
    if episode.branches:
        return ReplayResult((), None, f"the episode has {len(episode.sequences)} token sequences")
    if not scripted_user and task.scenario.user_actions:
        return ReplayResult((), None, "the record does not contain the actions of the user's own tools")
    user = None if scripted_user else ReplayUser(_user_messages(episode))
    state = domain.initial_state(task) if isinstance(domain, StatefulSource) else None
    if isinstance(domain, StatefulSource) and state is not None:
        environment = domain.environment_from_state(state, task, user, episode.seed)
    else:
        environment = domain.environment(task, user, episode.seed)
    try:
        return await _replay_turns(environment, state, episode)
    except RolloutError as e:
        return ReplayResult((), None, f"the environment failed: {e}")
    finally:
        await environment.close()


async def _replay_turns(environment: Environment, state: State | None, episode: Trajectory) -> ReplayResult:
    step = await environment.start()
    seen, turns = list(step.messages), list[ReplayedTurn]()
    for reply in (episode.messages[index] for index in episode.reply_indices):
        if step.score is not None:
            return ReplayResult(tuple(turns), None, f"the replay ends before message {len(seen) + 1}")
        place = len(seen)
        step = await environment.step(reply)
        turns.append(ReplayedTurn(place, reply, step.messages, step.error_kinds, state.changes() if state else {}))
        seen += [reply, *step.messages]
    if difference := _difference(episode.messages, seen):
        return ReplayResult(tuple(turns), None, difference)
    score, difference = await _grade(environment, step, episode.stop_reason)
    return ReplayResult(tuple(turns), score, difference)


async def _grade(environment: Environment, step: StepResult, stop: StopReason | None) -> tuple[Score | None, str]:
    if stop is not StopReason.DONE:
        return await environment.grade(ended=False), ""
    return step.score, "" if step.score else "the replay continues after the recorded end"


def _user_messages(episode: Trajectory) -> list[str]:
    texts = [message.content for message in episode.messages if message.role == "user"]
    return texts if episode.stop_reason is StopReason.DONE else [*texts, _LEFT_OPEN]


def _difference(recorded: Sequence[Message], seen: Sequence[Message]) -> str:
    """Return the first difference from the record, or an empty string. System messages may differ."""
    for place, (then, now) in enumerate(zip(recorded, seen, strict=False)):
        if then != now and then.role != "system":
            return f"message {place + 1} ({then.role}) was {_short(then)} and is now {_short(now)}"
    return "" if len(recorded) <= len(seen) else f"the replay ends before message {len(seen) + 1}"


def _short(message: Message) -> str:
    return repr(message.content[:80])
