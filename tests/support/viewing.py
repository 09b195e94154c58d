"""Runs with played episodes for the viewer, and their page on a real server."""

import asyncio
import itertools
from collections.abc import Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from support.groups import make_groups
from support.listening import serve_app
from support.run_evaluations import write_run_evaluation
from understudy.core.tasks import Task
from understudy.core.trajectory import StopReason, Trajectory
from understudy.engines.models import cache_folder
from understudy.evaluation.evaluate import evaluate, evaluate_gold, evaluate_noop
from understudy.evaluation.reports.files import write_run_report
from understudy.evaluation.reports.report import EvalReport, RunReport
from understudy.evaluation.result import ResultRow
from understudy.rollouts.agent import Agent, GoldAgent, NoopAgent
from understudy.rollouts.rollout import EpisodeLimits, play_episode
from understudy.runs.config import TrainConfig
from understudy.runs.run import Run
from understudy.sources.loading import load_source
from understudy.viewer.library import RunLibrary
from understudy.viewer.server import make_viewer_app

T = TypeVar("T")


def run_in_thread(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine, run in its own thread because Playwright's loop runs in this one."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()


def play_episodes(seed: int = 0, count: int = 4) -> list[Trajectory]:
    """Return episodes of `count` tasks of the shop, each with the gold turns and with an agent that does nothing."""
    agents: Sequence[Agent] = (GoldAgent(), NoopAgent())
    tasks, domain = shop_tasks(seed, count), load_source("retail")
    return [
        run_in_thread(play_episode(domain, task, agent, EpisodeLimits(), seed)) for task in tasks for agent in agents
    ]


def shop_tasks(seed: int, count: int = 4) -> list[Task]:
    """Return the tasks of `play_episodes`."""
    return list(itertools.islice(load_source("retail").stream("train", seed), count))


def make_faulted_episode(task: str = "retail/train/cancel/easy/none") -> Trajectory:
    """Return an episode that ended with an infrastructure fault."""
    return Trajectory(
        task, "retail", "cancel", "easy", stop_reason=StopReason.FAULT, fault="user", error="the endpoint is gone"
    )


def make_run(folder: Path, steps: int = 3, seed: int = 0, finished: bool = False) -> Run:
    """Write a run of `steps` steps with episodes, metrics, a warning and an evaluation."""
    run = Run.create(folder, TrainConfig(seed=seed, steps=steps if finished else 2 * steps, sft={"steps": 0}))
    tasks = list(load_source("retail").tasks("validation")[:6])
    write_run_evaluation(run, 0, "base", run_in_thread(evaluate_noop(load_source("retail"), tasks)))
    for step in range(1, steps + 1):
        write_step(run, step, seed)
    run.log_warning(2, {"check": "entropy", "text": "entropy fell to 0.01", "remedy": "lower algorithm.learning_rate"})
    if finished:
        domain = load_source("retail")
        gold = run_in_thread(evaluate(domain, GoldAgent(), tasks))
        none, best = run_in_thread(evaluate_noop(domain, tasks)), run_in_thread(evaluate_gold(domain, tasks))
        rows = {"noop": none, "gold": best, "rl": gold}.items()
        report = EvalReport(rows=tuple(ResultRow(name=name, result=result) for name, result in rows))
        write_run_report(RunReport(held_out=report), run)
    return run


def write_step(run: Run, step: int, seed: int = 0) -> None:
    """Write a step as training does: its episodes, then its metrics."""
    played = [*play_episodes(10 * step + seed), make_faulted_episode()]
    run.save_groups(step, make_groups(played, shop_tasks(10 * step + seed)))
    rewards = [episode.score.reward for episode in played if episode.score]
    line = {
        "rollout/reward": sum(rewards) / len(rewards) - 0.1 / step,
        "rollout/success_rate": sum(rewards) / len(rewards),
        "rollout/noop_reward": 0.0,
        "train/entropy": 1.0 / step + seed / 100,
        "train/approx_kl": 0.001 * step,
        "rollout/turns": 4.5,
        "rollout/replies/malformed": 0.1 / step,
        "rollout/fault/user": 1 / len(played),
        "time/step_seconds": 12.0,
        "lost": float("nan"),
    }
    run.log_metrics(step, line)


def cache_without_indexes(folder: Path) -> str:
    """Return `folder` as a cache that has the models of this machine's cache. To convert one takes ten seconds."""
    models = cache_folder() / "models"
    models.mkdir(parents=True, exist_ok=True)
    (folder / "models").symlink_to(models)
    return str(folder)


@contextmanager
def serve_viewer(library: RunLibrary) -> Iterator[str]:
    """Yield the address of the page."""
    with serve_app(lambda config: make_viewer_app(library, config)) as address:
        yield address
