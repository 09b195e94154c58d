"""Test examples/own_tools_7b: its tasks are sound, its reward cannot be earned otherwise, and its configs are valid."""

import asyncio
import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from support.paths import ROOT
from support.program import Call, call
from understudy.core.errors import ToolError
from understudy.core.messages import Message, ToolCall
from understudy.core.tasks import Task
from understudy.data.checks.adversarial.suite import play_strategies
from understudy.data.checks.check import check
from understudy.engines.models import find_model
from understudy.rollouts.agent import GoldAgent
from understudy.rollouts.rollout import EpisodeLimits, rollout
from understudy.runs.config import load_config
from understudy.train.skyrl.mapping import to_skyrl_keys

FOLDER = ROOT / "examples" / "own_tools_7b"
sys.path.insert(0, str(FOLDER))

from spare_parts import DATABASE, TASKS, DeskEpisode  # noqa: E402

__all__ = ["call"]
TINY = (
    "model=tiny",
    "engine.sampler=torch",
    "sampling.max_response_tokens=16",
    "limits.max_episode_tokens=6500",  # a token of the tiny model is about a character
    "steps=1",
    "algorithm.groups_per_batch=2",
    "algorithm.group_size=2",
    "algorithm.max_resampled_groups=0",
    "eval.tasks=5",
)


def task_of(family: str, *calls: str) -> Task:
    """Return a training task of a family whose gold makes calls of these tools, at least."""
    return next(
        task for task in TASKS.tasks("train") if task.family == family and {*calls} <= {c.name for c in task.gold_calls}
    )


def reward(task: Task, calls: list[ToolCall] | None = None, answer: str | None = None) -> float:
    """Return the reward of gold with other calls or another answer."""
    turns = [Message(role="assistant", tool_calls=(call,)) for call in (task.gold_calls if calls is None else calls)]
    said = task.gold_turns[-1].content if answer is None else answer
    changed = task.replace(gold=(*turns, Message(role="assistant", content=said)))
    return asyncio.run(rollout(changed, TASKS.environment(task), GoldAgent(), EpisodeLimits())).reward


@pytest.mark.slow
def test_tasks_are_sound_and_need_all_tools() -> None:
    report = check(TASKS)
    assert (report.problems, report.unused_tools) == ((), ())
    assert [(split.tasks, split.noop_reward, split.gold_reward) for split in report.splits] == [
        (140, 0.0, 1.0),
        (20, 0.0, 1.0),
        (40, 0.0, 1.0),
    ]


@pytest.mark.slow
def test_no_strategy_is_rewarded() -> None:
    report = asyncio.run(play_strategies(TASKS, num_tasks=20))
    assert len(report.results) > 20
    assert {result.strategy: result.over_floor for result in report.failures} == {}


def test_files_are_those_that_the_generator_writes(tmp_path: Path) -> None:
    runpy.run_path(str(FOLDER / "make_tasks.py"))["write"](tmp_path)
    for name in ("database.json", "tasks.jsonl"):
        assert (tmp_path / name).read_bytes() == (FOLDER / name).read_bytes()


def test_splits_share_no_part() -> None:
    parts = [{task.id.rpartition("/")[2] for task in TASKS.tasks(split)} for split in ("train", "validation", "test")]
    assert [len(each) for each in parts] == [28, 4, 8]
    assert len(set().union(*parts)) == 40


def test_order_must_be_exactly_the_asked_one() -> None:
    task = task_of("order")
    find, offers, order = task.gold_calls
    wrong_depot = next(depot for depot in ("Graz", "Lyon") if depot != order.arguments["depot"])
    assert reward(task) == 1.0
    assert reward(task, [order]) == 1.0  # the lookups are not part of the goal
    assert reward(task, [find, offers]) == 0.0
    assert reward(task, [find, offers, order, order]) == 0.0
    assert reward(task, [order.replace(arguments=order.arguments | {"depot": wrong_depot})]) == 0.0
    assert reward(task, [order.replace(arguments=order.arguments | {"quantity": 41})]) == 0.0


def test_answer_must_tell_exactly_the_asked_number() -> None:
    task = task_of("order")
    total = TASKS.find_example(task).info["fact"]
    quantity = task.gold_calls[-1].arguments["quantity"]
    assert reward(task, answer=f"{quantity} pieces for {float(total):,.1f}.") == 1.0
    assert reward(task, answer=f"It costs {float(total) + 1:.2f}.") == 0.0
    assert reward(task, answer=f"It costs {total} or {float(total) + 1:.2f}.") == 0.0
    assert reward(task, answer=f"It is not {total}.") == 0.0
    assert reward(task, answer="Done.") == 0.0


def test_fact_must_be_looked_up() -> None:
    task = task_of("stock")
    assert (reward(task), reward(task, [])) == (1.0, 0.0)


def test_shipped_order_cannot_be_cancelled() -> None:
    task = next(t for t in TASKS.tasks("train") if t.family == "cancel" and len(t.gold_calls) == 1)
    order_id = task.gold_calls[0].arguments["order_id"]
    episode = DeskEpisode(TASKS.find_example(task))
    with pytest.raises(ToolError, match="shipped"):
        episode.cancel_order(order_id)
    assert episode.get_order(order_id) == DATABASE["orders"][order_id]
    assert reward(task, answer="I cancelled it.") == 0.0


def test_tools_refuse_what_the_database_does_not_allow() -> None:
    episode = DeskEpisode(TASKS.examples[0])
    offer = next(offer for offer in DATABASE["offers"]["P101"] if offer["min_quantity"] > 1)
    with pytest.raises(ToolError, match=f"at least {offer['min_quantity']}"):
        episode.order_part("P101", offer["supplier"], offer["min_quantity"] - 1, "Graz")
    stock = DATABASE["stock"]["P101"]
    with pytest.raises(ToolError, match=f"Graz has {stock['Graz']}"):
        episode.move_stock("P101", "Graz", "Oslo", stock["Graz"] + 1)
    with pytest.raises(ToolError, match="P999"):
        episode.get_stock("P999")
    with pytest.raises(ToolError, match="wheel"):
        episode.find_parts("wheel")
    assert episode.get_stock("P101") == stock


def test_both_configs_train_on_the_same_episodes() -> None:
    pytest.importorskip("torch")
    one, cluster = (load_config(FOLDER / f"{name}.toml") for name in ("one_machine", "cluster"))
    for name in ("domain", "model", "limits", "sampling", "user", "reward", "eval", "steps", "sft"):
        assert getattr(one, name) == getattr(cluster, name), name
    assert one.algorithm.replace(learning_rate=1.0) == cluster.algorithm.replace(learning_rate=1.0)
    keys = to_skyrl_keys(cluster, find_model("tiny"), Path("/run"))
    gpus = keys["trainer.placement.policy_num_nodes"] * keys["trainer.placement.policy_num_gpus_per_node"]
    assert (gpus, keys["generator.inference_engine.num_engines"]) == (16, 16)
    assert keys["trainer.train_batch_size"] * keys["generator.n_samples_per_prompt"] % gpus == 0


@pytest.mark.slow
def test_dry_run_plans_eight_processes() -> None:
    """Runs in a new process, because the plan counts the memory that this one uses, eight times."""
    pytest.importorskip("torch")
    settings = (
        "--num-processes",
        "8",
        "model=tiny",
        "engine.sampler=torch",
        "limits.max_episode_tokens=6500",
        "engine.max_num_seqs=4",
    )
    command = [sys.executable, "-m", "understudy", "train", "one_machine.toml", *settings, "--dry-run", "--json"]
    done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, check=True)
    plan = json.loads(done.stdout)
    assert (plan["memory"]["processes"], plan["verdict"]) == (8, "the config is valid")
    assert plan["gold_sizes"]["max_tokens"] < 6500
    assert plan["forecast"]["phases"][1]["episodes"] == 60 * 32 * 8


@pytest.mark.slow
def test_tiny_model_trains_with_the_same_file(call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    monkeypatch.chdir(FOLDER)
    run = tmp_path / "run"
    code, _, err = call("train", "one_machine.toml", *TINY, "--out", str(run))
    assert code == 0, err
    rows = {row["name"]: row for row in json.loads((run / "result.json").read_text())["rows"]}
    assert (rows["noop"]["success"]["mean"], rows["gold"]["success"]["mean"]) == (0.0, 1.0)
    assert rows["rl"]["success"]["tasks"] == 5
