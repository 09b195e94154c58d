"""Tests of mixtures of domains: shares, slices, and the source that plays each task."""

import asyncio
from collections import Counter
from itertools import islice

import pytest

from understudy import ToolDataset, ToolEpisode, ToolExample
from understudy.core.errors import ConfigError, TaskError
from understudy.core.tasks import SPLITS
from understudy.data.checks.check import check
from understudy.envs.task_source import (
    CompositeSource,
    ExternalSource,
    Slice,
    StatefulSource,
    find_task,
    find_tool_specs,
    list_hidden_tasks,
)
from understudy.evaluation.evaluate import evaluate, select_tasks
from understudy.evaluation.reports.report import EvalReport
from understudy.evaluation.reports.text import report_to_text
from understudy.evaluation.result import ResultRow
from understudy.rollouts.agent import GoldAgent, NoopAgent
from understudy.runs.config import load_config
from understudy.sources.loading import load_source
from understudy.sources.mixture import Mixture
from understudy.sources.references import load_domain

TESTS = "mix:retail,airline"
NAMES = "mix:retail*3,telecom,mcp:polygon-replay"


@pytest.fixture(scope="module")
def mixture() -> Mixture:
    found = load_source(NAMES)
    assert isinstance(found, Mixture)
    return found


def test_stream_shares_follow_weights_at_every_step(mixture: Mixture) -> None:
    drawn = [task.domain for task in islice(mixture.stream("train"), 50)]
    assert drawn[:5].count("retail") == 3
    assert Counter(drawn) == {"retail": 30, "telecom": 10, "polygon": 10}
    for n in range(1, 50):
        assert abs(drawn[:n].count("retail") - 0.6 * n) < 2
    assert [t.id for t in islice(mixture.stream("train"), 9)] == [t.id for t in islice(mixture.stream("train"), 9)]


def test_frozen_tasks_interleave_until_sources_are_exhausted(mixture: Mixture) -> None:
    tasks = mixture.tasks("test")
    assert len(tasks) == sum(len(part.tasks("test")) for part in mixture.sources)
    assert Counter(task.domain for task in tasks[:20]) == {"retail": 12, "telecom": 4, "polygon": 4}
    assert tasks[-1].domain != "retail"


def test_tasks_are_played_in_their_own_source(mixture: Mixture) -> None:
    tasks = select_tasks(mixture, "validation", 20)
    gold, noop = (asyncio.run(evaluate(mixture, agent, tasks)) for agent in (GoldAgent(), NoopAgent()))
    assert (gold.success_rate.mean, noop.success_rate.mean) == (1.0, 0.0)
    text = report_to_text(EvalReport(rows=(ResultRow(name="noop", result=noop), ResultRow(name="gold", result=gold))))
    lines = [line.split() for line in text.splitlines()]
    assert ["telecom", "4", "0.00", "1.00"] in [[cell for cell in line if cell not in "│|"] for line in lines]


def test_slice_applies_only_to_named_sources(mixture: Mixture) -> None:
    part = mixture.slice(Slice(families=("retail/cancel", "roaming"), difficulties=("easy",), domain_policy="brief"))
    families = {(task.domain, task.family) for task in islice(part.stream("train"), 60)}
    assert {family for domain, family in families if domain == "retail"} == {"cancel"}
    assert {family for domain, family in families if domain == "telecom"} == {"roaming"}
    assert len({family for domain, family in families if domain == "polygon"}) > 1, (
        "the slice names no family of polygon"
    )
    assert len(part.sources[0].domain_policy) < len(mixture.sources[0].domain_policy)
    few = mixture.slice(Slice(tools=("retail/get_order",)))
    assert [spec.name for spec in find_tool_specs(few, "retail")] == ["get_order"]
    assert find_tool_specs(few, "telecom") == load_source("telecom").tool_specs
    played = [task for task in few.tasks("test") if task.domain == "retail"]
    assert all({call.name for call in task.gold_calls} <= {"get_order"} for task in played)
    hidden = [task for task in list_hidden_tasks(few) if task.split == "test"]
    assert {task.domain for task in hidden} == {"retail"}
    assert len(played) + len(hidden) == len([task for task in mixture.tasks("test") if task.domain == "retail"])


@pytest.mark.parametrize(
    ("part", "said"),
    [
        (Slice(families=("retail/cancle",)), r"'retail/cancle'.*'retail/cancel'"),
        (Slice(tools=("get_orders",)), r"'get_orders'.*'get_order'"),
    ],
)
def test_slice_rejects_unknown_family_or_tool(mixture: Mixture, part: Slice, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        mixture.slice(part)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("mix:retail,retail", r"\b2\b.*retail\*2"),
        ("mix:retail,telcom", "'telcom'.*'telecom'"),
        ("mix:retail*0,telecom", r"'retail\*0'"),
        ("mix:", "''"),
    ],
)
def test_invalid_mixture_is_rejected(name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_source(name)


def test_environment_rejects_task_of_other_domain(mixture: Mixture) -> None:
    task = load_source("airline").tasks("train")[0]
    with pytest.raises(TaskError, match=r"'airline'.*retail\+telecom\+polygon"):
        mixture.environment(task)


@pytest.mark.slow
def test_mixture_preset_passes_check() -> None:
    """The check includes the slices: gold uses only the listed tools and stays within the turn limit."""
    config = load_config("ood_small")
    for report in (
        check(load_source(config.domain).slice(config.slice)),
        check(load_source(TESTS).slice(config.ood_slice)),
    ):
        assert not report.problems
        assert all(split.gold_turns <= config.limits.max_turns - 2 for split in report.splits)


def test_a_mixture_regenerates_the_tasks_of_its_sources() -> None:
    mixture = load_source("mix:retail,telecom,mcp:several-replay")
    for name in ("retail", "telecom"):
        task = load_domain(name).sample("train", 1, seed=3)[0]
        assert find_task(mixture, task.id) == task
    recorded = mixture.tasks("train")[-1]
    assert find_task(mixture, recorded.id) == recorded
    assert find_task(mixture, "airline/train/cancel/easy/0-1") is None


def test_sources_have_expected_capabilities() -> None:
    capabilities = (StatefulSource, ExternalSource, CompositeSource)
    found = {
        name: [isinstance(load_source(name), capability) for capability in capabilities]
        for name in ("retail", "mix:retail,telecom", "mcp:several-replay", "support.shelves:SHELVES")
    }
    assert found == {
        "retail": [True, False, False],
        "mix:retail,telecom": [False, False, True],
        "mcp:several-replay": [False, True, False],
        "support.shelves:SHELVES": [False, False, False],
    }


def test_a_mixture_has_a_brief_policy_if_one_of_its_sources_has_one() -> None:
    assert load_source("mix:retail,support.shelves:SHELVES").has_brief_policy
    assert not load_source("mix:mcp:several-replay,support.shelves:SHELVES").has_brief_policy


def test_two_domains_with_the_same_ids_are_refused() -> None:
    def dataset(name: str, ids: str) -> ToolDataset:
        examples = [ToolExample(id=each, prompt=each, answer=each) for each in ids]
        return ToolDataset(name, "Answer.", examples, ToolEpisode)

    sources = dataset("letters", "abcdefgh"), dataset("others", "ghijklmn"), dataset("third", "opqrstuv")
    assert Mixture(sources[::2], (1.0, 1.0)).tasks("train")
    mixed = Mixture(sources[:2], (1.0, 1.0))
    with pytest.raises(ConfigError, match=r"both have a task '[gh]'"):
        list(map(mixed.tasks, SPLITS))
    others = [ToolExample(id=each, prompt=f"{each}?", answer=each) for each in "abcdefgh"]
    changed = Mixture((sources[0], ToolDataset("letters", "Answer.", others, ToolEpisode)), (1.0, 1.0))
    with pytest.raises(ConfigError, match=r"letters has two tasks '[a-h]'"):
        list(map(changed.tasks, SPLITS))
    assert Mixture((sources[0], sources[0]), (1.0, 1.0)).tasks("train"), "the same tasks again"
