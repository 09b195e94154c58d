"""Test which values of gold calls count as shown: one case for each rule, and its nearest miss."""

import json
from typing import Any

import pytest

from understudy.core.messages import ToolCall, ToolSpec
from understudy.envs.shown_values import ShownValues, schema_text

ORDERS = '{"orders": [{"id": "W91", "price": 20.5}, {"id": "W92", "price": 12.25}, {"id": "W93", "price": 40}]}'


@pytest.mark.parametrize(
    ("text", "argument", "value", "is_shown"),
    [
        ("Return the mug of W91.", "order_id", "W91", True),
        ("Return the mug of W91.", "order_id", "#w91", True),
        ("Return the mug of W-91.", "order_id", "W91", True),
        ("Return the mug of W91.", "order_id", "W9", False),
        ("Return the mug of W91.", "item_ids", ["5550001111"], False),
        ("It is 5550001111, or 5550002222.", "item_ids", ["5550002222", "5550001111"], True),
        ("It is 5550001111.", "item_ids", ["5550001111", "5550002222"], False),
        ("Call (555) 123-4567.", "phone", "5551234567", True),
        ("Call (555) 123-4567.", "phone", "5551234568", False),
        ("I am Mia Li, zip 80012.", "user_id", "mia_li_80012", True),
        ("I am Mia Li, zip 80012.", "user_id", "mia_li_3668", False),
        ("I am Mia Li, zip 80012.", "email", "mia.li@mail.com", False),
        ("Mia Li of mail.com.", "email", "mia.li@mail.com", True),
        ("Is it mia.li@mail.com?", "contact", "mia.li@mail.com", True),
        ("I live at 12 Oak Road 480.", "address", "480 Oak Road, Apt 4", True),
        ("I live at 12 Oak Road 480.", "address", "481 Oak Road", False),
        ("Item 7 please.", "item_id", 7, True),
        ("The item please.", "item_id", 7, False),
        ("It costs $1,250.50.", "amount", 1250.5, True),
        ("It costs $1,250.50.", "amount", "1250.50", True),
        ("It costs $1,250.50.", "amount", 1251.5, False),
        ("20.50 and 12.25.", "total", 32.75, True),
        ("20.50 and 12.25.", "total", 8.25, True),
        ("20.50, 12.25 and 40.", "total", 72.75, True),
        ("20.50 and 12.25.", "total", 33.75, False),
        ("Fifteen percent of $80.", "discount", 12.0, True),
        ("I want 3 of them at $45.", "total", 135, True),
        ("Half of $45.", "total", 22.5, True),
        ("In 2 hours.", "minutes", 120, True),
        ("Some of them.", "quantity", 4, True),
        ("Some of them.", "quantity", 40, False),
        ("Some of them.", "express", True, True),
        ("Some of them.", "note", None, True),
        ("It is March 5, 2026.", "date", "2026-03-05", True),
        ("It is March 5, 2026. Come in three days.", "date", "2026-03-08", True),
        ("It is March 5, 2026.", "dob", "1990-04-05", False),
        ("Come tomorrow.", "date", "2026-03-08", True),
        ("Come.", "date", "2026-03-08", False),
        ("It is March 5, 2026.", "start", "2026-03-08T14:30:00Z", True),
        ("At half past two.", "time", "14:30", True),
        ("Cancel it.", "reason", "no longer needed by 3 of us", True),
        ("Cancel it.", "status", "cancelled", True),
        ("Cancel it.", "payment_id", "cash", False),
        ("Cancel it.", "reason", "R17", False),
        ("Cancel it.", "memo", "The parcel of line 4417 came on a day when nobody was at home.", True),
        ("Cancel it.", "memo", "parcel 4417", False),
        ("Plot it.", "expression", "4417-1", True),
        ("Cancel it.", "items", [{"id": "I55", "count": 2}], False),
        ("Cancel I55.", "items", [{"id": "I55", "count": 2}], True),
        (ORDERS, "order_ids", ["W93", "W91"], True),
        (ORDERS, "refund", 72.75, True),
        ("[" + "1.5, " * 29 + "1.5]", "count", 30, True),
        ("[" + "1.5, " * 29 + "1.5]", "count", 31, False),
    ],
)  # fmt: skip
def test_what_a_text_shows(text: str, argument: str, value: Any, is_shown: bool) -> None:
    assert (ShownValues([text]).find_unshown(ToolCall(name="write", arguments={argument: value})) is None) == is_shown


def test_schemas_show_their_choices_and_defaults() -> None:
    properties = {"plan": {"enum": ["P20"]}, "depot": {"default": "D40"}, "room": {"description": "such as R7"}}
    shown = ShownValues([schema_text([ToolSpec(name="t", description="", parameters={"properties": properties})])])
    for argument, value, expected in (
        ("plan", "P20", True),
        ("depot", "D40", True),
        ("room", "R7", True),
        ("room", "R8", False),
    ):
        assert shown.shows(value, argument) == expected


def test_a_result_does_not_show_what_its_call_states() -> None:
    shown = ShownValues()
    shown.add('{"order": "W91", "item": "5550001111"}', ["W91"])
    assert (shown.shows("W91", "order_id"), shown.shows("5550001111", "item_id")) == (False, True)


def test_words_of_a_database_can_be_looked_up() -> None:
    shown = ShownValues(["Hello."], database='{"W91": {"items": ["5550001111"], "born": "1990-04-05", "price": 3.2}}')
    for argument, value in (("item_ids", ["5550001111"]), ("dob", "1990-04-05"), ("amount", 17.35), ("order", "#W91")):
        assert shown.find_unshown(ToolCall(name="write", arguments={argument: value})) is None
    unshown = shown.find_unshown(ToolCall(name="write", arguments={"amount": 3, "item": {"item_id": "5550002222"}}))
    assert (str(unshown), unshown and unshown.tool) == ("item_id 5550002222", "write")


@pytest.mark.parametrize(
    "value", [10**401, -(10**16), 1e299, "9" * 5000, "a1" * 50_000, "1" * 400 + ".5", "0000-99-99"]
)
def test_values_of_any_size_are_answered(value: Any) -> None:
    shown = ShownValues([json.dumps({"totals": [10**400, 1e300], "sizes": list(range(200))}), "9" * 400])
    assert not shown.shows(value, "amount")


def test_many_numbers_still_explain_sums_and_differences() -> None:
    shown = ShownValues(["; ".join(f"{number}.25" for number in range(1000, 1400))])
    for number, expected in ((2010.5, True), (399, True), (3000.75, False)):
        assert shown.shows(number, "amount") == expected
