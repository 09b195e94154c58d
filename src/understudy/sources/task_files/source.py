"""TaskFile: the tasks of files as a `TaskSource`, played by other task sources."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from understudy.core.messages import ToolSpec
from understudy.core.tasks import SPLITS, RewardPolicy, Split, Task, iterate_epochs
from understudy.envs.environment import Environment
from understudy.envs.file_summary import FileSummary
from understudy.envs.task_source import FULL_SLICE, CompositeSource, Slice, TaskSource, validate_slice
from understudy.envs.users import User, UserFactory
from understudy.sources.mixture import Mixture


@dataclass(frozen=True)
class TaskFile(CompositeSource):
    """A `TaskSource` with the tasks of files. The sources of `mixture` play them; `task_slice` narrows it."""

    name: str
    mixture: Mixture
    """The sources that play the tasks."""
    split_tasks: Mapping[Split, Sequence[Task]]
    """The tasks by split. A split that is missing here is that of the first source of `mixture`."""
    summary: FileSummary
    """What was read and what was refused."""
    shares_rows: bool = False
    """Whether the splits were made without regard to the rows that tasks use, so that they may share rows."""
    task_slice: Slice = FULL_SLICE

    @property
    def families(self) -> tuple[str, ...]:
        """The distinct families of the tasks."""
        listed = (task.family for tasks in self.split_tasks.values() for task in tasks)
        others = self.mixture.sources[0].families if len(self.split_tasks) < len(SPLITS) else ()
        return tuple(dict.fromkeys([*listed, *others]))

    @property
    def tool_specs(self) -> tuple[ToolSpec, ...]:
        """The tools of all its sources. In an episode the agent sees only those of its task's source."""
        return self.mixture.tool_specs

    @property
    def domain_policy(self) -> str:
        """The domain policies of all its sources. In an episode the agent sees only that of its task's source."""
        return self.mixture.domain_policy

    def with_users(self, user_factory: UserFactory) -> "TaskFile":
        """Return these tasks with users made by `user_factory`."""
        return replace(self, mixture=self.mixture.with_users(user_factory))

    def with_reward_policy(self, policy: RewardPolicy) -> "TaskFile":
        """Return these tasks with `reward.policy` in the sources that have one."""
        return replace(self, mixture=self.mixture.with_reward_policy(policy))

    def slice(self, task_slice: Slice) -> "TaskFile":
        """Return these tasks narrowed to `task_slice`. Raise `ConfigError` for unknown names."""
        validate_slice(self.name, task_slice.replace(tools=(), domain_policy="full"), self.families, ())
        mixture = self.mixture.slice(task_slice.replace(families=(), difficulties=()))
        return replace(self, mixture=mixture, task_slice=task_slice)

    def tasks(self, split: Split) -> list[Task]:
        """Return the tasks of a split that are in the slice."""
        listed = self.split_tasks[split] if split in self.split_tasks else self._rest.tasks(split)
        return self.task_slice.select_tasks(listed)

    def stream(self, split: Split, seed: int = 0) -> Iterator[Task]:
        """Yield the tasks of the slice forever, shuffled anew in each epoch."""
        if split in self.split_tasks:
            return iterate_epochs(self.tasks(split), seed)
        return self._rest.stream(split, seed)

    def environment(self, task: Task, user: User | None = None, seed: int = 0) -> Environment:
        """Return a new episode of `task` in the source that plays it."""
        return self.mixture.environment(task, user, seed)

    def split_row_keys(self, task: Task) -> Sequence[tuple[str, str]]:
        """Return the rows `(source/table, id)` that `task` uses; none if the splits may share rows."""
        return () if self.shares_rows else self.mixture.split_row_keys(task)

    def leaf_sources(self) -> Sequence[TaskSource]:
        """Return the sources that play the tasks."""
        return self.mixture.leaf_sources()

    def file_summaries(self) -> Sequence[FileSummary]:
        """Return what was read."""
        return (self.summary, *self.mixture.file_summaries())

    @property
    def _rest(self) -> TaskSource:
        """The source of the splits without files."""
        return self.mixture.sources[0].slice(self.task_slice)
