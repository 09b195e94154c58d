"""Test `data stats` and `data validate`: counts, plots, and an error for every bad row."""

import json
import re
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from xml.etree import ElementTree

import pytest

from support.data_kit import retail_tasks, run_data_command, write_lines
from understudy.core.items import Item, RowError
from understudy.core.messages import Message, ToolCall
from understudy.core.tasks import Task
from understudy.data.plots import bar_chart, histogram, render_plots
from understudy.data.stats import DatasetStats, compute_stats, format_stats, measure_evidence, measure_tokens
from understudy.domains.retail import DOMAIN
from understudy.engines.models import find_model
from understudy.formats import load_chat_format

TASKS = retail_tasks(42)


def items(*tasks: Task) -> Iterator[Item[Task] | RowError]:
    return (Item(t.id, t) for t in tasks)


def task_with_words(number: int, words: int) -> Task:
    """Return task `number` with an opening of `words` words."""
    texts = " ".join(f"w{number}x{i}" for i in range(words))
    scenario = TASKS[number].scenario.replace(opening=texts, facts=(), goals=())
    return TASKS[number].replace(scenario=scenario)


def test_length_statistics_match_hand_computed_values() -> None:
    found = compute_stats(items(*(task_with_words(i, count) for i, count in enumerate([1, 2, 2, 3, 12]))), {})
    words = found.lengths["user words"]
    assert (words.mean, words.min, words.median, words.p90, words.max) == (4.0, 1, 2, 12, 12)
    assert words.counts == {1: 1, 2: 2, 3: 1, 12: 1}


def test_stats_count_families_difficulties_and_tools() -> None:
    found = compute_stats(items(*TASKS), {})
    assert found.tasks == 42
    assert found.families == dict.fromkeys(DOMAIN.families, 3)
    assert sum(found.difficulties.values()) == 42
    assert found.tools == Counter(c.name for t in TASKS for c in t.gold_calls)
    assert found.lengths["gold turns"].mean == mean(len(t.gold) for t in TASKS)
    assert found.lengths["gold calls"].mean == mean(len(t.gold_calls) for t in TASKS)
    assert (found.duplicate_ids, found.duplicates, found.near_duplicates, found.leaks) == (0, 0, 0, 0)


def test_stats_count_duplicates_and_leaks_between_splits() -> None:
    one, two, *_ = TASKS
    copy = one.replace(id="copy", scenario=one.scenario.replace(opening="Something else, entirely."))
    near = two.replace(id="near", split="test", outputs=("more",))
    found = compute_stats(iter([*items(one, two, copy, near, one), RowError("x:1", "", "bad")]), {})
    assert (found.tasks, found.num_invalid) == (5, 1)
    assert (found.duplicate_ids, found.duplicates, found.near_duplicates, found.leaks) == (1, 2, 3, 1)
    words, *shared = found.leak_examples
    assert (words.task, words.split, words.other_task, words.other_split) == ("near", "test", two.id, "train")
    assert re.search(rf"near \(test\) .*{two.id} \(train\)", format_stats(found))
    about = {f"{table} {key}" for table, key in DOMAIN.split_row_keys(two)}
    assert found.shared_rows == len(about) > 1
    assert {leak.shared for leak in shared} == about


@pytest.mark.slow
def test_stats_of_a_folder_compare_its_splits(tmp_path: Path) -> None:
    run_data_command("split", write_lines(tmp_path / "t.jsonl", retail_tasks(280)), "--out", tmp_path / "parts")
    found = DatasetStats.model_validate_json(run_data_command("stats", tmp_path / "parts", "--json")[1])
    assert (found.tasks, found.splits) == (280, {"train": 224, "validation": 28, "test": 28})
    assert found.leaks == 0
    assert found.shared_rows > 0, "a split by tasks shares users"


def test_token_lengths_match_the_models_chat_format() -> None:
    format = load_chat_format(find_model("tiny"))
    found = compute_stats(items(*TASKS[:3]), {}, measure_tokens(format, {}))
    prompts = [
        format.encode(
            [Message(role="system", content=DOMAIN.domain_policy), Message(role="user", content=t.scenario.opening)],
            DOMAIN.tool_specs,
            (),
        )
        for t in TASKS[:3]
    ]
    assert found.lengths["prompt tokens"].mean == mean(map(len, prompts))
    assert found.lengths["gold tokens"].max == max(sum(len(format.encode_reply(m)) for m in t.gold) for t in TASKS[:3])


def test_stats_of_no_valid_tasks() -> None:
    found = compute_stats(iter([RowError("x:1", "", "bad")]), {})
    assert re.match(r"0 tasks\b.*\b1\b.*x:1: bad\n", format_stats(found))
    assert render_plots(found) == {}


@pytest.mark.slow
def test_stats_command_prints_text_and_json(tmp_path: Path) -> None:
    code, text, _ = run_data_command("stats", "retail")
    assert code == 0
    assert text.startswith("700 tasks\n")
    assert "splits        train 500, validation 100, test 100" in text
    assert re.search(r"\b0 near-duplicates, 0 rows\b", text)
    path = write_lines(tmp_path / "t.jsonl", TASKS)
    found = DatasetStats.model_validate_json(run_data_command("stats", path, "--json")[1])
    assert found.replace(evidence={}) == compute_stats(items(*TASKS), {})


def count_writes(task: Task) -> int:
    """Return how many of the gold calls change the database, by comparing it before and after each."""
    state, writes = DOMAIN.initial_state(task), 0
    kit = DOMAIN.toolkit(state)
    for call in task.gold_calls:
        before = state.changes().get("orders"), state.changes().get("users")
        kit.call_sync(call)
        writes += before != (state.changes().get("orders"), state.changes().get("users"))
    return writes


def test_stats_tell_reads_and_writes_by_family(tmp_path: Path) -> None:
    tasks = [task for task in TASKS if task.family in ("cancel", "price")]
    path = write_lines(tmp_path / "t.jsonl", tasks)
    code, out, _ = run_data_command("stats", path, "--json", "--model", "tiny")
    found = DatasetStats.model_validate_json(out).evidence
    assert (code, found.keys()) == (0, {"cancel", "price"})
    for family, evidence in found.items():
        writes = [count_writes(task) for task in tasks if task.family == family]
        calls = [len(task.gold_calls) for task in tasks if task.family == family]
        assert evidence.tasks == len(writes)
        assert evidence.writes == pytest.approx(mean(writes))
        assert evidence.reads == pytest.approx(mean(calls) - mean(writes))
        assert 0 < evidence.needed_reads <= evidence.reads
        assert evidence.tokens is not None
        assert evidence.tokens > evidence.words > 0
        if sum(writes):
            assert evidence.reads_per_write == pytest.approx((sum(calls) - sum(writes)) / sum(writes))
    lines = run_data_command("stats", path)[1].splitlines()
    assert any(line.split()[:1] == ["cancel"] and f"{found['cancel'].reads:.1f}" in line for line in lines)


def test_evidence_leaves_out_gold_that_fails() -> None:
    refused = ToolCall(name="cancel_order", arguments={"order_id": "W0", "reason": "x"})
    broken = TASKS[0].replace(id="broken", gold=(Message(role="assistant", tool_calls=(refused,)),))
    found = compute_stats(items(TASKS[0], broken), {}, evidence=measure_evidence({}))
    assert (found.tasks, sum(e.tasks for e in found.evidence.values())) == (2, 1)


def test_stats_count_bad_rows_and_fail_without_valid_ones(tmp_path: Path) -> None:
    mixed = write_lines(tmp_path / "mixed.jsonl", TASKS[:2])
    mixed.write_text(mixed.read_text() + '{"id": 1}\n')
    code, text, _ = run_data_command("stats", mixed)
    assert code == 0
    assert re.match(r"2 tasks\b.*\b1\b", text)
    assert "mixed.jsonl:3" in text
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"id": 1}\n{"id":\n')
    code, text, err = run_data_command("stats", bad, "--plots", tmp_path / "plots")
    assert (code, text, (tmp_path / "plots").exists()) == (2, "", False)
    assert re.search(r"bad\.jsonl: .*\b2 rows\b", err)
    assert "bad.jsonl:1" in err


def test_stats_command_writes_svg_plots(tmp_path: Path) -> None:
    path, folder = write_lines(tmp_path / "t.jsonl", TASKS), tmp_path / "plots"
    code, text, _ = run_data_command("stats", path, "--plots", folder)
    assert code == 0
    names = {"user_words", "gold_turns", "gold_calls", "splits", "families", "difficulties", "tools"}
    assert {p.stem for p in folder.iterdir()} == names
    assert all(str(p) in text for p in folder.iterdir())
    for picture in folder.iterdir():
        root = ElementTree.parse(picture).getroot()
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
    code, _, err = run_data_command("stats", path, "--plots", folder)
    assert (code, str(folder) in err) == (2, True)
    assert json.loads(run_data_command("stats", path, "--json", "--plots", tmp_path / "more")[1])["tasks"] == 42


def bar_lengths(svg: str, side: str) -> list[float]:
    root = ElementTree.fromstring(svg)
    found = [e for e in root.iter("{http://www.w3.org/2000/svg}rect") if e.get("rx")]
    return [float(e.get(side) or 0) for e in found]


def test_bar_lengths_are_proportional_to_counts() -> None:
    widths = bar_lengths(bar_chart("a < b", {"<one>" * 99: 10, "two & \0 more": 5, "none": 0}), "width")
    assert widths == [420.0, 210.0, 0.0]
    heights = bar_lengths(histogram("h", {3: 4, 5: 2}), "height")
    assert heights == [160.0, 0.0, 80.0]
    binned = bar_lengths(histogram("h", dict.fromkeys(range(100), 1)), "height")
    assert len(binned) == 20
    assert sum(binned) == pytest.approx(20 * 160.0)


def test_validate_counts_valid_rows(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "t.jsonl", TASKS[:5])
    assert run_data_command("validate", path) == (0, f"{path}: 5 sound, 0 bad\n", "")
    assert run_data_command("validate", "toy:DOMAIN") == (0, "toy:DOMAIN: 36 sound, 0 bad\n", "")


def test_validate_names_the_line_and_field_of_every_bad_row(tmp_path: Path) -> None:
    first, *rest = [json.loads(t.model_dump_json(exclude_defaults=True)) for t in TASKS[:6]]
    rest[0]["difficulty"] = "esay"
    rest[1]["gold"] = rest[1]["gold"][:-2]
    rest[2]["setup"] = {"orders": {"W1": {}}}
    rest[3]["id"] = first["id"]
    path = write_lines(tmp_path / "t.jsonl", [first, *rest])
    code, out, err = run_data_command("validate", path, "--skip-invalid")
    assert (code, out) == (1, f"{path}: 2 sound, 4 bad\n")
    places = [line.removeprefix(f"{path}:").split(": ")[:2] for line in err.splitlines()]
    assert places == [["2", "difficulty"], ["3", "gold"], ["4", "setup"], ["5", "id"]]
    code, out, stopped = run_data_command("validate", path)
    assert (code, out, stopped) == (2, "", f"understudy: {err.splitlines()[0]}\n")


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", ":1: "),
        ("3", ":1: unknown shape number; shapes of tasks: {"),
        ("{}", ":1: unknown shape {}; shapes of tasks: {"),
        ('{"problem": "x"}', ":1: rename problem to question: the shape {problem: string} "),
        ('{"gold": []}', ":1: scenario: "),
        ('{"domain": "retail"}', ":1: scenario: "),
        ('{"scenario": {"instructions": "x", "opening": "x"}, "gold": []}', ":1: id: "),
        ('{"id": 1}', ":1: unknown shape {id: number}; "),
    ],
)
def test_validate_rejects_lines_that_are_not_tasks(tmp_path: Path, line: str, problem: str) -> None:
    (tmp_path / "t.jsonl").write_text(line + "\n")
    code, out, err = run_data_command("validate", tmp_path / "t.jsonl")
    assert (code, out) == (2, "")
    assert err.startswith(f"understudy: {tmp_path / 't.jsonl'}{problem}")


@pytest.mark.parametrize("verb", ["stats", "validate"])
@pytest.mark.parametrize("content", ["", "\n\n"])
def test_a_file_without_rows_is_an_error(tmp_path: Path, verb: str, content: str) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(content)
    problem = f"understudy: {path} has no tasks; name another file, folder or domain\n"
    assert run_data_command(verb, path) == (2, "", problem)


@pytest.mark.parametrize(("verb", "work"), [("stats", "stats.compute_stats"), ("validate", "convert.scan_items")])
def test_ctrl_c_in_read_only_commands_suggests_no_resume(
    tmp_path: Path, verb: str, work: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(f"understudy.data.{work}", interrupt)
    write_lines(tmp_path / "t.jsonl", [])
    assert run_data_command(verb, tmp_path / "t.jsonl") == (130, "", "stopped\n")


def test_validate_uses_bounded_memory(tmp_path: Path) -> None:
    """Validation stores the ids of tasks, not the tasks."""
    task = TASKS[0]
    write_lines(tmp_path / "one.jsonl", [task])
    assert run_data_command("validate", tmp_path / "one.jsonl")[0] == 0, "imports are not measured"
    with (tmp_path / "t.jsonl").open("w") as file:
        for number in range(60):
            scenario = task.scenario.replace(instructions="x" * 250_000)
            file.write(task.replace(id=f"t{number}", scenario=scenario).model_dump_json(exclude_defaults=True) + "\n")
    tracemalloc.start()
    assert run_data_command("validate", tmp_path / "t.jsonl")[1].endswith("60 sound, 0 bad\n")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 6_000_000, "15 MB of tasks"
