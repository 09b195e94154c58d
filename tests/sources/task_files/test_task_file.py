"""Files of tasks as task sources: kinds of rows, splits, who plays them, and what is refused."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from support.data_kit import make_address_task, make_tau_task, write_lines, write_tau_tasks
from understudy.core.errors import ConfigError
from understudy.core.tasks import SPLITS, Split, write_tasks
from understudy.data.checks.check import check
from understudy.domains.retail import DOMAIN
from understudy.envs.task_source import Slice, find_source, list_file_summaries, list_hidden_tasks, list_sources
from understudy.evaluation.evaluate import eval_tasks
from understudy.runs.config import EvalConfig
from understudy.sources.dataset_files import SPLIT_NAMES
from understudy.sources.loading import load_source
from understudy.sources.task_files.config import DataConfig
from understudy.sources.task_files.skyrl_rows import to_skyrl_row

TASKS = [*DOMAIN.tasks("train")[:8], *DOMAIN.tasks("validation")[:3]]


def own_rows() -> list[dict[str, Any]]:
    return [json.loads(task.model_dump_json(exclude_defaults=True)) for task in TASKS]


def skyrl_rows(source: str = "retail") -> list[dict[str, Any]]:
    return [json.loads(to_skyrl_row(task, "policy", source).model_dump_json()) for task in TASKS]


@pytest.mark.parametrize("rows", [own_rows, skyrl_rows])
def test_rows_give_the_tasks_of_their_splits(tmp_path: Path, rows: Any) -> None:
    source = load_source(str(write_lines(tmp_path / "mine.jsonl", rows())))
    assert [source.tasks(split) for split in SPLITS] == [TASKS[:8], TASKS[8:], []]
    assert (source.name, list_sources(source)) == ("mine", (DOMAIN,))
    assert find_source(source, "retail") is DOMAIN
    report = check(source)
    assert report.problems == ()
    assert [(each.noop_reward, each.gold_reward) for each in report.splits[:2]] == [(0.0, 1.0)] * 2


def test_each_row_has_its_own_kind(tmp_path: Path) -> None:
    rows = [own_rows()[0], skyrl_rows()[1], make_tau_task(), make_address_task(1), {"question": "6*7?"}, {"a": 1}, 7]
    source = load_source(str(write_lines(tmp_path / "mixed.jsonl", rows)))
    (summary,) = list_file_summaries(source)
    assert summary.rows == {"tasks": 1, "SkyRL rows": 1, "tau tasks": 2, "prompts": 1, "unknown rows": 2}
    assert summary.played_by == {"retail": 4}
    assert summary.refused == {"no reward": 1, "malformed": 2}
    assert [text.split(": ")[0].rpartition(":")[2] for text in summary.refusals] == ["5", "6", "7"]
    assert "data.reward" in summary.refusals[0]


def test_tau_tasks_are_played_by_the_source_that_has_their_tools(tmp_path: Path) -> None:
    rows = [make_tau_task(domain="", complexity=2), make_address_task(1), make_address_task(2)]
    source = load_source(str(write_tau_tasks(tmp_path / "tau.json", rows)))
    tasks = [task for split in SPLITS for task in source.tasks(split)]
    assert {task.domain for task in tasks} == {"retail"}
    assert set(source.families) == {"complexity-2", "complexity-3"}
    assert check(source).problems == ()


def test_validation_tasks_are_taken_from_training_tasks_if_no_row_names_them(tmp_path: Path) -> None:
    tasks = [task.replace(split="train") for task in DOMAIN.tasks("train")[:20]]
    write_tasks(tmp_path / "all.jsonl", tasks)
    source = load_source(str(tmp_path / "all.jsonl"))
    train, validation, test = (source.tasks(split) for split in SPLITS)
    assert (len(train), len(validation), test) == (18, 2, [])
    assert {task.id for task in (*train, *validation)} == {task.id for task in tasks}
    assert load_source(str(tmp_path / "all.jsonl")).tasks("validation") == validation
    assert "2 training tasks are validation tasks" in list_file_summaries(source)[0].notes[0]
    assert check(source).problems == ()


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("eval", "validation"),
        ("gsm8k_evaluation", "validation"),
        ("eval_test", "test"),
        ("tests", "test"),
        ("testing", "test"),
        ("holdout", "test"),
        ("shop-held_out", "test"),
        ("latest", "train"),
    ],
)
def test_names_of_files_and_rows_name_the_same_splits(tmp_path: Path, name: str, split: Split) -> None:
    row = {"prompt": "Cancel W17.", "actions": [{"name": "cancel", "kwargs": {}}]}
    source = load_source(str(write_lines(tmp_path / f"{name}.jsonl", [row])), DataConfig(compare_calls=True))
    assert [len(source.tasks(each)) for each in SPLITS] == [each == split for each in SPLITS]
    if name in SPLIT_NAMES:
        path = write_lines(tmp_path / "rows.jsonl", [{**row, "split": name}])
        assert len(load_source(str(path), DataConfig(compare_calls=True)).tasks(split)) == 1


def test_prompts_of_one_template_have_validation_tasks(tmp_path: Path) -> None:
    frame = "Reach {} with the numbers {} and {}. Use each once, think first, and write the answer in answer tags."
    rows = [{"question": frame.format(n, n + 100, n + 200), "answer": str(n)} for n in range(60)]
    path = write_lines(tmp_path / "rows.jsonl", rows)
    source = load_source(str(path), DataConfig(reward="support.task_rows:reward_answer"))
    assert [len(source.tasks(split)) for split in SPLITS] == [54, 6, 0]


@pytest.mark.parametrize("split", ["validation", "test"])
def test_first_held_out_tasks_are_balanced_over_families(split: Split, tmp_path: Path) -> None:
    """An evaluation of 6 tasks plays every family as often, although the file begins with a large one."""
    large = [task.replace(family="large", split=split) for task in DOMAIN.tasks("train")[:30]]
    small = [
        task.replace(family=f"small-{number % 2}", split=split) for number, task in enumerate(DOMAIN.tasks(split)[:6])
    ]
    source = load_source(
        str(write_lines(tmp_path / "mine.jsonl", [json.loads(t.model_dump_json()) for t in (*large, *small)]))
    )
    played = eval_tasks(source, EvalConfig(split=split, tasks=6))
    assert Counter(task.family for task in played) == {"large": 2, "small-0": 2, "small-1": 2}
    listed = source.tasks(split)
    assert [task for task in listed if task.family == "large"] == large
    assert len(listed) == 36


def test_stream_shuffles_every_epoch(tmp_path: Path) -> None:
    source = load_source(str(write_lines(tmp_path / "mine.jsonl", own_rows())))
    stream = source.stream("train", seed=3)
    first, second = ([next(stream).id for _ in range(8)] for _ in range(2))
    assert sorted(first) == sorted(second) == sorted(task.id for task in TASKS[:8])
    assert first != second


def test_slice_narrows_a_file(tmp_path: Path) -> None:
    source = load_source(str(write_lines(tmp_path / "mine.jsonl", own_rows())))
    family = TASKS[0].family
    narrow = source.slice(Slice(families=(family,), domain_policy="brief"))
    assert narrow.tasks("train") == [task for task in TASKS[:8] if task.family == family]
    first = {call.name for call in TASKS[0].gold_calls}
    for prefix in ("", "retail/"):
        few = source.slice(Slice(tools=tuple(prefix + name for name in first)))
        assert {spec.name for spec in few.tool_specs} == first
        assert few.tasks("train") == [task for task in TASKS[:8] if {c.name for c in task.gold_calls} <= first]
        assert len(list_hidden_tasks(few)) == sum(
            len(source.tasks(split)) - len(few.tasks(split)) for split in ("train", "validation", "test")
        )
    assert narrow.domain_policy == DOMAIN.slice(Slice(domain_policy="brief")).domain_policy
    with pytest.raises(ConfigError, match="family 'nothing'"):
        source.slice(Slice(families=("nothing",)))


def test_row_cannot_choose_code(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "rows.jsonl", skyrl_rows("toy:DOMAIN"))
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        task = json.loads(row["reward_spec"]["ground_truth"]) | {"domain": "toy"}
        row["reward_spec"]["ground_truth"], row["extra_info"]["domain"] = json.dumps(task), "toy"
    write_lines(path, rows)
    with pytest.raises(ConfigError, match=r"data\.sources=toy:DOMAIN"):
        load_source(str(path))
    with pytest.raises(ConfigError, match="toy: unknown tool 'find_user'"):
        load_source(str(path), DataConfig(sources=("toy:DOMAIN",)))
