"""Evaluation: how often an agent succeeds on given tasks. The floor and the oracle are evaluations too.

An episode that the machinery failed has no result: it is counted by whose fault it was, and left out. The same seed
gives each task and trial the same user, whoever the agent is; that is what makes differences paired (see `results`).
"""

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

from understudy import formats
from understudy.agent import Agent, ChatAgent, DemonstrationAgent, EngineAgent, GoldAgent, SilentAgent
from understudy.chat import ChatConfig, ChatModel, Usage
from understudy.config import TrainConfig
from understudy.crew import ALONE, Crew
from understudy.domains.base import TaskSource
from understudy.engines.opening import AnyEngine, open_engine, open_exported
from understudy.errors import ConfigError, TaskError, nearest
from understudy.models import find_model
from understudy.records import Record
from understudy.rollout import Limits, episode_seed, play
from understudy.run import MODEL
from understudy.statistics import Rate, pass_at_k, pass_hat_k, rate
from understudy.tasks import Split, Task
from understudy.trajectory import Stop, Trajectory
from understudy.users import Cast

Progress = Callable[[int, int], None]
Kind = Literal["agent", "floor", "oracle"]


class TaskResult(Record):
    """One task's trials, in order."""

    task: str
    domain: str = ""
    family: str
    difficulty: str
    rewards: tuple[float | None, ...]
    """None where the machinery failed."""

    @property
    def successes(self) -> tuple[bool | None, ...]:
        """Whether each trial earned the whole reward; None where it has no result."""
        return tuple(None if reward is None else reward >= 1.0 - 1e-9 for reward in self.rewards)


class Evaluation(Record):
    """What an agent's episodes came to."""

    domain: str
    kind: Kind = "agent"
    """Who played: a real agent, nobody (`floor`), or the gold turns (`oracle`)."""
    seed: int
    trials: int
    results: tuple[TaskResult, ...]
    parts: dict[str, float] = {}
    """Mean of each part of the score over the episodes."""
    stops: dict[str, int] = {}
    counts: dict[str, int] = {}
    """Replies by parse status, tool errors by kind."""
    faults: dict[str, int] = {}
    """Episodes without a result, by whose fault it was."""
    turns: float = 0.0
    """Replies of the agent, mean over the episodes."""
    tokens: float = 0.0
    """Sampled tokens, mean over the episodes."""
    usage: dict[str, Usage] = {}
    """What endpoints were asked: for the users, for the agent."""

    @property
    def success(self) -> Rate:
        """Share of successes: the mean over tasks of the share of each task's trials."""
        return self.passing("hat", 1)

    def passing(self, kind: Literal["at", "hat"], k: int) -> Rate:
        """pass@k or pass^k, over the tasks that have at least k results."""
        estimate = pass_at_k if kind == "at" else pass_hat_k
        each = [[s for s in result.successes if s is not None] for result in self.results]
        return rate([estimate(len(s), sum(s), k) for s in each if len(s) >= k])

    def of_domain(self, domain: str) -> "Evaluation":
        """What it came to on the tasks of one domain of a mixture; totals over all episodes stay."""
        return self.replace(results=tuple(result for result in self.results if result.domain == domain))

    def among(self, kept: Callable[[TaskResult], bool]) -> Rate:
        """Success among some of the tasks."""
        return self.replace(results=tuple(filter(kept, self.results))).success


async def evaluate(
    domain: TaskSource,
    agent: Agent,
    tasks: Sequence[Task],
    limits: Limits | None = None,
    trials: int = 1,
    seed: int = 0,
    concurrency: int = 64,
    on_progress: Progress | None = None,
    kind: Kind = "agent",
    crew: Crew = ALONE,
) -> Evaluation:
    """Play `trials` episodes of each task, at most `concurrency` at a time. Each process of a crew plays its share.

    `on_progress` is told how many episodes are done, and of how many.
    """
    gate, done = asyncio.Semaphore(concurrency), itertools.count(1)

    async def episode(task: Task, trial: int) -> Trajectory:
        async with gate:
            played = await play(domain, task, agent, limits or Limits(), episode_seed(seed, task, trial))
        if on_progress:
            on_progress(next(done), len(mine))
        return played

    mine = crew.share([(task, trial) for task in tasks for trial in range(trials)])
    played = crew.joined(await asyncio.gather(*(episode(task, trial) for task, trial in mine)))
    groups = [played[i : i + trials] for i in range(0, len(played), trials)]
    return _summary(groups, domain.name, seed, trials).replace(kind=kind)


async def floor(domain: TaskSource, tasks: Sequence[Task]) -> Evaluation:
    """What saying nothing earns: 0, or the tasks are at fault."""
    return await evaluate(domain, SilentAgent(), tasks, kind="floor")


async def oracle(domain: TaskSource, tasks: Sequence[Task]) -> Evaluation:
    """What playing the gold turns earns: 1, or the tasks are at fault."""
    return await evaluate(domain, GoldAgent(), tasks, kind="oracle")


async def demonstrations(
    domain: TaskSource, tasks: Iterable[Task], format: formats.ChatFormat, limits: Limits, seed: int
) -> list[Trajectory]:
    """Gold episodes in a model's own tokens. One that does not earn 1 is a `TaskError`."""
    agent = DemonstrationAgent(format)
    episodes = [await play(domain, task, agent, limits, episode_seed(seed, task, 0)) for task in tasks]
    failed = next((episode for episode in episodes if episode.score is None or episode.reward < 1.0), None)
    if failed:
        limited = failed.stop in (Stop.MAX_TURNS, Stop.MAX_TOKENS)
        cause = f"limits.{failed.stop} is too low for it" if limited else failed.error or "see: understudy check"
        earned = f"earns {failed.reward:g}" if failed.score else "has no score"
        raise TaskError(f"the gold episode of task {failed.task} {earned}; {cause}")
    return episodes


def inhabited(domain: TaskSource, users: Cast) -> TaskSource:
    """The domain with these users; scripted ones are its own already."""
    return domain if users.scripted else domain.with_users(users)


async def refuse_free(domain: TaskSource, seed: int = 0, allowed: bool = False) -> float:
    """What doing nothing earns on the train tasks of the slice, on average.

    Where it earns some of them whole that is a `TaskError`, unless `allowed`; no tasks at all are a `ConfigError`.
    """
    if next(domain.stream("train", seed), None) is None:
        raise ConfigError(f"{domain.name} has no train tasks in this slice")
    results = (await floor(domain, domain.tasks("train"))).results
    free = [result.task for result in results if any(result.successes)]
    if free and not allowed:
        some = ", ".join(free[:3])
        raise TaskError(
            f"doing nothing earns {len(free)} of the {len(results)} train tasks of {domain.name} ({some}): "
            "leave them out by slice.families, or train on them all the same by free_tasks=true"
        )
    return _mean([reward for result in results for reward in result.rewards if reward is not None])


def named_agent(name: str, config: TrainConfig, checkpoint: Path | None = None) -> Agent:
    """The agent called `gold`, `silent`, `native` or `chat` (the endpoint of the config's `chat`), or `model`.

    `native` uses the endpoint's own tool calls, `chat` what `chat.tools` says, which unless it is set is the same.
    `model` is the config's, with a checkpoint's weights where one is given.
    """
    agents: dict[str, Callable[[], Agent]] = {
        "gold": GoldAgent,
        "silent": SilentAgent,
        "native": lambda: ChatAgent(ChatModel(_native(config), "agent")),
        "chat": lambda: ChatAgent(ChatModel(config.chat, "agent")),
        "model": lambda: model_agent(config, checkpoint),
    }
    if name not in agents:
        raise ConfigError(f"unknown agent {nearest(name, agents)}")
    return agents[name]()


def _native(config: TrainConfig) -> ChatConfig:
    if config.chat.tools != "native":
        text = f"agent native uses the endpoint's own tool calls, and chat.tools is {config.chat.tools!r}"
        raise ConfigError(f"{text}; leave that out, or use --agent chat")
    return config.chat


def model_agent(config: TrainConfig, checkpoint: Path | None = None) -> EngineAgent:
    """The config's model, sampling as it does in evaluation."""
    engine, format = open_model(config, checkpoint)
    return EngineAgent(engine, format, config.sampling.replace(temperature=config.eval.temperature))


def open_model(config: TrainConfig, checkpoint: Path | None = None) -> tuple[AnyEngine, formats.ChatFormat]:
    """The engine and the format of the config's model, with a checkpoint's weights where one is given."""
    folder = find_model(config.model)
    format = formats.configured(folder, config.format)
    exported = checkpoint / MODEL if checkpoint else None
    try:
        if exported and exported.is_dir():
            return open_exported(exported, folder, config.engine, config.seed), format
        engine = open_engine(folder, config.engine, config.seed)
    except ModuleNotFoundError as e:
        raise not_installed(e, f"model {config.model!r}") from e
    if checkpoint:
        engine.load(checkpoint)
    return engine, format


def not_installed(error: ModuleNotFoundError, what: str) -> Exception:
    """What to tell a user who lacks a package; a module of our own that is missing is a bug and stays one."""
    if error.name is None or error.name.startswith("understudy"):
        return error
    return ConfigError(f"{what} needs {error.name}; run pip install 'understudy[train]'")


def held_out(domain: TaskSource, split: Split, count: int, seed: int = 0) -> list[Task]:
    """`count` different tasks of a split, or as many as there are: the frozen ones first, then generated ones."""
    generated = itertools.islice(domain.stream(split, seed), 20 * count)
    return list(itertools.islice(_different(itertools.chain(domain.tasks(split), generated)), count))


def _different(tasks: Iterable[Task]) -> Iterator[Task]:
    """The tasks without those that repeat the content or the name of one before."""
    seen: set[str] = set()
    for task in tasks:
        content = task.model_dump_json(exclude={"id"})
        if not seen & {task.id, content}:
            yield task
        seen |= {task.id, content}


def _summary(groups: Sequence[Sequence[Trajectory]], domain: str, seed: int, trials: int) -> Evaluation:
    every = [episode for group in groups for episode in group]
    whole = [episode for episode in every if episode.score]
    return Evaluation(
        domain=domain,
        seed=seed,
        trials=trials,
        results=tuple(_result(group) for group in groups),
        parts=_mean_parts(whole),
        stops=dict(Counter(str(episode.stop) for episode in whole)),
        counts=dict(sum((Counter(episode.counts) for episode in whole), Counter[str]())),
        faults=dict(Counter(str(episode.fault) for episode in every if not episode.score)),
        turns=_mean([episode.turns for episode in whole]),
        tokens=_mean([sum(episode.mask) for episode in whole]),
    )


def _result(group: Sequence[Trajectory]) -> TaskResult:
    first = group[0]
    rewards = tuple(episode.score.reward if episode.score else None for episode in group)
    return TaskResult(
        task=first.task, domain=first.domain, family=first.family, difficulty=first.difficulty, rewards=rewards
    )


def _mean_parts(episodes: Sequence[Trajectory]) -> dict[str, float]:
    parts = [episode.score.parts for episode in episodes if episode.score]
    return {name: _mean([p[name] for p in parts if name in p]) for name in dict.fromkeys(itertools.chain(*parts))}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
