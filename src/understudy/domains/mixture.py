"""Several domains in one run: `mix:retail*2,telecom,mcp:notes.toml` takes two tasks of retail for one of each other."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TypeVar

from understudy.domains.base import Domain, Slice, TaskSource, find
from understudy.environment import Environment
from understudy.errors import ConfigError, TaskError, nearest
from understudy.messages import ToolSpec
from understudy.tasks import Split, Task
from understudy.users import MakeUser, User

T = TypeVar("T")
_PART = re.compile(r"(?P<name>.+?)(?:\*(?P<weight>\d+(?:\.\d+)?))?")


@dataclass(frozen=True)
class Mixture:
    """Tasks of several sources, in proportion to their weights; each is played in the source that it is from."""

    parts: tuple[TaskSource, ...]
    weights: tuple[float, ...]

    @property
    def name(self) -> str:
        """The names of all."""
        return "+".join(part.name for part in self.parts)

    @property
    def families(self) -> tuple[str, ...]:
        """The families of all, each once."""
        return tuple(dict.fromkeys(chain.from_iterable(part.families for part in self.parts)))

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """The tools of all, one after the other. What an agent is shown are those of its task's source: `of`."""
        return tuple(spec for part in self.parts for spec in part.specs)

    @property
    def policy(self) -> str:
        """The policies of all. What an agent is told is that of its task's source."""
        return "\n\n".join(part.policy for part in self.parts)

    def with_users(self, user: MakeUser) -> "Mixture":
        """The same with other users."""
        return replace(self, parts=tuple(part.with_users(user) for part in self.parts))

    def slice(self, part: Slice) -> "Mixture":
        """Each narrowed to what `part` names of it, as `name` or `source/name`; one of which it names nothing is whole.

        A brief policy is for those that have one.
        """
        tools = {source.name: [spec.name for spec in source.specs] if part.tools else [] for source in self.parts}
        families = {source.name: source.families for source in self.parts}
        _refuse_unknown("family", part.families, families)
        _refuse_unknown("tool", part.tools, tools)
        return replace(
            self,
            parts=tuple(
                source.slice(
                    part.replace(
                        families=_meant(source.name, part.families, source.families),
                        tools=_meant(source.name, part.tools, tools[source.name]),
                        policy=part.policy if isinstance(source, Domain) else "full",
                    )
                )
                for source in self.parts
            ),
        )

    def tasks(self, split: Split) -> list[Task]:
        """The frozen tasks of a split, those of the sources by turns."""
        return list(_by_turns([iter(part.tasks(split)) for part in self.parts], self.weights))

    def stream(self, split: Split, seed: int = 0) -> Iterator[Task]:
        """Tasks of all, by turns; a source that has none is left out."""
        return _by_turns([part.stream(split, seed) for part in self.parts], self.weights)

    def environment(self, task: Task, user: User | None = None, seed: int = 0) -> Environment:
        """A fresh episode of `task` in the source that it is from."""
        return self.of(task.domain).environment(task, user, seed)

    def rows(self, task: Task) -> Sequence[tuple[str, str]]:
        """The rows that `task` is about; tables of different sources are different ones."""
        return [(f"{task.domain}/{table}", row) for table, row in self.of(task.domain).rows(task)]

    def of(self, domain: str) -> TaskSource:
        """The source of that name."""
        for part in self.parts:
            if part.name == domain:
                return part
        raise TaskError(f"a task of {domain!r} is none of {self.name}")


def open_domain(text: str) -> Mixture:
    """The mixture of these sources, `NAME` or `NAME*WEIGHT` each, with commas between them."""
    named = [_part(each.strip()) for each in text.split(",")]
    parts = tuple(find(name) for name, _ in named)
    names = [part.name for part in parts]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"mix:{text}: {name} is there {names.count(name)} times; give it a weight, {name}*2")
    return Mixture(parts, tuple(weight for _, weight in named))


def shown(source: TaskSource, domain: str) -> Sequence[ToolSpec]:
    """The tools that an agent is shown in tasks of `domain`, which may be one of a mixture."""
    return part_of(source, domain).specs


def parts_of(source: TaskSource) -> tuple[TaskSource, ...]:
    """The parts of a mixture; whatever else is its only part."""
    return source.parts if isinstance(source, Mixture) else (source,)


def part_of(source: TaskSource, domain: str) -> TaskSource:
    """The part of a mixture that tasks of `domain` are from; whatever else is, is whole."""
    return source.of(domain) if isinstance(source, Mixture) else source


def _part(text: str) -> tuple[str, float]:
    match = _PART.fullmatch(text)
    weight = float(match["weight"] or 1) if match else 0.0
    if not match or not weight:
        raise ConfigError(f"mix: {text!r} is not like retail, retail*2 or mcp:file.toml*0.5")
    return match["name"], weight


def _by_turns(sources: Sequence[Iterator[T]], weights: Sequence[float]) -> Iterator[T]:
    """Of each as many as its weight says, as evenly as can be, until all have ended."""
    taken = dict.fromkeys(range(len(sources)), 0)
    while taken:
        place = min(taken, key=lambda i: (taken[i] + 1) / weights[i])
        try:
            yield next(sources[place])
            taken[place] += 1
        except StopIteration:
            del taken[place]


def _refuse_unknown(kind: str, given: Iterable[str], known: Mapping[str, Sequence[str]]) -> None:
    allowed = {name for names in known.values() for name in names}
    allowed |= {f"{source}/{name}" for source, names in known.items() for name in names}
    for wrong in sorted(set(given) - allowed):
        raise ConfigError(f"{'+'.join(known)} has no {kind} {nearest(wrong, sorted(allowed))}")


def _meant(source: str, given: Iterable[str], known: Sequence[str]) -> tuple[str, ...]:
    """What is meant of one source: its own names, bare or with its name before them."""
    return tuple(name for name in known if name in given or f"{source}/{name}" in given)
