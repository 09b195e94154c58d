"""Test SOPBench: a small copy of its layout, with its evaluator's rules for a door that needs a login."""

import json
import os
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from support.checkouts import write_checkout
from understudy.core.errors import ConfigError, RolloutError
from understudy.core.event_loop import run_async
from understudy.core.messages import Message, ToolCall
from understudy.core.tasks import SPLITS, Task
from understudy.data.checks.check import check
from understudy.envs.task_source import TaskSource
from understudy.runs.targets import load

REAL = os.environ.get("SOPBENCH", "")
DOMAINS = {
    "bank": 135,
    "dmv": 115,
    "healthcare": 130,
    "hotel": 196,
    "library": 78,
    "online_market": 187,
    "university": 44,
}
"""The tasks with gold of each domain of the real one."""
DONE = Message(role="assistant", content="Done.")
GRAPH = {
    "nodes": [
        ["open_door", {"room": "room"}],
        "or",
        ["fetch_all", {}],
        "and",
        ["login", {"user": "name"}],
        ["find", {}],
    ],
    "connections": [[0, 1], [1, 2], [1, 3], [3, 5], [3, 4]],
}


def row(name: str = "ann", succeeds: bool = True, **known: Any) -> dict[str, Any]:
    return {
        "user_prompt": f"I am {name}. Open the door.",
        "user_known": {"name": name, **known},
        "action_should_succeed": succeeds,
        "directed_action_graph": GRAPH,
    }


ROWS = {"open_door": [row(), row("eve", succeeds=False), row("eve")]}
LAYOUT = {
    "env/task.py": """
        class Building:
            def __init__(self):
                self.data = {"open": [], "user": None}

            def login(self, user):
                self.data["user"] = user
                return user == "ann"

            def find(self):
                return True, {"room": 7}

            def fetch_all(self):
                return self.data

            def open_door(self, room):
                if room == 9:
                    raise ValueError("no door")
                self.data["open"].append(room)
                return self.data["user"] == "ann"

        def task_default_dep_full(domain, option, form, dependency_verb_dep_orig=False):
            assert (domain, option, form, dependency_verb_dep_orig) == ("house", "full", "structured", True)
            return {}, {}, {}

        def tool(name, **properties):
            schema = {"type": "object", "properties": properties, "required": [*properties]}
            return {"type": "function", "function": {"name": name, "description": name, "parameters": schema}}

        def task_initializer(domain, task, innate, full, descriptions, functions, mode, shuffled, form):
            assert (functions, mode, shuffled, form) == (None, "prompt", False, "structured")
            tools = [tool("login", user={"type": "string"}), tool("find"), tool("open_door", room={"type": "integer"})]
            return Building(), {}, {"instructions": "Log users in first.", "tools": tools}, {}
    """,
    "env/evaluator.py": """
        def evaluator_function_directed_graph(domain, task, log, calls, results, option):
            opened = [call["arguments"]["room"] for call in calls if call["tool_name"] == "open_door"]
            if opened == [8]:
                raise KeyError("room 8")
            allowed = any(call["tool_name"] == "login" and call["content"] is True for call in calls)
            assert results["final_database"]["open"] == opened
            assert all(call["content"] == (True, {"room": 7}) for call in calls if call["tool_name"] == "find")
            wanted = [7] if task["action_should_succeed"] else []
            return {"success": opened == wanted and (allowed or not opened)}
    """,
    "data/house_tasks.json": json.dumps(ROWS),
}


def call(name: str, **arguments: Any) -> Message:
    return Message(role="assistant", tool_calls=(ToolCall(id="1", name=name, arguments=arguments),))


def tasks_of(source: TaskSource) -> dict[str, Task]:
    return {task.id: task for split in SPLITS for task in source.tasks(split)}


async def play(source: TaskSource, task: Task, replies: Sequence[Message]) -> tuple[float, list[str]]:
    """Return the reward, and what the agent saw."""
    environment = source.environment(task)
    step = await environment.start()
    seen = [message.content for message in step.messages]
    for reply in replies:
        step = await environment.step(reply)
        seen += [message.content for message in step.messages]
        if step.score:
            return step.score.reward, seen
    return (await environment.grade(ended=False)).reward, seen


def test_gold_is_found_in_the_graph_and_rewards_are_the_evaluators(tmp_path: Path) -> None:
    source = load(f"sopbench:{write_checkout(tmp_path, LAYOUT)}#house")
    tasks = tasks_of(source)
    opened, refused = (tasks[f"sopbench-house/open_door-{number}"] for number in range(2))
    assert (len(tasks), source.lacks_gold, [opened.family, refused.family]) == (2, False, ["act", "nothing"])
    assert "open_door-2" in source.notes()[0]
    found, login, door = opened.gold_calls
    assert (found.name, login.arguments, door.arguments) == ("find", {"user": "ann"}, {"room": 7})
    reward, seen = run_async(play(source, opened, opened.gold_turns))
    assert (reward, seen[:3]) == (1.0, ["Log users in first.", "I am ann. Open the door.", "(True, {'room': 7})"])
    assert '"name": "ann"' in seen[-1]
    assert run_async(play(source, refused, refused.gold_turns))[0] == 1.0
    for task, reward, replies in (
        (refused, 1.0, []),
        (refused, 0.0, [call("open_door", room=7), DONE, DONE]),
        (opened, 0.0, []),
        (opened, 0.0, [DONE, DONE, *opened.gold_turns]),
        (opened, 0.0, [call("open_door", room=7)]),
        (opened, 0.0, [call("open_door", room="7"), *opened.gold_turns]),
        (opened, 0.0, [call("fetch_all"), *opened.gold_turns]),
        (refused, 0.0, [call("open_door", room=9)]),
    ):
        assert run_async(play(source, task, replies))[0] == reward
    assert source.slice(source.task_slice.replace(families=("act",))).tasks(opened.split) == [opened]  # type: ignore[attr-defined]


def test_check_names_what_doing_nothing_solves_and_what_has_no_gold(tmp_path: Path) -> None:
    report = check(load(f"sopbench:{write_checkout(tmp_path, LAYOUT)}#house"))
    assert any("open_door-2" in text for text in report.warnings)
    assert not any("policy is empty" in text for text in report.warnings)
    assert "open_door-1" in report.train_refusal


def test_a_failure_of_its_evaluator_is_attributed(tmp_path: Path) -> None:
    source = load(f"sopbench:{write_checkout(tmp_path, LAYOUT)}#house")
    with pytest.raises(RolloutError) as e:
        run_async(play(source, tasks_of(source)["sopbench-house/open_door-1"], [call("open_door", room=8)]))
    assert e.value.fault == "grader"


def test_another_module_of_its_name_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "env", types.ModuleType("env"))
    with pytest.raises(ConfigError, match="env is already loaded"):
        load(f"sopbench:{write_checkout(tmp_path, LAYOUT)}#house")


@pytest.mark.parametrize(
    ("reference", "rows", "key"),
    [
        ("", ROWS, "no checkout"),
        ("{tmp}", ROWS, "house"),
        ("{tmp}#hous", ROWS, "house"),
        ("{tmp}/env#house", ROWS, "no checkout"),
        ("{tmp}#house", [], "list"),
        ("{tmp}#house", {}, "no tasks"),
        ("{tmp}#house", {"open_door": [{"user_prompt": "Open it."}]}, "open_door-0 lacks user_known"),
    ],
)
def test_wrong_references_and_files_are_refused(tmp_path: Path, reference: str, rows: Any, key: str) -> None:
    write_checkout(tmp_path, {**LAYOUT, "data/house_tasks.json": json.dumps(rows)})
    with pytest.raises(ConfigError, match=key):
        load(f"sopbench:{reference.format(tmp=tmp_path)}")


@pytest.mark.skipif(not REAL, reason="SOPBENCH names no checkout of Leezekun/SOPBench")
@pytest.mark.tau
@pytest.mark.parametrize("domain", DOMAINS)
def test_gold_of_the_real_one_earns_one(domain: str) -> None:
    source = load(f"sopbench:{REAL}#{domain}")
    tasks = tasks_of(source).values()

    async def rewards() -> list[float]:
        return [(await play(source, task, task.gold_turns))[0] for task in tasks]

    assert run_async(rewards()) == [1.0] * DOMAINS[domain]
    for task in [task for task in tasks if task.family == "act"][:5]:
        assert run_async(play(source, task, []))[0] == 0.0
