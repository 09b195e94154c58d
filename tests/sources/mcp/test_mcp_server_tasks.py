"""Tests of the shipped MCP task sets against recordings, live servers and their generators."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

import understudy
from mcp_tasks.draft import tasks
from mcp_tasks.make import SETS, SHIPPED, files, live, record
from support.replica.channels import PEOPLE
from support.replica.market import companies
from understudy.core.messages import ToolCall
from understudy.core.tasks import SPLITS
from understudy.data.checks.check import check, score_agent
from understudy.rollouts.agent import GoldAgent
from understudy.sources.loading import load_source
from understudy.sources.mcp.checks import EpisodeEvidence, score_checks
from understudy.sources.mcp.config import RewardConfig, load_environment_config
from understudy.sources.mcp.servers.python import PythonTools
from understudy.sources.mcp.source import MCPEnvironmentResources, MCPTaskSource
from understudy.sources.mcp.tasks import MCPTask, read_mcp_tasks
from understudy.sources.mcp.toolkit import ServerCall
from understudy.sources.sandbox.interpreter import Interpreter

RECORDED = [name for name in SETS if name != "python"]


def read_rows(name: str) -> list[MCPTask]:
    return read_mcp_tasks(SHIPPED / f"{name}.jsonl")


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_sets_pass_check_without_server(name: str) -> None:
    report = check(load_source(f"mcp:{name}-replay"))
    assert report.problems == ()
    assert sum(split.tasks for split in report.splits) >= 100
    assert [(split.gold_reward, split.noop_reward) for split in report.splits] == [(1.0, 0.0)] * 3


@pytest.mark.parametrize("name", SETS)
def test_sets_have_100_tasks_and_disjoint_splits(name: str) -> None:
    found = read_rows(name)
    assert len(found) >= 100
    prompts = {split: {task.prompt for task in found if task.split == split} for split in SPLITS}
    assert all(prompts.values())
    assert sum(map(len, prompts.values())) == len(set().union(*prompts.values())) == len(found)


@pytest.mark.parametrize("name", SETS)
def test_regenerated_set_equals_shipped_files(name: str) -> None:
    for path, text in files(name).items():
        assert path.read_text() == text


def test_rerecorded_set_equals_shipped_cassette(tmp_path: Path) -> None:
    few = [line for line in (SHIPPED / "several.jsonl").read_text().splitlines() if "-validation-" in line]
    (tmp_path / "few.jsonl").write_text("\n".join(few))
    record(load_environment_config(live("several")).replace(tasks=str(tmp_path / "few.jsonl")), tmp_path / "tape.jsonl")
    shipped = (SHIPPED / "cassettes" / "several.jsonl").read_text().splitlines()
    of_these = [line for line in shipped[1:] if "-validation-" in json.loads(line)["task"]]
    assert (tmp_path / "tape.jsonl").read_text().splitlines() == [shipped[0], *of_these]


@pytest.mark.parametrize("name", RECORDED)
def test_answers_appear_in_server_results(name: str) -> None:
    """Answers are computed from the data, and server results pass through HTTP and MCP."""
    recorded = (SHIPPED / "cassettes" / f"{name}.jsonl").read_text().lower().splitlines()[1:]
    for task in read_rows(name):
        text = "\n".join(line for line in recorded if f'"task":"{task.id}"' in line)
        assert text
        for answer in task.check.answer:
            assert answer.text.lower() in text, task.id
    assert any(answer.text or answer.regex for task in read_rows(name) for answer in task.check.answer)


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
def test_list_of_guesses_fails_answer_check(name: str, family: str, guesses: str) -> None:
    for task in (task for task in read_rows(name) if task.family == family):
        assert not any(each.passes(guesses.format(prompt=task.prompt)) for each in task.check.answer)
        assert all(each.passes(task.final_answer) for each in task.check.answer)


def test_wrong_message_before_right_one_earns_no_reward() -> None:
    task = next(task for task in read_rows("slack") if task.family == "members")
    listed = ServerCall("slack", "slack_list_channels", {}, False)
    right, wrong = (ServerCall("slack", "slack_send_message", call, False) for call in _right_and_wrong(task))
    assert score_checks(task.check, EpisodeEvidence("Sent.", True, [listed, right]), RewardConfig()).reward == 1.0
    assert score_checks(task.check, EpisodeEvidence("Sent.", True, [wrong, right]), RewardConfig()).reward == 0.0
    other = next(task for task in read_rows("slack") if task.family == "nth")
    assert score_checks(other.check, EpisodeEvidence(other.final_answer, True, [listed]), RewardConfig()).reward == 1.0
    assert (
        score_checks(other.check, EpisodeEvidence(other.final_answer, True, [listed, right]), RewardConfig()).reward
        == 0.0
    )


def _right_and_wrong(task: MCPTask) -> tuple[dict[str, Any], dict[str, Any]]:
    right = task.gold[-1].arguments
    return right, {**right, "message": "We are 1 now"}


def test_gold_code_computes_the_answers() -> None:
    """The stored answers were computed without the sandbox."""

    async def compute() -> None:
        python = PythonTools(Interpreter())
        for task in read_rows("python"):
            shown = [await python.call(ToolCall(name=call.tool, arguments=call.arguments)) for call in task.gold]
            wanted = task.check.answer[0]
            assert wanted.number is not None
            assert abs(float(shown[-1]) - wanted.number) <= wanted.tolerance, task.id
        await python._interpreter.close()

    asyncio.run(compute())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["python", str(live("slack"))])
def test_gold_solves_task_on_live_server(name: str) -> None:
    """The servers are started with the command of the TOML file."""
    source = load_source(f"mcp:{name}")
    assert isinstance(source, MCPTaskSource)
    here = {"PYTHONPATH": str(Path(understudy.__file__).parent.parent)}
    servers = {
        key: server.replace(env=here, warm_sessions=0) for key, server in source.resources.config.servers.items()
    }
    source = MCPTaskSource(MCPEnvironmentResources(source.resources.config.replace(servers=servers)))
    task = next(task for task in source.tasks("test") if task.difficulty == "hard")
    assert asyncio.run(score_agent(source, task, GoldAgent())).reward == 1.0


def test_shipped_sets_stay_under_2_megabytes() -> None:
    assert sum(path.stat().st_size for path in SHIPPED.rglob("*") if path.suffix in (".jsonl", ".toml")) < 2_000_000


def test_task_generation_is_deterministic() -> None:
    families, _ = SETS["polygon"]
    assert list(tasks("polygon", families)) == list(tasks("polygon", families))
