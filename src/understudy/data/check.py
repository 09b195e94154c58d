"""Check a domain before training: play every frozen task with the gold turns and with an agent that does nothing.

Training on a domain whose gold fails, or that rewards doing nothing, teaches the wrong behaviour although
the training reward rises.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence

from understudy.core.errors import TaskError
from understudy.core.event_loop import run_async
from understudy.core.items import RowErrorKind
from understudy.core.records import Record
from understudy.core.tasks import SPLITS, Score, Split, Task
from understudy.envs.task_files.near_duplicates import NearDuplicateIndex
from understudy.envs.task_files.summary import FileSummary
from understudy.envs.task_source import TaskSource, find_source, list_file_summaries
from understudy.envs.users import gives_consent
from understudy.rollouts.agent import Agent, GoldAgent, NoopAgent
from understudy.rollouts.rollout import EpisodeLimits, rollout

TasksBySplit = Mapping[Split, Sequence[Task]]
_LIMITS = EpisodeLimits(max_turns=100)


class SplitReport(Record):
    """The results of one frozen split."""

    split: Split
    tasks: int
    families: dict[str, int]
    """Number of tasks by family."""
    noop_reward: float
    """Mean reward of the noop agent; 0.0 in a sound domain."""
    gold_reward: float
    """Mean reward of the gold turns; 1.0 in a sound domain."""
    gold_turns: float
    """Mean number of replies in a gold episode."""


class DomainReport(Record):
    """What a domain contains, and its problems."""

    domain: str
    splits: tuple[SplitReport, ...]
    unused_tools: tuple[str, ...]
    """Tools that no gold episode calls."""
    problems: tuple[str, ...]
    """One sentence for each problem, with the task's id. A sound domain has none."""
    warnings: tuple[str, ...] = ()
    """One sentence for each thing that may be intended."""
    unsound: dict[str, int] = {}
    """Number of tasks that are not sound, by reason. They are among the problems."""
    files: tuple[FileSummary, ...] = ()
    """What was read from files of tasks, and what was refused. Refused rows are among the problems."""


def check(domain: TaskSource) -> DomainReport:
    """Run `check_async` in its own event loop. Raise RuntimeError if one is running."""
    return run_async(check_async(domain))


async def check_async(domain: TaskSource) -> DomainReport:
    """Play all frozen tasks of the domain's slice with gold and noop, and compare the tasks with each other."""
    tasks: TasksBySplit = {split: domain.tasks(split) for split in SPLITS}
    files = tuple(list_file_summaries(domain))
    refused = [refusal for summary in files for refusal in summary.refusals]
    similar = list(_near_duplicates(tasks))

    def is_problem(first: Task, task: Task) -> bool:
        return not files or first.split != task.split  # a file may repeat a task, to train on it more often

    own = [f"task {task.id}: it is nearly the same as {first.id}" for first, task in similar if is_problem(first, task)]
    problems = [*refused, *_repeated_ids(tasks), *own, *_leaks(domain, tasks)]
    unsound = Counter[RowErrorKind]()
    splits = [await _played(domain, split, tasks[split], problems, unsound) for split in SPLITS]
    called = {call.name for split in SPLITS for task in tasks[split] for call in task.gold_calls}
    unused = tuple(spec.name for spec in domain.tool_specs if spec.name not in called)
    warnings = [detail for summary in files for detail in summary.details]
    if not domain.domain_policy:
        warnings.append("the domain policy is empty, so the agent gets no instructions")
    if alike := [(first, task) for first, task in similar if not is_problem(first, task)]:
        first, task = alike[0]
        warnings.append(
            f"{len(alike)} pairs of tasks of one split are nearly the same, such as {task.id} and {first.id}"
        )
    return DomainReport(
        domain=domain.name,
        splits=tuple(splits),
        unused_tools=unused,
        problems=tuple(problems),
        warnings=tuple(warnings),
        unsound=dict(unsound),
        files=files,
    )


async def _played(
    domain: TaskSource, split: Split, tasks: Sequence[Task], problems: list[str], unsound: Counter[RowErrorKind]
) -> SplitReport:
    noop_reward, gold_reward = 0.0, 0.0
    for task in tasks:
        try:
            found = list(find_task_problems(find_source(domain, task.domain), split, task))
            if task.family not in domain.families:
                found.append(f"task {task.id}: {domain.name} has no family {task.family!r}")
            problems += found
            gold, noop = await score_agent(domain, task, GoldAgent()), await score_agent(domain, task, NoopAgent())
        except TaskError as e:
            problems.append(str(e))
            unsound["gold fails"] += 1
            continue
        if kind := _unsound_kind(gold, noop) or ("malformed" if found else None):
            unsound[kind] += 1
        problems += _reward_problems(task, gold, noop)
        gold_reward, noop_reward = gold_reward + gold.reward, noop_reward + noop.reward
    count = max(1, len(tasks))
    return SplitReport(
        split=split,
        tasks=len(tasks),
        families=dict(Counter(task.family for task in tasks)),
        noop_reward=noop_reward / count,
        gold_reward=gold_reward / count,
        gold_turns=sum(len(task.gold_turns) for task in tasks) / count,
    )


async def score_agent(domain: TaskSource, task: Task, agent: Agent) -> Score:
    """Return the reward of an agent on a task. Raise TaskError if the episode fails."""
    episode = await rollout(task, domain.environment(task), agent, _LIMITS)
    if episode.score is None:
        raise TaskError(f"task {task.id}: its episode failed ({episode.fault}): {episode.error}")
    return episode.score


def _unsound_kind(gold: Score, noop: Score) -> RowErrorKind | None:
    return "gold fails" if gold.reward < 1.0 else "does nothing" if noop.reward > 0.0 else None


def _reward_problems(task: Task, gold: Score, noop: Score) -> Iterator[str]:
    if min(gold.parts.values(), default=gold.reward) < 1.0:
        failed = ", ".join(name for name, part in gold.parts.items() if part < 1.0)
        yield f"task {task.id}: its gold turns earn {gold.reward:g} instead of 1.0; failed: {failed}"
    if noop.reward > 0.0:
        yield f"task {task.id}: doing nothing earns {noop.reward:g}"


def find_task_problems(domain: TaskSource, split: Split, task: Task) -> Iterator[str]:
    """Yield the problems of a single task."""
    shown = {spec.name for spec in domain.tool_specs}
    for name in sorted({call.name for call in task.gold_calls} - shown):
        yield f"task {task.id}: a gold turn calls {name}, which is not one of the agent's tools"
    if (task.domain, task.split) != (domain.name, split):
        yield f"task {task.id}: it is stored in {domain.name}/{split}, but its fields say {task.domain}/{task.split}"
    for text in filter(gives_consent, _user_texts(task) if task.scenario.goals else ()):
        yield f"task {task.id}: the user's text {text!r} would count as consent to a change"


def _user_texts(task: Task) -> Iterator[str]:
    scenario = task.scenario
    yield scenario.opening
    yield from (goal.text for goal in scenario.goals)
    yield from (action.reply_template for action in scenario.user_actions)
    yield from (
        text
        for goal in scenario.goals
        if goal.success_check
        for text in (goal.success_check.success_text, goal.success_check.failure_text)
    )
    yield from (fact.text for facts in (scenario.facts, *(goal.facts for goal in scenario.goals)) for fact in facts)


def _repeated_ids(tasks: TasksBySplit) -> Iterator[str]:
    """Yield repeated ids, within a split and across splits."""
    for first, second in _pairs((t for split in SPLITS for t in tasks[split]), lambda task: task.id):
        yield f"task {second.id}: the id is also that of a task in {first.split}"


def _near_duplicates(tasks: TasksBySplit) -> Iterator[tuple[Task, Task]]:
    """Yield near-duplicates, within a split and across splits."""
    similar, known = NearDuplicateIndex(), list[Task]()
    for task in (t for split in SPLITS for t in tasks[split] if t.scenario.opening):
        yield from ((known[n], task) for n in similar.add(task))
        known.append(task)


def _pairs(tasks: Iterable[Task], key: Callable[[Task], Hashable]) -> Iterator[tuple[Task, Task]]:
    """Yield (first, later) for each task whose key an earlier task has; `first` is the first task with the key."""
    seen: dict[Hashable, Task] = {}
    for task in tasks:
        if (known := key(task)) in seen:
            yield seen[known], task
        seen.setdefault(known, task)


def _leaks(domain: TaskSource, tasks: TasksBySplit) -> Iterator[str]:
    """Yield what a later split shares with an earlier one: users and other rows, or whole scenarios."""
    owners = dict[Hashable, tuple[Split, Task]]()
    for split in SPLITS:
        for task in tasks[split]:
            script = (task.scenario.opening, task.scenario.facts, repr(task.scenario.goals))
            scenario = script if task.scenario.opening else (task.scenario.instructions,)
            for thing in (scenario, *domain.split_row_keys(task)):
                owner, first = owners.setdefault(thing, (split, task))
                if owner != split:
                    what = "its scenario" if thing is scenario else " ".join(map(str, thing))
                    yield f"task {task.id}: it shares {what} with {first.id}"
