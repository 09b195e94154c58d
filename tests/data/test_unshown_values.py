"""Test that tasks whose gold needs a value that nothing shows are named, in every kind of source."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import toy
from support.checkouts import TAU_BENCH, write_checkout
from support.data_kit import run_data_command
from support.mcp_environment import TASKS, write_environment
from understudy.core.items import Item
from understudy.core.messages import Message, ToolCall
from understudy.core.records import Record
from understudy.core.tasks import SPLITS, Scenario, Task, UserGoal
from understudy.data.checks.check import DomainReport, check
from understudy.data.checks.evidence import find_unshown_argument
from understudy.envs.domain import Domain
from understudy.envs.state import State, Table
from understudy.envs.task_source import list_file_summaries
from understudy.envs.tools import Toolkit
from understudy.rollouts.agent import GoldAgent
from understudy.rollouts.rollout import EpisodeLimits, rollout
from understudy.runs.config import parse_config
from understudy.sources.loading import load_source
from understudy.sources.task_files.call_matching import match_calls
from understudy.sources.task_files.call_rows import read_call_row
from understudy.sources.task_files.config import DataConfig

READ = {"name": "get_order", "kwargs": {"order_id": "W91"}, "result": '{"items": [{"mug": "5550001111"}]}'}
WRITE = {"name": "swap_item", "kwargs": {"order_id": "W91", "item_id": "5550001111"}}


def row(*actions: dict[str, Any], said: str = "Swap the mug of order W91.", **fields: Any) -> dict[str, Any]:
    return {"instruction": said, "actions": list(actions), "domain": "shop", **fields}


def write_rows(folder: Path, *rows: dict[str, Any]) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in rows))
    return path


def unshown(report: DomainReport) -> list[str]:
    return [text for text in report.problems if "nothing shows" in text]


@pytest.mark.parametrize(
    ("made", "is_sound"),
    [
        (row(WRITE), False),
        (row(READ, WRITE), True),
        (row(WRITE, READ), False),
        (row({**READ, "result": '{"ok": true}'}, WRITE), False),
        (row(WRITE, said="Swap item 5550001111 of order W91."), True),
        (
            {
                "prompt": [
                    {"role": "system", "content": "Item 5550001111 is always swapped."},
                    {"role": "user", "content": "Swap it in order W91."},
                ],
                "actions": [WRITE],
                "domain": "shop",
            },
            True,
        ),
        (row(READ, WRITE, said="Swap the mug of my last order."), False),
        (row({**READ, "kwargs": {"email": "mia@mail.com"}}, WRITE), False),
        (row({**READ, "kwargs": {"email": "mia@mail.com"}}, WRITE, said="Swap it in W91; I am mia@mail.com."), True),
        (row({**READ, "kwargs": {"limit": 50, "since": "2026-03-04"}}, WRITE), True),
        (row({**READ, "kwargs": {"order_id": "W90"}}, WRITE), False),
        (row({"name": "find_order", "kwargs": {"words": "mug"}, "result": "W91"}, READ, WRITE, said="The mug."), True),
        (row({**READ, "result": "no item 5550001111", "kwargs": WRITE["kwargs"]}, WRITE), False),
        (row({"name": "transfer_to_human", "kwargs": {"case_id": "C771"}}), True),
    ],
)
def test_values_of_gold_writes_must_be_shown_before(tmp_path: Path, made: dict[str, Any], is_sound: bool) -> None:
    report = check(load_source(str(write_rows(tmp_path, made, row(WRITE, said="Swap 5550001111 of W91 today.")))))
    assert report.problems == tuple(unshown(report))
    assert (len(report.problems), report.unsound) == ((0, {}) if is_sound else (1, {"unshown value": 1}))


@pytest.mark.parametrize(("said", "is_findable"), [("What is in my order?", False), ("What is in order W91?", True)])
def test_reads_that_are_required_need_shown_values_too(tmp_path: Path, said: str, is_findable: bool) -> None:
    think = {"name": "think", "kwargs": {"thought": "hm", "task_id": "T5"}}
    path = write_rows(tmp_path, row(think, {"name": "get_order", "kwargs": {"order_id": "W91"}}, said=said))
    source = load_source(str(path), DataConfig(require_reads=True))
    assert check(source).unsound == ({} if is_findable else {"unshown value": 1})
    (summary,) = list_file_summaries(source)
    assert ("order_id W91" in " ".join(summary.lines())) is not is_findable


@pytest.mark.parametrize(
    ("said", "result", "is_findable"),
    [
        ("What is in my order?", "a mug", False),
        ("What is in order W91?", "a mug", True),
        ("What is in my order?", None, True),  # nothing is recorded, so any call of the tool succeeds
    ],
)
def test_reads_of_tools_that_must_be_called_need_shown_values(said: str, result: str | None, is_findable: bool) -> None:
    made = read_call_row(row({**READ, "result": result}, said=said), "rows/1")
    for pattern in ("get_order", "get_*"):
        item = Item("rows:1", replace(made, task=made.task.replace(must_call=(pattern,))))
        source = match_calls("shop", [item])
        assert check(source).unsound == ({} if is_findable else {"unshown value": 1})


@pytest.mark.parametrize("command", ["convert", "split"])
def test_unfindable_tasks_are_left_out_of_a_file(tmp_path: Path, command: str) -> None:
    rows = [row(READ, WRITE, said=f"Swap the mug of W91, please, {name}.") for name in ("Mia", "Tom", "Ann")]
    path = write_rows(tmp_path, *rows, row(WRITE, id="b", said="Quick, the mug!"))
    out = tmp_path / ("out.jsonl" if command == "convert" else "out")
    given = (path, out) if command == "convert" else (path, "--out", out)
    code, text, err = run_data_command(command, *given, "--skip-unfindable")
    assert (code, "1 left out" in text, err.count("nothing shows")) == (1, True, 2)  # a note of the file, and the row
    files = [out] if command == "convert" else list(out.iterdir())
    written = [line for file in files for line in file.read_text().splitlines()]
    assert len(written) == 3
    assert not any("Quick" in line for line in written)


def test_every_report_on_a_file_counts_the_tasks(tmp_path: Path) -> None:
    path = write_rows(
        tmp_path, row(WRITE, id="a"), row(WRITE, id="b", said="Quick, the mug!"), row(READ, WRITE, id="c")
    )
    source = load_source(str(path))
    (group,) = check(source).problem_groups
    assert (group.kind, group.num_tasks, group.num_family_tasks, group.example_task) == ("unshown_value", 2, 3, "a")
    assert all(text in group.example for text in ("item_id 5550001111", "swap_item", "data.sources"))
    (summary,) = list_file_summaries(source)  # which the dry run of `train` prints
    (note,) = [line for line in summary.lines() if "nothing shows" in line]
    assert note.startswith("rows: 2 of 3 tasks of shop-calls")
    assert "item_id 5550001111 of a" in note
    assert "data.sources=tau-bench:PATH#DOMAIN" in note
    code, _, err = run_data_command("convert", path, tmp_path / "out.jsonl")
    assert (code, "2 of 3 tasks" in err) == (0, True)
    code, out, err = run_data_command("validate", path, "--skip-invalid")
    assert (code, "1 sound, 2 bad" in out, err.count("nothing shows")) == (1, True, 2)


def lamp_task(task_id: str, *gold: ToolCall, said: str) -> Task:
    goals = (UserGoal(text=said, required_terms=("switch",)),)
    turns = [Message(role="assistant", tool_calls=(call,)) for call in gold[:-1]]
    turns.append(Message(role="assistant", content="I will switch it on. Do you confirm?"))
    turns.append(Message(role="assistant", tool_calls=gold[-1:]))
    turns.append(Message(role="assistant", content="It is on."))
    scenario = Scenario(instructions=said, opening=said, goals=goals)
    return Task(id=task_id, scenario=scenario, gold=tuple(turns))


def test_a_domain_of_ones_own() -> None:
    find = ToolCall(name="find_lamp", arguments={"room": "room5"})
    switch = ToolCall(name="switch_lamp", arguments={"lamp_id": "L5", "on": True})
    tasks = (
        lamp_task("read", find, switch, said="Switch on the light of room5."),
        lamp_task("said", switch, said="Could you turn L5 on for me now?"),
        lamp_task("guessed", switch, said="My bedroom is too dark to read a book."),
    )
    report = check(Domain("lamps", toy.build_house, toy.LampTools, task_list=tasks, policy="Switch lamps."))
    assert [text.split(": ")[0] for text in unshown(report)] == ["task guessed"]


def test_an_mcp_environment(tmp_path: Path) -> None:
    hidden = {**TASKS[0], "id": "hidden", "prompt": "Add the usual.", "check": {"state": {"tool": "count"}}}
    hidden["gold"] = [{"tool": "add", "arguments": {"amount": 7431}}]
    source = load_source(f"mcp:{write_environment(tmp_path, [TASKS[0], hidden])}")

    async def find(task: Task) -> str:
        gold = await rollout(task, source.environment(task), GoldAgent(), EpisodeLimits())
        return str(find_unshown_argument(source, task, gold.messages))

    found = {task.id: asyncio.run(find(task)) for split in SPLITS for task in source.tasks(split)}
    assert found == {"count/1": "None", "hidden": "amount 7431"}


def test_the_database_of_a_benchmark_can_be_looked_up(tmp_path: Path) -> None:
    checkout = write_checkout(tmp_path, TAU_BENCH)
    sell = {"name": "sell", "kwargs": {"good": "apple", "count": 1}}
    path = write_rows(tmp_path, row(sell, said="The usual.", domain="kiosk", outputs=[]))
    config = parse_config(f"domain = {json.dumps(str(path))}", [f"data.sources=tau-bench:{checkout}#kiosk"])
    report = check(config.open_source())
    assert (report.problems, report.files[0].played_by) == ((), {"tau-bench-kiosk": 1})


class Room(Record):
    beds: int
    price: float = 125.5
    stars: int = 3
    view: str = "seaside"


class Inn(State):
    rooms: Table[Room]


class InnTools(Toolkit):
    _state: Inn

    def get_room(self, number: str) -> Room:
        """Look at a room."""
        return self._state.rooms[number]

    def set_price(self, number: str, price: float) -> Room:
        """Set the price of a room."""
        self._state.rooms[number] = self._state.rooms[number].replace(price=price)
        return self._state.rooms[number]


def ask_inn(*outputs: str, gold: tuple[ToolCall, ...] = ()) -> list[str]:
    """Return the problems of a domain with one task, whose gold looks at room 7, makes calls and tells outputs."""
    scenario = Scenario(instructions="Tell me of room 7.", opening="Tell me of room 7.")
    calls = (ToolCall(name="get_room", arguments={"number": "7"}), *gold)
    told = Message(role="assistant", content=f"It is {' and '.join(outputs)}." if outputs else "Done.")
    turns = (*(Message(role="assistant", tool_calls=(call,)) for call in calls), told)
    task = Task(scenario=scenario, gold=turns, outputs=outputs)
    rooms = {"7": Room(beds=2), "8": Room(beds=1, price=80.0, stars=4, view="garden")}
    domain = Domain("inn", lambda: Inn(rooms=rooms), InnTools, task_list=[task], policy="Help.", confirm_writes=False)
    return [*check(domain).problems]


@pytest.mark.parametrize(("output", "field"), [("125.5", "Room.price"), ("3", ""), ("seaside", "Room.view"), ("2", "")])
def test_an_output_that_results_leave_out_as_a_default_names_the_field(output: str, field: str) -> None:
    problems = ask_inn(output)
    assert all(output in text and f"remove the default of {field}" in text for text in problems)
    assert len(problems) == (1 if field else 0)


def test_an_argument_that_results_leave_out_as_a_default_names_the_field() -> None:
    call = ToolCall(name="set_price", arguments={"number": "7", "price": 125.5})
    (problem,) = ask_inn("2", gold=(call.replace(arguments={"number": "7", "price": 99.25}),))
    assert "price 99.25" in problem
    assert "default" not in problem
    (problem,) = ask_inn("2", gold=(call,))
    assert "price 125.5" in problem
    assert "remove the default of Room.price" in problem


def test_a_number_that_no_result_gives_is_named_in_a_domain() -> None:
    (problem,) = ask_inn("777.25")
    assert "output 777.25" in problem
    assert ask_inn("4") == []  # as a count
