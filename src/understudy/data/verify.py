"""Verify: whether a task can be trained on. A task that rewards doing nothing teaches to do nothing.

    checked    its gold calls exist, take these arguments, are not refused, and leave a change or something to tell
    proven     that, and played against its user: the gold turns earn 1.0, silence 0.0

A task of a domain that is not at hand cannot be run: it is refused unless `unchecked` says to take it by its shape.
"""

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from understudy.agent import GoldAgent, SilentAgent
from understudy.check import earned, own_problems
from understudy.data.items import Bad, Item, Kind
from understudy.domains.base import OPENED, Domain, TaskSource, find, find_domain, names
from understudy.domains.mixture import Mixture
from understudy.errors import ConfigError, TaskError, ToolError, nearest
from understudy.tasks import Task

_KINDS: dict[str, Kind] = {"unknown_tool": "unknown tool", "bad_arguments": "bad arguments", "malformed": "malformed"}


class Fault(NamedTuple):
    """What is wrong with a task."""

    kind: Kind
    field: str
    problem: str


class Domains:
    """The domains that the tasks of one file may be of: those shipped, and one given as `find` takes it."""

    def __init__(self, given: str = "", unchecked: bool = False) -> None:
        self._found: dict[str, TaskSource] = {}
        self._unchecked = unchecked
        self._references: dict[str, str] = {}
        self.given = given
        if ":" in given or given in names():
            self.given = (domain := find(given)).name
            if isinstance(domain, Mixture):
                raise ConfigError(f"{given!r} is several domains; give each of {domain.name} by itself")
            self._found[self.given] = fresh(domain) if isinstance(domain, Domain) else domain
            self._references[self.given] = _placed(given)
        elif given and not unchecked:
            raise ConfigError(
                f"unknown domain {nearest(given, names())}; or module:attribute for your own, "
                "or --unchecked to take its tasks by their shape alone"
            )

    def find(self, name: str) -> TaskSource | None:
        """A domain by its name; None if it is not at hand and its tasks are taken unchecked."""
        if name not in self._found and name in names():
            self._found[name] = fresh(find_domain(name))
        return self._found.get(name)

    def reference(self, name: str) -> str:
        """By what a domain of this name is found again, from any folder; its name, where that is all there is."""
        return self._references.get(name, name)

    def fault(self, task: Task, runner: asyncio.Runner) -> Fault | None:
        """What the task's gold calls say against it; those of a benchmark, or of servers, are played to know."""
        if self.given and task.domain != self.given:
            return Fault("other domain", "domain", f"{task.domain!r}, where --domain is {self.given!r}")
        domain = self.find(task.domain)
        if isinstance(domain, Domain):
            return gold_fault(domain, task)
        if domain is not None:
            return runner.run(earned_fault(domain, task))
        if not self._unchecked:
            how = "give --domain module:attribute, or --unchecked to take it by its shape alone"
            return Fault("other domain", "domain", f"{task.domain!r} is not at hand, so its gold cannot be run; {how}")
        return None if task.actions or task.outputs else _nothing("it has no gold calls")


def checked(items: Iterable[Item[Task] | Bad], domains: Domains) -> Iterator[Item[Task] | Bad]:
    """Run each task's gold calls, and see that no id comes twice."""
    seen: set[str] = set()
    with closing(asyncio.Runner()) as runner:  # one for all tasks: servers end with the loop that they were started in
        for item in items:
            if isinstance(item, Bad):
                yield item
            elif item.value.id in seen:
                yield Bad(item.where, "id", f"{item.value.id!r} is also the id of an earlier task", "duplicate")
            else:
                seen.add(item.value.id)
                yield _judged(item, domains.fault(item.value, runner))


def proven(items: Iterable[Item[Task] | Bad], domains: Domains) -> Iterator[Item[Task] | Bad]:
    """`checked`, and each task played twice; those that are not a domain's were, to be checked."""
    for item in checked(items, domains):
        domain = None if isinstance(item, Bad) else domains.find(item.value.domain)
        if isinstance(item, Bad) or not isinstance(domain, Domain):
            yield item
        else:
            yield _judged(item, asyncio.run(played_fault(domain, item.value)))


def fresh(domain: Domain) -> Domain:
    """The same domain with no goals remembered: it does so by a task's id, and two files may use an id twice."""
    return domain.slice(domain.part)


def gold_fault(domain: Domain, task: Task) -> Fault | None:
    """What running the gold calls on a fresh state says against a task."""
    for role in sorted({message.role for message in task.gold} - {"assistant", "user"}):
        return Fault("malformed", "gold", f"it has a message of the role {role!r}; allowed: assistant, user")
    try:
        goal = domain.goal(task)
    except TaskError as e:
        refusal = e.__cause__
        if isinstance(refusal, ToolError):
            return Fault(_KINDS.get(refusal.kind, "gold refused"), "gold", str(e))
        return Fault("bad setup", "setup", str(e))
    return None if goal or task.outputs else _nothing("its gold calls change nothing")


async def played_fault(domain: Domain, task: Task) -> Fault | None:
    """What playing a task says against it. One without wishes has no user that could be played."""
    return await earned_fault(domain, task) if task.scenario.wishes else None


async def earned_fault(domain: TaskSource, task: Task) -> Fault | None:
    """Whether its gold turns earn 1.0, and silence 0.0."""
    for problem in own_problems(domain, task.split, task):
        return Fault("malformed", "", problem)
    try:
        gold, silent = await earned(domain, task, GoldAgent()), await earned(domain, task, SilentAgent())
    except TaskError as e:
        return Fault("gold fails", "gold", str(e))
    if gold.reward < 1.0:
        failed = ", ".join(name for name, part in gold.parts.items() if part < 1.0)
        return Fault("gold fails", "gold", f"its turns earn {gold.reward:g} instead of 1.0; failed: {failed}")
    return Fault("does nothing", "gold", f"doing nothing earns {silent.reward:g}") if silent.reward > 0.0 else None


def _placed(reference: str) -> str:
    """The reference with the whole path of its file or folder: rows are read elsewhere."""
    kind, _, rest = reference.partition(":")
    path, sharp, domain = rest.partition("#")
    whole = Path(path).expanduser().resolve()
    return f"{kind}:{whole}{sharp}{domain}" if kind in OPENED and whole.exists() else reference


def _nothing(why: str) -> Fault:
    return Fault("does nothing", "gold", f"{why} and it has nothing to tell: doing nothing would be rewarded")


def _judged(item: Item[Task], fault: Fault | None) -> Item[Task] | Bad:
    return Bad(item.where, fault.field, fault.problem, fault.kind) if fault else item
