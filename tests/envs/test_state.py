"""Tests of copy-on-write state: forks, snapshots, changes and merge patches."""

import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from understudy.core.errors import TaskError
from understudy.core.records import Record
from understudy.envs.state import State, Table, merge_patch


class Row(Record):
    n: int
    note: str = ""


class Small(State):
    rows: Table[Row]
    others: Table[Row]
    who: str = ""


WORLD = {"a": Row(n=1), "b": Row(n=2)}


def small_state() -> Small:
    return Small(rows=WORLD)


KEYS = st.sampled_from(["a", "b", "c"])
WRITES = st.lists(st.tuples(KEYS, st.none() | st.integers(0, 3)), max_size=8)


def apply_writes(table: Table[Row], writes: list[tuple[str, int | None]]) -> None:
    for key, n in writes:
        if n is not None:
            table[key] = Row(n=n)
        elif key in table:
            del table[key]


@given(WRITES)
def test_a_table_behaves_like_a_dict(writes: list[tuple[str, int | None]]) -> None:
    state, model = small_state(), dict(WORLD)
    apply_writes(state.rows, writes)
    apply_writes(model, writes)  # type: ignore[arg-type]
    assert dict(state.rows.items()) == model
    assert (set(state.rows), len(state.rows)) == (set(model), len(model))
    assert all((key in state.rows) == (key in model) for key in "abc")
    assert sorted(row.n for row in state.rows.values()) == sorted(row.n for row in model.values())
    assert {"a": Row(n=1), "b": Row(n=2)} == WORLD


@given(WRITES)
def test_changes_equal_difference_from_world(writes: list[tuple[str, int | None]]) -> None:
    state = small_state()
    apply_writes(state.rows, writes)
    changed = state.changes().get("rows", {})
    after = dict(state.rows.items())
    assert changed == {k: after.get(k) for k in "abc" if after.get(k) != WORLD.get(k)}


@given(WRITES, WRITES)
def test_restore_undoes_later_writes(first: list[Any], second: list[Any]) -> None:
    state = small_state()
    apply_writes(state.rows, first)
    before, snapshot = state.dump(), state.snapshot()
    apply_writes(state.rows, second)
    state.who = "x"
    state.restore(snapshot)
    assert state.dump() == before
    assert not state.tables_modified_since(snapshot)


@given(WRITES, WRITES)
def test_fork_writes_do_not_affect_original(first: list[Any], second: list[Any]) -> None:
    state = small_state()
    apply_writes(state.rows, first)
    before, fork = state.dump(), state.fork()
    apply_writes(fork.rows, second)
    fork.who = "x"
    assert state.dump() == before


@given(WRITES)
def test_dump_and_load_are_inverse(writes: list[Any]) -> None:
    state = small_state()
    apply_writes(state.rows, writes)
    state.who = "me"
    assert Small.load(state.dump()).dump() == state.dump()


def test_value_fields_count_as_changes_but_not_as_writes() -> None:
    state = small_state()
    snapshot = state.snapshot()
    state.who = "me"
    assert state.changes() == {"who": "me"}
    assert not state.tables_modified_since(snapshot)


def test_patch_updates_base_world() -> None:
    state = small_state()
    state.patch({"rows": {"a": {"note": "x"}, "c": {"n": 3}}})
    assert state.rows["a"] == Row(n=1, note="x")
    assert state.changes() == {}
    assert "c" not in small_state().rows


def test_invalid_patch_raises_task_error() -> None:
    with pytest.raises(TaskError, match="'rows'"):
        small_state().patch({"row": {}})
    with pytest.raises(TaskError, match=r"'a'.*: n: "):
        small_state().patch({"rows": {"a": {"n": "many"}}})
    with pytest.raises(TaskError, match=r"'c'.*: n: "):
        small_state().patch({"rows": {"c": {}}})
    with pytest.raises(TaskError, match=r"'a' of rows .*'nota'; did you mean 'note'\?"):
        small_state().patch({"rows": {"a": {"nota": "x"}}})


def test_wrong_annotations_of_a_state_are_named() -> None:
    class Loan(BaseModel):
        due: str

    with pytest.raises(
        TaskError, match=r"Desk\.loans .*Loan from understudy\.Record; Desk\.rows .*`rows: Table\[Row\]`"
    ):

        class Desk(State):
            loans: Table[Loan]  # type: ignore[type-var]
            rows: dict[str, Row]


def test_rows_of_an_unknown_table_are_an_error() -> None:
    with pytest.raises(TaskError, match=r"'row'; did you mean 'rows'\?"):
        type(small_state())(row={})


def test_missing_row_raises_key_error() -> None:
    state = small_state()
    del state.rows["a"]
    for missing in ("a", "z"):
        with pytest.raises(KeyError):
            state.rows[missing]
        with pytest.raises(KeyError):
            del state.rows[missing]


@pytest.mark.parametrize(
    ("target", "patch", "merged"),
    [  # the examples of RFC 7386, appendix A
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        ({"a": "b"}, ["c"], ["c"]),
        ({"a": "foo"}, None, None),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_merge_patch(target: Any, patch: Any, merged: Any) -> None:
    assert merge_patch(target, patch) == merged


class Basket(State):
    rows: Table[Row]
    things: list[str] = []


def test_mutable_values_belong_to_one_state() -> None:
    first, second = Basket(rows={}), Basket(rows={})
    before = first.snapshot()
    first.things.append("cup")
    assert (second.things, first.changes()) == ([], {"things": ["cup"]})
    fork = first.fork()
    fork.things.append("jar")
    assert first.things == ["cup"]
    first.restore(before)
    first.things.append("pan")
    first.restore(before)
    assert first.things == []


def test_value_that_cannot_be_copied_is_named() -> None:
    state = Basket(rows={})
    state.things.append(threading.Lock())  # type: ignore[arg-type]
    with pytest.raises(TaskError, match=r"'things'.*lock"):
        state.snapshot()
