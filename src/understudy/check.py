"""Check a domain before anybody trains on it: play every frozen task with the gold turns, and by doing nothing.

A domain whose gold fails, or that rewards doing nothing, teaches the wrong thing and still shows a rising curve.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence

from understudy.agent import Agent, GoldAgent, SilentAgent
from understudy.domains.base import TaskSource
from understudy.domains.mixture import part_of
from understudy.errors import TaskError
from understudy.records import Record
from understudy.rollout import Limits, rollout
from understudy.similar import Similar
from understudy.tasks import SPLITS, Score, Split, Task
from understudy.users import consents

Tasks = Mapping[Split, Sequence[Task]]
_LIMITS = Limits(max_turns=100)


class SplitReport(Record):
    """One frozen split."""

    split: Split
    tasks: int
    families: dict[str, int]
    """Tasks by family."""
    floor: float
    """Mean reward of doing nothing; 0.0 in a sound domain."""
    oracle: float
    """Mean reward of the gold turns; 1.0 in a sound domain."""
    gold_turns: float
    """Replies of the agent in a gold episode, on average."""


class Report(Record):
    """What a domain is made of, and what is wrong with it."""

    domain: str
    splits: tuple[SplitReport, ...]
    unused_tools: tuple[str, ...]
    """Tools that no gold episode calls."""
    problems: tuple[str, ...]
    """A sentence each, naming the task. A sound domain has none."""


def check(domain: TaskSource) -> Report:
    """Play all frozen tasks of the domain's slice, and compare them with each other."""
    return asyncio.run(_checked(domain))


async def _checked(domain: TaskSource) -> Report:
    tasks: Tasks = {split: domain.tasks(split) for split in SPLITS}
    problems = [] if domain.policy else ["the policy is empty: the agent is told nothing of its job"]
    problems += [*_duplicates(tasks), *_leaks(domain, tasks)]
    splits = [await _played(domain, split, tasks[split], problems) for split in SPLITS]
    called = {call.name for split in SPLITS for task in tasks[split] for call in task.actions}
    unused = tuple(spec.name for spec in domain.specs if spec.name not in called)
    return Report(domain=domain.name, splits=tuple(splits), unused_tools=unused, problems=tuple(problems))


async def _played(domain: TaskSource, split: Split, tasks: Sequence[Task], problems: list[str]) -> SplitReport:
    floor, oracle = 0.0, 0.0
    for task in tasks:
        try:
            problems += own_problems(part_of(domain, task.domain), split, task)
            gold, silent = await earned(domain, task, GoldAgent()), await earned(domain, task, SilentAgent())
        except TaskError as e:
            problems.append(str(e))
            continue
        problems += _reward_problems(task, gold, silent)
        oracle, floor = oracle + gold.reward, floor + silent.reward
    count = max(1, len(tasks))
    return SplitReport(
        split=split,
        tasks=len(tasks),
        families=dict(Counter(task.family for task in tasks)),
        floor=floor / count,
        oracle=oracle / count,
        gold_turns=sum(len(task.turns) for task in tasks) / count,
    )


async def earned(domain: TaskSource, task: Task, agent: Agent) -> Score:
    """What an agent earns on a task. An episode that fails is a `TaskError`."""
    episode = await rollout(task, domain.environment(task), agent, _LIMITS)
    if episode.score is None:
        raise TaskError(f"task {task.id}: its episode failed ({episode.fault}): {episode.error}")
    return episode.score


def _reward_problems(task: Task, gold: Score, silent: Score) -> Iterator[str]:
    if min(gold.parts.values(), default=gold.reward) < 1.0:
        failed = ", ".join(name for name, part in gold.parts.items() if part < 1.0)
        yield f"task {task.id}: its gold turns earn {gold.reward:g} instead of 1.0; failed: {failed}"
    if silent.reward > 0.0:
        yield f"task {task.id}: doing nothing earns {silent.reward:g}"


def own_problems(domain: TaskSource, split: Split, task: Task) -> Iterator[str]:
    """What is wrong with a task by itself."""
    shown = {spec.name for spec in domain.specs}
    for name in sorted({call.name for call in task.actions} - shown):
        yield f"task {task.id}: its gold calls {name}, which is not among the tools shown"
    if (task.domain, task.split) != (domain.name, split):
        yield f"task {task.id}: it is in {domain.name}/{split} but says {task.domain}/{task.split}"
    if task.family not in domain.families:
        yield f"task {task.id}: the domain has no family {task.family!r}"
    for text in filter(consents, _user_texts(task)):
        yield f"task {task.id}: the user's words {text!r} would be taken for a yes"


def _user_texts(task: Task) -> Iterator[str]:
    scenario = task.scenario
    yield scenario.opening
    yield from (wish.says for wish in scenario.wishes)
    yield from (deed.says for deed in scenario.deeds)
    yield from (text for wish in scenario.wishes if wish.proof for text in (wish.proof.says, wish.proof.fails))
    yield from (fact.says for facts in (scenario.facts, *(w.facts for w in scenario.wishes)) for fact in facts)


def _duplicates(tasks: Tasks) -> Iterator[str]:
    """Tasks with one id, and near-duplicates, in one split or in two."""
    for first, second in _pairs((t for split in SPLITS for t in tasks[split]), lambda task: task.id):
        yield f"task {second.id}: the id is also that of a task in {first.split}"
    similar, known = Similar(), list[Task]()
    for task in (t for split in SPLITS for t in tasks[split] if t.scenario.opening):
        yield from (f"task {task.id}: it is nearly the same as {known[n].id}" for n in similar.add(task))
        known.append(task)


def _pairs(tasks: Iterable[Task], key: Callable[[Task], Hashable]) -> Iterator[tuple[Task, Task]]:
    """Tasks with the same key: each with the first of them."""
    seen: dict[Hashable, Task] = {}
    for task in tasks:
        if (known := key(task)) in seen:
            yield seen[known], task
        seen.setdefault(known, task)


def _leaks(domain: TaskSource, tasks: Tasks) -> Iterator[str]:
    """What a later split shares with an earlier one: users and other rows, or a whole scenario."""
    owners = dict[Hashable, tuple[Split, Task]]()
    for split in SPLITS:
        for task in tasks[split]:
            script = (task.scenario.opening, task.scenario.facts, repr(task.scenario.wishes))
            scenario = script if task.scenario.opening else (task.scenario.instructions,)
            for thing in (scenario, *domain.rows(task)):
                owner, first = owners.setdefault(thing, (split, task))
                if owner != split:
                    what = "its scenario" if thing is scenario else " ".join(map(str, thing))
                    yield f"task {task.id}: it shares {what} with {first.id}"
