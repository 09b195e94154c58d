"""Several domains in one run: shares, slices, and every task played where it is from."""

import asyncio
import re
from collections import Counter
from itertools import islice

import pytest

from understudy.agent import GoldAgent, SilentAgent
from understudy.check import check
from understudy.config import TrainConfig
from understudy.domains.base import Slice, find
from understudy.domains.mixture import Mixture, shown
from understudy.errors import ConfigError, TaskError
from understudy.evaluate import evaluate, held_out
from understudy.results import as_text
from understudy.settings import load

TESTS = "mix:retail,airline"
NAMES = "mix:retail*3,telecom,mcp:polygon-replay"


@pytest.fixture(scope="module")
def mixture() -> Mixture:
    found = find(NAMES)
    assert isinstance(found, Mixture)
    return found


def test_shares_are_the_weights_at_every_moment(mixture: Mixture) -> None:
    drawn = [task.domain for task in islice(mixture.stream("train"), 50)]
    assert drawn[:5].count("retail") == 3
    assert Counter(drawn) == {"retail": 30, "telecom": 10, "polygon": 10}
    for n in range(1, 50):
        assert abs(drawn[:n].count("retail") - 0.6 * n) < 2
    assert [t.id for t in islice(mixture.stream("train"), 9)] == [t.id for t in islice(mixture.stream("train"), 9)]


def test_frozen_tasks_come_by_turns_until_there_are_no_more(mixture: Mixture) -> None:
    tasks = mixture.tasks("test")
    assert len(tasks) == sum(len(part.tasks("test")) for part in mixture.parts)
    assert Counter(task.domain for task in tasks[:20]) == {"retail": 12, "telecom": 4, "polygon": 4}
    assert tasks[-1].domain != "retail"


def test_every_task_is_played_where_it_is_from(mixture: Mixture) -> None:
    tasks = held_out(mixture, "validation", 20)
    gold, silent = (asyncio.run(evaluate(mixture, agent, tasks)) for agent in (GoldAgent(), SilentAgent()))
    assert (gold.success.mean, silent.success.mean) == (1.0, 0.0)
    text = as_text([("do nothing", silent), ("gold", gold)])
    lines = [line.split() for line in text.splitlines()]
    assert ["telecom", "4", "0.00", "1.00"] in [[cell for cell in line if cell not in "│|"] for line in lines]


def test_a_slice_names_parts_of_each(mixture: Mixture) -> None:
    part = mixture.slice(Slice(families=("retail/cancel", "roaming"), difficulties=("easy",), policy="brief"))
    families = {(task.domain, task.family) for task in islice(part.stream("train"), 60)}
    assert {family for domain, family in families if domain == "retail"} == {"cancel"}
    assert {family for domain, family in families if domain == "telecom"} == {"roaming"}
    assert len({family for domain, family in families if domain == "polygon"}) > 1, "nothing is named of it"
    assert len(part.parts[0].policy) < len(mixture.parts[0].policy)
    few = mixture.slice(Slice(tools=("retail/get_order",)))
    assert [spec.name for spec in shown(few, "retail")] == ["get_order"]
    assert shown(few, "telecom") == find("telecom").specs


@pytest.mark.parametrize(
    ("part", "said"),
    [
        (Slice(families=("retail/cancle",)), "has no family 'retail/cancle'; did you mean 'retail/cancel'?"),
        (Slice(tools=("get_orders",)), "has no tool 'get_orders'; did you mean 'get_order'?"),
    ],
)
def test_what_no_part_has(mixture: Mixture, part: Slice, said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        mixture.slice(part)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("mix:retail,retail", "retail is there 2 times; give it a weight, retail*2"),
        ("mix:retail,telcom", "unknown domain 'telcom'; did you mean 'telecom'?"),
        ("mix:retail*0,telecom", "'retail*0' is not like"),
        ("mix:", "'' is not like"),
    ],
)
def test_mixtures_that_are_none(name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        find(name)


def test_a_task_of_another_domain_is_refused(mixture: Mixture) -> None:
    task = find("airline").tasks("train")[0]
    with pytest.raises(TaskError, match=re.escape("a task of 'airline' is none of retail+telecom+polygon")):
        mixture.environment(task)


def test_presets_of_several_domains_are_sound() -> None:
    """Their slices too: gold needs no tool that is not shown, and no limit cuts it off."""
    config = load(TrainConfig, "holdout_small")
    for report in (check(find(config.domain).slice(config.slice)), check(find(TESTS).slice(config.test_slice))):
        assert not report.problems
        assert all(split.gold_turns <= config.limits.max_turns - 2 for split in report.splits)
