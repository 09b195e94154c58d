"""Tasks on disk."""

from pathlib import Path

import pytest

from understudy.errors import TaskError
from understudy.messages import Message, ToolCall
from understudy.tasks import Difficulty, Fact, Scenario, Task, Wish, read_tasks, select, write_tasks


def task(identity: str, family: str = "f", difficulty: Difficulty = "easy") -> Task:
    wish = Wish(says="Grüße", names=("W1",), facts=(Fact(says="It is W1.", cues=("which",)),))
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
        scenario=Scenario(instructions="i", opening="o", wishes=(wish,)),
        gold=gold,
    )


def test_actions_are_the_gold_calls_in_order() -> None:
    assert [call.name for call in task("1").actions] == ["a", "b", "c"]


def test_writing_and_reading_are_inverse(tmp_path: Path) -> None:
    tasks = [task("1"), task("2", "g", "hard")]
    write_tasks(tmp_path / "x.jsonl", tasks)
    text = (tmp_path / "x.jsonl").read_text(encoding="utf-8")
    assert read_tasks(tmp_path / "x.jsonl") == tasks
    assert "Grüße" in text
    assert "patience" not in text, "defaults are left out"


def test_marks_that_only_unicode_takes_for_an_end_of_a_line_are_text(tmp_path: Path) -> None:
    odd = task("1").replace(scenario=Scenario(instructions="i", opening="a\u2028b\u2029c\x85d"))
    write_tasks(tmp_path / "x.jsonl", [odd, task("2")])
    assert read_tasks(tmp_path / "x.jsonl") == [odd, task("2")]


@pytest.mark.parametrize("damage", ["{", "[]", '{"id": "1"}', ""])
def test_a_damaged_line_is_named(tmp_path: Path, damage: str) -> None:
    write_tasks(tmp_path / "x.jsonl", [task("1")])
    with (tmp_path / "x.jsonl").open("a", encoding="utf-8") as f:
        f.write(f"{damage}\n")
    with pytest.raises(TaskError, match=r"x\.jsonl:2: not a task"):
        read_tasks(tmp_path / "x.jsonl")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"no tasks at .*x\.jsonl"):
        read_tasks(tmp_path / "x.jsonl")


def test_select() -> None:
    tasks = [task("1"), task("2", "g"), task("3", "g", "hard"), task("4", "f", "hard")]
    assert [t.id for t in select(tasks)] == ["1", "2", "3", "4"]
    assert [t.id for t in select(tasks, ["g"])] == ["2", "3"]
    assert [t.id for t in select(tasks, ["g", "f"], ["hard"])] == ["3", "4"]
    assert [t.id for t in select(tasks, limit=1)] == ["1"]
