"""Verify: whether a task can be trained on. A task that rewards doing nothing teaches to do nothing.

    checked    its gold calls exist, take these arguments, are not refused, and leave a change or something to tell
    proven     that, and played against its user: the gold turns earn 1.0, silence 0.0

A task of a domain that is not at hand cannot be run: it is refused unless `unchecked` says to take it by its shape.
"""

import asyncio
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from understudy.agent import GoldAgent, SilentAgent
from understudy.check import earned, own_problems
from understudy.data.items import Bad, Item, Kind
from understudy.domains.base import Domain, find_domain, names
from understudy.errors import ConfigError, TaskError, ToolError, nearest
from understudy.tasks import Task

_KINDS: dict[str, Kind] = {"unknown_tool": "unknown tool", "bad_arguments": "bad arguments", "malformed": "malformed"}


class Fault(NamedTuple):
    """What is wrong with a task."""

    kind: Kind
    field: str
    problem: str


class Domains:
    """The domains that the tasks of one file may be of: those shipped, and one given by name or module:attribute."""

    def __init__(self, given: str = "", unchecked: bool = False) -> None:
        self._found: dict[str, Domain] = {}
        self._unchecked = unchecked
        self.given = given
        if ":" in given or given in names():
            self.given = (domain := find_domain(given)).name
            self._found[self.given] = fresh(domain)
        elif given and not unchecked:
            raise ConfigError(
                f"unknown domain {nearest(given, names())}; or module:attribute for your own, "
                "or --unchecked to take its tasks by their shape alone"
            )

    def find(self, name: str) -> Domain | None:
        """A domain by its name; None if it is not at hand and its tasks are taken unchecked."""
        if name not in self._found and name in names():
            self._found[name] = fresh(find_domain(name))
        return self._found.get(name)

    def fault(self, task: Task) -> Fault | None:
        """What the task's gold calls say against it."""
        if self.given and task.domain != self.given:
            return Fault("other domain", "domain", f"{task.domain!r}, where --domain is {self.given!r}")
        domain = self.find(task.domain)
        if domain is not None:
            return gold_fault(domain, task)
        if not self._unchecked:
            how = "give --domain module:attribute, or --unchecked to take it by its shape alone"
            return Fault("other domain", "domain", f"{task.domain!r} is not at hand, so its gold cannot be run; {how}")
        return None if task.actions or task.outputs else _nothing("it has no gold calls")


def checked(items: Iterable[Item[Task] | Bad], domains: Domains) -> Iterator[Item[Task] | Bad]:
    """Run each task's gold calls, and see that no id comes twice."""
    seen: set[str] = set()
    for item in items:
        if isinstance(item, Bad):
            yield item
        elif item.value.id in seen:
            yield Bad(item.where, "id", f"{item.value.id!r} is also the id of an earlier task", "duplicate")
        else:
            seen.add(item.value.id)
            yield _judged(item, domains.fault(item.value))


def proven(items: Iterable[Item[Task] | Bad], domains: Domains) -> Iterator[Item[Task] | Bad]:
    """`checked`, and each task played twice."""
    for item in checked(items, domains):
        domain = None if isinstance(item, Bad) else domains.find(item.value.domain)
        if isinstance(item, Bad) or domain is None:
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
    if not task.scenario.wishes:
        return None
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


def _nothing(why: str) -> Fault:
    return Fault("does nothing", "gold", f"{why} and it has nothing to tell: doing nothing would be rewarded")


def _judged(item: Item[Task], fault: Fault | None) -> Item[Task] | Bad:
    return Bad(item.where, fault.field, fault.problem, fault.kind) if fault else item
