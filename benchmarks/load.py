"""Measure how many concurrent episodes the environments and their users can serve: a rollout without the model.

    python benchmarks/load.py [--at-once 1 100 1000 10000] [--user scripted sleeping http] [--actors 0 2] [--json]

The agent plays the gold turns of all five domains in turn and answers at once. So the result includes only what runs
between two replies of a model: calls, users, rewards, the event loop. The users are

    scripted   the domains' scripted users, which do not wait
    sleeping   scripted users that first wait as long as a model behind an endpoint: log-normal, median `--seconds`
    http       scripted users that first send a real request with `LLMUser` and its client to an endpoint on loopback,
               which waits as long before it answers; the answer is discarded

Each figure is measured in its own process, or with `--actors` in several Ray actors that share the episodes. The table
shows medians of the repeats. `late` is the time of a step minus the wait of its user: the step's own work, and the
time until its turn. Memory is the growth of the process at its peak.

Time is measured as if the process had a core to itself, whatever other programs do. The clock of the event loop is the
thread's CPU time, and waits are skipped: the clock advances by a wait's length at once. With `http` other processes
take part, so time is wall-clock time and CPU time is the fairer measure.
"""

import argparse
import asyncio
import contextlib
import dataclasses
import functools
import itertools
import json
import multiprocessing
import os
import random
import resource
import selectors
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

from understudy.clients.chat import ChatModel, EndpointConfig
from understudy.core.messages import Message
from understudy.core.tasks import Scenario, Score, Task
from understudy.envs.domain import Domain
from understudy.envs.environment import StepResult, ToolEnvironment
from understudy.envs.tools import UserTools
from understudy.envs.users import LLMUser, ScriptedUser, User
from understudy.rollouts.agent import GoldAgent
from understudy.rollouts.rollout import EpisodeLimits, rollout
from understudy.sources.loading import load_source
from understudy.sources.references import list_domains

SIGMA = 0.5
"""Standard deviation of the logarithm of a wait. The slowest of a hundred answers takes three times the median."""
LIMITS = EpisodeLimits(max_turns=60)
COLUMNS = (
    "user",
    "parallel episodes",
    "Ray actors",
    "episodes/s",
    "episodes per CPU s",
    "KiB/episode",
    "late p50, ms",
    "late p95, ms",
    "late p99, ms",
)


@dataclass(frozen=True)
class Load:
    """The settings of one measurement."""

    at_once: int
    user: str = "scripted"
    actors: int = 0
    seconds: float = 1.0
    url: str = ""

    @property
    def episodes(self) -> int:
        """Number of episodes for a steady state: at least 1000, or two rounds with slow users."""
        if self.user == "scripted":
            return max(self.at_once, 1000)
        return self.at_once if self.at_once >= 10_000 else max(2 * self.at_once, 4)


@dataclass
class Figures:
    """The results of one measurement."""

    seconds: float
    cpu: float
    episodes: int
    grown: float
    """Growth of memory in KiB."""
    late: list[float] = field(default_factory=list)
    """Seconds of each step beyond the wait of its user."""


class Undisturbed(asyncio.SelectorEventLoop):
    """An event loop whose clock is the thread's CPU time plus skipped waits."""

    def __init__(self) -> None:
        self.skipped = 0.0
        super().__init__(Skipping(self))

    def time(self) -> float:
        """Return the CPU seconds of the thread plus the seconds of all skipped waits."""
        return time.thread_time() + self.skipped


class Skipping(selectors.DefaultSelector):
    """A selector that skips waits with a timeout."""

    def __init__(self, loop: Undisturbed) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return the events that are ready. Without a timeout, wait for one."""
        if timeout is None:
            return super().select()
        self._loop.skipped += max(0.0, timeout)
        return super().select(0)


class Slow:
    """A scripted user that waits before each reply. `waited` is the last wait in seconds."""

    def __init__(self, scripted: ScriptedUser, wait: Callable[[Sequence[Message]], Awaitable[float]]) -> None:
        self._scripted, self._wait = scripted, wait
        self.waited = 0.0

    async def reply(self, transcript: Sequence[Message]) -> str | None:
        """Wait, then return the scripted user's reply."""
        self.waited = await self._wait(transcript) if transcript else 0.0  # the opening is part of the task
        return await self._scripted.reply(transcript)


class Timed:
    """An environment that measures its steps. Before each step it yields to the other episodes."""

    def __init__(self, environment: ToolEnvironment, user: User | None, late: list[float]) -> None:
        self.tools, self._environment, self._user, self._late = environment.tools, environment, user, late

    async def start(self) -> StepResult:
        """Start the environment."""
        return await self._environment.start()

    async def step(self, reply: Message) -> StepResult:
        """Step the environment and record the time."""
        await asyncio.sleep(0)
        clock = asyncio.get_running_loop().time
        began = clock()
        step = await self._environment.step(reply)
        waited = self._user.waited if isinstance(self._user, Slow) and not reply.tool_calls else 0.0
        self._late.append(clock() - began - waited)
        return step

    async def grade(self, ended: bool) -> Score:
        """Score the episode."""
        return await self._environment.grade(ended)

    async def close(self) -> None:
        """Close the environment."""
        await self._environment.close()


class Play:
    """Gold episodes of all domains, with the users of a load."""

    def __init__(self, measured_load: Load) -> None:
        self.load = measured_load
        self.domains = [load_source(name).with_users(self._user) for name in list_domains()]
        self._random = random.Random(0)
        self._model = ChatModel(self._chat(), "user") if measured_load.user == "http" else None
        self._made: User | None = None

    def _chat(self) -> EndpointConfig:
        return EndpointConfig(
            base_url=self.load.url, model="waits", max_concurrency=self.load.at_once, timeout=600.0, max_retries=0
        )

    def tasks(self) -> Iterator[tuple[Domain, Task]]:
        """Yield domains and tasks endlessly, one task of each domain in turn."""
        frozen = [[(domain, task) for task in domain.tasks("train")] for domain in self.domains]
        return itertools.cycle(itertools.chain.from_iterable(zip(*frozen, strict=True)))

    def warm(self) -> None:
        """Run each task's gold calls, whose result is cached per task."""
        for domain, task in itertools.islice(self.tasks(), min(2500, self.load.episodes)):
            domain.gold_changes(task)

    def figures(self, count: int) -> Figures:
        """Play `count` episodes and return the results."""
        with asyncio.Runner(loop_factory=None if self._model else Undisturbed) as runner:
            return runner.run(self._run(count, self.load.at_once))

    async def _run(self, count: int, at_once: int) -> Figures:
        rest, late = itertools.islice(enumerate(self.tasks()), count), list[float]()
        clock = asyncio.get_running_loop().time
        grown, cpu, began = _peak(), time.process_time(), clock()
        await asyncio.gather(*(self._player(rest, late) for _ in range(at_once)))
        seconds, cpu = clock() - began, time.process_time() - cpu
        return Figures(seconds, cpu, count, _peak() - grown, late)

    async def _player(self, rest: Iterator[tuple[int, tuple[Domain, Task]]], late: list[float]) -> None:
        for seed, (domain, task) in rest:
            environment = domain.environment(task, seed=seed)
            episode = await rollout(task, Timed(environment, self._made, late), GoldAgent(), LIMITS, seed)
            assert episode.reward == 1.0, (task.id, episode.error)

    def _user(self, scenario: Scenario, seed: int, device: UserTools | None) -> User:
        """Return the user of an environment."""
        self._made = user = ScriptedUser(scenario, seed, device)
        if self.load.user == "sleeping":
            self._made = Slow(user, self._sleep)
        elif self._model:
            self._made = Slow(user, functools.partial(asked, LLMUser(scenario, self._model, seed)))
        return self._made

    async def _sleep(self, transcript: Sequence[Message]) -> float:
        seconds = wait(self._random, self.load.seconds)
        await asyncio.sleep(seconds)
        return seconds


async def asked(user: LLMUser, transcript: Sequence[Message]) -> float:
    """Return the seconds that the endpoint waited, as its answer states."""
    return float((await user.reply(transcript) or "").split()[-1])


def wait(chance: random.Random, median: float) -> float:
    return median * chance.lognormvariate(0.0, SIGMA)


def _peak() -> float:
    """Return the peak memory of the process in KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def measured(load: Load) -> Figures:
    """Measure a load in this process."""
    many_files()
    play = Play(load)
    play.warm()
    return play.figures(load.episodes)


def in_actors(load: Load) -> Figures:
    """Measure a load in Ray actors that share the episodes, after all have warmed up."""
    import ray

    class Actor:
        def __init__(self, share: Load) -> None:
            many_files()
            self.play = Play(share)
            self.play.warm()

        def ready(self) -> None:
            """Return when the actor has warmed up."""

        def run(self, count: int) -> Figures:
            return self.play.figures(count)

    ray.init(num_cpus=load.actors, include_dashboard=False, log_to_driver=False, logging_level="error")
    try:
        share = dataclasses.replace(load, at_once=max(1, load.at_once // load.actors))
        actors = [ray.remote(num_cpus=1)(Actor).remote(share) for _ in range(load.actors)]
        ray.get([actor.ready.remote() for actor in actors])
        return joined(ray.get([actor.run.remote(load.episodes // load.actors) for actor in actors]))
    finally:
        ray.shutdown()


def joined(parts: Sequence[Figures]) -> Figures:
    """Return the sum of the results. The seconds are those of the slowest part."""
    sums = (sum(getattr(part, name) for part in parts) for name in ("cpu", "episodes", "grown"))
    return Figures(
        max(part.seconds for part in parts),
        *sums,
        late=list(itertools.chain.from_iterable(part.late for part in parts)),
    )


async def endpoint(port: Any, median: float) -> None:
    """Serve a chat completions endpoint that waits and answers with the length of the wait."""
    chance = random.Random(0)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                began = time.perf_counter()
                length = int(head.lower().partition(b"content-length:")[2].partition(b"\r")[0])
                await reader.readexactly(length)
                await asyncio.sleep(wait(chance, median))
                writer.write(answer(f"I have waited for {time.perf_counter() - began:.6f}"))
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=4096)
    port.send(server.sockets[0].getsockname()[1])
    await server.serve_forever()


def answer(text: str) -> bytes:
    choice = {"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    body = json.dumps({"choices": [choice], "usage": {"prompt_tokens": 500, "completion_tokens": 5}}).encode()
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


def serve(port: Any, median: float) -> None:
    many_files()
    asyncio.run(endpoint(port, median))


def many_files() -> None:
    """Raise the limit of open files, because each user has its own connection."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@contextlib.contextmanager
def serving(median: float) -> Iterator[str]:
    """Yield the URL of an endpoint in its own process."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs, median), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{ours.recv()}/v1"
    finally:
        process.terminate()


def apart(load: Load) -> dict[str, Any]:
    """Measure a load in its own process."""
    command = [sys.executable, __file__, "--one", json.dumps(dataclasses.asdict(load))]
    return dict(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout))


def one(load: Load) -> dict[str, Any]:
    with serving(load.seconds) if load.user == "http" else contextlib.nullcontext("") as url:
        load = dataclasses.replace(load, url=url)
        figures = in_actors(load) if load.actors else measured(load)
    late = statistics.quantiles(figures.late, n=100, method="inclusive")
    return {
        "episodes": figures.episodes,
        "steps": len(figures.late),
        "episodes_per_second": figures.episodes / figures.seconds,
        "episodes_per_cpu_second": figures.episodes / figures.cpu,
        "kib_each": figures.grown / load.at_once,
        "late_ms": [1000 * late[p - 1] for p in (50, 95, 99)],
    }


def medians(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    plain = {name: statistics.median(run[name] for run in runs) for name in runs[0] if name != "late_ms"}
    return plain | {
        "late_ms": [statistics.median(values) for values in zip(*(r["late_ms"] for r in runs), strict=True)]
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--at-once", type=int, nargs="*", default=[1, 100, 1000, 10_000], help="numbers of parallel episodes"
    )
    parser.add_argument(
        "--user",
        nargs="*",
        choices=["scripted", "sleeping", "http"],
        default=["scripted", "sleeping"],
        help="kinds of simulated users",
    )
    parser.add_argument(
        "--seconds", type=float, default=1.0, help="median wait of sleeping and http users (default: %(default)s)"
    )
    parser.add_argument(
        "--actors", type=int, nargs="*", default=[0], help="numbers of Ray actors; 0 is one process without Ray"
    )
    parser.add_argument("--repeats", type=int, default=3, help="measurements per row (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON object per row")
    parser.add_argument("--one", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(one(Load(**options.one))))
        return
    table = Table(*COLUMNS, title=f"{os.cpu_count()} CPU cores, medians of {options.repeats} measurements")
    for user, actors, at_once in itertools.product(options.user, options.actors, options.at_once):
        load = Load(at_once, user, actors, options.seconds)
        result = medians([apart(load) for _ in range(options.repeats)])
        if options.json:
            print(json.dumps({**dataclasses.asdict(load), **result}), flush=True)
        table.add_row(*cells(load, result))
    if not options.json:
        Console(width=120).print(table)


def cells(load: Load, result: dict[str, Any]) -> list[str]:
    late = [f"{value:.2f}" for value in result["late_ms"]]
    rates = [f"{result['episodes_per_second']:.1f}", f"{result['episodes_per_cpu_second']:.0f}"]
    memory = f"{result['kib_each']:.0f}" if load.at_once > 1 else ""
    return [load.user, f"{load.at_once:,}", str(load.actors), *rates, memory, *late]


if __name__ == "__main__":
    main()
