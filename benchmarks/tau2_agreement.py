"""Compare this package's reward and speed with tau2-bench's own evaluator on the same episodes.

    TAU2_BENCH=/path/to/tau2-bench python benchmarks/tau2_agreement.py [--recorded FILE ...] [--quick]

For every task of every domain and split there are episodes with the gold actions, with no action, and with changed
gold actions. Given results files are replayed message by message. tau2 plays each episode in its own environment and
grades it with `evaluate_simulation`. This needs all of tau2's requirements, including litellm, but calls no model:
assertions that a model would judge count as true on both sides.
"""

import argparse
import asyncio
import inspect
import json
import os
import pickle
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from understudy.core.errors import ConfigError, ToolError
from understudy.core.messages import Message, ToolCall, ToolSpec
from understudy.core.tasks import SPLITS, Scenario, Split, Task
from understudy.core.trajectory import Trajectory
from understudy.envs.tools import UserTools
from understudy.rollouts.agent import GoldAgent
from understudy.rollouts.rollout import EpisodeLimits, rollout
from understudy.sources.benchmarks.tau2_bench import Tau2Bench, open_domain

DOMAINS = ("mock", "airline", "retail", "telecom")
Turn = tuple[str, str, tuple[ToolCall, ...]]
"""Role (agent or user), text and calls."""


@dataclass
class Case:
    """One episode that both sides play."""

    kind: str
    task: Task
    raw: Any
    turns: Sequence[Turn]
    stopped: bool = True
    """Whether the user ended it."""
    recorded: float | None = None


@dataclass
class Tally:
    """Number of equal and different rewards."""

    episodes: int = 0
    own: float = 0.0
    theirs: float = 0.0
    agree: int = 0
    recorded: int = 0
    differences: list[str] = field(default_factory=list)


class Replay:
    """The agent and the user of a case. The user calls its tools where the case says so, before it writes its next
    text.
    """

    def __init__(self, case: Case) -> None:
        self._agent = iter([turn for turn in case.turns if turn[0] == "assistant"])
        self._user = iter([turn for turn in case.turns if turn[0] == "user"])
        self._follows = list(case.turns)

    def __call__(self, scenario: Scenario, seed: int, user_tools: UserTools | None) -> "Replay":
        """Return the user of the episode, with the user's tools."""
        self._device = user_tools
        return self

    async def act(self, task: Task, episode: Trajectory, new: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        """Return the agent's next turn."""
        episode.observe(new)
        _, text, calls = next(self._agent)
        episode.act(message := Message(role="assistant", content=text, tool_calls=calls))
        return message

    async def reply(self, transcript: Sequence[Message]) -> str | None:
        """Play the user's turns up to its next text."""
        if not transcript and self._follows[:1] and self._follows[0][0] == "assistant":
            return "Hi."
        for _, text, calls in self._user:
            for call in calls:
                self._try(call)
            if not calls:
                return text
        return None

    def _try(self, call: ToolCall) -> None:
        assert self._device, "the case has calls of the user, but the user has no tools"
        try:
            self._device.call_sync(call)
        except ToolError:
            return


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recorded", nargs="*", default=[], help="results files of tau2-bench to replay")
    parser.add_argument("--only-recorded", action="store_true", help="play only the results files")
    parser.add_argument("--quick", action="store_true", help="play only the first five tasks of each split")
    parser.add_argument("--domains", nargs="*", default=DOMAINS, choices=DOMAINS, help="default: all")
    options = parser.parse_args()
    if not os.environ.get("TAU2_BENCH"):
        return print("tau2_agreement: skipped; set TAU2_BENCH to the folder of a clone of sierra-research/tau2-bench")
    root = Path(os.environ["TAU2_BENCH"]).resolve()
    evaluate = original(root)
    table = new_table("rewards of understudy and of tau2-bench's evaluator")
    lines: list[str] = []
    for domain in options.domains:
        ours = replace(open_domain(f"{root}#{domain}"), judge=lambda assertions, transcript: [True] * len(assertions))
        try:
            if not options.only_recorded:
                lines.append(speed(ours, evaluate))
                print(lines[-1], file=sys.stderr)
            read_once()
            splits = () if options.only_recorded else SPLITS
            for name, tally in tallies(ours, evaluate, options.recorded, splits, 5 if options.quick else None):
                table.add_row(domain, name, *cells(tally))
                print(domain, name, *cells(tally), file=sys.stderr)
                lines += tally.differences
        except ConfigError as e:
            lines.append(f"{domain}: skipped: {e}")
    Console(width=120).print(table, *lines, sep="\n")


def original(root: Path) -> Callable[[Case, str], float]:
    """Import tau2's environment and evaluator from the checkout."""
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    sys.path.insert(0, str(root / "src"))
    from loguru import logger
    from tau2.evaluator.evaluator import EvaluationType, evaluate_simulation
    from tau2.registry import registry

    logger.remove()
    is_newer = "strict_replay" in inspect.signature(evaluate_simulation).parameters  # tau2-bench-verified lacks it
    options = {"strict_replay": False} if is_newer else {}

    def evaluate(case: Case, domain: str) -> float:
        run = simulation(case, registry.get_env_constructor(domain)())
        task = without_judge(case.raw)
        info = evaluate_simulation(run, task, EvaluationType.ALL, False, domain, **options)
        return float(info.reward)

    return evaluate


def read_once() -> None:
    """Make tau2 unpickle its databases instead of parsing them, which changes no value."""
    from tau2.environment.db import DB

    parse = DB.load.__func__  # type: ignore[attr-defined]
    kept: dict[Any, bytes] = {}

    def load(cls: Any, path: Any) -> Any:
        if (cls, path) not in kept:
            kept[cls, path] = pickle.dumps(parse(cls, path))
        return pickle.loads(kept[cls, path])

    DB.load = classmethod(load)  # type: ignore[method-assign, assignment]


def without_judge(raw: Any) -> Any:
    """Return the task without natural-language assertions in its reward."""
    if raw.evaluation_criteria is None:
        return raw
    basis = [kind for kind in raw.evaluation_criteria.reward_basis if kind.value != "NL_ASSERTION"]
    return raw.model_copy(
        update={"evaluation_criteria": raw.evaluation_criteria.model_copy(update={"reward_basis": basis})}
    )


def simulation(case: Case, environment: Any) -> Any:
    """Play the case in tau2's environment. Return tau2's record of it."""
    from tau2.data_model.message import AssistantMessage, UserMessage
    from tau2.data_model.message import ToolCall as TheirCall
    from tau2.data_model.simulation import SimulationRun

    begin = case.raw.initial_state
    history = list(begin.message_history or ()) if begin else []
    environment.set_state(
        begin.initialization_data if begin else None, begin.initialization_actions if begin else None, history
    )
    messages = history
    for number, (who, text, calls) in enumerate(case.turns):
        made = [
            TheirCall(id=f"c{number}_{i}", name=c.name, arguments=c.arguments, requestor=who)
            for i, c in enumerate(calls)
        ]
        kind = AssistantMessage if who == "assistant" else UserMessage
        messages.append(kind(role=who, content=text or None, tool_calls=made or None))
        messages += map(environment.get_response, made)
    return SimulationRun(
        id="0", task_id=case.raw.id, start_time="", end_time="", duration=0.0, messages=messages,
        termination_reason="user_stop" if case.stopped else "max_steps",
    )  # fmt: skip


def tallies(
    ours: Tau2Bench,
    evaluate: Callable[[Case, str], float],
    records: Sequence[str],
    splits: Sequence[Split],
    first: int | None,
) -> Iterator[tuple[str, Tally]]:
    for path in map(Path, records):
        if cases := recorded(ours, path)[:first]:
            yield f"recorded, {path.stem}", tally(ours, evaluate, cases)
    for split in splits:
        tasks = ours.tasks(split)[:first]
        kinds = variants if split == "test" else plain_variants
        cases = [case for i, task in enumerate(tasks) for case in kinds(ours, task, tasks[(i + 1) % len(tasks)])]
        for kind in dict.fromkeys(case.kind for case in cases):
            yield f"{split}, {kind}", tally(ours, evaluate, [case for case in cases if case.kind == kind])


def plain_variants(ours: Tau2Bench, task: Task, other: Task) -> Iterator[Case]:
    """Yield the cases of gold and of no action."""
    raw = ours.raw_tasks[task.id]
    yield Case("gold", task, raw, gold(raw))
    yield Case("noop", task, raw, [("assistant", "", ())])


def variants(ours: Tau2Bench, task: Task, other: Task) -> Iterator[Case]:
    """Yield the cases of gold, of no action, and of changed gold actions."""
    raw = ours.raw_tasks[task.id]
    turns = gold(raw)
    acts = [i for i, turn in enumerate(turns) if turn[2]]
    yield from plain_variants(ours, task, other)
    yield Case("gold without the facts to tell", task, raw, [*turns[:-1], ("assistant", "Done.", ())])
    yield Case("gold of another task", task, raw, gold(ours.raw_tasks[other.id]))
    yield Case("gold, not ended by the user", task, raw, turns, stopped=False)
    if acts:
        last = acts[-1]
        yield Case("gold without its last action", task, raw, [*turns[:last], *turns[last + 1 :]])
        yield Case("gold with its last action twice", task, raw, [*turns[: last + 1], *turns[last:]])
        yield Case("gold with wrong arguments", task, raw, [wrong(turn) for turn in turns])
    if any(turn[0] == "user" for turn in turns):
        yield Case("gold with an idle user", task, raw, [turn for turn in turns if turn[0] == "assistant"])
        yield Case("gold with an idle agent", task, raw, [t for t in turns if t[0] == "user" or not t[2]])


def gold(raw: Any) -> list[Turn]:
    """Return the gold actions of both sides. The agent writes a text before the user acts, the user one after it."""
    criteria = raw.evaluation_criteria
    turns: list[Turn] = []
    acting = "assistant"
    for action in (criteria.actions or ()) if criteria else ():
        if action.requestor != acting:
            turns.append(("assistant", "Please do it.", ()) if acting == "assistant" else ("user", "Done.", ()))
            acting = action.requestor
        turns.append((acting, "", (ToolCall(name=action.name, arguments=action.arguments),)))
    if acting == "user":
        turns.append(("user", "Done.", ()))
    facts = "; ".join(criteria.communicate_info or ()) if criteria else ""
    return [*turns, ("assistant", facts or "Done.", ())]


def wrong(turn: Turn) -> Turn:
    """Return calls with one argument replaced by an invalid value or removed. The choice is deterministic."""
    who, text, calls = turn
    changed = []
    for call in calls:
        chance = random.Random(call.model_dump_json())
        arguments = dict(call.arguments)
        if arguments:
            name = chance.choice(sorted(arguments))
            value = arguments.pop(name)
            if chance.random() < 0.8:
                arguments[name] = chance.choice([None, "x", 7, [], {}, value])
        changed.append(call.replace(arguments=arguments))
    return who, text, tuple(changed)


def recorded(ours: Tau2Bench, path: Path) -> list[Case]:
    """Yield the episodes of this domain in a results file, with the tasks that the file stores."""
    from tau2.data_model.tasks import Task as TheirTask

    results = json.loads(path.read_text(encoding="utf-8"))
    if results["info"]["environment_info"]["domain_name"] != ours.domain:
        return []
    raws = {task["id"]: TheirTask.model_validate(task) for task in results["tasks"]}
    cases = []
    for i, run in enumerate(results["simulations"]):
        raw = played(run, raws)
        if raw is None:
            print(
                f"{path.stem}: episode {i} is skipped: its task cannot be identified by its gold actions",
                file=sys.stderr,
            )
            continue
        task = ours.to_task(f"{path.stem}-{i}-task{raw.id}", "test", raw)
        turns = [turn_of(m) for m in run["messages"][1:] if m["role"] in ("assistant", "user")]
        stopped = run["termination_reason"] in ("user_stop", "agent_stop")
        cases.append(Case("recorded", task, raw, turns, stopped, run["reward_info"]["reward"]))
    return cases


def played(run: dict[str, Any], raws: dict[str, Any]) -> Any:
    """Return the task that an episode was graded by. Some files renumber their tasks, so it is found by its gold
    actions.
    """
    graded = [check["action"]["action_id"] for check in run["reward_info"].get("action_checks") or ()]
    gold_ids = {name: [a.action_id for a in raw.evaluation_criteria.actions or ()] for name, raw in raws.items()}
    if gold_ids[run["task_id"]] == graded:
        return raws[run["task_id"]]
    same = [raws[name] for name, ids in gold_ids.items() if graded and ids == graded]
    return same[0] if len(same) == 1 else None


def turn_of(message: dict[str, Any]) -> Turn:
    calls = message.get("tool_calls") or ()
    made = tuple(ToolCall(id=c.get("id") or "", name=c["name"], arguments=c["arguments"]) for c in calls)
    return message["role"], message.get("content") or "", made


def tally(ours: Tau2Bench, evaluate: Callable[[Case, str], float], cases: Sequence[Case]) -> Tally:
    found = Tally()
    for case in cases:
        score = asyncio.run(own(ours, case)).score
        assert score is not None
        theirs = attempt(evaluate, case, ours.domain)
        found.episodes += 1
        found.own += score.reward
        found.theirs += theirs if isinstance(theirs, float) else 0.0
        found.agree += score.reward == theirs
        found.recorded += case.recorded == score.reward
        if score.reward != theirs or case.recorded not in (None, theirs):
            record = "" if case.recorded is None else f", recorded {case.recorded:g}"
            found.differences.append(
                f"{case.task.id} ({case.kind}): understudy {score.parts}, tau2-bench {theirs}{record}"
            )
    return found


def attempt(evaluate: Callable[[Case, str], float], case: Case, domain: str) -> float | str:
    """Return tau2's reward, or the error of its evaluation."""
    try:
        return evaluate(case, domain)
    except (ValueError, AssertionError) as e:
        return f"error: {str(e).splitlines()[0]}"


async def own(ours: Tau2Bench, case: Case) -> Trajectory:
    replay = Replay(case)
    count = sum(who == "assistant" for who, *_ in case.turns)
    limits = EpisodeLimits(max_turns=max(1, count), max_episode_tokens=1)
    if case.stopped:
        return await rollout(case.task, ours.with_users(replay).environment(case.task), replay, limits)
    environment = ours.with_users(replay).environment(case.task)
    environment.graded = environment.grade  # type: ignore[attr-defined]
    environment.grade = lambda ended: environment.graded(False)  # type: ignore[attr-defined,method-assign]
    return await rollout(case.task, environment, replay, limits)


def speed(ours: Tau2Bench, evaluate: Callable[[Case, str], float]) -> str:
    """Return the gold episodes per second on the test tasks."""
    tasks = [task for task in ours.tasks("test") if task.family != "nothing"]
    passes = [asyncio.run(gold_pass(ours, tasks)) for _ in range(3)]
    few = [Case("gold", task, ours.raw_tasks[task.id], gold(ours.raw_tasks[task.id])) for task in tasks[:10]]
    started = time.perf_counter()
    for case in few:
        attempt(evaluate, case, ours.domain)
    own_rate, their_rate = len(tasks) / min(passes), len(few) / (time.perf_counter() - started)
    return (
        f"{ours.domain}: {own_rate:,.0f} gold episodes per second (best of 3 passes over {len(tasks)} tasks); "
        f"tau2-bench: {their_rate:.2f} ({len(few)} tasks); ratio {own_rate / their_rate:,.0f}"
    )


async def gold_pass(ours: Tau2Bench, tasks: Sequence[Task]) -> float:
    started = time.perf_counter()
    for task in tasks:
        await rollout(task, ours.environment(task), GoldAgent(), EpisodeLimits(max_turns=60))
    return time.perf_counter() - started


def new_table(title: str) -> Table:
    table = Table(title=title)
    for name in ("domain", "kind", "episodes", "ours", "theirs", "agree", "ours = recorded"):
        table.add_column(name, justify="left" if name in ("domain", "kind") else "right")
    return table


def cells(t: Tally) -> list[str]:
    rates = [f"{t.own / t.episodes:.3f}", f"{t.theirs / t.episodes:.3f}"]
    return [str(t.episodes), *rates, f"{t.agree}", f"{t.recorded}" if t.recorded else ""]


if __name__ == "__main__":
    main()
