"""Find the failed episodes among all episodes, and the cause of each."""

from collections.abc import Mapping, Sequence

from understudy.core.tasks import Task
from understudy.core.trajectory import Trajectory
from understudy.envs.task_source import StatefulSource, TaskSource, find_source
from understudy.evaluation.failures.case import build_case
from understudy.evaluation.failures.causes import EpisodeFailure
from understudy.evaluation.failures.rules import explain_failure
from understudy.rollouts.replay import ReplayResult, replay_episode

_UNPLAYED = ReplayResult((), None, "it was not replayed")


async def find_failures(
    source: TaskSource, tasks: Mapping[str, Task], episodes: Sequence[Trajectory], scripted_users: bool = True
) -> list[EpisodeFailure]:
    """Return the failures among the episodes, in order.

    `tasks` are the episodes' tasks by id. `scripted_users` is True if their users were scripted. Episodes of domains
    with a state are replayed, which takes milliseconds each. Episodes of servers and benchmarks are not, because a
    replay may be slow or have effects.
    """
    return [
        await _explained(source, tasks[episode.task_id], episode, scripted_users)
        for episode in episodes
        if is_failed(episode)
    ]


def is_failed(episode: Trajectory) -> bool:
    """Return whether an episode earned less than the full reward, or failed before it had a score."""
    return not episode.is_ungraded and (episode.score is None or episode.score.reward < 1.0 - 1e-9)


async def _explained(source: TaskSource, task: Task, episode: Trajectory, scripted: bool) -> EpisodeFailure:
    own = isinstance(find_source(source, task.domain), StatefulSource) and episode.score is not None
    played = await replay_episode(source, task, episode, scripted) if own else _UNPLAYED
    return explain_failure(build_case(source, task, episode, played, scripted))
