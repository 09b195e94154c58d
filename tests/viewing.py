"""Runs to look at, whose episodes were really played, and their page on a real server."""

import asyncio
import itertools
from collections.abc import Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from listening import listening
from understudy.agent import Agent, GoldAgent, SilentAgent
from understudy.config import TrainConfig
from understudy.domains.base import find
from understudy.evaluate import evaluate, floor, oracle
from understudy.results import keep
from understudy.rollout import Limits, play
from understudy.run import Run
from understudy.trajectory import Stop, Trajectory
from understudy.viewer.library import Library
from understudy.viewer.server import app

T = TypeVar("T")


def done(work: Coroutine[Any, Any, T]) -> T:
    """What a coroutine comes to, in a thread of its own: Playwright's loop runs in this one."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()


def episodes(seed: int = 0, count: int = 4) -> list[Trajectory]:
    """Episodes of `count` tasks of the shop, each by the gold turns and by nobody."""
    domain = find("retail")
    tasks = itertools.islice(domain.stream("train", seed), count)
    agents: Sequence[Agent] = (GoldAgent(), SilentAgent())
    return [done(play(domain, task, agent, Limits(), seed)) for task in tasks for agent in agents]


def failed(task: str = "retail/train/cancel/easy/0-0") -> Trajectory:
    """An episode that the machinery failed."""
    return Trajectory(task, "retail", "cancel", "easy", stop=Stop.FAULT, fault="user", error="the endpoint is gone")


def make_run(folder: Path, steps: int = 3, seed: int = 0, finished: bool = False) -> Run:
    """A run of `steps` steps with episodes, metrics, a warning and an evaluation."""
    run = Run.create(folder, TrainConfig(seed=seed, steps=steps if finished else 2 * steps, sft={"steps": 0}))
    tasks = list(find("retail").tasks("validation")[:6])
    run.write("evaluations/000000 base model.json", done(floor(find("retail"), tasks)).model_dump_json())
    for step in range(1, steps + 1):
        take_step(run, step, seed)
    run.warn(2, {"check": "entropy", "text": "entropy fell to 0.01", "remedy": "lower algorithm.learning_rate"})
    if finished:
        domain = find("retail")
        gold = done(evaluate(domain, GoldAgent(), tasks))
        none, best = done(floor(domain, tasks)), done(oracle(domain, tasks))
        keep(run, {"evaluations": [("do nothing", none), ("gold oracle", best), ("trained", gold)]})
    return run


def take_step(run: Run, step: int, seed: int = 0) -> None:
    """A step as training writes it: its episodes, then its line."""
    played = [*episodes(10 * step + seed), failed()]
    run.keep(step, played)
    rewards = [episode.score.reward for episode in played if episode.score]
    line = {
        "reward/average_reward": sum(rewards) / len(rewards) - 0.1 / step,
        "reward/success_rate": sum(rewards) / len(rewards),
        "reward/floor": 0.0,
        "train/entropy": 1.0 / step + seed / 100,
        "train/approx_kl": 0.001 * step,
        "generation/turns": 4.5,
        "generation/replies/malformed": 0.1 / step,
        "fault/user": 1 / len(played),
        "timing/step_seconds": 12.0,
        "lost": float("nan"),
    }
    run.log(step, line)


@contextmanager
def served(library: Library) -> Iterator[str]:
    """The address of the page."""
    with listening(lambda config: app(library, config)) as address:
        yield address
