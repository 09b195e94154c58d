"""Tests of the edits between two states of one world."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from understudy.core.records import Record
from understudy.envs.state import State, Table
from understudy.envs.state_diff import StateEdit, diff_states


class Item(Record):
    id: str
    price: int = 0


class Order(Record):
    status: str = "pending"
    items: tuple[Item, ...] = ()
    tags: tuple[str, ...] = ()


class Shop(State):
    orders: Table[Order]
    caller: str = ""


WORLD = {"W1": Order(items=(Item(id="a"), Item(id="b", price=2))), "W2": Order(tags=("x", "y"))}


def shop() -> Any:
    return Shop(orders=WORLD)


def edits_between(before: State, after: State) -> tuple[StateEdit, ...]:
    return diff_states(shop(), before.changes(), after.changes())


def test_diff_reports_field_row_and_value_edits() -> None:
    old, new = shop(), shop()
    new.orders["W1"] = new.orders["W1"].replace(status="cancelled")
    new.orders["W3"] = Order(status="new")
    del new.orders["W2"]
    new.caller = "me"
    assert [(edit.path, edit.kind) for edit in edits_between(old, new)] == [
        (("caller",), "set"),
        (("orders", "W1", "status"), "set"),
        (("orders", "W2"), "removed"),
        (("orders", "W3"), "added"),
    ]
    assert edits_between(new, new) == ()
    back = edits_between(new, old)
    assert [edit.kind for edit in back] == ["set", "set", "added", "removed"]
    assert back[1].before == "cancelled"
    assert back[1].after == "pending"


def test_list_rows_are_matched_by_id() -> None:
    old, new = shop(), shop()
    new.orders["W1"] = new.orders["W1"].replace(items=(Item(id="b", price=3), Item(id="c")))
    found = {edit.path[3:]: edit.kind for edit in edits_between(old, new)}
    assert found == {("a",): "removed", ("b", "price"): "set", ("c",): "added"}


def test_reordered_list_is_an_edit() -> None:
    new = shop()
    new.orders["W1"] = new.orders["W1"].replace(items=WORLD["W1"].items[::-1])
    (edit,) = edits_between(shop(), new)
    assert edit.path == ("orders", "W1", "items")


def test_plain_lists_are_compared_by_index() -> None:
    old, new = shop(), shop()
    new.orders["W2"] = new.orders["W2"].replace(tags=("x", "z", "y"))
    assert [(edit.path[2:], edit.before, edit.after) for edit in edits_between(old, new)] == [
        (("tags", "1"), "y", "z"),
        (("tags", "2"), None, "y"),
    ]


def test_reverted_write_is_no_edit() -> None:
    new = shop()
    new.orders["W1"] = new.orders["W1"].replace(status="cancelled")
    new.orders["W1"] = new.orders["W1"].replace(status="pending")
    new.orders["W9"] = Order()
    del new.orders["W9"]
    assert edits_between(shop(), new) == ()


ORDERS = st.builds(
    Order,
    status=st.sampled_from(["pending", "sent"]),
    items=st.lists(st.builds(Item, id=st.sampled_from("abc"), price=st.integers(0, 2)), max_size=3).map(tuple),
    tags=st.lists(st.sampled_from("xyz"), max_size=3).map(tuple),
)
WRITES = st.lists(st.tuples(st.sampled_from(["W1", "W2", "W3"]), ORDERS | st.none()), max_size=6)


def apply_writes(writes: list[tuple[str, Order | None]]) -> Any:
    state = shop()
    for key, row in writes:
        if row is not None:
            state.orders[key] = row
        elif key in state.orders:
            del state.orders[key]
    return state


@given(WRITES, WRITES)
def test_edits_cover_exactly_the_rows_that_differ(one: Any, other: Any) -> None:
    before, after = apply_writes(one), apply_writes(other)
    keys = {"W1", "W2", "W3"}
    differ = {key for key in keys if before.orders.get(key) != after.orders.get(key)}
    assert {edit.path[1] for edit in edits_between(before, after)} == differ
    for edit in edits_between(before, after):
        assert edit.before != edit.after
