"""Compare this package's reward and speed with tau-bench's own code on the same episodes.

    TAU_BENCH=/path/to/tau-bench python benchmarks/tau_bench_agreement.py [--recorded FILE ...] [--quick]

Recorded trajectories, those of the checkout and of given files, are replayed reply by reply. For every task there are
also episodes with the gold turns and with no action, and for the test tasks episodes with changed gold calls. This
needs litellm, which tau-bench's `EnvOption` imports, but calls no model.
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

from understudy.core.messages import Message, ToolCall, ToolSpec, message_from_openai
from understudy.core.tasks import Task
from understudy.core.trajectory import Trajectory
from understudy.rollouts.agent import GoldAgent
from understudy.rollouts.rollout import EpisodeLimits, rollout
from understudy.sources.benchmarks.tau_bench import RESPOND_ACTION, STOP_MARKER, TauBench, open_domain

DOMAINS = ("retail", "airline")


@dataclass
class Case:
    """One episode that both sides play: the agent's replies, and the user's texts after the opening."""

    kind: str
    task: Task
    raw: dict[str, Any]
    replies: Sequence[Message]
    user: Sequence[str] = ()
    recorded: float | None = None
    observed: Sequence[str] = ()
    """Tool results in the record."""


@dataclass
class Tally:
    """Number of equal and different rewards."""

    episodes: int = 0
    own: float = 0.0
    theirs: float = 0.0
    agree: int = 0
    recorded: int = 0
    answers: int = 0
    same_answers: int = 0
    differences: list[str] = field(default_factory=list)


class Replay:
    """The agent and the user of a case. Each gives its texts in order and then leaves."""

    def __init__(self, case: Case) -> None:
        self._replies, self._says = iter(case.replies), iter(["Hi.", *case.user])

    async def act(self, task: Task, episode: Trajectory, new: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        """Return the next reply."""
        episode.observe(new)
        episode.act(message := next(self._replies))
        return message

    async def reply(self, transcript: Sequence[Message]) -> str | None:
        """Return the user's next text."""
        return next(self._says, None)


class Quiet:
    """The user in tau-bench's environment, with the case's texts and then the stop marker."""

    def __init__(self, says: Iterable[str]) -> None:
        self._says = iter(says)

    def reset(self, instruction: str | None = None) -> str:
        """Return the opening."""
        return "Hi."

    def step(self, content: str) -> str:
        """Return the next text."""
        return next(self._says, STOP_MARKER)

    def get_total_cost(self) -> float:
        """Return a cost of 0."""
        return 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--recorded", nargs="*", default=[], help="results files of tau-bench to replay, beside those of the clone"
    )
    parser.add_argument("--quick", action="store_true", help="play only the first five tasks of each split")
    parser.add_argument("--domains", nargs="*", default=DOMAINS, choices=DOMAINS, help="default: all")
    options = parser.parse_args()
    if not os.environ.get("TAU_BENCH"):
        return print(
            "tau_bench_agreement: skipped; set TAU_BENCH to the folder of a clone of sierra-research/tau-bench"
        )
    root = Path(os.environ["TAU_BENCH"]).resolve()
    records = [*sorted((root / "historical_trajectories").glob("*.json")), *map(Path, options.recorded)]
    get_env = original(root)
    table = new_table(f"tau-bench {commit(root)}: rewards of understudy and of tau-bench")
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
    """Import tau-bench's `get_env` from the checkout."""
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    sys.path.insert(0, str(root))
    from tau_bench.envs import get_env

    return get_env  # type: ignore[no-any-return]


def opened(get_env: Callable[..., Any], domain: str, split: str = "test") -> Any:
    """Return tau-bench's environment with a silent user. Its data is unpickled instead of parsed, which changes no
    value.
    """
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
    """Yield the cases of gold and of no action."""
    yield Case("gold", task, as_raw(task), task.gold)
    yield Case("noop", task, as_raw(task), [Message(role="assistant")])


def variants(task: Task, other: Task) -> Iterator[Case]:
    """Yield the cases of gold, of no action, and of changed gold calls."""
    *calls, last = task.gold
    raw = as_raw(task)
    yield from plain_variants(task, other)
    yield Case("gold without its outputs", task, raw, [*calls, Message(role="assistant", content="Done.")])
    yield Case("gold without its last call", task, raw, [*calls[:-1], last])
    yield Case("gold with its last call twice", task, raw, [*calls, *calls[-1:], last])
    yield Case("gold with a wrong argument", task, raw, [*map(wrong, calls), last])
    yield Case("gold of another task", task, raw, other.gold)


def wrong(message: Message) -> Message:
    """Return the call with one argument replaced by an invalid value or removed. The choice is deterministic."""
    (call,) = message.tool_calls
    chance = random.Random(call.model_dump_json())
    arguments = dict(call.arguments)
    if arguments:
        name = chance.choice(sorted(arguments))
        arguments[name] = chance.choice([None, "x", 7, [], {}, arguments.pop(name)])
    return message.replace(tool_calls=(call.replace(arguments=arguments),))


def as_raw(task: Task) -> dict[str, Any]:
    actions = [{"name": call.name, "kwargs": call.arguments} for call in task.gold_calls]
    return {"user_id": "", "actions": actions, "instruction": "", "outputs": list(task.outputs)}


def recorded(ours: TauBench, path: Path, domain: str) -> list[Case]:
    """Yield the episodes of a results file, with the task that the file stores. A crashed episode has no messages."""
    results = [r for r in json.loads(path.read_text(encoding="utf-8")) if r["traj"]]
    if not results or domain not in results[0]["traj"][0]["content"].casefold():
        return []
    cases = []
    for i, result in enumerate(results):
        messages = [message_from_openai(wire) for wire in result["traj"]]
        raw = result["info"]["task"]
        task = ours.to_task(f"{path.stem}-{i}-task{result['task_id']}", "test", raw)
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
            found.differences.append(
                f"{case.task.id} ({case.kind}): understudy {episode.score}, tau-bench {theirs:g}{record}"
            )
    return found


async def own(ours: TauBench, case: Case) -> Trajectory:
    replay = Replay(case)
    environment = ours.environment(case.task, replay)
    return await rollout(
        case.task, environment, replay, EpisodeLimits(max_turns=len(case.replies), max_episode_tokens=1)
    )


def their(env: Any, case: Case) -> float:
    """Return the reward of tau-bench's environment, stepped with each reply as tau-bench's tool-calling agent does."""
    from tau_bench.types import Action, Task

    env.data, env.task, env.actions = env.data_load_func(), Task(**case.raw), []
    env.user = Quiet(case.user)
    for reply in case.replies:
        call = (
            reply.tool_calls[0]
            if reply.tool_calls
            else ToolCall(name=RESPOND_ACTION, arguments={"content": reply.content})
        )
        response = env.step(Action(name=call.name, kwargs=call.arguments))
        if response.done:
            return float(response.reward)
    return 0.0


def speeds(get_env: Callable[..., Any], root: Path, domains: Sequence[str]) -> Iterator[str]:
    """Return the gold episodes per second on the test tasks, for both sides. tau-bench's are played as its `run.py`
    plays them.
    """
    for domain in domains:
        ours = open_domain(f"{root}#{domain}")
        tasks = ours.tasks("test")
        passes = [asyncio.run(gold_pass(ours, tasks)) for _ in range(3)]
        own_rate, their_rate = len(tasks) / min(passes), 20 / their_pass(get_env, domain, tasks[:20])
        yield (
            f"{domain}: {own_rate:,.0f} gold episodes per second (best of 3 passes over {len(tasks)} tasks); "
            f"tau-bench: {their_rate:.2f} (20 tasks); ratio {own_rate / their_rate:,.0f}"
        )


async def gold_pass(ours: TauBench, tasks: Sequence[Task]) -> float:
    started = time.perf_counter()
    for task in tasks:
        assert (await rollout(task, ours.environment(task), GoldAgent(), EpisodeLimits(max_turns=60))).reward == 1.0
    return time.perf_counter() - started


def their_pass(get_env: Callable[..., Any], domain: str, tasks: Sequence[Task]) -> float:
    """Play the gold actions of each task in a new tau-bench environment, from `reset` to a last text."""
    from tau_bench.types import Action

    started = time.perf_counter()
    for i in range(len(tasks)):
        env = get_env(domain, user_strategy="human", user_model="", task_split="test", task_index=i)
        env.user = Quiet(())
        env.reset(task_index=i)
        for action in (a for a in env.task.actions if a.name not in env.terminate_tools):
            env.step(action)
        said = Action(name=RESPOND_ACTION, kwargs={"content": "; ".join(env.task.outputs)})
        assert env.step(said).reward == 1.0
    return time.perf_counter() - started


def new_table(title: str) -> Table:
    table = Table(title=title)
    for name in ("domain", "kind", "episodes", "ours", "theirs", "agree", "ours = recorded", "same tool results"):
        table.add_column(name, justify="left" if name in ("domain", "kind") else "right")
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
