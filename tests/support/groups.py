"""Groups of given episodes."""

import itertools
from collections.abc import Iterable, Sequence

from understudy.core.messages import Message
from understudy.core.tasks import Scenario, Task
from understudy.core.trajectory import Trajectory
from understudy.rollouts.group import Group


def make_groups(episodes: Sequence[Trajectory], tasks: Iterable[Task] = ()) -> list[Group]:
    """Return a group for each run of consecutive episodes of one task. A task that is not given has labels and no
    content.
    """
    known = {task.id: task for task in tasks}
    runs = [list(run) for _, run in itertools.groupby(episodes, key=lambda episode: episode.task_id)]
    return [Group(known.get(run[0].task_id) or bare_task(run[0]), run) for run in runs]


def make_group(episodes: Sequence[Trajectory]) -> Group:
    """Return one group of episodes of a task without content."""
    return Group(bare_task(episodes[0]), list(episodes))


def bare_task(episode: Trajectory) -> Task:
    """Return a task with the labels of an episode and no content."""
    return Task.model_validate(
        {
            "id": episode.task_id,
            "domain": episode.domain,
            "split": "train",
            "family": episode.family,
            "difficulty": episode.difficulty or "easy",
            "scenario": Scenario(instructions="", opening="Hi."),
            "gold": (Message(role="assistant"),),
        }
    )
