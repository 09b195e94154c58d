"""New tasks: from the generators of domains, or proposed by a language model and proven before they are kept."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import Protocol, TypeVar

from pydantic import Field

from understudy.data.items import Bad
from understudy.data.propose import Brief
from understudy.data.verify import Fault, fresh, gold_fault, played_fault
from understudy.domains.base import Domain
from understudy.errors import ConfigError
from understudy.messages import Message
from understudy.records import Record
from understudy.similar import Similar
from understudy.tasks import Split, Task

T = TypeVar("T")


class Chat(Protocol):
    """A language model: all that is needed of it."""

    async def complete(self, messages: Sequence[Message], seed: int) -> str:
        """The text of the model's reply."""


class Wanted(Record):
    """What a language model is asked for."""

    split: Split = "train"
    """Whose users and rows the tasks are about."""
    count: int = Field(default=10, ge=1)
    """Tasks to keep."""
    seed: int = 0
    max_calls: int = Field(default=12, ge=1)
    """Gold calls of a task."""
    max_turns: int = Field(default=24, ge=1)
    """Gold messages of a task."""
    attempts: int = Field(default=10, ge=1)
    """Proposals for each task to keep, on average, before giving up."""
    parallel: int = Field(default=8, ge=1)
    """Proposals asked for side by side."""


def generated(domains: Sequence[Domain], split: Split, seed: int) -> Iterator[Task]:
    """Tasks of the domains' generators, one of each domain in turn, until one of them has no more."""
    return itertools.chain.from_iterable(zip(*(domain.stream(split, seed) for domain in domains), strict=False))


async def proposed(
    chat: Chat, domains: Sequence[Domain], wanted: Wanted, kept: Sequence[Task] = ()
) -> AsyncIterator[Task | Bad]:
    """Tasks that a model proposes, each proven and unlike all before; and what is wrong with the others.

    `kept` are the tasks of an earlier attempt with the same options: they come first, and it goes on after them.
    Ends when enough are kept, or after `attempts` proposals for each of them.
    """
    domains = [fresh(domain) for domain in domains]
    similar, known, count = Similar(), {_number(task): task for task in kept}, 0
    briefs = itertools.islice(_briefs(domains, wanted), wanted.count * wanted.attempts)
    for brief in itertools.islice(briefs, max(known, default=-1) + 1):
        similar.add(brief.example)
        if brief.number in known:
            similar.add(known[brief.number])
            count += 1
            yield known[brief.number]
    for batch in _batches(briefs, wanted.parallel):
        if count >= wanted.count:
            return
        replies = await asyncio.gather(*(chat.complete(brief.messages(), brief.sampling_seed) for brief in batch))
        for brief, reply in zip(batch, replies, strict=True):
            result = await _judged(brief, reply, similar)
            count += isinstance(result, Task)
            yield result
            if count >= wanted.count:
                return


async def _judged(brief: Brief, reply: str, similar: Similar) -> Task | Bad:
    """The proposal if it is good, and remembered; else what is wrong with it."""
    similar.add(brief.example)
    task = brief.read(reply)
    fault = task if isinstance(task, Fault) else await _fault(brief.domain, task, similar)
    if fault is not None:
        return Bad(f"proposal {brief.number}", fault.field, fault.problem, fault.kind)
    assert isinstance(task, Task)
    similar.add(task)
    return task


async def _fault(domain: Domain, task: Task, similar: Similar) -> Fault | None:
    fault = gold_fault(domain, task) or await played_fault(domain, task)
    if fault is None and similar.find(task):
        return Fault("duplicate", "", "it is a near-duplicate of an earlier task or of its example")
    return fault


def _briefs(domains: Sequence[Domain], wanted: Wanted) -> Iterator[Brief]:
    examples = zip(itertools.cycle(domains), generated(domains, wanted.split, wanted.seed), strict=False)
    for number, (domain, example) in enumerate(examples):
        yield Brief(number, domain, example, wanted.max_calls, wanted.max_turns, wanted.seed)


def _number(task: Task) -> int:
    """The proposal that a task was."""
    number = task.id.rpartition("-")[2]
    if not number.isdigit():
        raise ConfigError(f"task {task.id!r} was not proposed by a model; there is nothing to go on with")
    return int(number)


def _batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    rest = iter(items)
    while batch := list(itertools.islice(rest, size)):
        yield batch
