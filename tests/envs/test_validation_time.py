"""Tests of the process that finds out whether a schema's validation ends."""

import subprocess
import sys
import threading
from typing import Any

import pytest

from support.machine import process_ends
from understudy.envs import validation_time
from understudy.envs.validation_time import CPU_SECONDS, find_matches, find_validation_problem, may_be_slow

SLOW = {"type": "object", "properties": {"x": {"type": "string", "pattern": "^(a+)+$"}}}
NESTED = {"type": "object", "properties": {"x": {"$ref": "#"}}, "additionalProperties": False}
DOUBLING = {
    "$ref": "#/$defs/0",
    "$defs": {**{str(i): {"allOf": [{"$ref": f"#/$defs/{i + 1}"}] * 2} for i in range(40)}, "40": {}},
}


def nested(depth: int) -> dict[str, Any]:
    return {"x": nested(depth - 1)} if depth else {}


@pytest.mark.parametrize(
    ("schema", "arguments"),
    [
        (SLOW, {"x": "aaa"}),
        (SLOW, {"x": "b"}),  # invalid, which is not the question
        (NESTED, nested(31)),
        (NESTED, {"y": 1}),
        ({"$ref": "#/nowhere"}, {}),  # which the caller reports
        ({"properties": {"x": {"uniqueItems": True}}}, {"x": [{"a": n} for n in range(50)]}),
    ],
)
def test_validation_that_ends_has_no_problem(schema: dict[str, Any], arguments: dict[str, Any]) -> None:
    assert find_validation_problem(schema, arguments) == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schema", "arguments"),
    [
        (SLOW, {"x": "a" * 60 + "b"}),
        ({"patternProperties": {"^(a+)+$": {}}}, {"a" * 60 + "b": 1}),
        ({"additionalProperties": False, "patternProperties": {"^(a|aa)+$": {}}}, {"a" * 60 + "b": 1}),
        (DOUBLING, {}),
    ],
)
def test_slow_validation_is_ended_after_its_processor_time(schema: dict[str, Any], arguments: dict[str, Any]) -> None:
    assert f"{CPU_SECONDS:g} s" in find_validation_problem(schema, arguments)
    assert find_validation_problem(SLOW, {"x": "a"}) == "", "the next one is answered by a new process"


def test_matches_of_a_pattern_are_found() -> None:
    assert find_matches("a(.)", "ab ac") == ["b", "c"]
    assert find_matches(r"\d+", "none") == []
    with pytest.raises(ValueError, match=r"\(a"):
        find_matches("(a", "a")


@pytest.mark.slow
def test_slow_search_is_ended_after_its_processor_time() -> None:
    with pytest.raises(ValueError, match=f"{CPU_SECONDS:g} s"):
        find_matches("(a+)+$", "a" * 60 + "b")
    assert find_matches("a", "a") == ["a"], "the next one is answered by a new process"


@pytest.mark.parametrize(
    "schema", [{"$ref": "#"}, {"allOf": [{"$ref": "#"}]}, {"properties": {"x": {"not": {"$ref": "#/properties/x"}}}}]
)
def test_schema_that_refers_to_itself_is_a_problem(schema: dict[str, Any]) -> None:
    assert "refers to itself" in find_validation_problem(schema, nested(1))


@pytest.mark.parametrize("pattern", [r"\p{L}", "(", "a{99999999999999999999}", "(" * 5000 + ")" * 5000])
def test_unreadable_pattern_is_a_problem(pattern: str) -> None:
    assert find_validation_problem({"properties": {"x": {"pattern": pattern}}}, {"x": "a"})


def test_only_schemas_with_slow_keywords_are_sent() -> None:
    assert may_be_slow(SLOW)
    assert may_be_slow({"anyOf": [{"items": {"$ref": "#/$defs/a"}}]})
    assert not may_be_slow({"type": "object", "properties": {"x": {"enum": [1, 2]}, "y": {"anyOf": [{}, True]}}})


def test_requests_of_many_threads_are_answered() -> None:
    found: dict[int, str] = {}

    def ask(number: int) -> None:
        found[number] = find_validation_problem(SLOW, {"x": "a" * number + "b" * (number == 50)})

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(40, 60)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [number for number, problem in found.items() if problem] == [50]


def test_process_ends_with_its_owner() -> None:
    code = (
        "import os; from understudy.envs import validation_time as v\n"
        "v.find_validation_problem({'pattern': 'a'}, {}); print(v._WORKER._process.pid, flush=True); os._exit(1)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert process_ends(int(done.stdout)), "its input has ended"


def test_killed_process_is_replaced() -> None:
    find_validation_problem(SLOW, {})
    process = validation_time._WORKER._process
    assert process is not None
    process.kill()
    process.wait()
    assert find_validation_problem(SLOW, {}) == ""
