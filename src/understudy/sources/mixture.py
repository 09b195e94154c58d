"""Mixture of several domains: `mix:retail*2,telecom` gives two retail tasks for each telecom task.

The list `["retail*2", "telecom"]` means the same.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TypeVar

from understudy.core.errors import ConfigError
from understudy.core.messages import ToolSpec
from understudy.core.tasks import RewardPolicy, Split, Task
from understudy.envs.environment import Environment
from understudy.envs.file_summary import FileSummary
from understudy.envs.task_source import (
    CompositeSource,
    PolicyRewardConfig,
    Slice,
    TaskSource,
    find_source,
    list_file_summaries,
    list_sources,
    validate_names,
    with_reward_policy,
)
from understudy.envs.users import User, UserFactory

T = TypeVar("T")
_PART = re.compile(r"(?P<name>.+?)(?:\*(?P<weight>\d+(?:\.\d+)?))?")


@dataclass(frozen=True)
class Mixture(CompositeSource):
    """A `TaskSource` that mixes tasks of several sources in proportion to their weights."""

    sources: tuple[TaskSource, ...]
    weights: tuple[float, ...]

    @property
    def name(self) -> str:
        """The names of all sources, joined by `+`."""
        return "+".join(source.name for source in self.sources)

    @property
    def families(self) -> tuple[str, ...]:
        """The distinct families of all sources."""
        return tuple(dict.fromkeys(chain.from_iterable(source.families for source in self.sources)))

    @property
    def tool_specs(self) -> tuple[ToolSpec, ...]:
        """The tools of all sources. In an episode the agent sees only those of its task's source (`find_source`)."""
        return tuple(spec for source in self.leaf_sources() for spec in source.tool_specs)

    @property
    def domain_policy(self) -> str:
        """The domain policies of all sources. In an episode the agent sees only that of its task's source."""
        return "\n\n".join(source.domain_policy for source in self.leaf_sources())

    def with_users(self, user_factory: UserFactory) -> "Mixture":
        """Return this mixture with users made by `user_factory`."""
        return replace(self, sources=tuple(source.with_users(user_factory) for source in self.sources))

    def with_reward_policy(self, policy: RewardPolicy) -> "Mixture":
        """Return this mixture with `reward.policy` in the sources that have one."""
        reward = PolicyRewardConfig(policy=policy)
        return replace(self, sources=tuple(with_reward_policy(source, reward) for source in self.sources))

    @property
    def domain_names(self) -> Mapping[str, Collection[str]]:
        """The names of the sources, and those that files give to their domains."""
        names: dict[str, dict[str, None]] = {}
        for source in self.sources:
            for name, leaves in (
                *list_domain_names(source).items(),
                (source.name, [s.name for s in list_sources(source)]),
            ):
                names.setdefault(name, {}).update(dict.fromkeys(leaves))
        return names

    @property
    def qualified_families(self) -> Mapping[str, Collection[str]]:
        """The families of each source as `source/family`, and those of files."""
        names: dict[str, Collection[str]] = {}
        for source in self.sources:
            leaves = [leaf.name for leaf in list_sources(source)]
            names |= {f"{source.name}/{name}": tuple(f"{leaf}/{name}" for leaf in leaves) for name in source.families}
            names |= source.qualified_families if isinstance(source, CompositeSource) else {}
        return names

    def slice(self, task_slice: Slice) -> "Mixture":
        """Return this mixture with each source narrowed to its names in `task_slice`: `name` or `source/name`.

        A source without a family or tool in it stays complete; one without a domain in it is left out. The brief policy
        applies only to sources that have one. Raise `ConfigError` for unknown names.
        """
        tools = {
            source.name: [spec.name for spec in source.tool_specs] if task_slice.tools else []
            for source in self.sources
        }
        of_sources = [f"{source}/{name}" for source, names in tools.items() for name in names]
        validate_names(self.name, "domain", task_slice.domains, self.domain_names)
        validate_names(self.name, "family", task_slice.families, {*self.families, *self.qualified_families})
        validate_names(self.name, "tool", task_slice.tools, {*chain.from_iterable(tools.values()), *of_sources})
        kept = [
            (
                source.slice(
                    task_slice.replace(
                        domains=domains,
                        families=select_families(source, task_slice.families),
                        tools=_select_names(source.name, task_slice.tools, tools[source.name]),
                        domain_policy=task_slice.domain_policy if source.has_brief_policy else "full",
                    )
                ),
                weight,
            )
            for source, weight in zip(self.sources, self.weights, strict=True)
            if (domains := select_domains(source, task_slice.domains)) or not task_slice.domains
        ]
        return replace(self, sources=tuple(s for s, _ in kept), weights=tuple(weight for _, weight in kept))

    def tasks(self, split: Split) -> list[Task]:
        """Return the frozen tasks of a split, interleaved by weight.

        Raise `ConfigError` if two tasks that differ have the same id.
        """
        tasks = list(_interleave_by_weight([iter(source.tasks(split)) for source in self.sources], self.weights))
        known: dict[str, Task] = {}
        for task in tasks:
            if (other := known.setdefault(task.id, task)) != task:
                both = f"{other.domain} and {task.domain} both have a task {task.id!r}"
                both = both if other.domain != task.domain else f"{task.domain} has two tasks {task.id!r} that differ"
                raise ConfigError(f"{both}, and results are stored by id; change the ids in one of them")
        return tasks

    def stream(self, split: Split, seed: int = 0) -> Iterator[Task]:
        """Yield tasks of all sources, interleaved by weight. Sources without tasks are skipped."""
        self.tasks(split)  # validates the ids
        return _interleave_by_weight([source.stream(split, seed) for source in self.sources], self.weights)

    def environment(self, task: Task, user: User | None = None, seed: int = 0) -> Environment:
        """Return a new episode of `task` in its source."""
        return find_source(self, task.domain).environment(task, user, seed)

    def split_row_keys(self, task: Task) -> Sequence[tuple[str, str]]:
        """Return the rows `(source/table, id)` that `task` uses."""
        return [(f"{task.domain}/{table}", row) for table, row in find_source(self, task.domain).split_row_keys(task)]

    def regenerate(self, task_id: str) -> Task | None:
        """Make a generated task of one of the sources again from its id."""
        return next(filter(None, (source.regenerate(task_id) for source in self.sources)), None)

    def leaf_sources(self) -> Sequence[TaskSource]:
        """Return the sources that play the tasks."""
        leaves = (leaf for source in self.sources for leaf in list_sources(source))
        return tuple({leaf.name: leaf for leaf in leaves}.values())

    def file_summaries(self) -> Sequence[FileSummary]:
        """Return what was read from each file of tasks."""
        return tuple(summary for source in self.sources for summary in list_file_summaries(source))


def parse_weight(text: str) -> tuple[str, float]:
    """Return the name and the weight of `NAME` or `NAME*WEIGHT`. Raise `ConfigError` if the weight is not positive."""
    match = _PART.fullmatch(text)
    weight = float(match["weight"] or 1) if match else 0.0
    if not match or not weight:
        raise ConfigError(
            f"{text!r} is not NAME or NAME*WEIGHT with weight > 0, such as retail, retail*2 or mcp:file.toml*0.5"
        )
    return match["name"], weight


def _interleave_by_weight(sources: Sequence[Iterator[T]], weights: Sequence[float]) -> Iterator[T]:
    """Yield items in proportion to the weights, spread as evenly as possible, until all sources are exhausted."""
    taken = dict.fromkeys(range(len(sources)), 0)
    while taken:
        place = min(taken, key=lambda i: (taken[i] + 1) / weights[i])
        try:
            yield next(sources[place])
            taken[place] += 1
        except StopIteration:
            del taken[place]


def select_domains(source: TaskSource, given: Sequence[str]) -> tuple[str, ...]:
    """Return the names that `source` has for the given domains: all of its own if its name is given."""
    own = list_domain_names(source)
    return tuple(own) if source.name in given else tuple(name for name in given if name in own)


def select_families(source: TaskSource, given: Sequence[str]) -> tuple[str, ...]:
    """Return the given families that `source` has, written as `family`, `source/family` or `domain/family`."""
    own = _select_names(source.name, given, source.families)
    of_domains = source.qualified_families if isinstance(source, CompositeSource) else ()
    return (*own, *(name for name in given if name in of_domains))


def list_domain_names(source: TaskSource) -> Mapping[str, Collection[str]]:
    """Return the names that a slice may give to the domains of `source`, and the leaf sources that each means."""
    return source.domain_names if isinstance(source, CompositeSource) else {source.name: (source.name,)}


def _select_names(source: str, given: Iterable[str], known: Sequence[str]) -> tuple[str, ...]:
    """Return the names of one source in `given`, written as `name` or `source/name`."""
    return tuple(name for name in known if name in given or f"{source}/{name}" in given)
