"""The scheduler of a training step's episodes: it plays groups concurrently and replaces those without a signal."""

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice

from understudy.algorithms.config import AdvantageEstimator
from understudy.core.event_loop import cancelling_task_group
from understudy.core.tasks import Task
from understudy.core.trajectory import Trajectory
from understudy.rollouts.group import Group
from understudy.rollouts.rollout import RolloutRequest, episode_seed, play_episode


async def play_groups(
    request: RolloutRequest,
    tasks: Iterator[Task],
    group_size: int,
    num_groups: int,
    max_resampled_groups: int = 0,
    advantage_estimator: AdvantageEstimator = "group_mean",
) -> list[Group]:
    """Play `num_groups` groups of episodes concurrently, and one more for each group without trainable episodes.

    At most `max_resampled_groups` further groups are played. All groups are returned, in the order of their tasks.
    Which episodes are trainable depends on the `advantage_estimator`: by default, those of a group whose rewards
    differ. A task that the iterator yields again gets other seeds. The first error cancels all episodes.
    """
    tasks_and_trials = _with_first_trial(tasks, group_size)
    started = list[Task]()
    episodes = list[dict[int, Trajectory]]()  # the ended episodes of each started group, by their number in the group
    num_ended, num_new = 0, num_groups
    async with cancelling_task_group() as running:
        player = _EpisodePlayer(request, running)
        while True:
            jobs = list[_Job]()
            for task, trial in islice(tasks_and_trials, num_new):
                seeds = [episode_seed(request.seed, task, trial + number) for number in range(group_size)]
                jobs += [_Job(task, seed, len(started), number) for number, seed in enumerate(seeds)]
                started.append(task)
                episodes.append({})
            player.start(jobs)
            if num_ended == len(started):
                break
            num_resampled = 0
            for job, episode in await player.wait():
                group = episodes[job.group]
                group[job.number] = episode
                if len(group) == group_size:
                    num_ended += 1
                    num_resampled += not _to_group(job.task, group).trainable_episodes(advantage_estimator)
            num_new = min(num_resampled, num_groups + max_resampled_groups - len(started))
    return [_to_group(task, group) for task, group in zip(started, episodes, strict=True)]


def _with_first_trial(tasks: Iterator[Task], group_size: int) -> Iterator[tuple[Task, int]]:
    """Yield each task with the number of its first unused trial."""
    num_trials = Counter[str]()
    for task in tasks:
        yield task, num_trials[task.id]
        num_trials[task.id] += group_size


def _to_group(task: Task, episodes: dict[int, Trajectory]) -> Group:
    return Group(task, [episodes[number] for number in sorted(episodes)])


@dataclass(frozen=True, slots=True)
class _Job:
    """An episode to play."""

    task: Task
    seed: int
    group: int
    """The index of its group."""
    number: int
    """Its number in the group."""


class _EpisodePlayer:
    """Plays this process's share of the episodes, and exchanges ended episodes with the other processes."""

    def __init__(self, request: RolloutRequest, running: asyncio.TaskGroup) -> None:
        self._request, self._running = request, running
        self._ended = asyncio.Queue[tuple[_Job, Trajectory]]()
        self._num_started = self._num_ended = self._num_returned = 0

    def start(self, jobs: Sequence[_Job]) -> None:
        """Start this process's share of new jobs. All processes call this with the same jobs."""
        if not jobs:
            return
        share = self._request.process_group.shard(jobs)
        self._num_started += len(share)
        self._request.on_progress(self._num_ended, self._num_started)
        for job in share:
            self._running.create_task(self._play(job))

    async def wait(self) -> list[tuple[_Job, Trajectory]]:
        """Return episodes of all processes that have ended and were not returned before.

        A single process waits for one episode, so that its group can be replaced at once. Several wait for all that
        they have started, because the exchange blocks each process until the others take part in it.
        """
        process_group = self._request.process_group
        num_awaited = 1 if process_group.world_size == 1 else self._num_started - self._num_returned
        self._num_returned += num_awaited
        ended = [await self._ended.get() for _ in range(num_awaited)]
        return list(chain.from_iterable(process_group.all_gather(ended)))

    async def _play(self, job: _Job) -> None:
        request = self._request
        episode = await play_episode(request.environments, job.task, request.agent, request.limits, job.seed)
        self._num_ended += 1
        request.on_episode(episode)
        request.on_progress(self._num_ended, self._num_started)
        self._ended.put_nowait((job, episode))
