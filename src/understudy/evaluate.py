"""Evaluation: how often an agent succeeds on given tasks. The floor and the oracle are evaluations too.

An episode that the machinery failed has no result: it is counted by whose fault it was, and left out. The same seed
gives each task and trial the same user, whoever the agent is; that is what makes differences paired (see `results`).
"""

import asyncio
import inspect
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

from understudy import formats
from understudy.agent import (
    Agent,
    ChatAgent,
    DemonstrationAgent,
    EngineAgent,
    GoldAgent,
    HastyAgent,
    RefusingAgent,
    SilentAgent,
)
from understudy.chat import ChatConfig, ChatModel, Payer, Usage
from understudy.config import EvalConfig, TrainConfig
from understudy.crew import ALONE, Crew
from understudy.domains.base import TaskSource
from understudy.engines.local.config import LocalConfig
from understudy.engines.opening import AnyEngine, open_engine, open_exported
from understudy.errors import ConfigError, TaskError, installation, nearest
from understudy.imported import imported
from understudy.kept import Kept
from understudy.models import find_model
from understudy.records import Record
from understudy.rollout import Limits, episode_seed, play
from understudy.run import MODEL
from understudy.statistics import Rate, pass_at_k, pass_hat_k, rate, resampled
from understudy.tasks import SPLITS, Split, Task, fingerprint
from understudy.trajectory import Stop, Trajectory
from understudy.users import Cast

Progress = Callable[[int, int], None]
Kind = Literal["agent", "floor", "oracle"]
SCRIPTED: Mapping[str, Callable[[], Agent]] = {
    "gold": GoldAgent,
    "silent": SilentAgent,
    "refusing": RefusingAgent,
    "hasty": HastyAgent,
}
"""Agents that need no model."""


class TaskResult(Record):
    """One task's trials, in order."""

    task: str
    domain: str = ""
    family: str
    difficulty: str
    fingerprint: str = ""
    """What tells whether another evaluation's task of this name is the same; empty in results from before there was."""
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
        """pass@k or pass^k, over the tasks that have at least k results.

        The interval of pass^1 is Wilson's, that of the others the bootstrap's.
        """
        values = self._passed(kind, k)
        scored = sum(success is not None for result in self.results for success in result.successes)
        return rate(values, scored) if k == 1 else resampled(values)

    def passed(self, kind: Literal["at", "hat"], k: int) -> float:
        """The mean of `passing` without its interval, which takes drawing; NaN where no task has k results."""
        values = self._passed(kind, k)
        return math.fsum(values) / len(values) if values else math.nan

    def _passed(self, kind: Literal["at", "hat"], k: int) -> list[float]:
        """A value for each task that has at least k results."""
        estimate = pass_at_k if kind == "at" else pass_hat_k
        each = [[s for s in result.successes if s is not None] for result in self.results]
        return [estimate(len(s), sum(s), k) for s in each if len(s) >= k]

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
    played = await episodes(domain, agent, tasks, limits, trials, seed, concurrency, on_progress, crew=crew)
    return summary(domain, tasks, played, trials, seed).replace(kind=kind)


async def episodes(
    domain: TaskSource,
    agent: Agent,
    tasks: Sequence[Task],
    limits: Limits | None = None,
    trials: int = 1,
    seed: int = 0,
    concurrency: int = 64,
    on_progress: Progress | None = None,
    kept: Kept[Any] | None = None,
    crew: Crew = ALONE,
) -> list[Trajectory]:
    """The episodes of `evaluate`, those of a task together. Those that are kept are not played again.

    An episode's seed is its task's and trial's, so that it is the same whatever is played beside it. Where one is
    refused (a ConfigError), none is begun any more, and those under way go on to their own end or refusal.
    """
    gate, done, limits = asyncio.Semaphore(concurrency), itertools.count(1), limits or Limits()
    refusals: list[ConfigError] = []

    async def episode(task: Task, trial: int) -> Trajectory:
        first = episode_seed(seed, task, trial)
        ended = kept.found(task.id, range(first, first + limits.retries + 1)) if kept else None
        if ended is None:
            async with gate:
                if refusals:
                    raise refusals[0]
                ended = await play(domain, task, agent, limits, first)
            if kept:
                ended = kept.add(ended)
        if on_progress:
            on_progress(next(done), len(mine))
        return ended

    async def attempt(task: Task, trial: int) -> Trajectory | None:
        try:
            return await episode(task, trial)
        except ConfigError as e:
            refusals.append(e)
            return None

    mine = crew.share([(task, trial) for task in tasks for trial in range(trials)])
    found = await asyncio.gather(*(attempt(task, trial) for task, trial in mine))
    if refusals:
        raise refusals[0]
    return crew.joined([each for each in found if each is not None])


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


def named_agent(name: str, config: TrainConfig, checkpoint: Path | None = None, payer: Payer | None = None) -> Agent:
    """The agent called `model`, `native` or `chat` (the endpoint of the config's `chat`), one of `SCRIPTED`, or yours.

    Yours is `module:attribute`: an agent, or a class or function that makes one when it is called with the endpoint's
    `ChatModel`. `native` uses the endpoint's own tool calls, `chat` what `chat.tools` says, which unless it is set is
    the same. `model` is the config's, with a checkpoint's weights where one is given. `payer` pays for an endpoint's.
    """
    agents: dict[str, Callable[[], Agent]] = {
        **SCRIPTED,
        "native": lambda: ChatAgent(ChatModel(_native(config), "agent", payer)),
        "chat": lambda: ChatAgent(ChatModel(config.chat, "agent", payer)),
        "model": lambda: model_agent(config, checkpoint),
    }
    if ":" in name:
        return _own_agent(name, config, payer)
    if name not in agents:
        raise ConfigError(f"unknown agent {nearest(name, agents)}, or module:attribute for your own")
    return agents[name]()


def asks_chat(agent: str) -> bool:
    """Whether an agent of this name plays with the endpoint of the config's `chat`."""
    return agent in ("native", "chat") or ":" in agent


def refuse_idle_chat(agent: str, settings: Sequence[str]) -> None:
    """Settings of an endpoint that the agent does not ask are a `ConfigError`: somebody else would be measured."""
    idle = next((each for each in settings if each.strip().startswith("chat.")), "")
    if idle and not asks_chat(agent):
        key = idle.partition("=")[0]
        raise ConfigError(
            f"{key} is of the endpoint that --agent native and --agent chat play with, and this is --agent {agent}; "
            "add --agent native, or leave it out"
        )


def asked(agent: str, config: TrainConfig, judged: bool = False) -> list[ChatConfig]:
    """The endpoints that an agent of this name, its users and the judge are played with."""
    own = [config.chat] if asks_chat(agent) else []
    users = [config.user.chat] if config.user.kind not in ("scripted", "human") else []
    return [*own, *users, *([config.judge] if judged else [])]


def cap_of(agent: str, config: TrainConfig, judged: bool = False) -> Decimal:
    """What the config lets them cost; 0, no cap, where no endpoint is asked."""
    return config.cost_cap if asked(agent, config, judged) else Decimal(0)


def _own_agent(name: str, config: TrainConfig, payer: Payer | None) -> Agent:
    found = imported(name)
    made = isinstance(found, type) or inspect.isfunction(found)
    agent: Agent = found(ChatModel(config.chat, "agent", payer)) if made else found
    if not inspect.iscoroutinefunction(getattr(agent, "act", None)):
        kind = type(agent).__name__
        raise ConfigError(f"{name!r} gives a {kind}, no agent: it needs `async def act(task, episode, new, tools)`")
    return agent


def _native(config: TrainConfig) -> ChatConfig:
    if config.chat.tools != "native":
        text = f"agent native uses the endpoint's own tool calls, and chat.tools is {config.chat.tools!r}"
        raise ConfigError(f"{text}; leave that out, or use --agent chat")
    return config.chat


def model_agent(config: TrainConfig, checkpoint: Path | None = None) -> EngineAgent:
    """The config's model, sampling as it does in evaluation."""
    engine, format = open_model(config, checkpoint)
    return EngineAgent(engine, format, config.sampling.replace(temperature=config.eval.temperature))


def open_model(
    config: TrainConfig, checkpoint: Path | None = None, engine: LocalConfig | None = None
) -> tuple[AnyEngine, formats.ChatFormat]:
    """An engine that does not train and the format of the config's model, with a checkpoint's weights if one is given.

    The engine is as `engine` says; unless that is given, as the config does, with room for its episodes.
    """
    engine = engine or config.fitted
    folder = find_model(config.model)
    format = formats.configured(folder, config.format)
    exported = checkpoint / MODEL if checkpoint else None
    try:
        if exported and exported.is_dir():
            return open_exported(exported, folder, engine, config.seed), format
        opened = open_engine(folder, engine, config.seed, trains=False)
    except ModuleNotFoundError as e:
        raise not_installed(e, f"model {config.model!r}") from e
    if checkpoint:
        opened.load(checkpoint)
    return opened, format


def not_installed(error: ModuleNotFoundError, what: str) -> Exception:
    """What to tell a user who lacks a package; a module of our own that is missing is a bug and stays one."""
    if error.name is None or error.name.startswith("understudy"):
        return error
    return ConfigError(f"{what} needs {error.name}; {installation('train')}")


def held_out(domain: TaskSource, split: Split, count: int, seed: int = 0) -> list[Task]:
    """`count` different tasks of a split, or as many as there are: the frozen ones first, then generated ones."""
    generated = itertools.islice(domain.stream(split, seed), 20 * count)
    return list(itertools.islice(_different(itertools.chain(domain.tasks(split), generated)), count))


def exam_tasks(domain: TaskSource, how: EvalConfig) -> list[Task]:
    """The tasks that an evaluation plays; a split without any is a `ConfigError` that names those that have some."""
    tasks = held_out(domain, how.split, how.tasks, how.seed)
    if not tasks:
        others = [split for split in SPLITS if held_out(domain, split, 1)]
        choice = f"set eval.split to {' or '.join(others)}, or take another slice" if others else "take another slice"
        raise ConfigError(f"{domain.name} has no {how.split} tasks in this slice; {choice}")
    return tasks


def _different(tasks: Iterable[Task]) -> Iterator[Task]:
    """The tasks without those that repeat the content or the name of one before."""
    seen: set[str] = set()
    for task in tasks:
        content = task.model_dump_json(exclude={"id"})
        if not seen & {task.id, content}:
            yield task
        seen |= {task.id, content}


def summary(
    domain: TaskSource, tasks: Sequence[Task], every: Sequence[Trajectory], trials: int, seed: int
) -> Evaluation:
    """What episodes came to: `trials` of each task, those of a task together."""
    groups = [every[i : i + trials] for i in range(0, len(every), trials)]
    whole = [episode for episode in every if episode.score]
    return Evaluation(
        domain=domain.name,
        seed=seed,
        trials=trials,
        results=tuple(_result(task, group) for task, group in zip(tasks, groups, strict=True)),
        parts=_mean_parts(whole),
        stops=dict(Counter(str(episode.stop) for episode in whole)),
        counts=dict(sum((Counter(episode.counts) for episode in whole), Counter[str]())),
        faults=dict(Counter(str(episode.fault) for episode in every if not episode.score)),
        turns=_mean([episode.turns for episode in whole]),
        tokens=_mean([sum(episode.mask) for episode in whole]),
    )


def _result(task: Task, group: Sequence[Trajectory]) -> TaskResult:
    return TaskResult(
        task=task.id,
        domain=task.domain,
        family=task.family,
        difficulty=task.difficulty,
        fingerprint=fingerprint(task),
        rewards=tuple(episode.score.reward if episode.score else None for episode in group),
    )


def _mean_parts(episodes: Sequence[Trajectory]) -> dict[str, float]:
    parts = [episode.score.parts for episode in episodes if episode.score]
    return {name: _mean([p[name] for p in parts if name in p]) for name in dict.fromkeys(itertools.chain(*parts))}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
