"""TaskFile: the tasks of files as a `TaskSource`, played by other task sources."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from understudy.core.messages import ToolSpec
from understudy.core.tasks import SPLITS, RewardPolicy, Split, Task, iterate_epochs
from understudy.envs.environment import Environment
from understudy.envs.file_summary import FileSummary
from understudy.envs.task_source import FULL_SLICE, CompositeSource, Slice, TaskSource, find_source, validate_names
from understudy.envs.users import User, UserFactory
from understudy.sources.mixture import Mixture, select_domains, select_families


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
    row_domains: Mapping[str, Collection[str]] = field(default_factory=dict)
    """The domains that rows name, and the sources that play the tasks of each."""
    task_slice: Slice = FULL_SLICE
    """Its domains and families are those of tasks: `source` and `source/family`."""

    @property
    def families(self) -> tuple[str, ...]:
        """The distinct families of the tasks."""
        listed = (task.family for tasks in self.split_tasks.values() for task in tasks)
        others = self.mixture.sources[0].families if self._has_rest else ()
        return tuple(dict.fromkeys([*listed, *others]))

    @property
    def tool_specs(self) -> tuple[ToolSpec, ...]:
        """The tools of all its sources. In an episode the agent sees only those of its task's source."""
        return tuple(spec for leaf in self.leaf_sources() for spec in leaf.tool_specs)

    @property
    def domain_policy(self) -> str:
        """The domain policies of all its sources. In an episode the agent sees only that of its task's source."""
        return "\n\n".join(leaf.domain_policy for leaf in self.leaf_sources())

    def with_users(self, user_factory: UserFactory) -> "TaskFile":
        """Return these tasks with users made by `user_factory`."""
        return replace(self, mixture=self.mixture.with_users(user_factory))

    def with_reward_policy(self, policy: RewardPolicy) -> "TaskFile":
        """Return these tasks with `reward.policy` in the sources that have one."""
        return replace(self, mixture=self.mixture.with_reward_policy(policy))

    @property
    def domain_names(self) -> Mapping[str, Collection[str]]:
        """The sources that play the tasks, and the domains that rows name."""
        names = self.mixture.domain_names
        return {**names, **{name: {*each, *names.get(name, ())} for name, each in self.row_domains.items()}}

    @property
    def qualified_families(self) -> Mapping[str, Collection[str]]:
        """The families of each domain, as `domain/family`."""
        tasks = (task for tasks in self.split_tasks.values() for task in tasks)
        known = dict.fromkeys((task.domain, task.family) for task in tasks)
        of_files = {
            f"{name}/{family}": tuple(f"{leaf}/{family}" for leaf in leaves if (leaf, family) in known)
            for name, leaves in self.domain_names.items()
            for domain, family in known
            if domain in leaves
        }
        return {**(self._rest_families if self._has_rest else {}), **of_files}

    def slice(self, task_slice: Slice) -> "TaskFile":
        """Return these tasks narrowed to `task_slice`. Raise `ConfigError` for unknown names."""
        domains, families = self.domain_names, self.qualified_families
        validate_names(self.name, "domain", task_slice.domains, domains)
        validate_names(self.name, "family", task_slice.families, {*self.families, *families})
        resolved = task_slice.replace(
            domains=tuple(dict.fromkeys(leaf for name in task_slice.domains for leaf in domains[name])),
            families=tuple(each for name in task_slice.families for each in families.get(name, (name,))),
        )
        mixture = self.mixture.slice(task_slice.replace(domains=(), families=(), difficulties=()))
        return replace(self, mixture=mixture, task_slice=resolved)

    def tasks(self, split: Split) -> list[Task]:
        """Return the tasks of a split that are in the slice."""
        if split in self.split_tasks:
            tasks = self.task_slice.replace(tools=()).select_tasks(self.split_tasks[split])
            return [task for task in tasks if find_source(self.mixture, task.domain).task_slice.select_tasks([task])]
        rest = self._rest()
        return rest.tasks(split) if rest else []

    def stream(self, split: Split, seed: int = 0) -> Iterator[Task]:
        """Yield the tasks of the slice forever, shuffled anew in each epoch."""
        if split in self.split_tasks:
            return iterate_epochs(self.tasks(split), seed)
        rest = self._rest()
        return rest.stream(split, seed) if rest else iter(())

    def environment(self, task: Task, user: User | None = None, seed: int = 0) -> Environment:
        """Return a new episode of `task` in the source that plays it."""
        return self.mixture.environment(task, user, seed)

    def split_row_keys(self, task: Task) -> Sequence[tuple[str, str]]:
        """Return the rows `(source/table, id)` that `task` uses; none if the splits may share rows."""
        return () if self.shares_rows else self.mixture.split_row_keys(task)

    def leaf_sources(self) -> Sequence[TaskSource]:
        """Return the sources that play the tasks of the slice."""
        domains = self.task_slice.domains
        return tuple(leaf for leaf in self.mixture.leaf_sources() if not domains or leaf.name in domains)

    def file_summaries(self) -> Sequence[FileSummary]:
        """Return what was read."""
        return (self.summary, *self.mixture.file_summaries())

    @property
    def _has_rest(self) -> bool:
        """Whether the first source of `mixture` has the tasks of some split."""
        return len(self.split_tasks) < len(SPLITS)

    @property
    def _rest_families(self) -> Mapping[str, Collection[str]]:
        return Mixture(self.mixture.sources[:1], (1.0,)).qualified_families

    def _rest(self) -> TaskSource | None:
        """Return the slice of the source of the splits without files; None if nothing of it is in the slice."""
        rest, given = self.mixture.sources[0], self.task_slice
        domains, families = select_domains(rest, given.domains), select_families(rest, given.families)
        if (given.domains and not domains) or (given.families and not families):
            return None
        return rest.slice(Slice(domains=domains, families=families, difficulties=given.difficulties))
