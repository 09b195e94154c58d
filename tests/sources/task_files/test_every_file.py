"""Every kind of row in every kind of file: converted, checked, trained on, evaluated and viewed."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from support.data_kit import run_data_command
from support.program import Call, call
from support.task_rows import CONVERSATION_KINDS, FILES, ROWS, TOY, write_jsonl
from understudy.core.tasks import SPLITS, Task
from understudy.data.checks.check import check
from understudy.envs.task_source import TaskSource, list_file_summaries
from understudy.runs.config import parse_config

__all__ = ["call"]
SLOW: Mapping[bool, list[pytest.MarkDecorator]] = {False: [], True: [pytest.mark.slow]}
TINY = (
    "model=tiny",
    "slice.domain_policy=full",
    "steps=1",
    "sft.steps=1",
    "sft.batch_size=2",
    "sft.num_demonstrations=2",
    "algorithm.groups_per_batch=2",
    "algorithm.group_size=2",
    "algorithm.max_resampled_groups=0",
    "sampling.max_response_tokens=8",
    "limits.max_turns=8",
    "limits.max_episode_tokens=8000",
    "eval.tasks=1",
    "certify.every=0",
)


def open_file(path: Path, *settings: str) -> TaskSource:
    return parse_config(f"domain = {json.dumps(str(path))}", settings).open_source()


def all_tasks(source: TaskSource) -> list[Task]:
    return sorted((task for split in SPLITS for task in source.tasks(split)), key=lambda task: task.id)


def content(task: Task) -> str:
    """Return a task without its id, which may name the file."""
    return task.model_dump_json(exclude={"id"})


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("kind", ROWS)
def test_a_file_of_any_kind_has_the_tasks_of_its_rows(tmp_path: Path, kind: str, file: str) -> None:
    make_rows, settings = ROWS[kind]
    rows = make_rows()
    path, lines = FILES[file](tmp_path, rows), write_jsonl(tmp_path, rows)
    source, same = open_file(path, *settings), open_file(lines, *settings)
    (summary,) = list_file_summaries(source)
    assert (summary.rows, summary.refused) == ({kind: len(rows)}, {})
    report = check(source)
    assert report.problems == ()
    assert [split.gold_reward for split in report.splits if split.tasks] == [1.0, 1.0]
    assert len(all_tasks(source)) == len(rows)
    assert sorted(map(content, all_tasks(source))) == sorted(map(content, all_tasks(same)))


@pytest.mark.parametrize("form", ["rows.parquet", "rows.jsonl", "folder"])
@pytest.mark.parametrize("kind", [kind for kind in ROWS if kind not in CONVERSATION_KINDS])
def test_converted_rows_have_the_same_tasks_and_convert_to_themselves(tmp_path: Path, kind: str, form: str) -> None:
    make_rows, settings = ROWS[kind]
    path, out, again = write_jsonl(tmp_path, make_rows()), tmp_path / form, tmp_path / f"again-{form}"
    domain = ("data.sources=toy:DOMAIN",) if TOY in settings else ()
    splits = ("--train-ratio", "0.5") if form == "folder" and kind not in ("tasks", "SkyRL rows") else ()
    for source, target in ((path, out), (out, again)):
        ratio = splits if source == path else ()
        assert run_data_command("convert", source, target, "--to", "skyrl", *domain, *ratio)[0] == 0
    first, second = open_file(out, *settings), open_file(again, *settings)
    assert check(first).unsound == {}
    assert all_tasks(first) == all_tasks(second)
    if not splits:
        assert all_tasks(first) == all_tasks(open_file(path, *settings))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ROWS)
def test_every_verb_takes_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call, kind: str) -> None:
    pytest.importorskip("torch")
    make_rows, settings = ROWS[kind]
    monkeypatch.chdir(tmp_path)
    write_jsonl(tmp_path, make_rows())
    code, out, err = call("check", "mine.jsonl", *settings, "--json")
    assert (code, json.loads(out)["files"][0]["rows"]) == (0, {kind: 12})
    assert f"12 {kind}" in err
    code, out, err = call("train", "mine.jsonl", *settings, *TINY, "data.tests.again=mine.jsonl", "--out", "run")
    assert code == 0, err
    assert "rl differs from sft" in out
    assert {path.name for path in (tmp_path / "run" / "evaluations").iterdir()} == {
        f"{stage}{name}" for stage in ("000000 base", "000001 sft", "000002 rl") for name in ("", " again")
    }
    code, out, err = call("eval", "run", "--agent", "gold", "--split", "train", "--json")
    assert code == 0, err
    code, out, err = call("eval", "mine.jsonl", *settings, "--agent", "noop", "--tasks", "3", "--out", "noop")
    assert code == 0, err
    for folder in ("run", "noop"):
        assert call("view", folder, "--text")[0] == 0
    assert call("view", "run", "--step", "2", "--episode", "1")[0] == 0
    (tmp_path / "mine.jsonl").unlink()
    code, out, err = call("view", "run", "--step", "2", "--episode", "1")
    assert (code, "reward" in out) == (0, True), "stored episodes are shown without the file"


def test_resume_refuses_a_changed_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call) -> None:
    pytest.importorskip("torch")
    make_rows, _ = ROWS["call rows"]
    monkeypatch.chdir(tmp_path)
    rows: list[dict[str, Any]] = make_rows()
    write_jsonl(tmp_path, rows)
    assert call("train", "mine.jsonl", *TINY, "--out", "run")[0] == 0
    write_jsonl(tmp_path, rows[:-1])
    code, _, err = call("train", "--resume", "run", "steps=2")
    assert (code, "file of tasks mine has changed" in err, err.strip().count("\n")) == (2, True, 0)
