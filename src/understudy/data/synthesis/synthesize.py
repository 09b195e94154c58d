"""New tasks: from the generators of domains, or proposed by a language model and verified."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import Protocol, TypeVar

from pydantic import Field

from understudy.core.errors import ConfigError
from understudy.core.items import RowError
from understudy.core.messages import Message
from understudy.core.records import Record
from understudy.core.tasks import Split, Task
from understudy.data.synthesis.proposal import ProposalRequest
from understudy.data.verify import TaskIssue, find_gold_call_issue, find_play_issue
from understudy.envs.domains.base import Domain
from understudy.envs.task_files.near_duplicates import NearDuplicateIndex

T = TypeVar("T")


class ChatClient(Protocol):
    """A language model."""

    async def complete(self, messages: Sequence[Message], seed: int) -> str:
        """Return the text of the model's reply."""


class SynthesisConfig(Record):
    """Settings of the synthesis by a language model."""

    split: Split = "train"
    """The split whose users and rows the tasks use."""
    count: int = Field(default=10, ge=1)
    """Number of tasks to keep."""
    seed: int = 0
    max_calls: int = Field(default=12, ge=1)
    """Largest number of gold calls of a task."""
    max_turns: int = Field(default=24, ge=1)
    """Largest number of gold messages of a task."""
    max_attempts: int = Field(default=10, ge=1)
    """Stop after `max_attempts` times `count` proposals, even if fewer than `count` tasks were accepted."""
    concurrency: int = Field(default=8, ge=1)
    """Number of concurrent proposals."""


def generate_tasks(domains: Sequence[Domain], split: Split, seed: int) -> Iterator[Task]:
    """Yield tasks of the domains' generators in turn, until one has no more."""
    return itertools.chain.from_iterable(zip(*(domain.stream(split, seed) for domain in domains), strict=False))


async def propose_tasks(
    chat: ChatClient, domains: Sequence[Domain], config: SynthesisConfig, existing_tasks: Sequence[Task] = ()
) -> AsyncIterator[Task | RowError]:
    """Yield each task that a model proposes if it is sound and no near-duplicate of an earlier one, else its error.

    `existing_tasks` are the tasks of an earlier attempt with the same options; they are yielded first, and count. The
    iterator ends after `config.count` tasks, or after `config.count * config.max_attempts` proposals.
    """
    similar, known, count = NearDuplicateIndex(), {_number(task): task for task in existing_tasks}, 0
    requests = itertools.islice(_requests(domains, config), config.count * config.max_attempts)
    for request in itertools.islice(requests, max(known, default=-1) + 1):
        similar.add(request.example)
        if request.number in known:
            similar.add(known[request.number])
            count += 1
            yield known[request.number]
    for batch in _batches(requests, config.concurrency):
        if count >= config.count:
            return
        replies = await asyncio.gather(*(chat.complete(request.messages(), request.sampling_seed) for request in batch))
        for request, reply in zip(batch, replies, strict=True):
            result = await _check_proposal(request, reply, similar)
            count += isinstance(result, Task)
            yield result
            if count >= config.count:
                return


async def _check_proposal(request: ProposalRequest, reply: str, similar: NearDuplicateIndex) -> Task | RowError:
    """Return the proposed task and add it to `similar`, or return its problem."""
    similar.add(request.example)
    task = request.parse_reply(reply)
    fault = task if isinstance(task, TaskIssue) else await _fault(request.domain, task, similar)
    if fault is not None:
        return RowError(f"proposal {request.number}", fault.field, fault.problem, fault.kind)
    assert isinstance(task, Task)
    similar.add(task)
    return task


async def _fault(domain: Domain, task: Task, similar: NearDuplicateIndex) -> TaskIssue | None:
    fault = find_gold_call_issue(domain, task) or await find_play_issue(domain, task)
    if fault is None and similar.find(task):
        return TaskIssue("duplicate", "", "it is a near-duplicate of an earlier task or of its example")
    return fault


def _requests(domains: Sequence[Domain], wanted: SynthesisConfig) -> Iterator[ProposalRequest]:
    examples = zip(itertools.cycle(domains), generate_tasks(domains, wanted.split, wanted.seed), strict=False)
    for number, (domain, example) in enumerate(examples):
        yield ProposalRequest(number, domain, example, wanted.max_calls, wanted.max_turns, wanted.seed)


def _number(task: Task) -> int:
    """Return the number of the proposal that a task came from."""
    number = task.id.rpartition("-")[2]
    if not number.isdigit():
        raise ConfigError(f"task {task.id!r} was not proposed by a model, so its file cannot be resumed")
    return int(number)


def _batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    rest = iter(items)
    while batch := list(itertools.islice(rest, size)):
        yield batch
