"""Evaluations: the floor is 0 and the oracle 1, faults are set aside and attributed, differences are paired."""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Sequence

import pytest
from rich.console import Console

from toy import DOMAIN
from understudy import outcome
from understudy.agent import GoldAgent, SilentAgent
from understudy.assess.sitting import Desk, Sitting, assess
from understudy.config import TrainConfig
from understudy.domains.base import Slice
from understudy.errors import ConfigError, RolloutError
from understudy.evaluate import evaluate, floor, held_out, oracle
from understudy.evaluation import Evaluation, TaskResult
from understudy.messages import Message, ToolCall, ToolSpec
from understudy.outcome import Named, Outcome
from understudy.players import named_agent
from understudy.purse import Purse
from understudy.results import (
    UNTRAINED,
    as_json,
    as_text,
    gain,
    keep,
    markdown,
    summary,
    tables,
    verdict,
)
from understudy.rollout import Limits
from understudy.run import Run
from understudy.settings import parse
from understudy.statistics import rate
from understudy.tasks import Task
from understudy.trajectory import Trajectory
from understudy.users import Cast

TASKS = held_out(DOMAIN, "test", 12)


class Wavering(GoldAgent):
    """Plays gold where the episode's seed says so, and is out of order where the task is in `broken`."""

    def __init__(self, broken: Sequence[str] = ()) -> None:
        self.broken, self.attempts = broken, 0

    async def act(self, task: Task, episode: Trajectory, new: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        if task.id in self.broken:
            self.attempts += 1
            raise RolloutError("the engine is gone", "engine")
        if random.Random(episode.seed).random() < 0.5:
            return await SilentAgent().act(task, episode, new, tools)
        return await super().act(task, episode, new, tools)


def evaluation(*rewards: tuple[float | None, ...], kind: str = "agent", families: str = "") -> Evaluation:
    results = tuple(
        TaskResult(task=f"t{i}", family=families[i : i + 1] or "f", difficulty="easy", rewards=row)
        for i, row in enumerate(rewards)
    )
    trials = len(rewards[0]) if rewards else 1
    return Evaluation.model_validate({"domain": "d", "kind": kind, "seed": 0, "trials": trials, "results": results})


def test_floor_and_oracle() -> None:
    low, high = asyncio.run(floor(DOMAIN, TASKS)), asyncio.run(oracle(DOMAIN, TASKS))
    assert (low.success.mean, low.kind) == (0.0, "floor")
    assert (high.success.mean, high.kind) == (1.0, "oracle")
    assert high.parts == dict.fromkeys(("state", "said", "ended", "policy", "turns"), 1.0)
    assert low.parts.items() >= {"state": 0.0, "said": 1.0, "ended": 1.0, "policy": 1.0}.items()
    assert high.stops == {"done": 12}
    assert high.turns == pytest.approx(4.5)


def test_the_same_seed_gives_the_same_evaluation_however_much_is_played_at_once() -> None:
    one, other, third = (
        asyncio.run(evaluate(DOMAIN, Wavering(), TASKS, trials=3, seed=s, concurrency=c))
        for s, c in ((1, 1), (1, 50), (2, 50))
    )
    assert one == other
    assert one.results != third.results
    assert 0.0 < one.success.mean < 1.0


def test_trials_of_a_task_differ_and_progress_is_told() -> None:
    told: list[tuple[int, int]] = []
    found = asyncio.run(evaluate(DOMAIN, Wavering(), TASKS, trials=4, on_progress=lambda *at: told.append(at)))
    assert told == [(n, 48) for n in range(1, 49)]
    assert [r.task for r in found.results] == [t.id for t in TASKS]
    assert any(len(set(result.rewards)) > 1 for result in found.results)


def test_an_engine_fault_is_counted_and_left_out() -> None:
    agent = Wavering(broken=[TASKS[0].id])
    found = asyncio.run(evaluate(DOMAIN, agent, TASKS, Limits(retries=2), trials=2))
    assert found.faults == {"engine": 2}
    assert agent.attempts == 6
    assert found.results[0].rewards == (None, None)
    assert found.success.tasks == 11
    assert sum(found.stops.values()) == 22


def test_what_is_no_fault_of_the_machinery_is_raised() -> None:
    class Buggy(GoldAgent):
        async def act(self, *_: object) -> Message:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        asyncio.run(evaluate(DOMAIN, Buggy(), TASKS))


def test_counts_and_limits() -> None:
    class Caller(GoldAgent):
        async def act(
            self, task: Task, episode: Trajectory, new: Sequence[Message], tools: Sequence[ToolSpec]
        ) -> Message:
            episode.act(reply := Message(role="assistant", tool_calls=(ToolCall(name="nothing"),)))
            return reply

    found = asyncio.run(evaluate(DOMAIN, Caller(), TASKS, Limits(max_turns=3)))
    assert found.counts == {"unknown_tool": 36}
    assert found.stops == {"max_turns": 12}
    assert found.parts["ended"] == 0.0


def test_held_out_tasks_are_frozen_first_and_never_twice() -> None:
    tasks = held_out(DOMAIN, "test", 60)
    assert tasks[:12] == DOMAIN.tasks("test")
    assert len(tasks) == len({t.id for t in tasks}) == len({t.model_dump_json(exclude={"id"}) for t in tasks}) == 60
    assert held_out(DOMAIN, "test", 60) == tasks
    assert all(t.split == "test" for t in tasks)
    assert held_out(DOMAIN, "test", 5) == tasks[:5]


def test_a_slice_that_has_few_tasks_gives_few() -> None:
    narrow = DOMAIN.slice(Slice(families=("one",), difficulties=("easy",)))
    assert len(held_out(narrow, "test", 100)) == 10  # a third of thirty lamps


def test_pass_k_over_tasks() -> None:
    found = evaluation((1.0, 1.0), (1.0, 0.0), (0.0, 0.0), (1.0, None))
    assert found.success.mean == pytest.approx((1 + 0.5 + 0 + 1) / 4)
    assert (found.passing("hat", 2).mean, found.passing("hat", 2).tasks) == (pytest.approx(1 / 3), 3)
    assert found.passing("at", 2).mean == pytest.approx(2 / 3)


def test_trials_of_few_tasks_are_worth_no_more_than_there_were() -> None:
    trials = [(1.0, 0.0, None, 1.0), (None, 0.0, 1.0, 0.0)] * 20
    found = evaluation(*trials).success
    assert found == rate([2 / 3, 1 / 3] * 20, 120)
    assert rate([1.0, 0.0] * 60).high < found.high < rate([1.0, 0.0] * 20).high


def test_each_interval_is_drawn_once_for_all_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn, choices = Counter[tuple[float, ...]](), random.Random.choices

    def counted(source: random.Random, values: Sequence[float], *, k: int) -> list[float]:
        drawn[tuple(values)] += 1
        return choices(source, values, k=k)

    monkeypatch.setattr(random.Random, "choices", counted)
    rows = evaluation(*[(1.0, 0.0, float(i % 3 == 0)) for i in range(7)], families="abababa")
    whole = Outcome(rows=(Named(name="agent", evaluation=rows),))
    for told in (outcome.as_json, outcome.as_text, outcome.markdown, outcome.as_json):
        told(whole)
    assert len(drawn) > 3
    assert set(drawn.values()) == {2000}
    drawn.clear()
    assert as_json(whole.pairs)["rows"][0]["pass_hat_k"][1] == rows.passing("hat", 2).mean
    assert not drawn


def test_only_the_whole_reward_is_a_success() -> None:
    assert evaluation((0.99,), (1.0,)).success.mean == 0.5


def test_gain_is_paired_by_task_and_trial() -> None:
    old = evaluation((0.0, 1.0), (None, 0.0), (1.0, 1.0))
    new = evaluation((1.0, None), (1.0, 1.0), (1.0, 1.0), (1.0, 1.0))
    found = gain(new, old)
    assert (found.mean, found.tasks) == (pytest.approx((1 + 1 + 0) / 3), 3)
    assert gain(new, evaluation()).tasks == 0


def rows() -> list[tuple[str, Evaluation]]:
    return [
        ("do nothing", evaluation(*[(0.0,)] * 40, kind="floor")),
        ("gold oracle", evaluation(*[(1.0,)] * 40, kind="oracle")),
        ("warm start", evaluation(*[(0.0, 1.0)] * 20, *[(0.0, 0.0)] * 20, families="a" * 20 + "b" * 20)),
        ("trained", evaluation(*[(1.0, 1.0)] * 30, *[(0.0, 0.0)] * 10, families="a" * 20 + "b" * 20)),
    ]


def test_the_table_has_intervals_pass_k_and_gains_between_agents_only() -> None:
    lines = markdown(rows()).splitlines()
    assert lines[0] == "|  | success [95%] | pass^2 | gain on the row before | tasks |"
    assert lines[2] == "| do nothing | 0.000 [0.000, 0.088] |  |  | 40 |"
    assert lines[4].startswith("| warm start | 0.250 [")
    assert "| 0.000 |  | 40 |" in lines[4]
    assert "| 0.750 | +0.500 [+0." in lines[5]
    assert "trained succeeds more often than warm start by 0.500" in lines[7]


def test_the_table_by_family_and_difficulty() -> None:
    cells = [line.strip("| ").split(" | ") for line in markdown(rows()[2:]).splitlines()]
    assert ["a", "20", "0.50", "1.00"] in cells
    assert ["b", "20", "0.00", "0.50"] in cells
    assert ["easy", "40", "0.25", "0.75"] in cells


def test_faults_are_shown_where_there_are_any() -> None:
    faulty = rows()[3][1].replace(faults={"engine": 2, "user": 1})
    assert markdown([("x", faulty)]).splitlines()[2].endswith("| 40 | 3 |")


def test_verdicts() -> None:
    warm = rows()[2]
    assert "inside the noise" in verdict([warm, ("same", warm[1])])
    assert verdict([warm]).startswith("warm start succeeds on 0.250 [0.")
    assert verdict([]) == "No agent was evaluated."


def test_rich_tables_and_text() -> None:
    console = Console(width=100)
    with console.capture() as captured:
        console.print(*tables(rows()))
    text = captured.get()
    assert "gold oracle" in text
    assert "difficulty" in text
    assert verdict(rows()) in as_text(rows())


def test_json_holds_everything() -> None:
    found = json.loads(json.dumps(as_json(rows()), allow_nan=False))
    trained = found["rows"][3]
    assert trained["pass_hat_k"] == [0.75, 0.75]
    assert trained["gain"]["mean"] == 0.5
    assert found["rows"][2]["gain"] is None
    assert Evaluation.model_validate(trained["evaluation"]) == rows()[3][1]


def test_results_are_kept_in_the_run(tmp_path) -> None:  # type: ignore[no-untyped-def]
    run = Run.create(tmp_path / "run", TrainConfig())
    keep(run, {"evaluations": rows()})
    found = json.loads((run.folder / "result.json").read_text())
    assert (found["verdict"], "tests" in found) == (verdict(rows()), False)
    assert (run.folder / "result.md").read_text() == markdown(rows())
    assert summary({"evaluations": rows()}) == as_text(rows())


def test_results_on_domains_that_were_not_trained_on_stand_apart(tmp_path) -> None:  # type: ignore[no-untyped-def]
    run = Run.create(tmp_path / "run", TrainConfig())
    tables = {"evaluations": rows(), "tests": rows()[:3]}
    keep(run, tables)
    assert len(json.loads((run.folder / "result.json").read_text())["tests"]["rows"]) == 3
    own, head, others = (run.folder / "result.md").read_text().partition(f"## {UNTRAINED}")
    assert head
    assert own.startswith(markdown(rows()))
    assert others.strip() == markdown(rows()[:3]).strip()
    assert f"{UNTRAINED}\n{as_text(rows()[:3])}" in summary(tables)


def test_a_sitting_plays_what_the_config_says() -> None:
    config = parse(TrainConfig, "", ["domain=toy:DOMAIN", "slice.families=one", "eval.tasks=9", "eval.trials=2"])
    desk = Desk(Purse(), Wavering(), Cast(config.user))
    low, high, own = asyncio.run(assess(Sitting(name="wavering", agent="chat", config=config), desk)).pairs
    assert [name for name, _ in (low, high, own)] == ["do nothing", "gold oracle", "wavering"]
    assert {r.family for r in own[1].results} == {"one"}
    assert (len(own[1].results), own[1].trials) == (9, 2)


def test_named_agents() -> None:
    assert isinstance(named_agent("gold", TrainConfig()), GoldAgent)
    with pytest.raises(ConfigError, match="unknown agent 'silnt'; did you mean 'silent'"):
        named_agent("silnt", TrainConfig())


def test_a_table_without_results_is_json() -> None:
    lost = evaluation((None, 1.0), (None, None))
    found = json.loads(json.dumps(as_json([("agent", lost), ("again", lost)]), allow_nan=False))
    assert found["rows"][0]["pass_hat_k"] == [1.0, None]
