"""Does our reward agree with tau-bench's own code, and how much faster is it? Both run here, on the same episodes.

    TAU_BENCH=/path/to/tau-bench python benchmarks/tau_bench_agreement.py [--recorded FILE ...] [--quick]

All recorded trajectories (those of the checkout, and the files given), replayed reply by reply; then for every task the
gold turns and doing nothing, and for the test tasks gold with something wrong. It needs litellm, which
tau-bench's own `Env` imports; no model is called.
"""

import argparse
import asyncio
import json
import os
import pickle
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from understudy.agent import GoldAgent
from understudy.integrations.tau_bench import RESPOND, STOP, TauBench, open_domain
from understudy.messages import Message, ToolCall, ToolSpec, from_wire
from understudy.rollout import Limits, rollout
from understudy.tasks import Task
from understudy.trajectory import Trajectory

DOMAINS = ("retail", "airline")


@dataclass
class Case:
    """One episode to be played by both: the agent's replies, and what the user says after the opening."""

    kind: str
    task: Task
    raw: dict[str, Any]
    replies: Sequence[Message]
    user: Sequence[str] = ()
    recorded: float | None = None
    observed: Sequence[str] = ()
    """What tools answered in the record."""


@dataclass
class Tally:
    """How often rewards agree."""

    episodes: int = 0
    own: float = 0.0
    theirs: float = 0.0
    agree: int = 0
    recorded: int = 0
    answers: int = 0
    same_answers: int = 0
    differences: list[str] = field(default_factory=list)


class Replay:
    """Agent and user of a case: each gives its texts in order, and then leaves."""

    def __init__(self, case: Case) -> None:
        self._replies, self._says = iter(case.replies), iter(["Hi.", *case.user])

    async def act(self, task: Task, episode: Trajectory, new: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        """The next reply."""
        episode.observe(new)
        episode.act(message := next(self._replies))
        return message

    async def reply(self, transcript: Sequence[Message]) -> str | None:
        """The next of the user's texts."""
        return next(self._says, None)


class Quiet:
    """The user in tau-bench's own environment: the same texts, then its mark."""

    def __init__(self, says: Iterable[str]) -> None:
        self._says = iter(says)

    def reset(self, instruction: str | None = None) -> str:
        """The opening."""
        return "Hi."

    def step(self, content: str) -> str:
        """The next text."""
        return next(self._says, STOP)

    def get_total_cost(self) -> float:
        """Nothing."""
        return 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recorded", nargs="*", default=[], help="further files of tau-bench results")
    parser.add_argument("--quick", action="store_true", help="the first five tasks of each split")
    parser.add_argument("--domains", nargs="*", default=DOMAINS, choices=DOMAINS)
    options = parser.parse_args()
    if not os.environ.get("TAU_BENCH"):
        return print("tau_bench_agreement: skipped; set TAU_BENCH to a checkout of sierra-research/tau-bench")
    root = Path(os.environ["TAU_BENCH"]).resolve()
    records = [*sorted((root / "historical_trajectories").glob("*.json")), *map(Path, options.recorded)]
    get_env = original(root)
    table = new_table(f"tau-bench {commit(root)}: rewards of understudy and of tau-bench's own code")
    differences: list[str] = []
    for domain in options.domains:
        ours, env = open_domain(f"{root}#{domain}"), opened(get_env, domain)
        for name, tally in tallies(ours, env, domain, records, 5 if options.quick else None):
            table.add_row(domain, name, *cells(tally))
            print(domain, name, *cells(tally), file=sys.stderr)
            differences += tally.differences
            print(*tally.differences, sep="\n", end="\n" if tally.differences else "", file=sys.stderr)
    console = Console(width=120)
    console.print(table, *speeds(get_env, root, options.domains), *differences, sep="\n")
    sys.exit(1 if differences else 0)


def original(root: Path) -> Callable[..., Any]:
    """tau-bench's `get_env`, from the checkout, whole."""
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    sys.path.insert(0, str(root))
    from tau_bench.envs import get_env

    return get_env  # type: ignore[no-any-return]


def opened(get_env: Callable[..., Any], domain: str, split: str = "test") -> Any:
    """tau-bench's environment with a silent user; its data is unpickled instead of parsed, which changes no value."""
    env = get_env(domain, user_strategy="human", user_model="", task_split=split, task_index=0)
    data = pickle.dumps(env.data_load_func())
    env.data_load_func = lambda: pickle.loads(data)
    return env


def tallies(
    ours: TauBench, env: Any, domain: str, records: Sequence[Path], first: int | None
) -> Iterator[tuple[str, Tally]]:
    for path in records:
        if cases := recorded(ours, path, domain)[:first]:
            yield f"recorded, {path.stem}", tally(ours, env, cases)
    for split in ("test", "validation", "train"):
        tasks = ours.tasks(split)[:first]
        kinds = variants if split == "test" else plain_variants
        cases = [case for i, task in enumerate(tasks) for case in kinds(task, tasks[(i + 1) % len(tasks)])]
        for kind in dict.fromkeys(case.kind for case in cases):
            yield f"{split}, {kind}", tally(ours, env, [case for case in cases if case.kind == kind])


def plain_variants(task: Task, other: Task) -> Iterator[Case]:
    """Gold and nothing."""
    yield Case("gold", task, as_raw(task), task.gold)
    yield Case("nothing", task, as_raw(task), [Message(role="assistant")])


def variants(task: Task, other: Task) -> Iterator[Case]:
    """Gold, nothing, and gold with something wrong."""
    *calls, last = task.gold
    raw = as_raw(task)
    yield from plain_variants(task, other)
    yield Case("gold, outputs not said", task, raw, [*calls, Message(role="assistant", content="Done.")])
    yield Case("gold without its last call", task, raw, [*calls[:-1], last])
    yield Case("gold, its last call twice", task, raw, [*calls, *calls[-1:], last])
    yield Case("gold with a wrong argument", task, raw, [*map(wrong, calls), last])
    yield Case("gold of another task", task, raw, other.gold)


def wrong(message: Message) -> Message:
    """The call with one argument taken from nowhere, or left out; the same one each time."""
    (call,) = message.tool_calls
    chance = random.Random(call.model_dump_json())
    arguments = dict(call.arguments)
    if arguments:
        name = chance.choice(sorted(arguments))
        arguments[name] = chance.choice([None, "x", 7, [], {}, arguments.pop(name)])
    return message.replace(tool_calls=(call.replace(arguments=arguments),))


def as_raw(task: Task) -> dict[str, Any]:
    actions = [{"name": call.name, "kwargs": call.arguments} for call in task.actions]
    return {"user_id": "", "actions": actions, "instruction": "", "outputs": list(task.outputs)}


def recorded(ours: TauBench, path: Path, domain: str) -> list[Case]:
    """The episodes of a results file, with the task as it was when they were played. A crashed one has no messages."""
    results = [r for r in json.loads(path.read_text(encoding="utf-8")) if r["traj"]]
    if not results or domain not in results[0]["traj"][0]["content"].casefold():
        return []
    cases = []
    for i, result in enumerate(results):
        messages = [from_wire(wire) for wire in result["traj"]]
        raw = result["info"]["task"]
        task = ours.task(f"{path.stem}-{i}-task{result['task_id']}", "test", raw)
        replies = [m for m in messages if m.role == "assistant"]
        says = [m.content for m in messages[2:] if m.role == "user"]
        observed = [m.content for m in messages if m.role == "tool"]
        cases.append(Case("recorded", task, raw, replies, says, result["reward"], observed))
    return cases


def tally(ours: TauBench, env: Any, cases: Sequence[Case]) -> Tally:
    found = Tally()
    for case in cases:
        episode, theirs = asyncio.run(own(ours, case)), their(env, case)
        found.episodes += 1
        found.own += episode.reward
        found.theirs += theirs
        found.agree += episode.reward == theirs
        found.recorded += case.recorded == episode.reward
        answers = [m.content for m in episode.messages if m.role == "tool"]
        found.answers += len(case.observed)
        found.same_answers += sum(a == b for a, b in zip(answers, case.observed, strict=False))
        if episode.reward != theirs or case.recorded not in (None, theirs):
            record = "" if case.recorded is None else f", recorded {case.recorded:g}"
            found.differences.append(f"{case.task.id} ({case.kind}): {episode.score}, tau-bench {theirs:g}{record}")
    return found


async def own(ours: TauBench, case: Case) -> Trajectory:
    replay = Replay(case)
    environment = ours.environment(case.task, replay)
    return await rollout(case.task, environment, replay, Limits(max_turns=len(case.replies), max_tokens=1))


def their(env: Any, case: Case) -> float:
    """The reward of tau-bench's own environment: its `step` on each reply, as its tool-calling agent calls it."""
    from tau_bench.types import Action, Task

    env.data, env.task, env.actions = env.data_load_func(), Task(**case.raw), []
    env.user = Quiet(case.user)
    for reply in case.replies:
        call = reply.tool_calls[0] if reply.tool_calls else ToolCall(name=RESPOND, arguments={"content": reply.content})
        response = env.step(Action(name=call.name, kwargs=call.arguments))
        if response.done:
            return float(response.reward)
    return 0.0


def speeds(get_env: Callable[..., Any], root: Path, domains: Sequence[str]) -> Iterator[str]:
    """Gold episodes a second on the test tasks, tau-bench's own as its `run.py` plays them."""
    for domain in domains:
        ours = open_domain(f"{root}#{domain}")
        tasks = ours.tasks("test")
        passes = [asyncio.run(gold_pass(ours, tasks)) for _ in range(3)]
        own_rate, their_rate = len(tasks) / min(passes), 20 / their_pass(get_env, domain, tasks[:20])
        yield (
            f"{domain}: {own_rate:,.0f} gold episodes a second (best of 3 passes over {len(tasks)} tasks); "
            f"tau-bench {their_rate:.2f} (20 tasks): {own_rate / their_rate:,.0f} times"
        )


async def gold_pass(ours: TauBench, tasks: Sequence[Task]) -> float:
    started = time.perf_counter()
    for task in tasks:
        assert (await rollout(task, ours.environment(task), GoldAgent(), Limits(max_turns=60))).reward == 1.0
    return time.perf_counter() - started


def their_pass(get_env: Callable[..., Any], domain: str, tasks: Sequence[Task]) -> float:
    """An environment of its own for each task, then `reset`, the gold actions, and a last word."""
    from tau_bench.types import Action

    started = time.perf_counter()
    for i in range(len(tasks)):
        env = get_env(domain, user_strategy="human", user_model="", task_split="test", task_index=i)
        env.user = Quiet(())
        env.reset(task_index=i)
        for action in (a for a in env.task.actions if a.name not in env.terminate_tools):
            env.step(action)
        said = Action(name=RESPOND, kwargs={"content": "; ".join(env.task.outputs)})
        assert env.step(said).reward == 1.0
    return time.perf_counter() - started


def new_table(title: str) -> Table:
    table = Table(title=title)
    for name in ("domain", "episodes of", "count", "ours", "theirs", "agree", "as recorded", "same tool answers"):
        table.add_column(name, justify="left" if name in ("domain", "episodes of") else "right")
    return table


def cells(t: Tally) -> list[str]:
    rates = [f"{t.own / t.episodes:.3f}", f"{t.theirs / t.episodes:.3f}"]
    record = [f"{t.recorded}", f"{t.same_answers}/{t.answers}"] if t.answers else ["", ""]
    return [str(t.episodes), *rates, f"{t.agree}", *record]


def commit(root: Path) -> str:
    found = subprocess.run(["git", "-C", str(root), "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    return found.stdout.strip()


if __name__ == "__main__":
    main()
