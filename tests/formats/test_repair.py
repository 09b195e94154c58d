"""Test JSON repairs: a text with one interpretation is repaired and counted, an ambiguous one is not."""

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from understudy.formats.parsing.json_calls import find_calls, pairs_to_dicts
from understudy.formats.parsing.repair import (
    ObjectPairs,
    ParseBudget,
    ParsedValue,
    ParseFailure,
    parse_arguments_text,
    parse_object,
    parse_value,
)


def parse_with_repairs(text: str, at: int = 0) -> ParsedValue:
    return parse_value(text, at, ParseBudget())


def parsed_value(text: str) -> Any:
    return pairs_to_dicts(parse_with_repairs(text).value)[0]


@pytest.mark.parametrize(
    ("text", "expected", "repairs"),
    [
        ('{"a": 1}', {"a": 1}, {}),
        ('{"a": [1}', {"a": [1]}, {"brackets": 1}),
        ('{"a": {"b": 1}', {"a": {"b": 1}}, {"brackets": 1}),
        ('{"a": 1]}', {"a": 1}, {"brackets": 1}),
        ('[{"a": 1}, {"b": [2}, {"c": 3}]', [{"a": 1}, {"b": [2]}, {"c": 3}], {"brackets": 1}),
        ('[{"a": 1, {"b": 2}]', [{"a": 1}, {"b": 2}], {"brackets": 1}),
        ('[{"a": {"x": 1}, {"b": 2}]', [{"a": {"x": 1}}, {"b": 2}], {"brackets": 1}),
        ('{"a": 1,}', {"a": 1}, {"commas": 1}),
        ('{"a": 1,, "b": 2}', {"a": 1, "b": 2}, {"commas": 1}),
        ('{"a": 1 "b": 2}', {"a": 1, "b": 2}, {"commas": 1}),
        ('[{"a": 1} {"b": 2}]', [{"a": 1}, {"b": 2}], {"commas": 1}),
        ("{'a': 'it\\'s', 'b': True, 'c': None}", {"a": "it's", "b": True, "c": None}, {"python": 6}),
        ("{a: 1}", {"a": 1}, {"quotes": 1}),
        ('{"a: "b", "c: {"d": 1}}', {"a": "b", "c": {"d": 1}}, {"quotes": 2}),
        ('{"a": "x\ny"}', {"a": "x\ny"}, {"newlines": 1}),
        ('{"a": "it\\\'s"}', {"a": "it's"}, {"escapes": 1}),
        ('{"a": {"b": "c}}', {"a": {"b": "c"}}, {"strings": 1}),
        ('{"a": 1 oops}', {"a": 1}, {"junk": 1}),
        ('{"a": 1} and more', {"a": 1}, {}),
        ('{"a": [1] and more', {"a": [1]}, {"brackets": 1}),
        ('{"a": 1, "a": 2}', [("a", 1), ("a", 2)], {}),
    ],
)
def test_unambiguous_json_is_repaired(text: str, expected: Any, repairs: dict[str, int]) -> None:
    found = parse_with_repairs(text)
    if isinstance(expected, list) and isinstance(found.value, ObjectPairs):
        assert list(found.value) == expected
    else:
        assert pairs_to_dicts(found.value)[0] == expected
    assert found.repairs == Counter(repairs)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ('{"arguments": {"a": b}}', "json"),
        ('{"arguments": {"a": 012}}', "json"),
        ('{"arguments": {"a" 1}}', "json"),
        ('{"arguments": {"a":}}', "json"),
        ('{"arguments": {"a":, "b": 1}}', "json"),
        ('{"arguments": {"a": "b"c"}}', "quotes"),
        ('{"arguments": {"a": "b" oops}}', "quotes"),
        ('{"arguments": {"a": ["b" "c"]}}', "quotes"),
        ('{"arguments": {"a": 1, {"b": 2}}', "brackets"),
        ('{"arguments": {"a": 1]}', "brackets"),
        ('[{"arguments": {"a": 1], "b": 2}', "brackets"),
        ('{"arguments": {"a": 1', "truncated"),
        ('{"arguments": {"a": true', "truncated"),
        ('{"arguments": {"a": "b", ', "truncated"),
        ('{"arguments": {"a": ', "truncated"),
        ('{"arguments": {"a": "b', "truncated"),
        ('{"arguments": {"a": "b}', "truncated"),
        ('{"arguments": {"a": "\\d"}}', "escapes"),
    ],
)
def test_arguments_are_not_repaired_by_skipping(text: str, kind: str) -> None:
    """Junk beside the arguments is skipped, but within them it may be part of a value."""
    (draft,) = find_calls(parse_with_repairs(text).value, (), wrapped=True)
    assert isinstance(draft.arguments, ParseFailure)
    assert draft.arguments.kind == kind


def test_missing_closing_brackets_after_a_complete_value_are_repaired() -> None:
    for text in ('{"arguments": {"a": "b"', '{"arguments": {"a": ["b"', '{"arguments": {"a": {"b": []'):
        found = parse_with_repairs(text)
        assert found.repairs == Counter({"truncated": 1})
        assert isinstance(dict(found.value)["arguments"], ObjectPairs)


def test_unescaped_arguments_in_quotes_are_repaired() -> None:
    found = parse_with_repairs('{"arguments": "{"a": "b"}", "id": "x"}')
    assert (pairs_to_dicts(found.value)[0], found.repairs) == (
        {"arguments": {"a": "b"}, "id": "x"},
        Counter({"escapes": 1}),
    )


def test_object_without_its_opening_brace_is_repaired() -> None:
    found = parse_value('x "a": 1, "b": {"c": 2}} rest', 1, ParseBudget(), without_brace=True)
    assert pairs_to_dicts(found.value)[0] == {"a": 1, "b": {"c": 2}}
    assert (found.end, found.repairs) == (24, Counter({"brackets": 1}))


def test_arguments_text_must_be_one_object() -> None:
    assert pairs_to_dicts(parse_arguments_text(' {"a": 1}\n', ParseBudget()).value)[0] == {"a": 1}
    assert parse_arguments_text('"{}"', ParseBudget()).value == "{}"
    for text in ("{} x", "[1] 2", "x", ""):
        assert isinstance(parse_arguments_text(text, ParseBudget()).value, ParseFailure)
    assert parse_object('f{"a": 1}x', 1, ParseBudget()).end == 9


def test_duplicate_keys_merge_only_with_equal_values() -> None:
    assert pairs_to_dicts(ObjectPairs([("a", 1), ("a", 1)])) == ({"a": 1}, True)
    for one, other in ((1, 2), (1, True), (1, 1.0), (None, {})):
        with pytest.raises(ValueError, match="'a'"):
            pairs_to_dicts(ObjectPairs([("a", one), ("a", other)]))


def test_broken_text_costs_at_most_its_budget() -> None:
    budget = ParseBudget(100)
    found = parse_value("[1, oops", 0, budget)
    assert budget.left > 90
    found = parse_value("[" + "1, " * 1000 + "oops", 0, budget)
    assert found.end == len("[" + "1, " * 1000 + "oops")
    assert budget.left < 0


structures = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
).filter(lambda v: isinstance(v, dict | list))


@settings(deadline=None)
@given(made=structures, ascii=st.booleans(), indent=st.none() | st.integers(0, 2))
def test_valid_json_needs_no_repair(made: Any, ascii: bool, indent: int | None) -> None:
    text = json.dumps(made, ensure_ascii=ascii, indent=indent)
    found = parse_with_repairs(f"x{text}y", 1)
    assert (pairs_to_dicts(found.value)[0], found.end, found.repairs) == (made, len(text) + 1, Counter())


@settings(deadline=None)
@given(made=structures, at=st.integers(0, 40))
def test_missing_last_brackets_lose_no_value(made: Any, at: int) -> None:
    """Models often omit the last brackets."""
    text = json.dumps(made)
    bare = text.rstrip("]}")
    missing = text[len(bare) :]
    found = parse_with_repairs(bare + missing[: at % len(missing)])
    if not bare.endswith(("{", "[", ", ", ": ")) and bare and isinstance(found.value, dict | list):
        assert pairs_to_dicts(found.value)[0] == made
