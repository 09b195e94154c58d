"""Check a domain before training: play every frozen task with the gold turns and with an agent that does nothing.

Training on a domain whose gold fails, or that rewards doing nothing, teaches the wrong behaviour although
the training reward rises. `probe` then tries calls and replies that no good agent makes, because a model makes them.
"""

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from understudy.core.errors import ConfigError, TaskError, did_you_mean
from understudy.core.event_loop import run_async
from understudy.core.foreign_names import explained_arguments
from understudy.core.records import Record
from understudy.core.shared_state import SharedState
from understudy.core.tasks import SPLITS, Score, Split, Task
from understudy.core.trajectory import Trajectory
from understudy.data.checks.adversarial.knowledge import Strategy
from understudy.data.checks.adversarial.suite import STRATEGIES, AdversarialReport, StrategyResult, play_strategies
from understudy.data.checks.evidence import describe_unshown, find_unshown_argument
from understudy.data.checks.further_reads import find_costly_read
from understudy.data.checks.issue import IssueKind
from understudy.data.checks.probe import HangingError, ProbeResult, check_limits, exception_places, play_once, probe
from understudy.data.checks.repeated import RepeatedEpisodes
from understudy.envs.file_summary import FileSummary
from understudy.envs.grading import UNREWARDED_PARTS
from understudy.envs.shown_values import pair_results
from understudy.envs.state_diff import diff_states
from understudy.envs.task_source import (
    ExternalSource,
    StatefulSource,
    TaskSource,
    explain_failed_parts,
    find_contract_error,
    find_policy,
    find_source,
    find_tool_specs,
    list_file_summaries,
    list_notes,
    list_sources,
)
from understudy.envs.users import gives_consent
from understudy.evaluation.evaluate import (
    NO_GOLD,
    find_noop_refusal,
    find_wrong_gold_call,
    lacks_reference,
    play_demonstrations,
    validate_room,
    validate_train_tasks,
)
from understudy.evaluation.result import FULL_REWARD
from understudy.formats import ChatFormat
from understudy.formats.round_trip import validate_gold
from understudy.rollouts.agent import Agent, GoldAgent, NoopAgent
from understudy.rollouts.rollout import DEFAULT_LIMITS, EpisodeLimits, play_episode, rollout
from understudy.rollouts.supervised import validate_source_tools
from understudy.sources.task_files.near_duplicates import NearDuplicateIndex
from understudy.sources.task_files.prompt_rows import answer_rename_hint
from understudy.sources.tool_dataset import ExampleSource, ToolExample, answer_notes

TasksBySplit = Mapping[Split, Sequence[Task]]
ProgressTracker = Callable[[Iterable[Any], str], Iterable[Any]]
"""Passes items through and shows progress. The text names the step."""
ProblemKind = Literal[
    "unstable",
    "shared_rows",
    "lost_episode",
    "noop_rewarded",
    "task_fails",
    "gold_fails",
    "gold_not_rewarded",
    "wrong_user_action",
    "unshown_value",
    "inexpressible_call",
    "strategy_rewarded",
    "refused_row",
    "shared_by_splits",
    "duplicate",
    "malformed",
]
PROBLEM_TITLES: Mapping[ProblemKind, str] = {
    "unstable": "the same seed gives something else",
    "shared_rows": "an episode changes those after it",
    "lost_episode": "an episode ends without a reward",
    "noop_rewarded": "doing nothing is rewarded",
    "task_fails": "a task cannot be played or graded",
    "gold_fails": "the gold calls fail",
    "gold_not_rewarded": "gold earns less than 1.0",
    "wrong_user_action": "a user action or success check is wrong",
    "unshown_value": "nothing shows a value that gold needs",
    "inexpressible_call": "the model's chat format cannot express a gold call",
    "strategy_rewarded": "a strategy that does not do the task is rewarded",
    "refused_row": "a row of a file is refused",
    "shared_by_splits": "splits share rows or scenarios",
    "duplicate": "a task repeats another one",
    "malformed": "a task has a wrong field",
}
"""The kinds of problems, the worst first."""
MAX_CONCURRENT_TASKS = 4
"""Number of tasks that are played at once if their episodes start servers."""

_SCORE_LIMITS = EpisodeLimits(max_turns=100, max_retries=0)


class SplitReport(Record):
    """The results of one frozen split."""

    split: Split
    tasks: int
    families: dict[str, int]
    """Number of tasks by family."""
    noop_reward: float
    """Mean reward of the noop agent; 0.0 in a sound domain."""
    gold_reward: float
    """Mean reward of the gold turns, of the tasks that have some; 0 counts if a gold call fails. 1.0 in a sound
    domain."""
    gold_turns: float
    """Mean number of replies in a gold episode."""


class ProblemGroup(Record):
    """The problems of one kind in one family."""

    kind: ProblemKind
    family: str
    """Empty if the problem is not one of single tasks."""
    num_problems: int
    num_tasks: int
    """Number of tasks with the problem."""
    num_family_tasks: int
    """Number of tasks of the family, with or without it."""
    example_task: str
    """Id of the first task with the problem."""
    example: str
    """The sentence about this task."""
    blocks_training: bool = False
    """Whether training refuses these tasks. The other problems are advice."""

    def __str__(self) -> str:
        """Return the group in one line, such as `doing nothing is rewarded: family lost, 3 of 9 tasks, e.g. …`."""
        title = PROBLEM_TITLES[self.kind]
        if not self.family:
            further = f" (and {self.num_problems - 1} more)" if self.num_problems > 1 else ""
            return f"{title}: {self.example}{further}"
        return f"{title}: family {self.family}, {self.num_tasks} of {self.num_family_tasks} tasks, e.g. {self.example}"


class DomainReport(Record):
    """What a domain contains, and its problems."""

    domain: str
    splits: tuple[SplitReport, ...]
    unused_tools: tuple[str, ...]
    """Tools that no gold episode calls."""
    problems: tuple[str, ...]
    """One sentence for each problem, with the task's id, the worst kind first. A sound domain has none."""
    problem_groups: tuple[ProblemGroup, ...] = ()
    """The problems by kind and family, the worst kind first, then the most frequent."""
    warnings: tuple[str, ...] = ()
    """One sentence for each thing that may be intended."""
    probe_calls: int = 0
    """Number of invented calls that were made: unknown ids, empty and huge values, wrong types."""
    probe_episodes: int = 0
    """Number of episodes with invented calls, garbled replies or a random agent."""
    unsound: dict[str, int] = {}
    """Number of tasks that are not sound, by reason. They are among the problems."""
    files: tuple[FileSummary, ...] = ()
    """What was read from files of tasks, and what was refused. Refused rows are among the problems."""
    adversarial: tuple[AdversarialReport, ...] = ()
    """What adversarial strategies earn in each source, if they were played. Those that earn too much are among the
    problems."""
    train_refusal: str = ""
    """Why training refuses the tasks, or empty if it accepts them."""
    refused_for_tasks: bool = False
    """Whether training refuses because of the tasks, whatever it says of the config and of this machine."""
    format_unknown: str = ""
    """Why the calls were not tried in the model's chat format, or empty if they were."""
    num_blocking_tasks: int = 0
    """Number of tasks because of which training refuses."""
    num_advised_tasks: int = 0
    """Number of other tasks that have problems."""


@dataclass(frozen=True)
class TrainDemands:
    """What a training run demands of its tasks. The fields are those of its config."""

    seed: int = 0
    num_gold_episodes: int = 0
    """Number of demonstrations, of the first train tasks."""
    allow_noop_solvable: bool = False
    limits: EpisodeLimits = DEFAULT_LIMITS
    max_response_tokens: int = 0
    """Tokens of a reply of RL; 0 without RL."""
    format: ChatFormat | None = None
    """The model's chat format. Without one, neither calls nor the lengths of demonstrations are checked."""


@dataclass(frozen=True, slots=True)
class _Problem:
    kind: ProblemKind
    text: str
    task: Task | None = None


@dataclass(frozen=True, slots=True)
class _PlayedTask:
    """The results of one task. It has no rewards if an episode has none."""

    task: Task
    problems: Sequence[_Problem]
    runs: bool = False
    """Whether an environment of the task could be made."""
    refused_calls: int = 0
    """Calls of the gold episode that a tool refused."""
    places: frozenset[tuple[str, ...]] = frozenset()
    """The places of the exceptions in its episodes."""
    gold_episode: Trajectory | None = None
    noop: Score | None = None
    passing_check: str = ""
    """Which success check of the task passes before the agent has done anything, and why."""
    lacks_gold: bool = False
    """Whether the task is an example without a reference solution, which RL does not need."""
    gold_calls_fail: bool = False
    """Whether a gold call has an error that no environment intends."""

    @property
    def gold(self) -> Score | None:
        """The score of the gold episode."""
        return self.gold_episode.score if self.gold_episode else None

    @property
    def unsound_kind(self) -> IssueKind | None:
        """Why the task is not sound, or None."""
        if self.gold is None or self.gold_calls_fail or (self.gold.reward < 1.0 and not self.lacks_gold):
            return "gold fails"
        if self.noop is None or self.noop.reward > 0.0:
            return "does nothing"
        if any(problem.kind == "unshown_value" for problem in self.problems):
            return "unshown value"
        return "malformed" if self.problems else None


@dataclass(frozen=True)
class AdversarialOptions:
    """How `check` plays adversarial strategies."""

    num_tasks: int | None = None
    """Number of tasks for each source; None means the default of `play_strategies`."""
    seed: int = 0
    strategies: Sequence[Strategy] = STRATEGIES


@explained_arguments()
def check(source: TaskSource, adversarial: AdversarialOptions | None = None) -> DomainReport:
    """Run `check_async` in its own event loop. Raise RuntimeError if one is running."""
    return run_async(check_async(source, adversarial=adversarial))


async def check_async(
    source: TaskSource,
    track: ProgressTracker = lambda items, what: items,
    adversarial: AdversarialOptions | None = None,
    max_step_seconds: float | None = None,
    demands: TrainDemands = TrainDemands(),
) -> DomainReport:
    """Play all frozen tasks of the source with gold and noop, and compare the tasks with each other.

    Then try unusual calls and replies on some of them, and `adversarial` strategies if given. The report does not
    depend on which task is played first. It says whether training with `demands` accepts the tasks.
    `max_step_seconds` is as in `check_limits`. Raise ConfigError if a member of the source is missing or wrong, and
    TaskError if a call does not return within its time limit.
    """
    if error := find_contract_error(source):
        raise ConfigError(error)
    tasks: TasksBySplit = {split: source.tasks(split) for split in SPLITS}
    shared = dict[str, SharedState]()
    played = await _play_tasks(source, tasks, track, max_step_seconds, shared)
    probes = [await _probe(leaf, played, track, max_step_seconds) for leaf in list_sources(source)]
    attacks = list[AdversarialReport]()
    if adversarial:
        for leaf in list_sources(source):
            attacks.append(
                await play_strategies(leaf, adversarial.num_tasks, adversarial.seed, adversarial.strategies, track)
            )
    results = [result for split in SPLITS for result in played[split]]
    reads = [await _find_costly_read(leaf, results) for leaf in list_sources(source)]
    files = tuple(list_file_summaries(source))
    alike = _near_duplicates(tasks)
    unstable = [_Problem("unstable", text) for leaf in list_sources(source) for text in leaf.find_unstable_parts()]
    changed = [_Problem("shared_rows", text) for state in shared.values() for text in state.find_changed()]
    problems = [
        *changed,  # they are why gold calls give other results
        *(each for result in results for each in result.problems if not (changed and each.kind == "shared_rows")),
        *unstable,
        *(_Problem("shared_rows", text) for leaf in list_sources(source) for text in _shared_rows(leaf)),
        *(_Problem("lost_episode", text) for probe_result in probes for text in probe_result.lost_episodes),
        *(_Problem("strategy_rewarded", _paid(attack.source, r)) for attack in attacks for r in attack.failures),
        *(_Problem("refused_row", text) for summary in files for text in summary.refusals),
        *_inexpressible_calls(source, results, demands.format),
        *_leaks(source, tasks),
        *(_repeated_ids(tasks) if not unstable else ()),  # families that make other tasks of an id repeat ids
    ]
    problems.sort(key=lambda problem: list(PROBLEM_TITLES).index(problem.kind))
    refusal, blocking = await _find_train_refusal(source, results, demands, max_step_seconds)
    called = {call.name for result in results for call in result.task.gold_calls}
    return DomainReport(
        domain=source.name,
        splits=tuple(_report_split(split, played[split]) for split in SPLITS),
        unused_tools=tuple(spec.name for spec in source.tool_specs if spec.name not in called),
        problems=tuple(problem.text for problem in problems),
        problem_groups=tuple(_group_problems(problems, Counter(result.task.family for result in results), blocking)),
        warnings=(
            *_warnings(source, results, alike),
            *filter(None, reads),
            *(text for probe_result in probes for text in probe_result.tool_exceptions),
        ),
        probe_calls=sum(probe_result.num_calls for probe_result in probes),
        probe_episodes=sum(probe_result.num_episodes for probe_result in probes),
        unsound=dict(Counter(kind for result in results if (kind := result.unsound_kind))),
        files=files,
        adversarial=tuple(attacks),
        train_refusal=refusal,
        refused_for_tasks=bool(refusal),
        num_blocking_tasks=len(blocking),
        num_advised_tasks=len({problem.task.id for problem in problems if problem.task} - blocking),
    )


async def _find_costly_read(source: TaskSource, results: Sequence[_PlayedTask]) -> str:
    """Return a warning if further reads cost gold its reward. Episodes with servers are not played again."""
    if isinstance(source, ExternalSource):
        return ""
    gold = [result.task for result in results if result.task.domain == source.name and not result.unsound_kind]
    found = await find_costly_read(source, gold)
    return (
        f"{found}; a model reads more than gold does, so grade what it did and told, not how it got there"
        if found
        else ""
    )


def _warnings(source: TaskSource, results: Sequence[_PlayedTask], alike: Sequence[tuple[Task, Task]]) -> list[str]:
    """Return what a user should know of the tasks although training accepts it. `alike` are pairs of tasks that are
    nearly the same."""
    warnings = list_notes(source)
    if not (source.domain_policy or any(find_policy(source, result.task) for result in results)):
        warnings.append("the domain policy is empty, so the agent gets no instructions")
    if refused := [result for result in results if result.refused_calls]:
        warnings.append(
            f"a tool refuses calls of {len(refused)} gold episodes, such as {refused[0].task.id}; SFT imitates them"
        )
    if lacking := [result.task for result in results if result.lacks_gold]:
        warnings.append(
            f"{len(lacking)} tasks have no answer and no gold calls, such as {lacking[0].id}; RL can train on them, "
            "SFT cannot"
        )
    for leaf in list_sources(source):
        warnings += leaf.list_family_notes()
    if isinstance(source, ExampleSource):
        warnings += answer_notes([(result.task.id, source.find_example(result.task)) for result in results])
    if passing := [result for result in results if result.passing_check]:
        warnings.append(
            f"a success check of {len(passing)} tasks passes at the start, such as in {passing[0].task.id}: "
            f"{passing[0].passing_check}; give a text that only the result of success contains"
        )
    if not source.tool_specs:
        warnings.append("the agent has no tools; if it should have some, add public methods with docstrings")
    for where, pairs in (
        ("of its split", [(first, task) for first, task in alike if first.split == task.split]),
        ("of another split", [(first, task) for first, task in alike if first.split != task.split]),
    ):
        if pairs:
            first, task = pairs[0]
            count = len({task.id for _, task in pairs})
            warnings.append(
                f"{count} of {len(results)} tasks are nearly the same as an earlier task {where}, such as {task.id} "
                f"and {first.id}"
            )
    if silent := _find_silent_tools(results):
        warnings.append(
            f"tools that return nothing (None) in every gold call: {', '.join(silent)}; the model reads null: return a "
            "text or a value"
        )
    if undescribed := [spec.name for spec in source.tool_specs if not spec.description]:
        warnings.append(
            f"tools without a docstring, which the model reads as the description: {', '.join(undescribed)}; if one is "
            "a helper and no tool, begin its name with _"
        )
    return warnings


def _find_silent_tools(results: Sequence[_PlayedTask]) -> list[str]:
    """Return the tools whose result is null in all gold calls."""
    texts = dict[str, set[str]]()
    for episode in (result.gold_episode for result in results if result.gold_episode):
        for index, call in pair_results(episode.messages):
            texts.setdefault(call.name, set()).add(episode.messages[index].content)
    return [name for name, found in texts.items() if found == {"null"}]


async def _find_train_refusal(
    source: TaskSource, results: Sequence[_PlayedTask], demands: TrainDemands, max_step_seconds: float | None
) -> tuple[str, set[str]]:
    """Return why training refuses the tasks, or an empty text, and the ids of the tasks because of which it does."""
    try:
        validate_train_tasks(source, demands.seed)
    except ConfigError as e:
        return str(e), set()
    train = [result for result in results if result.task.split == "train"]
    rewards = [(result.task, result.noop.reward if result.noop else None) for result in train]
    error = next((problem.text for result in train for problem in result.problems), "")
    if refusal := find_noop_refusal(source.name, rewards, error, demands.allow_noop_solvable):
        unscored = all(reward is None for _, reward in rewards)
        return refusal, {task.id for task, reward in rewards if unscored or (reward or 0.0) >= FULL_REWARD}
    try:
        if demands.format:
            validate_source_tools(demands.format, [source])
    except ConfigError as e:
        return str(e), set()
    played, gold = {result.task.id: result for result in train}, dict[str, tuple[Task, Trajectory]]()
    failing = dict[str, str]()
    for task in itertools.islice(source.stream("train", demands.seed), demands.num_gold_episodes):
        if not task.gold_turns:
            failing[task.id] = f"task {task.id} {NO_GOLD}"
        if not task.gold_turns or task.id in gold:
            continue
        leaf = find_source(source, task.domain)
        known = played.get(task.id)
        episode = known.gold_episode if known and known.task == task else None
        episode = episode or await play_once(leaf, task, GoldAgent(), check_limits(leaf, max_step_seconds))
        gold[task.id] = (task, episode)
        if wrong := find_wrong_gold_call(episode):
            failing[task.id] = f"task {task.id}: {wrong}; correct it, or set sft.steps=0"
        elif episode.score is None or episode.reward < 1.0:
            earned = f"earns {episode.reward:g}" if episode.score else "has no score"
            cause = episode.error or "correct it, or set sft.steps=0"  # an error fails episodes of RL too
            failing[task.id] = f"the gold episode of task {task.id} {earned}; {cause}"
    if not failing and demands.format:
        failing = await _find_unusable(source, gold, demands.limits, demands.format)
        for result in train:  # a success check that never passes, so that the user continues after gold
            wrong_actions = (problem.text for problem in result.problems if problem.kind == "wrong_user_action")
            if result.task.id in failing and (text := next(wrong_actions, "")):
                failing[result.task.id] = text
    if not failing and demands.format and demands.max_response_tokens:
        try:
            await validate_room(source, demands.format, demands.limits, demands.max_response_tokens, demands.seed)
        except TaskError as e:
            return str(e), set()
    return next(iter(failing.values()), ""), set(failing)


async def _find_unusable(
    source: TaskSource, gold: Mapping[str, tuple[Task, Trajectory]], limits: EpisodeLimits, format: ChatFormat
) -> dict[str, str]:
    """Return why training refuses the tokens of gold episodes, by the ids of the tasks because of which it does.

    The episodes are repeated from what was played, because servers may be slow.
    """
    repeated = RepeatedEpisodes(source, {name: episode for name, (_, episode) in gold.items()})

    async def refusal(tasks: Sequence[Task]) -> str:
        try:
            await play_demonstrations(repeated, tasks, format, limits, seed=0)
        except (ConfigError, TaskError) as e:
            return str(e)
        return ""

    tasks = [task for task, _ in gold.values()]
    if not (reason := await refusal(tasks)):  # it names the limit that is enough for all tasks
        return {}
    return {task.id: reason for task in tasks if await refusal([task])}


def _inexpressible_calls(
    source: TaskSource, results: Sequence[_PlayedTask], format: ChatFormat | None
) -> Iterator[_Problem]:
    """Yield the tasks with a gold call that the format cannot express."""
    if format is None:
        return
    for task in (result.task for result in results if result.runs):
        try:
            validate_gold(format, task, find_tool_specs(source, task.domain))
        except ConfigError as e:
            yield _Problem("inexpressible_call", f"task {task.id}: {e}", task)


def _shared_rows(source: TaskSource) -> Iterator[str]:
    """Yield a problem if the episodes so far have changed rows of the world, which all episodes share."""
    if changed := source.find_changed_rows():
        yield (
            f"{source.name}: its tools changed {len(changed)} rows in place, such as {changed[0]}, so they stay "
            "changed in all later episodes; write a new row, as in `self._state.TABLE[key] = row.replace(…)`, and use "
            "tuples in place of lists in rows"
        )


def _paid(source: str, result: StrategyResult) -> str:
    return (
        f"{result.strategy} earns {result.over_floor:.3f} over doing nothing in {source}, more "
        f"than {result.limit:g}, such as on {result.examples[0]}"
    )


async def _play_tasks(
    source: TaskSource,
    tasks: TasksBySplit,
    track: ProgressTracker,
    max_step_seconds: float | None,
    shared: dict[str, SharedState],
) -> Mapping[Split, Sequence[_PlayedTask]]:
    """Return the results in the order of the tasks. Tasks whose episodes start servers are played side by side.

    `shared` gets the variables of each source's code after its first task, which may load what all episodes read.
    """
    places = {leaf.name: asyncio.Semaphore(_concurrency(leaf)) for leaf in list_sources(source)}

    async def play(split: Split, task: Task) -> _PlayedTask:
        async with places.setdefault(task.domain, asyncio.Semaphore(1)):
            result = await _play_task(source, split, task, max_step_seconds)
            if task.domain not in shared and result.runs:
                shared[task.domain] = SharedState(find_source(source, task.domain).episode_code())
            return result

    works = {split: [asyncio.ensure_future(play(split, task)) for task in tasks[split]] for split in SPLITS}
    all_works = [work for split in SPLITS for work in works[split]]
    try:
        for finished in track(asyncio.as_completed(all_works), f"playing gold and noop on {len(all_works):,} tasks"):
            await finished
        return {split: [work.result() for work in works[split]] for split in SPLITS}
    finally:  # some still run here only if another one raised an error
        for work in all_works:
            work.cancel()
        await asyncio.gather(*all_works, return_exceptions=True)


def _concurrency(source: TaskSource) -> int:
    return MAX_CONCURRENT_TASKS if isinstance(source, ExternalSource) and source.starts_servers() else 1


async def _play_task(source: TaskSource, split: Split, task: Task, max_step_seconds: float | None) -> _PlayedTask:
    problems: list[_Problem] = []
    try:
        leaf = find_source(source, task.domain)
        problems += (_Problem("gold_fails", text, task) for text in find_unknown_calls(leaf, task))
        problems += (_Problem("malformed", text, task) for text in find_task_problems(leaf, split, task))
        if task.family not in source.families:
            problems.append(_Problem("malformed", f"task {task.id}: the domain has no family {task.family!r}", task))
        # noop first: it changes nothing, so that a server can serve the gold episode too
        limits = check_limits(leaf, max_step_seconds)
        noop = await play_once(leaf, task, NoopAgent(), limits)
        gold = await play_once(leaf, task, GoldAgent(), limits)
        again = None if isinstance(leaf, ExternalSource) else await play_once(leaf, task, GoldAgent(), limits)
    except HangingError:
        raise
    except TaskError as e:
        has_cause = any(problem.kind == "gold_fails" for problem in problems)
        return _PlayedTask(task, problems if has_cause else [*problems, _Problem("task_fails", str(e), task)])
    has_unknown_call = any(problem.kind == "gold_fails" for problem in problems)
    failed = dict.fromkeys(_failure(task, episode) for episode in (gold, noop) if episode.score is None)
    problems += (_Problem("lost_episode", text, task) for text in failed)
    lacks_gold = lacks_reference(leaf, task)
    if gold.score and noop.score:
        example = leaf.find_example(task) if isinstance(leaf, ExampleSource) else None
        reward_problems = list(_reward_problems(task, None if lacks_gold else gold.score, noop.score, example))
        if reasons := "".join(f"; {reason}" for reason in explain_failed_parts(leaf, task, gold)):
            reward_problems = [
                replace(problem, text=problem.text + reasons) if problem.kind == "gold_not_rewarded" else problem
                for problem in reward_problems
            ]
        if gold.score.parts.get("state_match") == 0.0 and isinstance(leaf, StatefulSource):
            difference = await _find_first_difference(leaf, task)
            reward_problems = [
                replace(problem, text=problem.text + difference) if problem.kind == "gold_not_rewarded" else problem
                for problem in reward_problems
            ]
        problems += [each for each in reward_problems if not (has_unknown_call and each.kind == "gold_not_rewarded")]
    if (wrong := find_wrong_gold_call(gold)) and not has_unknown_call:
        problems.append(_Problem("gold_fails", f"task {task.id}: {wrong}; SFT would imitate it", task))
    if gold.score:
        leaves = gold.num_turns <= len(task.gold_turns)
        wrong_actions = leaf.find_user_action_problems(task, leaves)
        problems += (_Problem("wrong_user_action", f"task {task.id}: {text}", task) for text in wrong_actions)
    if gold.score and (unshown := find_unshown_argument(leaf, task, gold.messages)):
        problems.append(_Problem("unshown_value", f"task {task.id}: {describe_unshown(unshown, leaf, task)}", task))
    if gold.score and again and (changed := _find_other_result(gold, again)):
        problems.append(_Problem("shared_rows", f"task {task.id}: {changed}", task))
    places = frozenset((*exception_places(gold), *exception_places(noop)))
    refused = gold.event_counts.get("refused", 0)
    passes = leaf.find_passing_check(task)
    return _PlayedTask(task, problems, True, refused, places, gold, noop.score, passes, lacks_gold, bool(wrong))


def _find_other_result(first: Trajectory, second: Trajectory) -> str | None:
    """Return which gold call gave another result in the second episode, as state outside of the episode makes it."""
    calls = {call.id: call.name for message in first.messages for call in message.tool_calls if call.id}
    results = ([m for m in episode.messages if m.role == "tool"] for episode in (first, second))
    for old, new in zip(*results, strict=False):
        if old.content != new.content:
            name = calls.get(old.tool_call_id, "") or "a tool"
            return (
                f"the same gold call of {name} gave another result when played again: {old.content!r:.60}, then "
                f"{new.content!r:.60}; keep state in the episode's object or database, and not in a module"
            )
    return None


async def _find_first_difference(source: StatefulSource, task: Task) -> str:
    """Return the first value of the database that the gold episode leaves different from gold, as a part of a text."""
    state = source.initial_state(task)
    await rollout(task, source.environment_from_state(state, task), GoldAgent(), _SCORE_LIMITS)
    for edit in diff_states(source.initial_state(task), state.changes(), source.gold_changes(task)):
        return f"; {'/'.join(edit.path)}: {edit.before!r:.60}, gold {edit.after!r:.60}"
    return ""


async def _probe(
    source: TaskSource,
    played: Mapping[Split, Sequence[_PlayedTask]],
    track: ProgressTracker,
    max_step_seconds: float | None,
) -> ProbeResult:
    """Probe one source with those of its tasks that can be played. Report no lost episode again."""
    of_source = [result for split in SPLITS for result in played[split] if result.task.domain == source.name]
    known = {place for result in of_source for place in result.places if result.gold is None or result.noop is None}
    return await probe(source, [result.task for result in of_source if result.runs], known, track, max_step_seconds)


def _report_split(split: Split, played: Sequence[_PlayedTask]) -> SplitReport:
    gold = [
        result.gold.reward if result.gold and result.noop and not result.gold_calls_fail else 0.0
        for result in played
        if not result.lacks_gold
    ]
    noop = [result.noop.reward if result.gold and result.noop else 0.0 for result in played]
    return SplitReport(
        split=split,
        tasks=len(played),
        families=dict(Counter(result.task.family for result in played)),
        noop_reward=sum(noop) / max(1, len(noop)),
        gold_reward=sum(gold) / max(1, len(gold)),
        gold_turns=sum(len(result.task.gold_turns) for result in played) / max(1, len(played)),
    )


def _group_problems(
    problems: Sequence[_Problem], family_sizes: Mapping[str, int], blocking: Collection[str]
) -> Iterator[ProblemGroup]:
    """Yield the groups of sorted problems. Those of `blocking` tasks are apart, and first."""
    groups: dict[tuple[ProblemKind, str, bool], list[_Problem]] = {}
    for problem in problems:
        family, blocks = (problem.task.family, problem.task.id in blocking) if problem.task else ("", False)
        groups.setdefault((problem.kind, family, blocks), []).append(problem)
    found = [
        ProblemGroup(
            kind=kind,
            family=family,
            num_problems=len(same),
            num_tasks=len({problem.task.id for problem in same if problem.task}),
            num_family_tasks=family_sizes.get(family, 0),
            example_task=same[0].task.id if same[0].task else "",
            example=same[0].text,
            blocks_training=blocks,
        )
        for (kind, family, blocks), members in groups.items()
        for same in ([members] if family or kind == "refused_row" else [[member] for member in members])
    ]
    kinds = list(PROBLEM_TITLES)
    return iter(sorted(found, key=lambda group: (not group.blocks_training, kinds.index(group.kind), -group.num_tasks)))


async def score_agent(source: TaskSource, task: Task, agent: Agent) -> Score:
    """Return the reward of an agent on a task. Raise TaskError if the episode or a gold call fails."""
    episode = await play_episode(source, task, agent, _SCORE_LIMITS, seed=0)
    if episode.score is None:
        raise TaskError(_failure(task, episode))
    if isinstance(agent, GoldAgent) and (wrong := find_wrong_gold_call(episode)):
        raise TaskError(f"task {task.id}: {wrong}")
    return episode.score


def describe_loss(score: Score) -> str:
    """Return what gold turns earn in place of 1.0, and which parts of the reward failed and passed."""
    parts = {name: part for name, part in score.parts.items() if name not in UNREWARDED_PARTS}
    failed = [name for name, part in parts.items() if part < 1.0]
    passed = [name for name in parts if name not in failed]
    lists = [f"; {what}: {', '.join(names)}" for what, names in (("failed", failed), ("passed", passed)) if names]
    return f"earn {score.reward:g} instead of 1.0{''.join(lists)}"


def _failure(task: Task, episode: Trajectory) -> str:
    return f"task {task.id}: its episode failed ({episode.fault}): {episode.error}"


def _reward_problems(task: Task, gold: Score | None, noop: Score, example: ToolExample | None) -> Iterator[_Problem]:
    """Yield what is wrong with the rewards of a task. `gold` is None if the task needs no gold turns.

    `example` is that of the task, if its source has examples.
    """
    if gold is not None and gold.reward < 1.0:
        compared = _describe_compared(example) if example else ""
        yield _Problem("gold_not_rewarded", f"task {task.id}: its gold turns {describe_loss(gold)}{compared}", task)
    elif gold is not None and gold.parts.get("policy_compliance", 1.0) < 1.0:
        yield _Problem("gold_not_rewarded", f"task {task.id}: its gold turns break a rule of the policy", task)
    if noop.reward > 0.0:
        hint = "" if task.outputs else "; if gold changes nothing, name what the agent must tell in outputs"
        if example:
            hint = "; the reward must be 0 for an empty reply"
            if not example.answer:
                renamed = answer_rename_hint(example.info)
                hint = f"; the example has no answer, which equals such a reply: {renamed or 'give it one'}"
        yield _Problem("noop_rewarded", f"task {task.id}: doing nothing earns {noop.reward:g}{hint}", task)


def _describe_compared(example: ToolExample) -> str:
    """Return what a reward function may compare, with the types, since `'42' == 42` is False."""
    values: dict[str, object] = {"the last reply": example.answer, "example.answer": example.answer}
    for column in sorted(example.info.keys() & {"answer", "ground_truth", "solution"}):
        values[f"example.info[{column!r}]"] = example.info[column]
    shown = ", ".join(f"{name} is {value!r:.60} ({type(value).__name__})" for name, value in values.items())
    is_mixed = len({type(value) for value in values.values()}) > 1
    remedy = (
        "the reward must compare values of one type" if is_mixed else "a Message never equals a text: compare .content"
    )
    return f"; {shown}; {remedy}"


def find_unknown_calls(source: TaskSource, task: Task) -> Iterator[str]:
    """Yield the tools that gold calls and the agent does not have."""
    tools = {spec.name for spec in source.tool_specs}
    for name in sorted({call.name for call in task.gold_calls} - tools):
        _, _, known = did_you_mean(name, tools).partition("; ")
        yield f"task {task.id}: a gold turn calls {name}, which is not one of the agent's tools; {known}"


def find_task_problems(source: TaskSource, split: Split, task: Task) -> Iterator[str]:
    """Yield the problems of a single task's fields."""
    if (task.domain, task.split) != (source.name, split):
        yield f"task {task.id}: it is stored in {source.name}/{split}, but its fields say {task.domain}/{task.split}"
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


def _repeated_ids(tasks: TasksBySplit) -> Iterator[_Problem]:
    """Yield repeated ids, within a split and across splits."""
    for first, second in _pairs((t for split in SPLITS for t in tasks[split]), lambda task: task.id):
        yield _Problem("duplicate", f"task {second.id}: the id is also that of a task in {first.split}", second)


def _near_duplicates(tasks: TasksBySplit) -> Sequence[tuple[Task, Task]]:
    """Return (first, later) for each task and each earlier one whose user's words or gold calls are nearly the same."""
    pairs = list[tuple[Task, Task]]()
    similar, known = NearDuplicateIndex(), list[Task]()
    for task in (t for split in SPLITS for t in tasks[split] if t.scenario.opening):
        pairs += ((known[number], task) for number in similar.add(task))
        known.append(task)
    return pairs


def _pairs(tasks: Iterable[Task], key: Callable[[Task], Hashable]) -> Iterator[tuple[Task, Task]]:
    """Yield (first, later) for each task whose key an earlier task has; `first` is the first task with the key."""
    seen: dict[Hashable, Task] = {}
    for task in tasks:
        if (known := key(task)) in seen:
            yield seen[known], task
        seen.setdefault(known, task)


def _leaks(source: TaskSource, tasks: TasksBySplit) -> Iterator[_Problem]:
    """Yield what a later split shares with an earlier one: users and other rows, or whole scenarios."""
    owners = dict[Hashable, tuple[Split, Task]]()
    for split in SPLITS:
        for task in tasks[split]:
            script = (task.scenario.opening, task.scenario.facts, repr(task.scenario.goals))
            scenario = script if task.scenario.opening else (task.scenario.instructions,)
            for thing in (scenario, *source.split_row_keys(task)):
                owner, first = owners.setdefault(thing, (split, task))
                if owner != split:
                    what = "its scenario" if thing is scenario else " ".join(map(str, thing))
                    text = f"task {task.id}: it shares {what} with {first.id}; give both the same split"
                    if thing is not scenario:
                        text += ", or name the table in shared_tables of the domain if all tasks may use its rows"
                    yield _Problem("shared_by_splits", text, task)
