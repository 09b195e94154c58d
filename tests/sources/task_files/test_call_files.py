"""Test files of rows with calls and no world: every shape in every kind of file is read, played and proved."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support.call_rows import ACTIONS, SHAPES, skyrl_row, tau_row
from support.data_kit import run_data_command
from understudy.core.tasks import SPLITS
from understudy.data.checks.check import check
from understudy.envs.task_source import find_policy, list_file_summaries
from understudy.sources.loading import load_source
from understudy.sources.task_files.call_matching import DOMAIN_POLICY


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".json":
        path.write_text(json.dumps({"tasks": rows}))
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".parquet"])
@pytest.mark.parametrize("shape", SHAPES)
def test_all_domains_of_a_file_are_played_and_proved(tmp_path: Path, shape: str, suffix: str) -> None:
    path = write(tmp_path / f"rows{suffix}", [SHAPES[shape](domain) for domain in ACTIONS])
    source = load_source(str(path))
    report = check(source)
    assert report.problems == ()
    tasks = [task for split in SPLITS for task in source.tasks(split)]
    assert {task.domain for task in tasks} == {f"{domain}-calls" for domain in ACTIONS}
    calls = {task.domain: [(call.name, call.arguments) for call in task.gold_calls] for task in tasks}
    assert calls == {
        f"{domain}-calls": [(action["name"], action["kwargs"]) for action in actions]
        for domain, actions in ACTIONS.items()
    }
    (summary,) = list_file_summaries(source)
    assert (sum(summary.rows.values()), summary.refused) == (5, {})
    assert "no database" in " ".join(summary.notes)


def test_refused_rows_are_counted_by_reason_and_listed(tmp_path: Path) -> None:
    read_only = ACTIONS["retail"][:2]
    rows = [
        tau_row("retail"),
        tau_row("retail", actions=read_only, outputs=[]),
        tau_row("retail", actions=read_only, outputs=[], instruction="Look it up."),
        tau_row("retail", actions=[], outputs=["5"]),
        tau_row("retail", actions=[{"kwargs": {}}]),
        tau_row("retail", actions=[{**ACTIONS["retail"][2], "result": "Error: gone"}]),
    ]
    source = load_source(str(write(tmp_path / "rows.jsonl", rows)))
    (summary,) = list_file_summaries(source)
    assert summary.refused == {"only reads": 2, "does nothing": 1, "malformed": 1, "gold refused": 1}
    assert len(summary.refusals) == 5
    assert [number for number in range(1, 7) if any(f":{number}: " in text for text in summary.refusals)] == [
        2, 3, 4, 5, 6,
    ]  # fmt: skip


def test_rows_keep_their_own_policy_when_they_are_converted(tmp_path: Path) -> None:
    path, out = write(tmp_path / "rows.jsonl", [skyrl_row("retail"), tau_row("airline")]), tmp_path / "out.jsonl"
    code, _, err = run_data_command("convert", path, out)
    assert (code, "Traceback" in err) == (0, False)
    first, again = load_source(str(path)), load_source(str(out))
    for task in first.tasks("train") + first.tasks("validation"):
        policy = asyncio.run(again.environment(task).start()).messages[0].content
        assert policy == find_policy(first, task) == find_policy(again, task)
        assert policy == ("You serve retail." if task.domain == "retail-calls" else DOMAIN_POLICY)


def test_tasks_and_rows_of_one_domain_are_played_by_one_source(tmp_path: Path) -> None:
    first = load_source(str(write(tmp_path / "a.jsonl", [tau_row("retail", id="a", split="train")])))
    (task,) = first.tasks("train")
    rows = [
        json.loads(task.model_dump_json(exclude_defaults=True)),
        tau_row("retail", instruction="Order #W17 must go."),
    ]
    source = load_source(str(write(tmp_path / "both.jsonl", rows)))
    (summary,) = list_file_summaries(source)
    assert (summary.played_by, check(source).problems) == ({"retail-calls": 2}, ())
