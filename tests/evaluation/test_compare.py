"""Test comparing two evaluations, with hand-computed values: which rows are paired, and the noise floor."""

import json
import math

import pytest

from support.eval_results import make_result
from understudy.evaluation.comparison import compare
from understudy.evaluation.noise import noise_between
from understudy.evaluation.prompt_variants import AS_WRITTEN, PromptSpread
from understudy.evaluation.reports.report import EvalReport
from understudy.evaluation.reports.tables import group_cells, success_cells
from understudy.evaluation.result import EvalResult, ResultRow, merge_results, paired_rates, success_gain
from understudy.evaluation.statistics import Z_95, paired_difference


def make_report(*evaluations: EvalResult) -> EvalReport:
    return EvalReport(rows=tuple(ResultRow(name=f"row {i}", result=each) for i, each in enumerate(evaluations)))


def test_stages_of_a_run_do_not_count_as_noise() -> None:
    base, trained = make_result((0.0,), (0.0,), (0.0,)), make_result((1.0,), (1.0,), (0.0,))
    found = compare(make_report(base, trained), make_report(base, base))
    assert found.gain.mean == pytest.approx(2 / 3)
    assert found.noise_floor is None
    assert "noise floor" not in str(found)


def test_noise_floor_uses_only_shared_tasks() -> None:
    sometimes, always = (1.0, 0.0), (1.0, 1.0)
    few, many = make_result(sometimes, always, sometimes, always), make_result(always, sometimes, *[always] * 38)
    found = compare(make_report(few), make_report(many))
    assert found.gain.tasks == 4
    assert found.noise_floor == noise_between([few], [make_result(always, sometimes, always, always)])


def test_other_wordings_are_not_compared_with_repeats() -> None:
    written, reworded = make_result((1.0, 0.0), (1.0, 1.0)), make_result((0.0, 0.0), (0.0, 0.0)).replace(seed=1)
    spread = PromptSpread(rates={AS_WRITTEN: 0.75, "short": 0.0})
    words = make_report(written, reworded).replace(prompts=spread)
    found = compare(words, make_report(written, written.replace(seed=1)))
    assert (found.gain.mean, found.gain.tasks) == (0.0, 2)
    assert found.noise_floor == noise_between([written], [written])
    assert compare(words, words).noise_floor == noise_between([written], [written])


def test_repeats_with_a_common_seed_are_compared() -> None:
    first, again = make_result((1.0,), (0.0,)), make_result((0.0,), (0.0,)).replace(seed=1)
    old = make_result((1.0,), (0.0,))
    found = compare(make_report(first, again), make_report(old))
    assert (found.gain.mean, found.new.name) == (0.0, "new (row 0)")
    found = compare(make_report(again, first), make_report(old.replace(seed=5), again))
    assert (found.new.result.seed, found.old.result.seed, found.gain.mean) == (1, 1, 0.0)
    found = compare(make_report(first, again), make_report(old.replace(seed=5)))
    assert found.gain.mean == -0.25, "without a common seed, all repeats count"


def test_all_common_repeats_are_pooled() -> None:
    """Repeats are in any order. Seed 2 is that of the new agent only."""
    never, second = make_result((0.0,), (0.0,), (1.0,)), make_result((0.0,), (1.0,), (1.0,)).replace(seed=1)
    both, only_new = make_result((1.0,), (1.0,), (None,)), make_result((1.0,), (1.0,), (0.0,)).replace(seed=2)
    found = compare(make_report(both, both.replace(seed=1), only_new), make_report(second, never))
    new, old = make_result((1.0, 1.0), (1.0, 1.0), (None, None)), make_result((0.0, 0.0), (0.0, 1.0), (1.0, 1.0))
    assert found.new.result.task_results == new.task_results
    assert found.old.result.task_results == old.task_results
    assert found.gain == success_gain(new, old)
    assert (found.gain.mean, found.p_value) == (0.75, 0.5)
    assert found.noise_floor == noise_between([new], [old])


def test_merged_repeats_hold_all_counts_and_means() -> None:
    few = make_result((1.0,), (None,)).replace(mean_turns=4.0, mean_parts={"a": 1.0}, fault_counts={"user": 1})
    many = make_result((1.0,), (0.0,)).replace(seed=1, mean_turns=1.0, mean_parts={"a": 0.5}, stop_counts={"done": 2})
    found = merge_results([few, many])
    assert (found.mean_turns, found.mean_parts["a"]) == pytest.approx((2.0, 2 / 3))
    assert (found.fault_counts, found.stop_counts, found.trials) == ({"user": 1}, {"done": 2}, 2)
    more = make_result((1.0,), (0.0,), (1.0,))
    assert [result.rewards for result in merge_results([few, more]).task_results] == [(1.0, 1.0), (None, 0.0), (1.0,)]


def test_noise_floor_of_repeats() -> None:
    """Each of two evaluations has two episodes per task. One task of two varies, by 1/2."""
    rounds = [make_result((1.0,), (0.0,)), make_result((0.0,), (0.0,)).replace(seed=1)]
    found = compare(make_report(*rounds), make_report(*rounds))
    assert found.noise_floor == pytest.approx(Z_95 * math.sqrt(2 * 0.5 / (4 * 2)))


def test_comparison_without_shared_trials_is_valid_json() -> None:
    found = compare(make_report(make_result((None,), (1.0,))), make_report(make_result((1.0,), (None,)))).to_dict()
    assert json.loads(json.dumps(found, allow_nan=False))["gain"] == {
        "mean": None,
        "low": -1.0,
        "high": 1.0,
        "tasks": 0,
    }


def test_few_tasks_are_never_significant() -> None:
    """Signs of four equal gains agree with probability 2/16."""
    found = compare(make_report(make_result(*[(1.0,)] * 4)), make_report(make_result(*[(0.0,)] * 4)))
    one_more = compare(make_report(make_result(*[(1.0,)] * 6)), make_report(make_result(*[(0.0,)] * 6)))
    assert (found.p_value, one_more.p_value) == (0.125, 0.03125)
    assert found.gain.low > 0
    assert "differs" in found.verdict
    assert "more often" in one_more.verdict


def test_interval_uses_the_number_of_trials_that_both_have() -> None:
    new = make_result((1.0, 1.0, 0.0, 1.0), (1.0, None, 0.0, None), (1.0, 1.0, 1.0, 1.0))
    old = make_result((0.0, 1.0, 0.0, 1.0), (1.0, 1.0, 1.0, 1.0), (0.0, 1.0, 0.0, 0.0))
    trials = 3 / (1 / 4 + 1 / 2 + 1 / 4)
    assert success_gain(new, old) == paired_difference([0.75, 0.5, 1.0], [0.5, 1.0, 0.25], trials)


def test_all_trials_count_if_seeds_or_trials_differ() -> None:
    new = make_result((1.0, 0.0, 1.0, 1.0), (None, 1.0, 1.0, 1.0), (None, None, None, None))
    old = make_result((0.0, 1.0), (None, 0.0), (1.0, 1.0))
    found = success_gain(new, old)
    assert (found.mean, found.tasks) == ((0.25 + 1.0) / 2, 2)
    assert [pair.trials for pair in paired_rates(new, old)] == pytest.approx([8 / 3, 3 / 2])
    other_seed = make_result((0.0, None, 1.0, 1.0), (0.0, 1.0, 0.0, 0.0)).replace(seed=1)
    assert [pair.gain for pair in paired_rates(new, other_seed)] == pytest.approx([1 / 12, 0.75])
    assert [pair.gain for pair in paired_rates(new, other_seed.replace(seed=0))] == pytest.approx([1 / 3, 2 / 3])


def test_agents_of_one_name_are_told_apart_by_where_they_are_from() -> None:
    old, new = make_report(make_result((0.0,), (1.0,))), make_report(make_result((1.0,), (1.0,)))
    found = compare(new, old, ("evals/b", "evals/a"))
    assert (found.new.name, found.old.name) == ("evals/b (row 0)", "evals/a (row 0)")
    assert "2 common tasks" in found.verdict
    noop = ResultRow(name="row 1", result=make_result((0.0,), (0.0,)).replace(kind="noop"))
    other = ResultRow(name="row 1", result=old.rows[0].result)
    found = compare(EvalReport(rows=(noop, *new.rows)), EvalReport(rows=(other,)), ("evals/b", "evals/a"))
    assert (found.new.name, found.old.name) == ("evals/b (row 0)", "evals/a (row 1)")


def test_small_p_value_is_not_shown_as_0() -> None:
    old, new = make_report(make_result(*[(0.0,)] * 12)), make_report(make_result(*[(1.0,)] * 12))
    found = compare(new, old)
    assert 0 < found.p_value < 0.0005
    assert f"probability {found.p_value:.2g}." in found.details


def test_a_gain_names_the_common_tasks_if_the_rows_have_others() -> None:
    few, many = make_result((0.0,), (1.0,)), make_result((1.0,), (1.0,), (1.0,))
    cells = success_cells(make_report(few, many, many))
    place = cells[0].index("gain over the row above")
    assert cells[2][place].startswith("+0.500 ")
    assert cells[2][place].endswith(" on the 2 common tasks")
    assert "common" not in cells[3][place]


def test_families_that_only_a_later_row_played_have_a_line() -> None:
    few, many = make_result((0.0,), (0.0,), families="aa"), make_result((0.0,), (1.0,), (1.0,), families="aab")
    lines = {line[0]: line[1:] for line in group_cells(make_report(few, many))}
    assert lines["b"] == ["1", "-", "1.00"]
    assert lines["a"] == ["2", "0.00", "0.50"]
