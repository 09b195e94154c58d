"""Test evaluations: baselines, faults, pass^k, paired gains, and reports."""

import asyncio
import itertools
import json
import random
import re
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support.eval_results import make_result
from toy import DOMAIN
from understudy.clients.cost import CostTracker
from understudy.core.errors import ConfigError, RolloutError, TaskError
from understudy.core.messages import Message, ToolCall, ToolSpec
from understudy.core.tasks import SPLITS, Task
from understudy.core.trajectory import Trajectory
from understudy.envs.task_generation import max_repeats
from understudy.envs.task_source import Slice
from understudy.envs.users import UserSimulatorFactory
from understudy.evaluation.evaluate import (
    evaluate,
    evaluate_gold,
    evaluate_noop,
    play_episodes,
    select_tasks,
    validate_noop_reward,
)
from understudy.evaluation.reports.as_json import report_to_dict
from understudy.evaluation.reports.files import read_report, write_run_report
from understudy.evaluation.reports.markdown import report_to_markdown
from understudy.evaluation.reports.report import OOD_TITLE, EvalReport, RunReport
from understudy.evaluation.reports.tables import report_notes, success_cells
from understudy.evaluation.reports.text import report_to_text, run_report_to_text
from understudy.evaluation.result import EvalResult, ResultRow, merge_results, success_gain, summarize_episodes
from understudy.evaluation.runner import EvalContext, load_eval_tasks, run_eval
from understudy.evaluation.statistics import estimate_mean
from understudy.rollouts.agent import GoldAgent, NoopAgent
from understudy.rollouts.rollout import EpisodeLimits, RolloutRequest
from understudy.runs.agents import make_agent
from understudy.runs.config import TrainConfig, parse_config
from understudy.runs.eval_spec import EvalSpec
from understudy.runs.run import Run
from understudy.sources.tool_dataset import ToolDataset, ToolEpisode, ToolExample

TASKS = select_tasks(DOMAIN, "test", 12)


class UngradedEpisode(ToolEpisode):
    """An episode that any answer solves."""

    def reward(self, transcript: Sequence[Message]) -> float:
        return float(bool(transcript[-1].content))


class SeededGoldAgent(GoldAgent):
    """An agent that plays gold or does nothing, by the episode's seed, and raises for the tasks in `broken`."""

    def __init__(self, broken: Sequence[str] = ()) -> None:
        self.broken, self.attempts = broken, 0

    async def act(
        self, task: Task, episode: Trajectory, new_messages: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> Message:
        if task.id in self.broken:
            self.attempts += 1
            raise RolloutError("the engine is gone", "engine")
        if random.Random(episode.seed).random() < 0.5:
            return await NoopAgent().act(task, episode, new_messages, tools)
        return await super().act(task, episode, new_messages, tools)


def test_noop_earns_0_and_gold_earns_1() -> None:
    low, high = asyncio.run(evaluate_noop(DOMAIN, TASKS)), asyncio.run(evaluate_gold(DOMAIN, TASKS))
    assert (low.success_rate.mean, low.kind) == (0.0, "noop")
    assert (high.success_rate.mean, high.kind) == (1.0, "gold")
    names = ("state_match", "facts_told", "within_limits", "turn_efficiency", "policy_compliance")
    assert high.mean_parts == dict.fromkeys((*names, "reward_with_policy", "reward_without_policy"), 1.0)
    assert (
        low.mean_parts.items()
        >= {"state_match": 0.0, "facts_told": 1.0, "within_limits": 1.0, "policy_compliance": 1.0}.items()
    )
    assert high.stop_counts == {"done": 12}
    assert high.mean_turns == pytest.approx(4.5)


@pytest.mark.parametrize("answers", [(None, None), ("yes", None)])
def test_tasks_without_a_gold_solution_have_no_gold_row(answers: Sequence[str | None]) -> None:
    examples = [
        ToolExample(prompt=f"Word {n}?", split="test", **({"answer": answer} if answer else {}))
        for n, answer in enumerate(answers)
    ]
    source = ToolDataset("words", "", examples, UngradedEpisode)
    tasks = source.tasks("test")
    noop, gold = asyncio.run(evaluate_noop(source, tasks)), asyncio.run(evaluate_gold(source, tasks))
    report = EvalReport(rows=(ResultRow(name="noop", result=noop), ResultRow(name="gold", result=gold)))
    (line,) = [line for line in success_cells(report) if line[0] == "gold"]
    known = len([answer for answer in answers if answer])
    assert line[1] == "none" if not known else line[1].startswith("1.000")
    assert str(known) in line
    assert gold.split == "test"
    assert any(f"{len(answers) - known} of {len(answers)}" in note for note in report_notes(report))
    json.dumps(report_to_dict(report), allow_nan=False)


def test_same_seed_gives_equal_results_for_any_concurrency() -> None:
    one, other, third = (
        asyncio.run(evaluate(DOMAIN, SeededGoldAgent(), TASKS, trials=3, seed=s, concurrency=c))
        for s, c in ((1, 1), (1, 50), (2, 50))
    )
    assert one == other
    assert one.task_results != third.task_results
    assert 0.0 < one.success_rate.mean < 1.0


def test_trials_of_a_task_differ_and_progress_is_reported() -> None:
    progress: list[tuple[int, int]] = []
    request = RolloutRequest(DOMAIN, SeededGoldAgent(), on_progress=lambda *at: progress.append(at))
    episodes = asyncio.run(play_episodes(request, TASKS, trials=4))
    found = summarize_episodes(DOMAIN, TASKS, episodes, trials=4, seed=0)
    assert progress == [(n, 48) for n in range(1, 49)]
    assert [r.task for r in found.task_results] == [t.id for t in TASKS]
    assert any(len(set(result.rewards)) > 1 for result in found.task_results)


def test_engine_fault_is_counted_and_excluded_from_the_rate() -> None:
    agent = SeededGoldAgent(broken=[TASKS[0].id])
    found = asyncio.run(evaluate(DOMAIN, agent, TASKS, EpisodeLimits(max_retries=2), trials=2))
    assert found.fault_counts == {"engine": 2}
    assert agent.attempts == 6
    assert found.task_results[0].rewards == (None, None)
    assert found.success_rate.tasks == 11
    assert sum(found.stop_counts.values()) == 22


def test_bug_in_an_agent_is_raised_and_cancels_the_other_episodes() -> None:
    ended: list[str] = []

    class Buggy(GoldAgent):
        async def act(self, task: Task, *_: object) -> Message:
            if task == TASKS[2]:
                raise ZeroDivisionError
            try:
                await asyncio.sleep(3600)
            finally:
                ended.append(task.id)
            raise AssertionError

    async def run() -> None:
        with pytest.raises(ZeroDivisionError):
            await evaluate(DOMAIN, Buggy(), TASKS[:3])
        assert sorted(ended) == sorted(task.id for task in TASKS[:2]), "they ended before the error was raised"

    asyncio.run(run())


def test_events_and_limit_stops_are_counted() -> None:
    class Caller(GoldAgent):
        async def act(
            self, task: Task, episode: Trajectory, new: Sequence[Message], tools: Sequence[ToolSpec]
        ) -> Message:
            episode.act(reply := Message(role="assistant", tool_calls=(ToolCall(name="nothing"),)))
            return reply

    found = asyncio.run(evaluate(DOMAIN, Caller(), TASKS, EpisodeLimits(max_turns=3)))
    assert found.event_counts == {"unknown_tool": 36}
    assert found.stop_counts == {"max_turns": 12}
    assert found.mean_parts["within_limits"] == 0.0


def test_held_out_tasks_start_with_the_frozen_ones_and_are_unique() -> None:
    tasks = select_tasks(DOMAIN, "test", 60)
    assert tasks[:12] == DOMAIN.tasks("test")
    assert len(tasks) == len({t.id for t in tasks}) == len({t.model_dump_json(exclude={"id"}) for t in tasks}) == 60
    assert select_tasks(DOMAIN, "test", 60) == tasks
    assert all(t.split == "test" for t in tasks)
    assert select_tasks(DOMAIN, "test", 5) == tasks[:5]


def test_small_slice_gives_all_of_its_tasks() -> None:
    narrow = DOMAIN.slice(Slice(families=("one",), difficulties=("easy",)))
    assert len(select_tasks(narrow, "test", 100)) == 10  # one third of the 30 lamps


def test_search_for_new_tasks_ends_when_the_generator_repeats_itself() -> None:
    drawn = itertools.count()
    source: Any = SimpleNamespace(
        tasks=lambda split: [], stream=lambda split, seed: (TASKS[next(drawn) % 2] for _ in itertools.count())
    )
    assert select_tasks(source, "test", 150) == TASKS[:2]
    assert next(drawn) == 2 + max_repeats(2) + 1


def test_no_score_at_all_is_an_error_with_the_first_exception() -> None:
    class Raising(ToolEpisode):
        def reward(self, transcript: Sequence[Message]) -> float:
            raise KeyError("level")

    examples = [ToolExample(prompt=str(number), answer="x", split="train") for number in range(3)]
    with pytest.raises(TaskError, match=r"KeyError: 'level' \(test_evaluate\.py:\d+\)"):
        asyncio.run(validate_noop_reward(ToolDataset("numbers", "p", examples, Raising)))


def test_pass_k_averages_over_tasks_with_enough_trials() -> None:
    found = make_result((1.0, 1.0), (1.0, 0.0), (0.0, 0.0), (1.0, None))
    assert found.success_rate.mean == pytest.approx((1 + 0.5 + 0 + 1) / 4)
    assert (found.pass_k("hat", 2).mean, found.pass_k("hat", 2).tasks) == (pytest.approx(1 / 3), 3)
    assert found.pass_k("at", 2).mean == pytest.approx(2 / 3)


def test_interval_uses_only_trials_that_have_a_result() -> None:
    trials = [(1.0, 0.0, None, 1.0), (None, 0.0, 1.0, 0.0)] * 20
    found = make_result(*trials).success_rate
    assert found == estimate_mean([2 / 3, 1 / 3] * 20, 120)
    assert estimate_mean([1.0, 0.0] * 60).high < found.high < estimate_mean([1.0, 0.0] * 20).high


def test_interval_of_pass_k_counts_groups_of_k_trials() -> None:
    """The last task has too few scored trials."""
    found = make_result(*[(1.0, 1.0, 1.0, 0.0), (0.0, 1.0, 1.0, 0.0)] * 10, (1.0, None, None, None))
    assert found.pass_k("hat", 2) == estimate_mean([1 / 2, 1 / 6] * 10, 40)
    assert found.pass_k("at", 4) == estimate_mean([1.0] * 20)


def test_only_full_reward_is_a_success() -> None:
    assert make_result((0.99,), (1.0,)).success_rate.mean == 0.5


def test_gain_is_paired_by_task_and_trial() -> None:
    old = make_result((0.0, 1.0), (None, 0.0), (1.0, 1.0))
    new = make_result((1.0, None), (1.0, 1.0), (1.0, 1.0), (1.0, 1.0))
    found = success_gain(new, old)
    assert (found.mean, found.tasks) == (pytest.approx((1 + 1 + 0) / 3), 3)
    assert success_gain(new, make_result()).tasks == 0


def make_report(**results: EvalResult) -> EvalReport:
    return EvalReport(rows=tuple(ResultRow(name=name, result=result) for name, result in results.items()))


AGENTS = {
    "sft": make_result(*[(0.0, 1.0)] * 20, *[(0.0, 0.0)] * 20, families="a" * 20 + "b" * 20),
    "rl": make_result(*[(1.0, 1.0)] * 30, *[(0.0, 0.0)] * 10, families="a" * 20 + "b" * 20),
}
RESULTS = {
    "noop": make_result(*[(0.0,)] * 40, kind="noop"),
    "gold": make_result(*[(1.0,)] * 40, kind="gold"),
    **AGENTS,
}


def test_table_has_intervals_pass_k_and_gains_between_agents() -> None:
    lines = report_to_markdown(make_report(**RESULTS)).splitlines()[2:]
    assert re.match(r"\|  \| .*95%.* \| pass\^2 \| ", lines[0])
    assert lines[2] == "| noop | 0.000 [0.000, 0.088] |  |  | 40 |"
    assert lines[4].startswith("| sft | 0.250 [")
    assert "| 0.000 |  | 40 |" in lines[4]
    assert "| 0.750 | +0.500 [+0." in lines[5]
    assert re.search(r"\brl\b.*\bsft\b.* 0\.500\b", lines[7])


def test_table_lists_family_and_difficulty() -> None:
    cells = [line.strip("| ").split(" | ") for line in report_to_markdown(make_report(**AGENTS)).splitlines()]
    assert ["a", "20", "0.50", "1.00"] in cells
    assert ["b", "20", "0.00", "0.50"] in cells
    assert ["easy", "40", "0.25", "0.75"] in cells


def test_table_has_a_fault_column_if_there_are_faults() -> None:
    faulty = AGENTS["rl"].replace(fault_counts={"engine": 2, "user": 1})
    assert report_to_markdown(make_report(x=faulty)).splitlines()[4].endswith("| 40 | 3 |")


def test_verdict_compares_the_last_two_agents() -> None:
    sft = AGENTS["sft"]
    assert re.search(r"\bsame\b.*\bsft\b.* \+0\.000 ", make_report(sft=sft, same=sft).verdict)
    assert re.match(r"sft\b.* 0\.250 \[0\.", make_report(sft=sft).verdict)
    assert not re.search(r"\d", make_report().verdict)


def test_repeats_are_summed_up_in_one_row() -> None:
    first, second = make_result((1.0,), (0.0,), (1.0,)), make_result((1.0,), (1.0,), (0.0,)).replace(seed=1)
    rows = (("m", first), ("m, repeat 2", second))
    whole = EvalReport(rows=tuple(ResultRow(name=name, result=result) for name, result in rows))
    rate = merge_results([first, second]).success_rate
    assert whole.verdict == make_report(**{"m, all repeats": merge_results([first, second])}).verdict
    assert whole.hardest_tasks == [("t1", 1, 2), ("t2", 1, 2)]
    found = report_to_dict(whole)
    assert [row["gain"] for row in found["rows"]] == [None, None]
    assert found["all_repeats"]["success"]["mean"] == rate.mean == pytest.approx(2 / 3)
    lines = report_to_markdown(whole).splitlines()
    assert lines[6] == f"| m, all repeats | {rate.mean:.3f} [{rate.low:.3f}, {rate.high:.3f}] |  | 3 |"
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    stages = whole.replace(rows=tuple(ResultRow(name=name, result=first) for name, _ in rows))
    assert (stages.pooled_row, make_report(m=first, other=second).pooled_row) == (None, None)


def test_text_report_contains_tables_and_verdict() -> None:
    text = report_to_text(make_report(**RESULTS))
    for part in ("gold", "difficulty", "pass^k and pass@k", make_report(**RESULTS).verdict):
        assert part in text


@pytest.mark.parametrize("columns", [40, 50, 69])
def test_tables_of_a_narrow_terminal_fit(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    text = report_to_text(make_report(**AGENTS))
    assert "┃" not in text
    rows = text.partition("By family")[0].splitlines()
    assert max(map(len, rows)) <= columns
    assert columns == 40 or any(re.search(r" \[\d\.\d+, \d\.\d+\] ", line) for line in rows), (
        "intervals stay in one piece"
    )


def test_json_report_contains_all_results() -> None:
    found = json.loads(json.dumps(report_to_dict(make_report(**RESULTS)), allow_nan=False))
    trained = found["rows"][3]
    assert trained["pass_hat_k"] == [0.75, 0.75]
    assert trained["gain"]["mean"] == 0.5
    assert found["rows"][2]["gain"] is None
    assert EvalResult.model_validate(trained["result"]) == AGENTS["rl"]
    assert [group["tasks"] for group in trained["groups"]] == [40, 40, 20, 20, 40]


def test_run_report_is_written_to_the_run_folder(tmp_path: Path) -> None:
    run, held_out = Run.create(tmp_path / "run", TrainConfig()), make_report(**RESULTS)
    write_run_report(RunReport(held_out=held_out), run)
    assert json.loads((run.folder / "result.json").read_text()) == report_to_dict(held_out)
    assert (run.folder / "result.md").read_text() == report_to_markdown(held_out)
    assert run_report_to_text(RunReport(held_out=held_out)) == report_to_text(held_out)
    assert read_report(run.folder / "result.json") == held_out


def test_ood_results_are_reported_separately(tmp_path: Path) -> None:
    run, held_out, ood = Run.create(tmp_path / "run", TrainConfig()), make_report(**RESULTS), make_report(**AGENTS)
    result = RunReport(held_out=held_out, others={"ood": ood})
    write_run_report(result, run)
    assert json.loads((run.folder / "result.json").read_text())["ood"] == report_to_dict(ood)
    own, head, others = (run.folder / "result.md").read_text().partition(f"## {OOD_TITLE}")
    assert head
    assert own.strip() == report_to_markdown(held_out).strip()
    assert others.strip() == report_to_markdown(ood).strip()
    assert f"{OOD_TITLE}\n{report_to_text(ood)}" in run_report_to_text(result)


def test_run_eval_follows_the_config() -> None:
    config = parse_config("", ["domain=toy:DOMAIN", "slice.families=one", "eval.tasks=9", "eval.trials=2"])
    context = EvalContext(CostTracker(), SeededGoldAgent(), UserSimulatorFactory(config.user), *load_eval_tasks(config))
    low, high, own = asyncio.run(run_eval(EvalSpec(name="wavering", agent="api", config=config), context)).rows
    assert [row.name for row in (low, high, own)] == ["noop", "gold", "wavering"]
    assert {task.family for task in own.result.task_results} == {"one"}
    assert (len(own.result.task_results), own.result.trials) == (9, 2)


def test_make_agent_by_name() -> None:
    assert isinstance(make_agent("gold", TrainConfig()), GoldAgent)
    with pytest.raises(ConfigError, match=r"'noob'.*'noop'"):
        make_agent("noob", TrainConfig())


def test_report_without_scores_has_no_nan() -> None:
    lost = make_result((None, None), (None, None), families="ab").replace(fault_counts={"agent": 4})
    for rows in ({"a": lost}, {"a": lost, "b": lost}, {**AGENTS, "a": lost}):
        found = make_report(**rows)
        assert "nan" not in f"{report_to_text(found)} {report_to_markdown(found)}".lower()
    assert make_report(a=lost).fault_rate == 1.0


def test_title_of_the_table_names_the_split() -> None:
    for split in SPLITS:
        tasks = DOMAIN.tasks(split)[:2]
        found = make_report(noop=asyncio.run(evaluate_noop(DOMAIN, tasks)))
        assert found.title.split()[-2:] == [split, "tasks"]
        assert found.title in report_to_text(found)
        assert found.title in report_to_markdown(found)
    assert not set(make_report(old=make_result((1.0,))).title.split()) & set(SPLITS)


def test_report_without_results_is_valid_json() -> None:
    lost = make_result((None, 1.0), (None, None))
    found = json.loads(json.dumps(report_to_dict(make_report(agent=lost, again=lost)), allow_nan=False))
    assert found["rows"][0]["pass_hat_k"] == [1.0, None]


def test_held_out_tasks_of_a_data_set_are_listed_in_turn_over_families() -> None:
    rows = [("a", 6), ("b", 2), ("c", 1)]
    examples = [
        ToolExample(prompt=f"{split} {family}{i}", answer="1", family=family, split=split)
        for split in ("train", "test")
        for family, count in rows
        for i in range(count)
    ]
    source = ToolDataset("numbers", "", examples, ToolEpisode)
    assert [task.family for task in select_tasks(source, "test", 9)] == list("abcabaaaa")
    assert [task.family for task in select_tasks(source, "train", 9)] == list("aaaaaabbc")
