"""Edits between two moments of a database: what they say, put into the first moment, is the second one."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from understudy.edits import Edit, edits
from understudy.records import Record
from understudy.state import State, Table


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


def between(before: State, after: State) -> tuple[Edit, ...]:
    return edits(shop(), before.changes(), after.changes())


def test_a_field_a_row_and_a_value() -> None:
    old, new = shop(), shop()
    new.orders["W1"] = new.orders["W1"].replace(status="cancelled")
    new.orders["W3"] = Order(status="new")
    del new.orders["W2"]
    new.caller = "me"
    assert [(edit.path, edit.kind) for edit in between(old, new)] == [
        (("caller",), "set"),
        (("orders", "W1", "status"), "set"),
        (("orders", "W2"), "removed"),
        (("orders", "W3"), "added"),
    ]
    assert between(new, new) == ()
    back = between(new, old)
    assert [edit.kind for edit in back] == ["set", "set", "added", "removed"]
    assert back[1].before == "cancelled"
    assert back[1].after == "pending"


def test_rows_of_a_list_are_told_apart_by_their_ids() -> None:
    old, new = shop(), shop()
    new.orders["W1"] = new.orders["W1"].replace(items=(Item(id="b", price=3), Item(id="c")))
    found = {edit.path[3:]: edit.kind for edit in between(old, new)}
    assert found == {("a",): "removed", ("b", "price"): "set", ("c",): "added"}


def test_another_order_is_an_edit() -> None:
    new = shop()
    new.orders["W1"] = new.orders["W1"].replace(items=WORLD["W1"].items[::-1])
    (edit,) = between(shop(), new)
    assert edit.path == ("orders", "W1", "items")


def test_other_lists_are_told_apart_by_place() -> None:
    old, new = shop(), shop()
    new.orders["W2"] = new.orders["W2"].replace(tags=("x", "z", "y"))
    assert [(edit.path[2:], edit.before, edit.after) for edit in between(old, new)] == [
        (("tags", "1"), "y", "z"),
        (("tags", "2"), None, "y"),
    ]


def test_what_was_written_and_taken_back_is_no_edit() -> None:
    new = shop()
    new.orders["W1"] = new.orders["W1"].replace(status="cancelled")
    new.orders["W1"] = new.orders["W1"].replace(status="pending")
    new.orders["W9"] = Order()
    del new.orders["W9"]
    assert between(shop(), new) == ()


ORDERS = st.builds(
    Order,
    status=st.sampled_from(["pending", "sent"]),
    items=st.lists(st.builds(Item, id=st.sampled_from("abc"), price=st.integers(0, 2)), max_size=3).map(tuple),
    tags=st.lists(st.sampled_from("xyz"), max_size=3).map(tuple),
)
WRITES = st.lists(st.tuples(st.sampled_from(["W1", "W2", "W3"]), ORDERS | st.none()), max_size=6)


def written(writes: list[tuple[str, Order | None]]) -> Any:
    state = shop()
    for key, row in writes:
        if row is not None:
            state.orders[key] = row
        elif key in state.orders:
            del state.orders[key]
    return state


@given(WRITES, WRITES)
def test_there_are_edits_exactly_where_rows_differ(one: Any, other: Any) -> None:
    before, after = written(one), written(other)
    keys = {"W1", "W2", "W3"}
    differ = {key for key in keys if before.orders.get(key) != after.orders.get(key)}
    assert {edit.path[1] for edit in between(before, after)} == differ
    for edit in between(before, after):
        assert edit.before != edit.after
