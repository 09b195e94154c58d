"""Coroutines of the public API that are used without `await` say what to write."""

import asyncio
import gc
import inspect
import warnings

import pytest

import toy
from understudy import GoldAgent, TrainConfig, certify, evaluate
from understudy.core.errors import ConfigError


def test_a_result_that_is_not_awaited_says_so_at_its_use() -> None:
    result = evaluate(toy.DOMAIN, GoldAgent(), [])
    with pytest.raises(AttributeError, match=r"'success_rate'.*await evaluate\(…\).*asyncio\.run\(evaluate\(…\)\)"):
        _ = result.success_rate  # type: ignore[attr-defined]
    result.close()


def test_a_call_that_is_dropped_is_a_warning_with_the_remedy() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        certify(TrainConfig(model="tiny"))
        gc.collect()
    (warning,) = caught
    assert "await certify(" in str(warning.message)
    assert warning.category is RuntimeWarning


def test_an_awaited_call_runs_in_every_way() -> None:
    tasks = toy.DOMAIN.tasks("test")[:1]

    async def all_ways() -> list[float]:
        awaited = await evaluate(toy.DOMAIN, GoldAgent(), tasks)
        (gathered,) = await asyncio.gather(evaluate(toy.DOMAIN, GoldAgent(), tasks))
        of_task = await asyncio.create_task(evaluate(toy.DOMAIN, GoldAgent(), tasks))
        return [each.success_rate.mean for each in (awaited, gathered, of_task)]

    assert asyncio.run(all_ways()) == [1.0, 1.0, 1.0]
    never = evaluate(toy.DOMAIN, GoldAgent(), tasks)
    assert inspect.isawaitable(never)
    never.close()


def test_a_name_in_place_of_the_config_is_named() -> None:
    with pytest.raises(ConfigError, match=r"'tiny'.*TrainConfig\(model='tiny'\)"):
        asyncio.run(certify("tiny"))  # type: ignore[arg-type]
