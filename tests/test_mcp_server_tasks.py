"""The task sets: sound against recordings and against live servers, and the same when made anew."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

import understudy
from understudy.agent import GoldAgent
from understudy.check import check, earned
from understudy.domains.base import find
from understudy.mcp.cassette import cassette_path
from understudy.mcp.checks import Evidence, score
from understudy.mcp.servers.python import Python
from understudy.mcp.servers.replica.channels import PEOPLE
from understudy.mcp.servers.replica.market import companies
from understudy.mcp.servers.tasks.draft import tasks
from understudy.mcp.servers.tasks.make import FOLDER, SETS, record, write
from understudy.mcp.settings import RewardConfig
from understudy.mcp.source import MCPSource, Shared
from understudy.mcp.tasks import MCPTask, read_mcp_tasks
from understudy.mcp.toolkit import Made
from understudy.messages import ToolCall
from understudy.sandbox.interpreter import Interpreter
from understudy.tasks import SPLITS

RECORDED = [name for name in SETS if name != "python"]


def rows(name: str) -> list[MCPTask]:
    return read_mcp_tasks(FOLDER / f"{name}.jsonl")


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_sets_are_sound_without_a_server(name: str) -> None:
    report = check(find(f"mcp:{name}-replay"))
    assert report.problems == ()
    assert sum(split.tasks for split in report.splits) >= 100
    assert [(split.oracle, split.floor) for split in report.splits] == [(1.0, 0.0)] * 3


@pytest.mark.parametrize("name", SETS)
def test_sets_are_as_large_as_said_and_their_splits_share_nothing(name: str) -> None:
    found = rows(name)
    assert len(found) >= 100
    prompts = {split: {task.prompt for task in found if task.split == split} for split in SPLITS}
    assert all(prompts.values())
    assert sum(map(len, prompts.values())) == len(set().union(*prompts.values())) == len(found)


@pytest.mark.parametrize("name", SETS)
def test_making_a_set_anew_gives_the_same(name: str, tmp_path: Path) -> None:
    write(name, tmp_path)
    for made in tmp_path.iterdir():
        assert made.read_text() == (FOLDER / made.name).read_text()


def test_recording_a_set_anew_gives_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = [line for line in (FOLDER / "several.jsonl").read_text().splitlines() if "-validation-" in line]
    write("several", tmp_path)
    (tmp_path / "several.jsonl").write_text("\n".join(few))
    record("several", tmp_path)
    for name in ("tools", *(json.loads(line)["id"] for line in few)):
        made = (tmp_path / "cassettes" / "several" / f"{name}.jsonl").read_text()
        assert made == (FOLDER / "cassettes" / "several" / f"{name}.jsonl").read_text()


@pytest.mark.parametrize("name", RECORDED)
def test_answers_stand_in_what_the_servers_say(name: str) -> None:
    """Answers are computed from the data; what the servers say has gone through them, HTTP and the protocol."""
    for task in rows(name):
        text = cassette_path(FOLDER / "cassettes" / name, task.id).read_text().lower()
        for answer in task.check.answer:
            assert answer.text.lower() in text, task.id
    assert any(answer.text or answer.regex for task in rows(name) for answer in task.check.answer)


@pytest.mark.parametrize(
    ("name", "family", "guesses"),
    [
        ("slack", "nth", " ".join(PEOPLE)),
        ("slack", "count", "0 1 2 3 4 5 6"),
        ("polygon", "dearer", "{prompt}"),
        ("tavily", "larger", "{prompt}"),
        ("fmp", "boss", ", ".join(sorted({company.ceo for company in companies().values()}))),
    ],
)
def test_a_list_of_guesses_is_no_answer(name: str, family: str, guesses: str) -> None:
    for task in (task for task in rows(name) if task.family == family):
        assert not any(each.holds(guesses.format(prompt=task.prompt)) for each in task.check.answer)
        assert all(each.holds(task.reply) for each in task.check.answer)


def test_messages_cannot_be_tried_until_one_is_right() -> None:
    task = next(task for task in rows("slack") if task.family == "members")
    listed = Made("slack", "slack_list_channels", {}, False)
    right, wrong = (Made("slack", "slack_send_message", call, False) for call in _right_and_wrong(task))
    assert score(task.check, Evidence("Sent.", True, [listed, right]), RewardConfig()).reward == 1.0
    assert score(task.check, Evidence("Sent.", True, [wrong, right]), RewardConfig()).reward == 0.0
    other = next(task for task in rows("slack") if task.family == "nth")
    assert score(other.check, Evidence(other.reply, True, [listed]), RewardConfig()).reward == 1.0
    assert score(other.check, Evidence(other.reply, True, [listed, right]), RewardConfig()).reward == 0.0


def _right_and_wrong(task: MCPTask) -> tuple[dict[str, Any], dict[str, Any]]:
    right = task.gold[-1].arguments
    return right, {**right, "message": "We are 1 now"}


def test_gold_code_computes_the_answers() -> None:
    """The answers were computed here, by other means, before any code ran in the sandbox."""

    async def compute() -> None:
        python = Python(Interpreter())
        for task in rows("python"):
            shown = [await python.call(ToolCall(name=call.tool, arguments=call.arguments)) for call in task.gold]
            wanted = task.check.answer[0]
            assert wanted.number is not None
            assert abs(float(shown[-1]) - wanted.number) <= wanted.tolerance, task.id
        await python._interpreter.close()

    asyncio.run(compute())


@pytest.mark.parametrize("name", ["python", "slack"])
def test_a_set_is_played_against_live_servers(name: str) -> None:
    """Through the command of the TOML file, as a user does it."""
    source = find(f"mcp:{name}")
    assert isinstance(source, MCPSource)
    here = {"PYTHONPATH": str(Path(understudy.__file__).parent.parent)}
    servers = {key: server.replace(env=here, warm=0) for key, server in source.shared.config.servers.items()}
    source = MCPSource(Shared(source.shared.config.replace(servers=servers)))
    task = next(task for task in source.tasks("test") if task.difficulty == "hard")
    assert asyncio.run(earned(source, task, GoldAgent())).reward == 1.0


def test_the_sets_are_small() -> None:
    assert sum(path.stat().st_size for path in FOLDER.rglob("*") if path.suffix in (".jsonl", ".toml")) < 2_000_000


def test_a_task_is_a_function_of_its_id() -> None:
    families, _ = SETS["polygon"]
    assert list(tasks("polygon", families)) == list(tasks("polygon", families))
