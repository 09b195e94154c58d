"""New tasks: by rules, or proposed by a language model. Both are verified before they are kept.

a `Domain`         by rules: its generator. By a model: tasks about rows of its database (`proposal`)
any other source   by rules and by a model: a request and calls, whose results fix the facts (`rules`, `proposal`,
                   `call_plan`)
"""

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Protocol, TypeGuard

from understudy.core.errors import ConfigError
from understudy.core.items import RowError
from understudy.core.json_values import parse_index
from understudy.core.messages import Message
from understudy.core.tasks import Split, Task
from understudy.data.checks.issue import TaskIssue
from understudy.data.checks.verify import find_gold_call_issue, find_reward_issue
from understudy.data.synthesis.call_plan import TaskLabels, build_planned_task
from understudy.data.synthesis.explore import Exploration, explore
from understudy.data.synthesis.limits import SynthesisConfig, cycle_by_share, find_evidence_issue, find_limit_issue
from understudy.data.synthesis.proposal import CallProposal, ProposalRequest, RowProposal
from understudy.data.synthesis.rules import FAMILIES, plan_by_rules
from understudy.domains.authoring.phrases import PhraseSampler
from understudy.envs.domain import Domain
from understudy.envs.task_source import StatefulSource, TaskSource
from understudy.sources.mixture import Mixture
from understudy.sources.task_files.near_duplicates import NearDuplicateIndex

MAX_MODEL_CALLS, MAX_MODEL_MESSAGES = 12, 24
"""Limits of a model's tasks if none are set."""
MAX_UNPLANNED = 5
"""A difficulty that was not asked for is given up after this many draws that yield no plan."""
MAX_ADDITIONS = 16
"""Largest number of requests that are tried for one long task of a domain."""


class ChatClient(Protocol):
    """A language model."""

    async def complete(self, messages: Sequence[Message], seed: int) -> str:
        """Return the text of the model's reply."""


def is_domain(source: TaskSource) -> TypeGuard[Domain]:
    """Return whether a source has a database, from whose rows its generator makes tasks: only a `Domain` has one."""
    return isinstance(source, StatefulSource)


def generate_tasks(domain: Domain, config: SynthesisConfig) -> Iterator[Task]:
    """Yield the tasks of a domain's generator, with the shares of the difficulties."""
    split = config.split or "train"
    if not config.difficulties or len(set(config.difficulties.values())) == 1:
        return domain.stream(split, config.seed)
    parts = {level: domain.task_slice.replace(difficulties=(level,)) for level in config.difficulties}
    sources = tuple(domain.slice(part) for part in parts.values())
    return Mixture(sources, tuple(config.difficulties.values())).stream(split, config.seed)


async def make_tasks(sources: Sequence[TaskSource], config: SynthesisConfig) -> AsyncIterator[Task | RowError]:
    """Yield tasks by rules, of the sources in turn, and the error of each that was refused.

    The iterator ends after `config.count` tasks, after `config.count * config.max_attempts` tasks and errors, or when a
    source has no more tasks. The same settings yield the same tasks.
    """
    streams = [
        _domain_tasks(source, config) if is_domain(source) else _call_tasks(source, config) for source in sources
    ]
    count = attempts = 0
    for stream in itertools.cycle(streams):
        result = await anext(stream, None)
        while isinstance(result, RowError) and attempts < config.count * config.max_attempts:
            attempts += 1
            yield result
            result = await anext(stream, None)
        if result is None or isinstance(result, RowError):
            return
        attempts, count = attempts + 1, count + 1
        yield result
        if count == config.count:
            return


async def _domain_tasks(domain: Domain, config: SynthesisConfig) -> AsyncIterator[Task | RowError]:
    if not config.filters:
        for task in generate_tasks(domain, config):
            yield task
        return
    long_allowed = not domain.task_slice.difficulties or "hard" in domain.task_slice.difficulties
    if config.min_reads and domain.make_long_task and long_allowed:
        for number in itertools.count():
            yield await _long_task(domain, config, number)
    for number, task in enumerate(generate_tasks(domain, config)):
        issue = find_limit_issue(task, config) or await find_evidence_issue(domain, task, config.min_reads)
        yield issue.at(f"task {number}") if issue else task


async def _long_task(domain: Domain, config: SynthesisConfig, number: int) -> Task | RowError:
    """Return a task to which requests of the same customer were added until it needs enough reads.

    A request that contradicts the earlier ones is left out.
    """
    assert domain.make_long_task is not None
    split, families = config.split or "train", domain.task_slice.families or domain.families
    rng = random.Random(f"{domain.name}/{split}/{config.seed}/{number}")
    family, additions = families[number % len(families)], list[tuple[int, str]]()
    issue: TaskIssue | None = None
    for draw in range(MAX_ADDITIONS):
        tried = [*additions, (draw, rng.choice(domain.families))] if draw else []
        task = domain.make_long_task(split, config.seed, family, number, tried)
        if find_limit_issue(task, config) or await _find_stateful_issue(domain, task):
            continue
        additions = tried
        issue = await find_evidence_issue(domain, task, config.min_reads)
        if issue is None:
            return task
    issue = issue or TaskIssue("too long", "gold", "no task of this customer keeps the limits")
    return issue.at(f"task {number}")


async def _call_tasks(source: TaskSource, config: SynthesisConfig) -> AsyncIterator[Task | RowError]:
    """Yield tasks of a source that has no generator, from what its tools show."""
    for wrong in sorted(set(config.families) - set(FAMILIES)):
        raise ConfigError(f"{source.name}: unknown family {wrong!r}; by rules: {', '.join(FAMILIES)}")
    _require_difficulties(config)
    similar, explorations = NearDuplicateIndex(), dict[Split, Exploration]()
    shares, kept, unplanned = dict(config.call_difficulties), Counter[str](), Counter[str]()
    for number, split in enumerate(cycle_by_share(config.split_shares)):
        level = min(shares, key=lambda each: (kept[each] + 1) / shares[each])
        if split not in explorations:
            explorations[split] = await explore(source, split, config.seed)
        name = f"{source.name}/{split}/{config.seed}/{number}"
        rng, phrases = random.Random(name), PhraseSampler(name, split)
        families = config.families or tuple(FAMILIES)
        most = min(config.max_calls or 10_000, (config.max_turns or 10_000) - 1)
        planned = plan_by_rules(explorations[split], level, families, config.min_reads, most, rng, phrases)
        if planned is None:
            yield RowError(f"task {number}", "", f"what the tools show yields no {level} task", "no plan")
            unplanned[level] += 1
            if unplanned[level] == MAX_UNPLANNED and not config.difficulties and len(shares) > 1:
                del shares[level]
            continue
        family, plan = planned
        identity = f"{source.name}/{split}/{family}/{level}/rules-{config.seed}-{number}"
        task = await build_planned_task(source, plan, TaskLabels(id=identity, split=split, family=family))
        issue = task if isinstance(task, TaskIssue) else await _find_issue(source, task, config, similar)
        if issue is not None:
            yield issue.at(f"task {number}")
        elif isinstance(task, Task):
            similar.add(task)
            kept[level] += 1
            yield task


async def propose_tasks(
    chat: ChatClient, sources: Sequence[TaskSource], config: SynthesisConfig, existing_tasks: Sequence[Task] = ()
) -> AsyncIterator[Task | RowError]:
    """Yield each task that a model proposes if it is sound and no near-duplicate of an earlier one, else its error.

    `existing_tasks` are the tasks of an earlier attempt with the same options; they are yielded first, and count. The
    iterator ends after `config.count` tasks, or after `config.count * config.max_attempts` proposals.
    """
    similar, known, count = NearDuplicateIndex(), {_number(task): task for task in existing_tasks}, 0
    requests = itertools.islice(await _requests(sources, config), config.count * config.max_attempts)
    for request in itertools.islice(requests, max(known, default=-1) + 1):
        if request.example is not None:
            similar.add(request.example)
        if request.number in known:
            similar.add(known[request.number])
            count += 1
            yield known[request.number]
    while count < config.count and (batch := list(itertools.islice(requests, config.concurrency))):
        replies = await asyncio.gather(*(chat.complete(request.messages(), request.sampling_seed) for request in batch))
        for request, reply in zip(batch, replies, strict=True):
            result = await _check_proposal(request, reply, config, similar)
            count += isinstance(result, Task)
            yield result
            if count >= config.count:
                return


async def _check_proposal(
    request: ProposalRequest, reply: str, config: SynthesisConfig, similar: NearDuplicateIndex
) -> Task | RowError:
    """Return the proposed task and add it to `similar`, or return its problem."""
    if request.example is not None:
        similar.add(request.example)
    task = await request.read_reply(reply)
    issue = task if isinstance(task, TaskIssue) else await _find_issue(request.source, task, config, similar)
    if issue is not None:
        return issue.at(f"proposal {request.number}")
    assert isinstance(task, Task)
    similar.add(task)
    return task


async def _find_issue(
    source: TaskSource, task: Task, config: SynthesisConfig, similar: NearDuplicateIndex
) -> TaskIssue | None:
    """Return the first problem of a new task, or None."""
    if issue := find_limit_issue(task, config):
        return issue
    issue = await (_find_stateful_issue(source, task) if is_domain(source) else find_reward_issue(source, task))
    if issue is None:
        issue = await find_evidence_issue(source, task, config.min_reads)
    if issue is None and similar.find(task):
        return TaskIssue("duplicate", "", "it is a near-duplicate of an earlier task or of its example")
    return issue


async def _find_stateful_issue(domain: Domain, task: Task) -> TaskIssue | None:
    return find_gold_call_issue(domain, task) or await find_reward_issue(domain, task)


async def _requests(sources: Sequence[TaskSource], config: SynthesisConfig) -> Iterator[ProposalRequest]:
    """Return the requests of the sources in turn, until one has no more."""
    streams = list[Iterator[ProposalRequest]]()
    for place, source in enumerate(sources):
        numbers = itertools.count(place, len(sources))
        if is_domain(source):
            streams.append(_row_proposals(source, config, numbers))
        else:
            explorations = {split: await explore(source, split, config.seed) for split in config.split_shares}
            streams.append(_call_proposals(source, explorations, config, numbers))
    return _in_turn(streams)


def _in_turn(streams: Sequence[Iterator[ProposalRequest]]) -> Iterator[ProposalRequest]:
    """Yield an item of each stream in turn, until one has no more."""
    for stream in itertools.cycle(streams):
        request = next(stream, None)
        if request is None:
            return
        yield request


def _row_proposals(domain: Domain, config: SynthesisConfig, numbers: Iterator[int]) -> Iterator[RowProposal]:
    max_calls, max_turns = config.max_calls or MAX_MODEL_CALLS, config.max_turns or MAX_MODEL_MESSAGES
    for number, example in zip(numbers, generate_tasks(domain, config), strict=False):
        yield RowProposal(number, config.seed, domain, example, max_calls, max_turns)


def _call_proposals(
    source: TaskSource, explorations: Mapping[Split, Exploration], config: SynthesisConfig, numbers: Iterator[int]
) -> Iterator[CallProposal]:
    _require_difficulties(config)
    examples = itertools.chain(source.stream(config.split or "train", config.seed), itertools.repeat(None))
    splits, levels = cycle_by_share(config.split_shares), cycle_by_share(config.call_difficulties)
    max_calls = min(config.max_calls or MAX_MODEL_CALLS, (config.max_turns or MAX_MODEL_MESSAGES) - 1)
    max_tools = config.max_tools or len(source.tool_specs)
    for number, example, split, level in zip(numbers, examples, splits, levels, strict=False):
        explored = explorations[split]
        yield CallProposal(
            number, config.seed, source, example, max_calls, explored, level, max_tools, config.min_reads
        )


def _require_difficulties(config: SynthesisConfig) -> None:
    """Raise ConfigError if the limits leave no difficulty for the tasks of a source without a generator."""
    if not config.call_difficulties:
        raise ConfigError(
            f"no difficulty has at least {config.min_reads} reads within these limits (easy: 1 call, medium: 2 or 3, "
            "hard: 4 or more); lower --min-reads, or allow another difficulty, or more calls"
        )


def _number(task: Task) -> int:
    """Return the number of the proposal that a task came from."""
    number = parse_index(task.id.rpartition("-")[2])
    if number is None:
        raise ConfigError(f"task {task.id!r} was not proposed by a model, so its file cannot be resumed")
    return number
