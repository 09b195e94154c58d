"""Test task files: writing, reading, errors, and filtering."""

from collections import Counter
from pathlib import Path

import pytest

from understudy.core.errors import TaskError
from understudy.core.messages import Message, ToolCall
from understudy.core.tasks import (
    Difficulty,
    Fact,
    Scenario,
    Task,
    UserGoal,
    assign_splits,
    filter_tasks,
    read_tasks,
    split_from_id,
    write_tasks,
)


def make_task(identity: str, family: str = "f", difficulty: Difficulty = "easy") -> Task:
    goal = UserGoal(text="Grüße", required_terms=("W1",), facts=(Fact(text="It is W1.", keywords=("which",)),))
    gold = (
        Message(role="assistant", tool_calls=(ToolCall(name="a", arguments={"x": [1, "2"]}), ToolCall(name="b"))),
        Message(role="assistant", content="Done."),
        Message(role="assistant", tool_calls=(ToolCall(name="c"),)),
    )
    return Task(
        id=identity,
        domain="d",
        split="train",
        family=family,
        difficulty=difficulty,
        scenario=Scenario(instructions="i", opening="o", goals=(goal,)),
        gold=gold,
    )


def test_gold_calls_are_in_the_order_of_the_messages() -> None:
    assert [call.name for call in make_task("1").gold_calls] == ["a", "b", "c"]


def test_writing_and_reading_are_inverse(tmp_path: Path) -> None:
    tasks = [make_task("1"), make_task("2", "g", "hard")]
    write_tasks(tmp_path / "x.jsonl", tasks)
    text = (tmp_path / "x.jsonl").read_text(encoding="utf-8")
    assert read_tasks(tmp_path / "x.jsonl") == tasks
    assert "Grüße" in text
    assert "patience" not in text, "defaults are left out"


def test_unicode_line_separators_survive_writing_and_reading(tmp_path: Path) -> None:
    odd = make_task("1").replace(scenario=Scenario(instructions="i", opening="a\u2028b\u2029c\x85d"))
    write_tasks(tmp_path / "x.jsonl", [odd, make_task("2")])
    assert read_tasks(tmp_path / "x.jsonl") == [odd, make_task("2")]


@pytest.mark.parametrize("damage", ["{", "[]", '{"id": "1"}', ""])
def test_damaged_line_raises_task_error_with_its_line(tmp_path: Path, damage: str) -> None:
    write_tasks(tmp_path / "x.jsonl", [make_task("1")])
    with (tmp_path / "x.jsonl").open("a", encoding="utf-8") as f:
        f.write(f"{damage}\n")
    with pytest.raises(TaskError, match=r"x\.jsonl:2: "):
        read_tasks(tmp_path / "x.jsonl")


def test_missing_file_raises_task_error_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"x\.jsonl"):
        read_tasks(tmp_path / "x.jsonl")


def test_filter_tasks_by_family_difficulty_and_limit() -> None:
    tasks = [make_task("1"), make_task("2", "g"), make_task("3", "g", "hard"), make_task("4", "f", "hard")]
    assert [t.id for t in filter_tasks(tasks)] == ["1", "2", "3", "4"]
    assert [t.id for t in filter_tasks(tasks, ["g"])] == ["2", "3"]
    assert [t.id for t in filter_tasks(tasks, ["g", "f"], ["hard"])] == ["3", "4"]
    assert [t.id for t in filter_tasks(tasks, limit=1)] == ["1"]


def test_assigned_splits_are_those_of_the_hash_and_none_is_empty() -> None:
    many = {f"task/{i}": None for i in range(1000)}
    assert assign_splits(many) == {identity: split_from_id(identity) for identity in many}
    training = [identity for identity in many if split_from_id(identity) == "train"][:50]
    splits = assign_splits(dict.fromkeys(training))
    assert Counter(splits.values()) == {"train": 36, "validation": 5, "test": 9}
    assert assign_splits({"a": "test", "b": "validation"}) == {"a": "test", "b": "validation"}
    assert set(assign_splits({"task/0": None}).values()) == {split_from_id("task/0")}
