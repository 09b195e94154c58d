"""Evaluate an agent on given tasks: play episodes and measure its success rate. Includes the noop and gold baselines.

An episode that fails by a fault that is not the agent's has no score. It is counted by component and left out of the
rates. With the same seed, each task and trial has the same user for every agent, so differences are paired (see
`statistics`).
"""

import asyncio
import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from understudy.core.errors import ConfigError, TaskError, ToolErrorKind
from understudy.core.event_loop import gather_or_cancel
from understudy.core.foreign_names import explained_arguments
from understudy.core.messages import ERROR_PREFIX, Message, ToolSpec, format_call
from understudy.core.tasks import SPLITS, Split, Task
from understudy.core.trajectory import StopReason, Trajectory
from understudy.envs.task_generation import max_repeats
from understudy.envs.task_source import TaskSource, describe_no_tasks, find_source
from understudy.envs.users import UserSimulatorFactory
from understudy.evaluation.result import FULL_REWARD, EvalResult, common_split, summarize_episodes
from understudy.formats import ChatFormat
from understudy.rollouts.agent import Agent, DemonstrationAgent, GoldAgent, NoopAgent
from understudy.rollouts.rollout import (
    DEFAULT_LIMITS,
    EnvironmentFactory,
    EpisodeLimits,
    RolloutRequest,
    episode_seed,
    play_episode,
)
from understudy.runs.config import EvalConfig
from understudy.runs.storage.episode_store import EpisodeStore
from understudy.sources.tool_dataset import ExampleSource

NUM_SIZED_TASKS = 8
"""Number of the first train tasks whose episodes are measured before a run."""


WRONG_CALLS: tuple[ToolErrorKind, ...] = ("unknown_tool", "invalid_arguments", "malformed", "tool_exception")
"""Errors of a gold call that no environment intends. A refusal may be intended: gold of tau-bench has some."""


class GoldCutOffError(TaskError):
    """A limit of the episodes cuts off gold episodes."""


@explained_arguments()
async def evaluate(
    source: TaskSource,
    agent: Agent,
    tasks: Sequence[Task],
    limits: EpisodeLimits = DEFAULT_LIMITS,
    trials: int = 1,
    seed: int = 0,
    concurrency: int = 64,
) -> EvalResult:
    """Play `trials` episodes of each task, at most `concurrency` at a time, and return their result.

    Raise ConfigError if an argument is a name in place of what has it.
    """
    for argument, given, example in (
        ("source", source, "load({!r})"),
        ("agent", agent, "an object, such as GoldAgent()"),
        ("tasks", tasks, "source.tasks({!r})"),
    ):
        value: object = given
        if isinstance(value, str | type):
            raise ConfigError(f"evaluate: {argument} is {value!r}; give {example.format(value)}")
    request = RolloutRequest(source, agent, limits, seed)
    episodes = await play_episodes(request, tasks, trials, concurrency)
    return summarize_episodes(source, tasks, episodes, trials, seed)


async def play_episodes(
    request: RolloutRequest,
    tasks: Sequence[Task],
    trials: int = 1,
    concurrency: int = 64,
    store: EpisodeStore[Any] | None = None,
) -> list[Trajectory]:
    """Play `trials` episodes of each task that are not in `store`, at most `concurrency` at a time. Return all
    episodes, grouped by task.

    If an episode raises ConfigError, for example at the cost limit, no further episode is started; the error is raised
    when the running episodes have ended. Any other error, such as a bug in the agent, cancels them. The callbacks of
    the request also get the episodes of this process that `store` has.
    """
    limits, process_group = request.limits, request.process_group
    gate, num_ended = asyncio.Semaphore(concurrency), 0
    refusals: list[ConfigError] = []

    async def play(task: Task, trial: int) -> Trajectory:
        nonlocal num_ended
        seed = episode_seed(request.seed, task, trial)
        episode = store.find(task.id, range(seed, seed + limits.max_retries + 1)) if store else None
        if episode is None:
            async with gate:
                if refusals:
                    raise refusals[0]
                episode = await play_episode(request.environments, task, request.agent, limits, seed)
            if isinstance(request.agent, GoldAgent) and episode.score and find_wrong_gold_call(episode):
                episode.score = episode.score.replace(reward=0.0)
            if store:
                episode = store.add(episode)
        num_ended += 1
        request.on_episode(episode)
        request.on_progress(num_ended, len(share))
        return episode

    async def play_unless_refused(task: Task, trial: int) -> Trajectory | None:
        try:
            return await play(task, trial)
        except ConfigError as e:
            refusals.append(e)
            return None

    share = process_group.shard([(task, trial) for task in tasks for trial in range(trials)])
    played = await gather_or_cancel(play_unless_refused(task, trial) for task, trial in share)
    if refusals:
        raise refusals[0]
    episodes = process_group.all_gather_shards([episode for episode in played if episode is not None])
    if store:
        store.add_missing(episodes)  # those of the other processes
    return episodes


async def evaluate_noop(source: TaskSource, tasks: Sequence[Task]) -> EvalResult:
    """Return the result of the noop agent. It earns 0 on sound tasks."""
    return (await evaluate(source, NoopAgent(), tasks)).replace(kind="noop")


async def evaluate_gold(source: TaskSource, tasks: Sequence[Task]) -> EvalResult:
    """Return the result of the gold agent on the tasks that have a gold solution. It earns 1 on sound tasks."""
    known = [task for task in tasks if not lacks_reference(find_source(source, task.domain), task)]
    if not known:
        return summarize_episodes(source, [], [], 1, 0).replace(kind="gold", split=common_split(tasks))
    return (await evaluate(source, GoldAgent(), known)).replace(kind="gold")


def lacks_reference(source: TaskSource, task: Task) -> bool:
    """Return whether a task of `source` has no answer and no gold calls, as examples may: only RL can train on it."""
    return not task.gold_turns and (source.lacks_gold or isinstance(source, ExampleSource))


def find_wrong_gold_call(episode: Trajectory) -> str:
    """Return the first gold call that failed by one of `WRONG_CALLS`, with the error that the model reads, or "".

    Such an episode earns 0, also if the reward function accepts its answer.
    """
    if not any(kind in episode.event_counts for kind in WRONG_CALLS):
        return ""
    calls = {call.id: call for message in episode.messages for call in message.tool_calls}
    for message in episode.messages:
        if message.role == "tool" and message.content.startswith(ERROR_PREFIX) and message.tool_call_id in calls:
            call = format_call(calls[message.tool_call_id])
            return f"the gold call {call} fails: {message.content.removeprefix(ERROR_PREFIX)}"
    return "a gold call fails"


NO_GOLD = (
    "has no gold turns, so it cannot be a demonstration; add them (an example has some if it has an answer or gold "
    "calls), or train without demonstrations: sft.steps=0"
)
"""What a task lacks that cannot be a demonstration. It follows the id of the task."""


async def play_demonstrations(
    source: EnvironmentFactory, tasks: Iterable[Task], format: ChatFormat, limits: EpisodeLimits, seed: int
) -> list[Trajectory]:
    """Return a gold episode of each task, in a model's tokens. Raise TaskError if a task has no gold turns, or if its
    gold episode does not earn 1: GoldCutOffError if a limit is too low.
    """
    chosen, agent = list(tasks), DemonstrationAgent(format)
    if missing := next((task for task in chosen if not task.gold_turns), None):
        raise TaskError(f"task {missing.id} {NO_GOLD}")

    async def play_all(limits: EpisodeLimits) -> list[Trajectory]:
        return [await play_episode(source, task, agent, limits, episode_seed(seed, task, 0)) for task in chosen]

    episodes = await play_all(limits)
    if wrong := next(((episode, text) for episode in episodes if (text := find_wrong_gold_call(episode))), None):
        raise TaskError(
            f"task {wrong[0].task_id}: {wrong[1]}; correct it, or train without demonstrations: sft.steps=0"
        )
    failures = [episode for episode in episodes if episode.score is None or episode.reward < 1.0]
    limits_reached = (StopReason.MAX_TURNS, StopReason.MAX_TOKENS)
    if failures:
        failed = min(failures, key=lambda episode: episode.stop_reason not in limits_reached)
        earned = f"earns {failed.reward:g}" if failed.score else "has no score"
        if failed.stop_reason in limits_reached:
            cause = _limit_hint(failed.stop_reason, await play_all(NO_LIMITS), limits)
            raise GoldCutOffError(f"the gold episode of task {failed.task_id} {earned}; {cause}")
        cause = failed.error or "see: understudy check"
        raise TaskError(f"the gold episode of task {failed.task_id} {earned}; {cause}")
    return episodes


NO_LIMITS = EpisodeLimits(max_turns=1000, max_episode_tokens=1 << 24)


def _limit_hint(reached: StopReason, unlimited: Sequence[Trajectory], limits: EpisodeLimits) -> str:
    """Return which limit cuts off gold episodes, and a value that fits the given episodes, played without limits."""
    if reached is StopReason.MAX_TURNS:
        longest = max(episode.num_turns for episode in unlimited)
        return (
            f"limits.max_turns = {limits.max_turns}, but gold episodes have up to {longest} replies; "
            f"set limits.max_turns={longest + 4}"
        )
    longest = max(len(episode.tokens) for episode in unlimited)
    return _token_limit_hint(limits, f"gold episodes have up to {longest} tokens of this model", longest)


def _token_limit_hint(limits: EpisodeLimits, found: str, needed: int) -> str:
    enough = -(-needed * 5 // 4 // 500) * 500  # a margin of a quarter: other tasks may be longer
    return (
        f"limits.max_episode_tokens = {limits.max_episode_tokens}, but {found}; set limits.max_episode_tokens={enough}"
    )


async def validate_room(
    source: TaskSource, format: ChatFormat, limits: EpisodeLimits, max_response_tokens: int, seed: int
) -> None:
    """Play the start of a few train tasks, and their gold episodes.

    Raise GoldCutOffError if `max_episode_tokens` cuts off a gold episode, and TaskError if a first reply has no room.
    A task without gold turns needs room for a reply of `max_response_tokens`.
    """
    tasks = list(itertools.islice(source.stream("train", seed), NUM_SIZED_TASKS))
    with_gold, gold = [task for task in tasks if task.gold_turns], list[Trajectory]()
    try:
        gold = await play_demonstrations(source, with_gold, format, limits.replace(max_turns=NO_LIMITS.max_turns), seed)
    except GoldCutOffError:
        raise
    except (ConfigError, TaskError):
        pass  # RL needs no gold that earns 1 or that the format can express
    known = {episode.task_id: episode for episode in gold}
    for task in tasks:
        episode = known.get(task.id) or await play_prompt(source, task, format, limits, seed)
        prompt = next((start for start, _ in episode.reply_spans()), len(episode.tokens))
        reply = 1 if task.gold_turns else max_response_tokens
        if prompt + reply > limits.max_episode_tokens:
            found = f"the first prompt of task {task.id} has {prompt} tokens of this model"
            needed = prompt + max_response_tokens
            raise TaskError(_token_limit_hint(limits, f"{found}, and its reply up to {max_response_tokens}", needed))


async def play_prompt(
    source: EnvironmentFactory, task: Task, format: ChatFormat, limits: EpisodeLimits, seed: int
) -> Trajectory:
    """Return an episode that ends after its first prompt, in a model's tokens."""
    return await play_episode(source, task, _PromptAgent(format), limits, seed)


class _PromptAgent:
    """An agent that appends the tokens of the first prompt and ends the episode there."""

    def __init__(self, format: ChatFormat) -> None:
        self._format = format

    async def act(
        self, task: Task, episode: Trajectory, new_messages: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> None:
        """Append the new messages with their tokens."""
        episode.observe(new_messages, self._format.encode(new_messages, tools, episode.tokens))


def replace_users(source: TaskSource, users: UserSimulatorFactory) -> TaskSource:
    """Return the source with these user simulators.

    If they are scripted, return the source unchanged, because a source's default users are scripted.
    """
    return source if users.is_scripted else source.with_users(users)


async def validate_noop_reward(source: TaskSource, seed: int = 0, allow_noop_solvable: bool = False) -> float:
    """Return the mean reward of doing nothing on the train tasks of the slice.

    Raise ConfigError if the slice has no train tasks. Raise TaskError if no episode has a score, or if doing nothing
    solves some tasks, unless `allow_noop_solvable` is set.
    """
    validate_train_tasks(source, seed)
    tasks = source.tasks("train")
    episodes = await play_episodes(RolloutRequest(source, NoopAgent()), tasks)
    scores = [(task, episode.reward if episode.score else None) for task, episode in zip(tasks, episodes, strict=True)]
    if refusal := find_noop_refusal(source.name, scores, episodes[0].error if episodes else "", allow_noop_solvable):
        raise TaskError(refusal)
    rewards = [reward for _, reward in scores if reward is not None]
    return sum(rewards) / len(rewards) if rewards else 0.0


def validate_train_tasks(source: TaskSource, seed: int = 0) -> None:
    """Raise ConfigError if the slice has no train tasks."""
    if next(source.stream("train", seed), None) is not None:
        return
    counts = {split: len(source.tasks(split)) for split in SPLITS}
    others = ", ".join(f"{count} {split}" for split, count in counts.items() if count)
    remedies = [f"give some of its {others} tasks the split train"] if others else []
    raise ConfigError(describe_no_tasks(source, "train", remedies))


def find_noop_refusal(
    name: str, rewards: Sequence[tuple[Task, float | None]], first_error: str, allow_noop_solvable: bool = False
) -> str | None:
    """Return why training refuses tasks, by the reward of doing nothing on each (None without a score), or None.

    `rewards` has the train tasks of the source `name`.
    """
    if rewards and all(reward is None for _, reward in rewards):
        error = first_error.removeprefix(f"task {rewards[0][0].id}: ")
        return (
            f"{name}: no episode of doing nothing has a score; in that of task {rewards[0][0].id}, {error}; "
            "correct it, and see all problems with: understudy check"
        )
    free = [task for task, reward in rewards if reward is not None and reward >= FULL_REWARD]
    if not free or allow_noop_solvable:
        return None
    families = sorted({task.family for task, _ in rewards} - {task.family for task in free})
    remedies = [
        "correct the reward or the tasks (see: understudy check)",
        *([f"leave them out with slice.families={','.join(families)}"] if families else []),
        *(["allow them with allow_noop_solvable=true"] if len(free) < len(rewards) else []),
    ]
    return (
        f"doing nothing solves {len(free)} of the {len(rewards)} train tasks of {name} "
        f"({', '.join(task.id for task in free[:3])}); {', or '.join(remedies)}"
    )


def select_tasks(source: TaskSource, split: Split, count: int, seed: int = 0) -> list[Task]:
    """Return up to `count` tasks of a split: first all frozen ones, then generated ones that differ from all others.

    Frozen validation and test tasks are listed in turn over the families of their domain.

    There are fewer if the generator only repeats itself, as `max_repeats` says.
    """
    frozen = source.tasks(split) if split == "train" else _in_turn_over_families(source.tasks(split))
    generated = source.stream(split, seed) if len(frozen) < count else ()
    new = _new_tasks(generated, frozen)
    return list(itertools.islice(itertools.chain(frozen, new), count))


def _in_turn_over_families(tasks: Sequence[Task]) -> list[Task]:
    """Return the tasks in turn over the families of each domain. The order of the domains stays the same."""
    families = defaultdict[str, defaultdict[str, list[Task]]](lambda: defaultdict(list))
    for task in tasks:
        families[task.domain][task.family].append(task)
    rounds = {domain: itertools.zip_longest(*of.values()) for domain, of in families.items()}
    ordered = {domain: (task for row in rows for task in row if task) for domain, rows in rounds.items()}
    return [next(ordered[task.domain]) for task in tasks]


def eval_tasks(source: TaskSource, config: EvalConfig) -> list[Task]:
    """Return the tasks of an evaluation. Raise ConfigError if the split has none."""
    tasks = select_tasks(source, config.split, config.tasks, config.seed)
    if not tasks:
        others = [split for split in SPLITS if select_tasks(source, split, 1)]
        remedies = [f"set eval.split to {' or '.join(others)}"] if others else []
        raise ConfigError(describe_no_tasks(source, config.split, remedies))
    return tasks


def _new_tasks(tasks: Iterable[Task], known: Sequence[Task]) -> Iterator[Task]:
    """Yield the tasks whose id and content differ from those of `known` and of earlier tasks, until only repeated tasks
    follow.
    """
    seen, distinct, repeated = {name for task in known for name in (task.id, _content(task))}, len(known), 0
    for task in tasks:
        names = {task.id, _content(task)}
        if not seen & names:
            repeated, distinct = 0, distinct + 1
            yield task
        elif (repeated := repeated + 1) > max_repeats(distinct):
            return
        seen |= names


def _content(task: Task) -> str:
    return task.model_dump_json(exclude={"id"})
