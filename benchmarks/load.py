"""How many episodes the environments and their users bear at once: everything of a rollout but the model.

    python benchmarks/load.py [--at-once 1 100 1000 10000] [--user scripted sleeping http] [--actors 0 2] [--json]

The agent plays the gold turns of all five domains, in turn, and answers at once. So nothing is measured but what stands
between two replies of a model: calls, users, rewards, the event loop. Users are

    scripted   the domains' own: no waiting
    sleeping   the same, after a wait that stands for a model behind an endpoint: log-normal, median `--seconds`
    http       the same, after a real request to an endpoint on loopback that waits as long before it answers: the whole
               of a `LanguageUser` with its client, whose words are then passed over

Each figure is that of a process of its own; with `--actors`, of so many Ray actors that share the episodes. Shown are
medians of the repeats. `late` is how much longer a step took than its user waited: its own work, and the wait for its
turn. Memory is what the process grew by at its peak.

Time is that of a core with nothing else to do, whatever else the machine does: the clock of the event loop is the
process's CPU time, and where it would wait it goes on at once, so that a second of waiting costs nothing. With `http`,
where others take part, it is the wall's, and CPU time is the fairer measure.
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

from understudy.agent import GoldAgent
from understudy.chat import ChatConfig, ChatModel
from understudy.domains.base import Domain, find, names
from understudy.environment import Step, ToolEnvironment
from understudy.messages import Message
from understudy.rollout import Limits, rollout
from understudy.tasks import Scenario, Score, Task
from understudy.tools import Device
from understudy.users import LanguageUser, ScriptedUser, User

SIGMA = 0.5
"""Of the logarithm of a wait: the slowest of a hundred answers takes three times the median."""
LIMITS = Limits(max_turns=60)
COLUMNS = ("user", "at once", "actors", "episodes/s", "episodes per CPU s", "KiB each", "late p50", "p95", "p99 ms")


@dataclass(frozen=True)
class Load:
    """What is measured."""

    at_once: int
    user: str = "scripted"
    actors: int = 0
    seconds: float = 1.0
    url: str = ""

    @property
    def episodes(self) -> int:
        """Enough to reach a steady state: a thousand, or where users are slow, two rounds of them."""
        if self.user == "scripted":
            return max(self.at_once, 1000)
        return self.at_once if self.at_once >= 10_000 else max(2 * self.at_once, 4)


@dataclass
class Figures:
    """What came of it."""

    seconds: float
    cpu: float
    episodes: int
    grown: float
    """KiB of memory."""
    late: list[float] = field(default_factory=list)
    """Seconds, of each step."""


class Undisturbed(asyncio.SelectorEventLoop):
    """An event loop by whose clock its thread has a core to itself."""

    def __init__(self) -> None:
        self.skipped = 0.0
        super().__init__(Skipping(self))

    def time(self) -> float:
        """CPU seconds of the thread, and those that it would have waited."""
        return time.thread_time() + self.skipped


class Skipping(selectors.DefaultSelector):
    """Waits for nothing that only time brings."""

    def __init__(self, loop: Undisturbed) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """What is ready now; only a wait without an end is one."""
        if timeout is None:
            return super().select()
        self._loop.skipped += max(0.0, timeout)
        return super().select(0)


class Slow:
    """A scripted user who waits first; `waited` is for how long, at the last turn."""

    def __init__(self, scripted: ScriptedUser, wait: Callable[[Sequence[Message]], Awaitable[float]]) -> None:
        self._scripted, self._wait = scripted, wait
        self.waited = 0.0

    async def reply(self, transcript: Sequence[Message]) -> str | None:
        """The scripted user's words, late."""
        self.waited = await self._wait(transcript) if transcript else 0.0  # the opening is the task's
        return await self._scripted.reply(transcript)


class Timed:
    """An environment whose steps are timed; after each the other episodes have a turn."""

    def __init__(self, environment: ToolEnvironment, user: User | None, late: list[float]) -> None:
        self.tools, self._environment, self._user, self._late = environment.tools, environment, user, late

    async def start(self) -> Step:
        """The environment's."""
        return await self._environment.start()

    async def step(self, reply: Message) -> Step:
        """The environment's, timed."""
        await asyncio.sleep(0)
        clock = asyncio.get_running_loop().time
        began = clock()
        step = await self._environment.step(reply)
        waited = self._user.waited if isinstance(self._user, Slow) and not reply.tool_calls else 0.0
        self._late.append(clock() - began - waited)
        return step

    async def grade(self, ended: bool) -> Score:
        """The environment's."""
        return await self._environment.grade(ended)

    async def close(self) -> None:
        """The environment's."""
        await self._environment.close()


class Play:
    """Gold episodes of all domains, with users as the load wants them."""

    def __init__(self, load: Load) -> None:
        self.load, self.domains = load, [find(name).with_users(self._user) for name in names()]
        self._random = random.Random(0)
        self._model = ChatModel(self._chat(), "user") if load.user == "http" else None
        self._made: User | None = None

    def _chat(self) -> ChatConfig:
        return ChatConfig(
            base_url=self.load.url, model="waits", concurrency=self.load.at_once, timeout=600.0, retries=0
        )

    def tasks(self) -> Iterator[tuple[Domain, Task]]:
        """Without end, a task of each domain in turn."""
        frozen = [[(domain, task) for task in domain.tasks("train")] for domain in self.domains]
        return itertools.cycle(itertools.chain.from_iterable(zip(*frozen, strict=True)))

    def warm(self) -> None:
        """Run each task's gold calls, which is done once for each task and not for each episode."""
        for domain, task in itertools.islice(self.tasks(), min(2500, self.load.episodes)):
            domain.goal(task)

    def figures(self, count: int) -> Figures:
        """Those of `count` episodes."""
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

    def _user(self, scenario: Scenario, seed: int, device: Device | None) -> User:
        """The user of the environment that is being made."""
        self._made = user = ScriptedUser(scenario, seed, device)
        if self.load.user == "sleeping":
            self._made = Slow(user, self._sleep)
        elif self._model:
            self._made = Slow(user, functools.partial(asked, LanguageUser(scenario, self._model, seed)))
        return self._made

    async def _sleep(self, transcript: Sequence[Message]) -> float:
        seconds = wait(self._random, self.load.seconds)
        await asyncio.sleep(seconds)
        return seconds


async def asked(user: LanguageUser, transcript: Sequence[Message]) -> float:
    """How long the endpoint has waited, as it says."""
    return float((await user.reply(transcript) or "").split()[-1])


def wait(chance: random.Random, median: float) -> float:
    return median * chance.lognormvariate(0.0, SIGMA)


def _peak() -> float:
    """KiB of memory, at most so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def measured(load: Load) -> Figures:
    """In this process."""
    many_files()
    play = Play(load)
    play.warm()
    return play.figures(load.episodes)


def in_actors(load: Load) -> Figures:
    """In Ray actors, each its share, once all are warm."""
    import ray

    class Actor:
        def __init__(self, share: Load) -> None:
            many_files()
            self.play = Play(share)
            self.play.warm()

        def ready(self) -> None:
            """Say so."""

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
    """Those of all; they are done when the last is."""
    sums = (sum(getattr(part, name) for part in parts) for name in ("cpu", "episodes", "grown"))
    return Figures(
        max(part.seconds for part in parts),
        *sums,
        late=list(itertools.chain.from_iterable(part.late for part in parts)),
    )


async def endpoint(port: Any, median: float) -> None:
    """A chat completions endpoint that waits, and then says for how long."""
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
    """A connection for each user is a file for each."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@contextlib.contextmanager
def serving(median: float) -> Iterator[str]:
    """The address of an endpoint in a process of its own."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs, median), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{ours.recv()}/v1"
    finally:
        process.terminate()


def apart(load: Load) -> dict[str, Any]:
    """The figures of a load, in a process of its own."""
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
    parser.add_argument("--at-once", type=int, nargs="*", default=[1, 100, 1000, 10_000])
    parser.add_argument("--user", nargs="*", choices=["scripted", "sleeping", "http"], default=["scripted", "sleeping"])
    parser.add_argument("--seconds", type=float, default=1.0, help="the median wait of a user who is no script")
    parser.add_argument("--actors", type=int, nargs="*", default=[0], help="0 is one process without Ray")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--one", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(one(Load(**options.one))))
        return
    table = Table(*COLUMNS, title=f"{os.cpu_count()} cores, medians of {options.repeats}")
    for user, actors, at_once in itertools.product(options.user, options.actors, options.at_once):
        load = Load(at_once, user, actors, options.seconds)
        result = medians([apart(load) for _ in range(options.repeats)])
        if options.json:
            print(json.dumps({**dataclasses.asdict(load), **result}), flush=True)
        table.add_row(*cells(load, result))
    if not options.json:
        Console(width=110).print(table)


def cells(load: Load, result: dict[str, Any]) -> list[str]:
    late = [f"{value:.2f}" for value in result["late_ms"]]
    rates = [f"{result['episodes_per_second']:.1f}", f"{result['episodes_per_cpu_second']:.0f}"]
    memory = f"{result['kib_each']:.0f}" if load.at_once > 1 else ""
    return [load.user, f"{load.at_once:,}", str(load.actors), *rates, memory, *late]


if __name__ == "__main__":
    main()
