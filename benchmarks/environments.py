"""Measure the speed of domains: episodes with the gold turns, on one core.

    taskset -c 1 python benchmarks/environments.py [--domain retail] [--tasks 2000] [--repeats 5] [--json]

An episode includes everything but the model: creating the environment with setup, policy and opening, validating,
running and rendering every tool call, the scripted user's answers, and the score. A step is one reply of the agent.
The best of the repeats is shown, because slower ones include the load of other programs.
"""

import argparse
import asyncio
import json
import time

from rich.console import Console
from rich.table import Table

from understudy.core.tasks import Task
from understudy.envs.domain import Domain
from understudy.rollouts.agent import GoldAgent
from understudy.rollouts.rollout import EpisodeLimits, rollout
from understudy.sources.loading import load_source
from understudy.sources.references import list_domains


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--domain", choices=list_domains(), nargs="*", default=list_domains(), help="default: all")
    parser.add_argument("--tasks", type=int, default=2000, help="tasks per domain (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=5, help="passes over the tasks (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    options = parser.parse_args()
    rows = [measure(load_source(name), options.tasks, options.repeats) for name in options.domain]
    show(rows, as_json=options.json)


def measure(domain: Domain, count: int, repeats: int) -> dict[str, float | str]:
    started = time.perf_counter()
    tasks = domain.sample("train", count)
    generated = time.perf_counter() - started
    timings = [asyncio.run(play(domain, tasks)) for _ in range(repeats)]
    seconds, steps = min(timings)
    return {
        "domain": domain.name,
        "episodes_per_second": round(count / seconds),
        "steps_per_second": round(steps / seconds),
        "steps_per_episode": round(steps / count, 2),
        "first_pass_episodes_per_second": round(count / timings[0][0]),
        "tasks_generated_per_second": round(count / generated),
    }


async def play(domain: Domain, tasks: list[Task]) -> tuple[float, int]:
    """Return the seconds and the number of the agent's replies. The first pass also runs each task's gold calls,
    whose result is cached.
    """
    agent, limits, steps = GoldAgent(), EpisodeLimits(max_turns=60), 0
    started = time.perf_counter()
    for task in tasks:
        episode = await rollout(task, domain.environment(task), agent, limits)
        assert episode.reward == 1.0, task.id
        steps += len(task.gold_turns)
    return time.perf_counter() - started, steps


def show(rows: list[dict[str, float | str]], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    table = Table(title="episodes with the gold turns, on one core")
    for name in rows[0]:
        table.add_column(name.replace("_", " "), justify="left" if name == "domain" else "right")
    for row in rows:
        table.add_row(*(f"{value:,}" if isinstance(value, int) else str(value) for value in row.values()))
    Console().print(table)


if __name__ == "__main__":
    main()
