"""JSON with repairs: what has one reading is read and counted, what has more is not."""

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from understudy.formats.repair import Broken, Budget, Pairs, Value, read, read_arguments, read_object
from understudy.formats.shapes import drafts, plain


def loose(text: str, at: int = 0) -> Value:
    return read(text, at, Budget())


def value(text: str) -> Any:
    return plain(loose(text).value)[0]


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
def test_what_has_one_reading_is_repaired(text: str, expected: Any, repairs: dict[str, int]) -> None:
    found = loose(text)
    if isinstance(expected, list) and isinstance(found.value, Pairs):
        assert list(found.value) == expected
    else:
        assert plain(found.value)[0] == expected
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
def test_in_arguments_nothing_is_skipped(text: str, kind: str) -> None:
    """The same junk beside the arguments is skipped; within them it might be a part of one."""
    (draft,) = drafts(loose(text).value, (), wrapped=True)
    assert isinstance(draft.arguments, Broken)
    assert draft.arguments.kind == kind


def test_arguments_may_lack_closing_brackets_after_a_whole_value() -> None:
    for text in ('{"arguments": {"a": "b"', '{"arguments": {"a": ["b"', '{"arguments": {"a": {"b": []'):
        found = loose(text)
        assert found.repairs == Counter({"truncated": 1})
        assert isinstance(dict(found.value)["arguments"], Pairs)


def test_arguments_in_quotes_that_are_not_escaped() -> None:
    found = loose('{"arguments": "{"a": "b"}", "id": "x"}')
    assert (plain(found.value)[0], found.repairs) == ({"arguments": {"a": "b"}, "id": "x"}, Counter({"escapes": 1}))


def test_members_without_their_opening_bracket() -> None:
    found = read('x "a": 1, "b": {"c": 2}} rest', 1, Budget(), members=True)
    assert plain(found.value)[0] == {"a": 1, "b": {"c": 2}}
    assert (found.end, found.repairs) == (24, Counter({"brackets": 1}))


def test_the_text_of_arguments_is_one_object() -> None:
    assert plain(read_arguments(' {"a": 1}\n', Budget()).value)[0] == {"a": 1}
    assert read_arguments('"{}"', Budget()).value == "{}"
    for text in ("{} x", "[1] 2", "x", ""):
        assert isinstance(read_arguments(text, Budget()).value, Broken)
    assert read_object('f{"a": 1}x', 1, Budget()).end == 9


def test_keys_with_two_values_are_refused_and_with_one_are_merged() -> None:
    assert plain(Pairs([("a", 1), ("a", 1)])) == ({"a": 1}, True)
    for one, other in ((1, 2), (1, True), (1, 1.0), (None, {})):
        with pytest.raises(ValueError, match="'a' is there twice"):
            plain(Pairs([("a", one), ("a", other)]))


def test_a_broken_text_costs_no_more_than_its_budget() -> None:
    budget = Budget(100)
    found = read("[1, oops", 0, budget)
    assert budget.left > 90
    found = read("[" + "1, " * 1000 + "oops", 0, budget)
    assert found.end == len("[" + "1, " * 1000 + "oops")
    assert budget.left < 0


structures = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
).filter(lambda v: isinstance(v, dict | list))


@settings(deadline=None)
@given(made=structures, ascii=st.booleans(), indent=st.none() | st.integers(0, 2))
def test_what_is_json_needs_no_repair(made: Any, ascii: bool, indent: int | None) -> None:
    text = json.dumps(made, ensure_ascii=ascii, indent=indent)
    found = loose(f"x{text}y", 1)
    assert (plain(found.value)[0], found.end, found.repairs) == (made, len(text) + 1, Counter())


@settings(deadline=None)
@given(made=structures, at=st.integers(0, 40))
def test_without_its_last_brackets_it_is_the_same(made: Any, at: int) -> None:
    """Brackets at the end are what models forget; no value is lost with them."""
    text = json.dumps(made)
    bare = text.rstrip("]}")
    missing = text[len(bare) :]
    found = loose(bare + missing[: at % len(missing)])
    if not bare.endswith(("{", "[", ", ", ": ")) and bare and isinstance(found.value, dict | list):
        assert plain(found.value)[0] == made
