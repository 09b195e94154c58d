"""Tests of texts that state an output beside other facts."""

import pytest

from support.proposals import GET, ORDER, call, kinds, say, user


@pytest.mark.parametrize(
    "text",
    [
        "Order W1 is pending.",
        "Order W1 is pending, so it has not shipped yet.",
        "It is pending. Only delivered orders can be returned, and shipped ones must be delivered first.",
        "Order W1 is pending, order W2 is delivered and order W3 is shipped.",
        "Your order is pending: it will be shipped tomorrow and delivered on Friday.",
    ],
)
def test_facts_beside_each_other_are_no_contradiction(text: str) -> None:
    shown = [*call(GET, ORDER), *call(GET, "W2 delivered"), *call(GET, "W3 shipped")]
    assert kinds([user("Hi."), *shown, say(text)], outputs=["pending"]) == []


@pytest.mark.parametrize(
    "text",
    [
        "Order W1 is pending, shipped and delivered.",
        "It is pending. It is shipped. It is delivered.",
        "Status: pending / shipped / delivered / cancelled",
    ],
)
def test_contradicting_words(text: str) -> None:
    assert kinds([user("Hi."), *call(GET, ORDER), say(text)], outputs=["pending"]) == ["contradiction"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("The apron was 31.25.", []),
        ("You paid 20.00 and 11.25, so 31.25 in total.", []),
        ("20.00 + 11.25 = 31.25", []),
        ("The prices are 20.00, 31.25 and 40.00; the apron was 31.25.", []),
        ("It is 31.25 or 31.50.", ["contradiction"]),
        ("It is 31.25, 31.50, 31.75.", ["contradiction"]),
        ("The apron was 31.25. The apron was 31.50.", ["contradiction"]),
    ],
)
def test_several_numbers_where_one_is_the_answer(text: str, found: list[str]) -> None:
    assert kinds([user("Hi."), *call(GET, ORDER), say(text)], outputs=["31.25"]) == found
