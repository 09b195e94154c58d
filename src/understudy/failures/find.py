"""The failures among episodes, each with its cause."""

from collections.abc import Mapping, Sequence

from understudy.domains.base import Domain, TaskSource
from understudy.domains.mixture import part_of
from understudy.failures.case import lay_open
from understudy.failures.causes import Failure
from understudy.failures.rules import explain
from understudy.replay import Replay, replay
from understudy.tasks import Task
from understudy.trajectory import Trajectory

_UNPLAYED = Replay((), None, "it was not played once more")


async def failures(
    source: TaskSource, tasks: Mapping[str, Task], episodes: Sequence[Trajectory], scripted: bool = True
) -> list[Failure]:
    """Why each episode failed that did, in order. `tasks` are theirs by id; `scripted` is said of their users.

    Episodes of our own domains are replayed, which takes milliseconds; others are read as they are, since a server or a
    benchmark may take long, or do something.
    """
    return [await _explained(source, tasks[episode.task], episode, scripted) for episode in episodes if failed(episode)]


def failed(episode: Trajectory) -> bool:
    """Whether an episode earned less than the whole reward, or has none."""
    return episode.score is None or episode.score.reward < 1.0 - 1e-9


async def _explained(source: TaskSource, task: Task, episode: Trajectory, scripted: bool) -> Failure:
    own = isinstance(part_of(source, task.domain), Domain) and episode.score is not None
    played = await replay(source, task, episode, scripted) if own else _UNPLAYED
    return explain(lay_open(source, task, episode, played, scripted))
