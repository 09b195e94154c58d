"""Test `data convert`: lossless round trips, gold validation, splits, and resuming."""

import asyncio
import itertools
import json
import re
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from hypothesis import given, settings

from support import pages
from support.data_kit import (
    FIND,
    ORDER,
    any_tasks,
    make_address_task,
    make_tau_task,
    retail_tasks,
    run_data_command,
    write_lines,
    write_tau_tasks,
)
from support.mcp_environment import write_environment
from understudy.cli.data import MAX_ROW_ERRORS
from understudy.core.errors import ConfigError, TaskError
from understudy.core.items import Item, RowError
from understudy.core.tasks import SPLITS, Task, read_tasks, write_tasks
from understudy.data.checks.check import score_agent
from understudy.data.checks.verify import find_gold_call_issue, play_tasks, validate_gold_calls
from understudy.data.convert import measure_prompt_bytes
from understudy.data.task_input import open_task_input
from understudy.data.writer import open_output
from understudy.domains.retail import DOMAIN
from understudy.engines.models import find_model
from understudy.sources.loading import load_source
from understudy.sources.task_files.near_duplicates import gold_content_key
from understudy.sources.task_files.skyrl_rows import SkyRLRow, read_skyrl_row, to_skyrl_row

TASK = retail_tasks(1)[0]


@given(any_tasks)
@settings(deadline=None)
def test_task_round_trips_through_a_skyrl_row(task: Task) -> None:
    row = SkyRLRow.model_validate_json(to_skyrl_row(task, "the policy", "retail").model_dump_json())
    back = read_skyrl_row(row.model_dump(), "")
    assert (back.task, back.split, back.domain_policy) == (task, task.split, "the policy")
    assert to_skyrl_row(back.task, "the policy", "retail") == row


def test_skyrl_row_has_the_columns_that_skyrl_reads() -> None:
    row = to_skyrl_row(TASK, DOMAIN.domain_policy, "retail").model_dump()
    assert row.keys() == {"data_source", "env_class", "prompt", "reward_spec", "extra_info"}
    assert (row["data_source"], row["env_class"]) == ("understudy/retail", "tau_bench")
    assert row["prompt"] == (
        {"role": "system", "content": DOMAIN.domain_policy},
        {"role": "user", "content": TASK.scenario.opening},
    )
    assert row["reward_spec"].keys() == {"method", "ground_truth"}
    assert Task.model_validate_json(row["reward_spec"]["ground_truth"]) == TASK
    assert row["extra_info"]["difficulty"] == TASK.difficulty


def test_convert_round_trips_through_files(tmp_path: Path) -> None:
    write_tasks(tmp_path / "tasks.jsonl", retail_tasks(40))
    for rows, back in (("rows.parquet", "back.jsonl"), ("rows.jsonl", "back2.jsonl")):
        assert run_data_command("convert", tmp_path / "tasks.jsonl", tmp_path / rows)[0] == 0
        assert run_data_command("convert", tmp_path / rows, tmp_path / back)[0] == 0
        assert (tmp_path / back).read_bytes() == (tmp_path / "tasks.jsonl").read_bytes()
    again = tmp_path / "again.parquet"
    assert run_data_command("convert", tmp_path / "rows.parquet", again, "--to", "skyrl")[0] == 0
    assert again.read_bytes() == (tmp_path / "rows.parquet").read_bytes()


def test_convert_refuses_an_output_with_an_unknown_suffix(tmp_path: Path) -> None:
    for options in ([], ["--train-ratio", "0.5"]):
        code, text, err = run_data_command("convert", "retail", tmp_path / "o.txt", *options)
        assert (code, text, err.count("\n")) == (2, "", 1)
        assert all(word in err for word in ("o.txt", "'.txt'", ".jsonl", ".parquet", "folder"))
    assert not list(tmp_path.iterdir())


def test_convert_accepts_the_name_of_a_domain(tmp_path: Path) -> None:
    code, text, _ = run_data_command("convert", "retail", tmp_path / "rows.parquet", "--split", "test")
    counted, longest = text.splitlines()
    assert (code, counted) == (0, f"{tmp_path / 'rows.parquet'}: 100")
    assert "trainer.max_prompt_length=" in longest
    table = pyarrow.parquet.read_table(tmp_path / "rows.parquet")
    assert table.column_names == ["data_source", "env_class", "prompt", "reward_spec", "extra_info"]
    assert table.num_rows == 100
    assert run_data_command("convert", "toy:DOMAIN", tmp_path / "toy", "--to", "tasks")[0] == 0
    counts = {path.stem: len(read_tasks(path)) for path in (tmp_path / "toy").iterdir()}
    assert counts == {"train": 12, "validation": 12, "test": 12}
    code, _, err = run_data_command("convert", tmp_path / "toy" / "test.jsonl", tmp_path / "x.jsonl")
    assert code == 2
    assert "test.jsonl:1: domain: 'toy'" in err
    assert (
        run_data_command("convert", tmp_path / "toy" / "test.jsonl", tmp_path / "x.jsonl", "data.sources=toy:DOMAIN")[0]
        == 0
    )


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"data_source": 1}, "data_source"),
        ({"env_class": "tau"}, "env_class"),
        ({"env_class": "MCPToolEnv"}, "env_class"),
        ({"prompt": [{"role": "system", "content": "x"}]}, "prompt"),
        ({"prompt": [{"role": "system", "content": "x"}, {"role": "user", "content": "x"}]}, "prompt"),
        ({"prompt": [{"role": "system", "content": "x"}, {"role": "assistant", "content": "x"}]}, "prompt.1.role"),
        ({"reward_spec": {"method": "task"}}, "reward_spec.ground_truth"),
        ({"reward_spec": {"method": "task", "ground_truth": "{}"}}, "reward_spec.ground_truth.scenario"),
        ({"reward_spec": {"method": "task", "ground_truth": "{"}}, "reward_spec.ground_truth"),
        ({"extra_info": {}}, "extra_info.source"),
        ({"more": 1}, "more"),
    ],
)
def test_invalid_row_error_names_its_field(tmp_path: Path, change: dict[str, Any], field: str) -> None:
    row = json.loads(to_skyrl_row(TASK, DOMAIN.domain_policy, "retail").model_dump_json())
    path = write_lines(tmp_path / "rows.jsonl", [row, {**row, **change}])
    code, _, err = run_data_command("validate", path)
    assert code == 2
    assert err.startswith(f"understudy: {path}:2: {field}: ")
    assert err.count("\n") == 1


def test_row_with_inconsistent_fields_is_rejected(tmp_path: Path) -> None:
    row = json.loads(to_skyrl_row(TASK, DOMAIN.domain_policy, "retail").model_dump_json())
    row["extra_info"]["split"] = "test"
    code, _, err = run_data_command("validate", write_lines(tmp_path / "rows.jsonl", [row]))
    assert code == 2
    assert re.search(r"rows\.jsonl:1: extra_info: .*reward_spec\.ground_truth", err)


def test_tau_bench_tasks_convert_to_rows(tmp_path: Path) -> None:
    path = write_tau_tasks(
        tmp_path / "t.json", [make_tau_task(), make_tau_task(complexity=None, outputs=[], actions=[FIND, ORDER] * 2)]
    )
    assert run_data_command("convert", path, tmp_path / "rows.jsonl")[0] == 0
    first, second = (json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines())
    assert [said["content"] for said in first["prompt"]] == [DOMAIN.domain_policy, "You are Tina. Ask how W9201 is."]
    task = Task.model_validate_json(first["reward_spec"]["ground_truth"])
    assert [(c.name, c.arguments) for c in task.gold_calls] == [
        ("find_user", FIND["kwargs"]),
        ("get_order", ORDER["kwargs"]),
    ]
    assert (task.outputs, task.gold[-1].content, task.id) == (("shipped",), "shipped", "retail/t/0")
    labels = [(row["extra_info"]["family"], row["extra_info"]["difficulty"]) for row in (first, second)]
    assert labels == [("complexity-1", "easy"), ("tau", "medium")]


@pytest.mark.parametrize(
    ("complexity", "difficulty"),
    [(1, "easy"), (2, "medium"), (3, "hard"), (7, "hard"), ("Simple", "easy"), ("?", "easy")],
)
def test_tau_complexity_sets_difficulty_and_family(tmp_path: Path, complexity: object, difficulty: str) -> None:
    items = open_task_input(str(write_tau_tasks(tmp_path / "t.json", [make_tau_task(complexity=complexity)]))).items()
    (item,) = items
    assert isinstance(item, Item)
    assert item.value.difficulty == difficulty
    assert item.value.family == f"complexity-{complexity}".lower()


def test_tau_bench_tasks_convert_from_a_python_file(tmp_path: Path) -> None:
    text = repr(make_tau_task()).replace("{'name'", "Action(**{'name'").replace("Action(**", "")
    (tmp_path / "t.py").write_text(
        "from tau_bench.types import Action, Task\nTASKS_TEST = [\n"
        "  Task(annotator='0', user_id='tina', instruction='Where is W9201?',\n"
        "       actions=[Action(name='find_user', kwargs={'email': 'tina.grant30@mail.com'})], outputs=['shipped']),\n"
        f"  {text},\n]\n"
    )
    assert (
        run_data_command("convert", tmp_path / "t.py", tmp_path / "t.jsonl", "--to", "tasks", "data.sources=retail")[0]
        == 0
    )
    assert [len(task.gold_calls) for task in read_tasks(tmp_path / "t.jsonl")] == [1, 2]


REFUSED = [
    (
        make_tau_task(actions=[FIND, {"name": "get_ordr", "kwargs": {}}]),
        "gold: ",
        "unknown tool 'get_ordr'; did you mean 'get_order'",
    ),
    (
        make_tau_task(actions=[{"name": "find_user", "kwargs": {"mail": "x"}}]),
        "gold: ",
        "bad arguments for find_user: email: Field",
    ),
    (make_tau_task(actions=[ORDER]), "gold: ", "is refused: find the customer first"),
    (make_tau_task(actions=[FIND, {"name": "get_order", "kwargs": {"order_id": "W1"}}]), "gold: ", "is refused: "),
    (make_tau_task(actions=[], outputs=[]), "gold: ", "its gold calls change nothing and it has nothing to tell"),
    (make_tau_task(actions="all"), "actions: ", "it must be a list"),
    (make_tau_task(actions=[{"kwargs": {}}]), "actions.0: ", "has no name"),
    (make_tau_task(instruction=""), "instruction: ", "it is empty"),
    (make_tau_task(kwargs={}), "kwargs: ", "unknown"),
    ("task", "", "unknown shape string"),
]


@pytest.mark.parametrize(("task", "field", "problem"), REFUSED, ids=range(len(REFUSED)))
def test_task_with_invalid_gold_is_rejected_or_skipped(tmp_path: Path, task: Any, field: str, problem: str) -> None:
    path = write_tau_tasks(tmp_path / "t.json", [make_tau_task(), task, make_address_task(1)])
    code, out, err = run_data_command("convert", path, tmp_path / "rows.parquet")
    report, verdict = err.splitlines()
    assert (code, out) == (2, "")
    assert report.startswith(f"{path}: tasks[1]: {field}")
    assert problem in report
    assert re.search(r"\b1 of 3\b", verdict)
    assert [p.name for p in tmp_path.iterdir()] == ["t.json"]
    code, out, err = run_data_command("convert", path, tmp_path / "rows.parquet", "--skip-invalid")
    assert (code, out.splitlines()[:2]) == (1, [f"{tmp_path / 'rows.parquet'}: 2", "1 left out"])
    assert err.splitlines() == [report]


def test_each_rejected_task_has_its_own_error_line(tmp_path: Path) -> None:
    sound = map(make_address_task, range(len(REFUSED)))
    path = write_tau_tasks(tmp_path / "t.json", [*(task for task, *_ in REFUSED), *sound])
    lines = run_data_command("convert", path, tmp_path / "rows.parquet")[2].splitlines()
    assert [line.partition(": ")[2].partition(":")[0] for line in lines[:-1]] == [
        f"tasks[{i}]" for i in range(len(REFUSED))
    ]


def test_gold_issue_names_the_kind_of_fault() -> None:
    def kind(**changes: Any) -> str | None:
        issue = find_gold_call_issue(DOMAIN, TASK.replace(**changes))
        return issue and issue.kind

    calls = [message for message in TASK.gold if message.tool_calls]
    named = calls[0].tool_calls[0]
    assert kind() is None
    assert kind(id="a", gold=(calls[0].replace(tool_calls=(named.replace(name="fly"),)),)) == "unknown tool"
    assert kind(id="b", gold=(calls[0].replace(tool_calls=(named.replace(arguments={}),)),)) == "invalid arguments"
    assert kind(id="c", gold=tuple(calls[1:])) == "gold refused"
    assert kind(id="d", gold=(), outputs=()) == "does nothing"
    assert kind(id="e", setup={"nothing": {}}) == "bad setup"
    assert kind(id="f", gold=(calls[0].replace(role="tool"),)) == "malformed"


def test_validation_by_playing_rejects_failing_idle_and_duplicate_gold() -> None:
    change = next(t for t in retail_tasks(100) if not t.outputs and t.family == "cancel" and t.difficulty == "easy")
    omitting = change.replace(id="untold", outputs=("pink elephant",))
    silent = change.replace(id="silent", gold=change.gold[:1], outputs=())
    items = [Item(t.id, t) for t in (change, omitting, silent, change)]
    good, *bad = play_tasks(items, {})
    assert good == items[0]
    assert [(b.kind, b.field) for b in bad if isinstance(b, RowError)] == [
        ("gold fails", "gold"),
        ("does nothing", "gold"),
        ("duplicate", "id"),
    ]
    assert all(isinstance(item, Item) for item in validate_gold_calls(items[:2], {})), "checking alone does not play"


def test_validation_streams_in_bounded_memory() -> None:
    """The source is endless, and at most three of its tasks are alive at once."""
    alive: weakref.WeakSet[Item[Task]] = weakref.WeakSet()

    class TrackedItem(Item[Task]):
        __slots__ = ("__weakref__",)
        __hash__ = object.__hash__

    def endless() -> Iterator[Item[Task] | RowError]:
        for number in itertools.count():
            item = TrackedItem(f"line {number}", TASK.replace(id=f"t{number}"))
            alive.add(item)
            yield item

    for step in (validate_gold_calls, play_tasks):
        most_alive = 0
        for item in itertools.islice(step(endless(), {}), 300):
            assert isinstance(item, Item)
            most_alive = max(most_alive, len(alive))
        assert 1 <= most_alive <= 3


def test_failed_episode_gives_a_row_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async def failing_score(*_: object) -> Any:
        raise TaskError("task x: its episode failed (user): gone")

    monkeypatch.setattr("understudy.data.checks.verify.score_agent", failing_score)
    task = next(t for t in retail_tasks(5) if t.scenario.goals)
    (bad,) = play_tasks(iter([Item("here", task)]), {})
    assert re.match(r"here: gold: task x: .*\buser\b.*gone$", str(bad))


def test_unknown_domain_needs_skip_validation_and_a_policy_file(tmp_path: Path) -> None:
    tasks = [TASK.replace(domain="library"), TASK.replace(domain="library", id="b", gold=(), outputs=())]
    path = write_lines(tmp_path / "t.jsonl", [json.loads(task.model_dump_json()) for task in tasks])
    rows, policy = tmp_path / "rows.jsonl", tmp_path / "policy.md"
    policy.write_text("You help the customers of a library.\n")
    assert "libary" in run_data_command("convert", path, rows, "data.sources=libary")[2]
    code, _, err = run_data_command("convert", path, rows, "--skip-validation", "--skip-invalid")
    assert code == 2
    assert "'library'" in err
    assert "t.jsonl:2: gold: " in err
    assert not list(tmp_path.glob("rows*"))
    code, _, _ = run_data_command(
        "convert", path, rows, "--skip-validation", "--skip-invalid", "--domain-policy", policy
    )
    assert code == 1
    (row,) = map(json.loads, rows.read_text().splitlines())
    assert row["prompt"][0]["content"] == "You help the customers of a library."


def test_skip_validation_still_validates_a_bundled_domain(tmp_path: Path) -> None:
    path = write_tau_tasks(tmp_path / "t.json", [make_address_task(1), make_tau_task(actions=[ORDER])])
    assert run_data_command("convert", path, tmp_path / "rows.jsonl", "--skip-validation")[0] == 2


def test_questions_without_answers_or_with_other_answers_can_be_split(tmp_path: Path) -> None:
    rows = [{"question": f"{number}?"} for number in range(20)]
    path, out = write_lines(tmp_path / "q.jsonl", rows), tmp_path / "out"
    reward = "data.reward=support.task_rows:reward_nothing"
    assert run_data_command("split", path, reward, "--out", out, "--ratios", "0.5,0.5")[0] == 0
    assert sum(len(each.read_text().splitlines()) for each in out.iterdir()) == 20
    answered = write_lines(tmp_path / "a.jsonl", [row | {"answer": "x"} for row in rows])
    assert run_data_command("split", answered, reward, "--out", tmp_path / "o2")[0] == 2
    assert run_data_command("split", answered, reward, "--out", tmp_path / "o2", "--skip-validation")[0] == 0
    assert run_data_command("split", path, reward, "--out", tmp_path / "o3", "--format", "parquet")[0] == 2


def test_questions_beside_other_rows_are_refused(tmp_path: Path) -> None:
    rows = [{"question": "1?", "answer": "x"}, json.loads(TASK.model_dump_json())]
    for number, mixed in enumerate((rows, rows[::-1])):
        path = write_lines(tmp_path / f"{number}.jsonl", mixed)
        code, _, err = run_data_command(
            "split", path, "data.reward=support.task_rows:reward_nothing", "--out", tmp_path / "o"
        )
        assert code == 2
        assert "two files" in err


def test_questions_with_bytes_are_refused_and_infinite_numbers_are_null(tmp_path: Path) -> None:
    reward = "data.reward=support.task_rows:reward_nothing"
    rows = [{"question": f"{number}?", "level": float("inf")} for number in range(4)]
    path, out = tmp_path / "q.parquet", tmp_path / "out.jsonl"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    assert run_data_command("convert", path, out, reward)[0] == 0
    assert [json.loads(line)["level"] for line in out.read_text().splitlines()] == [None] * 4
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row | {"image": b"\xff"} for row in rows]), path)
    code, _, err = run_data_command("convert", path, tmp_path / "other.jsonl", reward)
    assert code == 2
    assert "image" in err


def test_settings_have_no_effect_on_conversations(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    path = write_lines(tmp_path / "c.jsonl", [{"messages": messages}])
    code, _, err = run_data_command("convert", path, tmp_path / "out.jsonl", "data.sources=retail")
    assert code == 2
    assert "data.sources=retail has no effect" in err


def test_only_the_first_invalid_rows_are_printed(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "q.jsonl", [{"question": f"{number}?", "answer": "x"} for number in range(50)])
    reward = "data.reward=support.task_rows:reward_nothing"
    code, _, err = run_data_command("split", path, reward, "--out", tmp_path / "o")
    assert code == 2
    assert len(err.splitlines()) == MAX_ROW_ERRORS + 2
    assert "50 of 50" in err.splitlines()[-1]


def test_questions_of_files_with_the_same_ids_are_read_back(tmp_path: Path) -> None:
    folder, out = tmp_path / "sums", tmp_path / "all.jsonl"
    folder.mkdir()
    for name, add in (("train", 1), ("test", 2)):
        rows = [{"id": number, "question": f"{number} + {add}?", "answer": str(number + add)} for number in range(3)]
        write_lines(folder / f"{name}.jsonl", rows)
    reward = "data.reward=support.task_rows:reward_answer"
    assert run_data_command("convert", folder, out, reward)[0] == 0
    written = [json.loads(line)["id"] for line in out.read_text().splitlines()]
    assert written == [0, 1, 2, "train/0", "train/1", "train/2"]
    assert run_data_command("validate", out, reward)[:2] == (0, f"{out}: 6 sound, 0 bad\n")


def test_settings_of_sources_and_rewards(tmp_path: Path) -> None:
    rows = [{"question": "2 + 3?", "answer": "5"}, {"question": "2 + 2?", "answer": "4"}]
    path, out = write_lines(tmp_path / "questions.jsonl", rows), tmp_path / "parts"
    assert "data.reward" in run_data_command("validate", path)[2]
    reward = "data.reward=support.task_rows:reward_answer"
    assert run_data_command("validate", path, reward)[:2] == (0, f"{path}: 2 sound, 0 bad\n")
    assert json.loads(run_data_command("stats", path, reward, "--json")[1])["tasks"] == 2
    assert run_data_command("split", path, reward, "--out", out, "--ratios", "0.5,0.5")[0] == 0
    files = [(out / f"{name}.jsonl").read_text() for name in ("train", "validation")]
    written = [json.loads(line) for text in files for line in text.splitlines()]
    assert [row.pop("split") for row in written] == ["train", "validation"]
    assert sorted(written, key=rows.index) == rows
    assert run_data_command("validate", out, reward)[:2] == (0, f"{out}: 2 sound, 0 bad\n")
    assert run_data_command("convert", path, tmp_path / "x.jsonl", reward, "--to", "skyrl")[0] == 2
    assert run_data_command("convert", path, tmp_path / "parquet", reward, "--train-ratio", "0.5")[0] == 0
    code, _, err = run_data_command("validate", path, "data.train=x.jsonl")
    assert code == 2
    assert "data.reward" in err  # the allowed keys
    code, _, err = run_data_command("validate", "retail", reward)
    assert code == 2
    assert reward in err


def read_splits(folder: Path) -> dict[str, list[Task]]:
    return {path.stem: read_tasks(path) for path in folder.iterdir()}


def test_split_is_stratified_and_keeps_duplicates_together(tmp_path: Path) -> None:
    distinct = [make_address_task(number) for number in range(10, 70)]
    copies = [{**task, "instruction": f"Again: {task['instruction']}"} for task in distinct[::2]]
    path = write_tau_tasks(tmp_path / "t.json", [*distinct, *copies])
    for seed, name in ((1, "a"), (1, "b"), (2, "c")):
        options = ("--train-ratio", 0.8, "--seed", seed, "--to", "tasks")
        assert run_data_command("convert", path, tmp_path / name, *options)[0] == 0
    written = read_splits(tmp_path / "a")
    assert read_splits(tmp_path / "b") == written != read_splits(tmp_path / "c")
    assert {name: len(part) for name, part in written.items()} == {"train": 72, "validation": 18}
    assert not {gold_content_key(t) for t in written["train"]} & {gold_content_key(t) for t in written["validation"]}
    for family in ("complexity-1", "complexity-2", "complexity-3"):
        assert 5 <= sum(task.family == family for task in written["validation"]) <= 7
    assert {task.split for task in written["validation"]} == {"validation"}
    assert sorted(t.id for part in written.values() for t in part) == sorted(f"retail/t/{i}" for i in range(90))


@pytest.mark.parametrize("format", ["parquet", "jsonl"])
def test_split_rows_are_written_in_the_chosen_format(tmp_path: Path, format: str) -> None:
    path = write_tau_tasks(tmp_path / "t.json", [make_address_task(number) for number in range(10, 40)])
    code, text, _ = run_data_command("convert", path, tmp_path / "rows", "--train-ratio", 0.9, "--format", format)
    assert code == 0
    assert sorted(p.name for p in (tmp_path / "rows").iterdir()) == [f"train.{format}", f"validation.{format}"]
    assert [line.rpartition(": ")[2] for line in text.splitlines()[:2]] == ["27", "3"]
    assert run_data_command("validate", tmp_path / "rows" / f"validation.{format}")[0] == 0


class Killed(Exception):
    pass


def stop_after(items: Iterator[Task], after: int) -> Iterator[Task]:
    for number, item in enumerate(items):
        if number == after:
            raise Killed
        yield item


def write(out: Path, items: Iterator[Task], *, resume: bool = False, **options: Any) -> None:
    as_rows = options.get("format") == "parquet"
    with open_output(out, resume=resume, **options) as written:
        for task in items:
            written.write(to_skyrl_row(task, "p", "retail") if as_rows else task, task.split if options else "")


SPLIT = [t.replace(split=("train", "test")[i % 2]) for i, t in enumerate(retail_tasks(30))]


@pytest.mark.parametrize(
    "options", [{}, {"parts": ("train", "test")}, {"parts": ("train", "test"), "format": "parquet"}]
)
@pytest.mark.parametrize("after", [0, 1, 17, 29])
def test_resumed_output_equals_uninterrupted(tmp_path: Path, options: dict[str, Any], after: int) -> None:
    whole, broken = (tmp_path / (name if options else f"{name}.jsonl") for name in ("whole", "broken"))
    write(whole, iter(SPLIT), **options)
    with pytest.raises(Killed):
        write(broken, stop_after(iter(SPLIT), after), **options)
    assert not broken.exists()
    partial = broken.with_name(f"{broken.name}.partial")
    assert partial.exists() == (after > 0)
    if after:
        with pytest.raises(ConfigError, match="--resume"):
            write(broken, iter(SPLIT), **options)
        torn = partial / "train.jsonl" if options else partial
        torn.write_bytes(torn.read_bytes()[:-7])
    write(broken, iter(SPLIT), resume=True, **options)
    for path in whole.rglob("*") if options else [whole]:
        assert (broken / path.name if options else broken).read_bytes() == path.read_bytes()
    assert not partial.exists()


def test_existing_output_is_not_overwritten(tmp_path: Path) -> None:
    out = tmp_path / "t.jsonl"
    out.write_text("mine")
    for resume in (False, True):
        with pytest.raises(ConfigError, match=r"t\.jsonl"):
            write(out, iter(SPLIT), resume=resume)
    assert out.read_text() == "mine"


def test_resume_of_different_tasks_or_options_is_rejected(tmp_path: Path) -> None:
    out = tmp_path / "t.jsonl"
    with pytest.raises(Killed):
        write(out, stop_after(iter(SPLIT), 3))
    before = (tmp_path / "t.jsonl.partial").read_bytes()
    with pytest.raises(ConfigError, match=r"\bline 1\b"):
        write(out, iter(SPLIT[1:]), resume=True)
    with pytest.raises(ConfigError, match=r"\b1 lines\b"):
        write(out, iter(SPLIT[:2]), resume=True)
    with pytest.raises(ConfigError, match=r"t\.jsonl\.partial"):
        write(out, iter(SPLIT), resume=True, parts=("train",))
    assert (tmp_path / "t.jsonl.partial").read_bytes() == before
    assert not out.exists()


def test_convert_resumes(tmp_path: Path) -> None:
    path = write_tau_tasks(tmp_path / "t.json", [make_address_task(number) for number in range(10, 40)])
    assert run_data_command("convert", path, tmp_path / "whole", "--train-ratio", 0.9)[0] == 0
    (tmp_path / "broken.partial").mkdir()
    rows = (r for r in pyarrow.parquet.read_table(tmp_path / "whole" / "train.parquet").slice(0, 9).to_pylist())
    text = "".join(SkyRLRow.model_validate(row).model_dump_json() + "\n" for row in rows)
    (tmp_path / "broken.partial" / "train.jsonl").write_text(text + '{"torn')
    code, _, err = run_data_command("convert", path, tmp_path / "broken", "--train-ratio", 0.9)
    assert (code, err.count("\n")) == (2, 1)
    assert "is unfinished" in err
    assert run_data_command("convert", path, tmp_path / "broken", "--train-ratio", 0.9, "--resume")[0] == 0
    for name in ("train.parquet", "validation.parquet"):
        assert (tmp_path / "broken" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("retial", "rows.parquet"), r"'retial'.*'retail'"),
        (("retail", "tasks.parquet", "--to", "tasks"), r"\.jsonl"),
        (("retail", "rows.parquet", "--train-ratio", 0.9), r"rows\.parquet"),
        (("retail", "rows", "--train-ratio", 1.5), r"\b1\b"),
        (("folder", "rows.parquet"), r"\bfolder\b"),
        (("retail", "rows.parquet", "--seed", 1), "--seed"),
        (("retail", "rows.parquet", "--format", "jsonl"), "--format"),
        (("retail", "no/such/rows.parquet"), "no/such"),
        (("t.json", "rows"), "--train-ratio"),
        (("none.json", "rows.parquet"), r"none\.json"),
        (("empty.jsonl", "rows.parquet"), r"empty\.jsonl"),
        (("t.json", "rows.parquet", "data.sources=retial"), "'retial'.*'retail'"),
        (("t.json", "rows.parquet", "--domain-policy", "none.md"), r"none\.md\b.*: "),
    ],
)
def test_invalid_arguments_give_one_error_line_and_no_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[Any, ...], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_tau_tasks(tmp_path / "t.json", [make_tau_task()])
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "folder").mkdir()
    code, out, err = run_data_command("convert", *arguments)
    assert (code, out) == (2, "")
    assert re.search(said, err)
    assert err.count("\n") == 1
    assert {path.name for path in tmp_path.iterdir()} == {"t.json", "empty.jsonl", "folder"}


def test_noop_reward_matches_the_gold_issue() -> None:
    """An agent that does nothing earns a reward exactly for the tasks whose gold is reported."""
    from understudy.rollouts.agent import NoopAgent

    for task in (TASK, TASK.replace(id="idle", gold=(), outputs=())):
        idle = asyncio.run(score_agent(DOMAIN, task, NoopAgent())).reward > 0
        assert (find_gold_call_issue(DOMAIN, task) is not None) == idle


@pytest.mark.slow
def test_mcp_environment_rows_name_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_environment(tmp_path)
    monkeypatch.chdir(tmp_path)
    code, _, err = run_data_command("convert", "mcp:tally.toml", "rows.jsonl", "--split", "train")
    assert (code, err) == (0, "")
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [row["env_class"] for row in rows] == ["MCPToolEnv"] * 2
    assert {row["extra_info"]["source"] for row in rows} == {f"mcp:{path}"}  # an absolute path, valid from any folder
    assert rows[0]["prompt"][0] == {"role": "system", "content": "You keep a count."}
    assert run_data_command("convert", "rows.jsonl", "back.jsonl", "data.sources=mcp:tally.toml")[0] == 0
    assert read_tasks(tmp_path / "back.jsonl") == load_source("mcp:tally.toml").tasks("train")
    _, out, _ = run_data_command("validate", "rows.jsonl", "data.sources=mcp:tally.toml")
    assert out == "rows.jsonl: 2 sound, 0 bad\n"


@pytest.mark.slow
def test_mcp_task_that_rewards_doing_nothing_is_rejected(tmp_path: Path) -> None:
    idle = {"id": "idle", "prompt": "Hello.", "gold": [], "check": {"state": {"tool": "count", "equals": {"count": 0}}}}
    path = write_environment(tmp_path, [idle])
    code, _, err = run_data_command("convert", f"mcp:{path}", tmp_path / "rows.jsonl")
    assert code == 2
    assert re.search(r"idle: gold: .*\b1\b", err)


def test_rows_of_a_custom_domain_name_its_source(tmp_path: Path) -> None:
    assert run_data_command("convert", "toy:DOMAIN", tmp_path / "rows.jsonl")[0] == 0
    row = json.loads((tmp_path / "rows.jsonl").read_text().splitlines()[0])
    assert (row["env_class"], row["extra_info"]["source"]) == ("tau_bench", "toy:DOMAIN")


def test_sequences_without_servers_are_rows_of_the_mcp_environment(tmp_path: Path) -> None:
    steps = [{"step": 1, "server": "notes", "tool": "set", "params": {"x": 1}}]
    truth = {"task_id": "a", "max_turns": 4, "tool_sequence": steps}
    prompt = [{"role": "user", "content": "Set x to 1."}]
    row = {"prompt": prompt, "reward_spec": {"method": "rule", "ground_truth": truth}}
    path = write_lines(tmp_path / "rows.jsonl", [row])
    assert run_data_command("convert", path, tmp_path / "out.jsonl")[0] == 0
    (made,) = map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())
    assert made["env_class"] == "MCPToolEnv"
    code, _, said = run_data_command("convert", tmp_path / "out.jsonl", tmp_path / "back.jsonl")
    assert (code, len(said.splitlines())) == (0, 1)
    assert "domain policy" in said, "tasks hold none"


def test_mixture_of_domains_is_rejected(tmp_path: Path) -> None:
    code, _, err = run_data_command("convert", "mix:retail,telecom", tmp_path / "rows.jsonl")
    assert code == 2
    assert "retail+telecom" in err


def documented_max_prompt_length() -> int:
    """Return the value in the command for stock SkyRL of docs/cluster.md."""
    (value,) = re.findall(r"trainer\.max_prompt_length=(\d+)", (pages.ROOT / "docs" / "cluster.md").read_text())
    return int(value)


def skyrl_prompt_length(row: SkyRLRow, tokenizer: Any) -> int:
    """Return what SkyRL's `PromptDataset` compares with `trainer.max_prompt_length`."""
    messages = [message.model_dump() for message in row.prompt]
    return len(tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False))


@pytest.mark.parametrize("domain", ["retail", "telecom", "airline", "doordash", "healthcare"])
def test_documented_prompt_length_drops_no_row(domain: str) -> None:
    source = load_source(domain)
    rows = [to_skyrl_row(task, source.domain_policy, domain) for split in SPLITS for task in source.tasks(split)]
    longest = max(rows, key=measure_prompt_bytes)
    assert measure_prompt_bytes(longest) <= documented_max_prompt_length()
    folder = find_model("tiny")
    tokenizer = pytest.importorskip("transformers").AutoTokenizer.from_pretrained(folder)  # one token for each byte
    assert 512 < skyrl_prompt_length(longest, tokenizer) <= documented_max_prompt_length()


def test_convert_prints_the_prompt_length_with_which_skyrl_keeps_all_rows(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    write_tasks(tmp_path / "tasks.jsonl", retail_tasks(8))
    printed = {}
    for model in ("", "tiny"):
        options = ("--model", model) if model else ()
        code, text, err = run_data_command("convert", tmp_path / "tasks.jsonl", tmp_path / f"r{model}.jsonl", *options)
        assert (code, err) == (0, "")
        printed[model] = int(text.partition("trainer.max_prompt_length=")[2])
    lines = (tmp_path / "r.jsonl").read_text().splitlines()
    tokenizer = transformers.AutoTokenizer.from_pretrained(find_model("tiny"))
    lengths = [skyrl_prompt_length(SkyRLRow.model_validate_json(line), tokenizer) for line in lines]
    assert printed["tiny"] == max(lengths) > min(lengths)
    assert printed["tiny"] <= printed[""] < printed["tiny"] + 512


def test_prompt_length_is_not_printed_for_tasks(tmp_path: Path) -> None:
    write_tasks(tmp_path / "tasks.jsonl", retail_tasks(2))
    assert run_data_command("convert", tmp_path / "tasks.jsonl", tmp_path / "rows.jsonl")[0] == 0
    back = ("convert", tmp_path / "rows.jsonl", tmp_path / "back.jsonl")
    code, text, _ = run_data_command(*back)
    assert (code, "max_prompt_length" in text) == (0, False)
    code, _, err = run_data_command(*back[:2], tmp_path / "b.jsonl", "--model", "tiny")
    assert (code, "--model" in err) == (2, True)


def test_convert_takes_domains_out_of_a_file(tmp_path: Path) -> None:
    lend = {"name": "lend_book", "kwargs": {"book": "b1"}}
    others = [
        make_tau_task(domain=name, actions=[lend], instruction=f"Lend b1 to {name}.", outputs=[])
        for name in ("library", "archive")
    ]
    only_reads = make_tau_task(domain="archive", actions=[{"name": "get_book", "kwargs": {}}], outputs=[])
    path = write_tau_tasks(tmp_path / "t.json", [make_address_task(1), *others, only_reads])
    out = tmp_path / "rows.jsonl"
    code, _, err = run_data_command("convert", path, out, "--domain", "library,retail", "--to", "tasks")
    assert (code, err) == (0, ""), "a row of another domain that cannot be played does not matter"
    assert [task.domain for task in read_tasks(out)] == ["retail", "library-calls"]
    code, _, err = run_data_command("convert", path, tmp_path / "no.jsonl", "--domain", "libary")
    assert (code, "no domain 'libary'; did you mean 'library'? allowed: archive, library, retail" in err) == (2, True)
    code, _, err = run_data_command("convert", out, tmp_path / "again.jsonl", "--domain", "library", "--to", "skyrl")
    assert (code, err) == (0, "")
    assert len((tmp_path / "again.jsonl").read_text().splitlines()) == 1


def test_convert_takes_domains_out_of_own_tasks(tmp_path: Path) -> None:
    write_tasks(tmp_path / "own.jsonl", [*DOMAIN.tasks("train")[:2], *load_source("telecom").tasks("train")[:2]])
    out = tmp_path / "out.jsonl"
    assert run_data_command("convert", tmp_path / "own.jsonl", out, "--domain", "telecom", "--to", "tasks")[0] == 0
    assert [task.domain for task in read_tasks(out)] == ["telecom", "telecom"]
    code, _, err = run_data_command("convert", tmp_path / "own.jsonl", tmp_path / "no.jsonl", "--domain", "airline")
    assert (code, "no domain 'airline'" in err) == (2, True)
    code, _, err = run_data_command("convert", "retail", tmp_path / "no.jsonl", "--domain", "airline")
    assert (code, "no domain 'airline'" in err) == (2, True)


def test_convert_names_the_row_whose_calls_are_compared(tmp_path: Path) -> None:
    path = write_tau_tasks(
        tmp_path / "t.json", [make_tau_task(domain="", actions=[{"name": "get_ordr", "kwargs": {}}])]
    )
    code, _, err = run_data_command("convert", path, tmp_path / "rows.jsonl", "data.sources=retail")
    assert code == 0
    assert "retail can play 0 of the 1 rows" in err
    assert "tasks[0]" in err
    assert "'get_ordr'; did you mean 'get_order'" in err
