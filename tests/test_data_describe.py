"""Descriptions count right, on numbers worked by hand; pictures are well-formed; validation names every bad row."""

import json
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from xml.etree import ElementTree

import pytest

from data_kit import call, retail, write_lines
from understudy.data.describe import Description, as_text, describe, token_lengths
from understudy.data.items import Bad, Item
from understudy.data.plots import bars, histogram, pictures
from understudy.data.verify import Domains
from understudy.domains.retail import DOMAIN
from understudy.formats import find
from understudy.messages import Message
from understudy.models import find_model
from understudy.tasks import Task

TASKS = retail(42)


def items(*tasks: Task) -> Iterator[Item[Task] | Bad]:
    return (Item(t.id, t) for t in tasks)


def worded(number: int, words: int) -> Task:
    """A task of so many words."""
    texts = " ".join(f"w{number}x{i}" for i in range(words))
    scenario = TASKS[number].scenario.replace(opening=texts, facts=(), wishes=())
    return TASKS[number].replace(scenario=scenario)


def test_lengths_by_hand() -> None:
    found = describe(items(*(worded(i, count) for i, count in enumerate([1, 2, 2, 3, 12]))), Domains())
    words = found.lengths["user words"]
    assert (words.mean, words.min, words.median, words.p90, words.max) == (4.0, 1, 2, 12, 12)
    assert words.counts == {1: 1, 2: 2, 3: 1, 12: 1}


def test_counts() -> None:
    found = describe(items(*TASKS), Domains())
    assert found.tasks == 42
    assert found.families == dict.fromkeys(DOMAIN.families, 3)
    assert sum(found.difficulties.values()) == 42
    assert found.tools == Counter(c.name for t in TASKS for c in t.actions)
    assert found.lengths["gold turns"].mean == mean(len(t.gold) for t in TASKS)
    assert found.lengths["gold calls"].mean == mean(len(t.actions) for t in TASKS)
    assert (found.same_ids, found.duplicates, found.near_duplicates, found.leaks) == (0, 0, 0, 0)


def test_duplicates_and_leaks() -> None:
    one, two, *_ = TASKS
    copy = one.replace(id="copy", scenario=one.scenario.replace(opening="Something else, entirely."))
    near = two.replace(id="near", split="test", outputs=("more",))
    found = describe(iter([*items(one, two, copy, near, one), Bad("x:1", "", "bad")]), Domains())
    assert (found.tasks, found.bad) == (5, 1)
    assert (found.same_ids, found.duplicates, found.near_duplicates, found.leaks) == (1, 2, 3, 1)
    words, *shared = found.leaked
    assert (words.task, words.split, words.of, words.of_split) == ("near", "test", two.id, "train")
    assert f"near (test) shares words or calls with {two.id} (train)" in as_text(found)
    about = {f"{table} {key}" for table, key in DOMAIN.rows(two)}
    assert found.shared_rows == len(about) > 1
    assert {leak.what for leak in shared} == about


def test_leaks_between_files_of_a_folder(tmp_path: Path) -> None:
    call("split", write_lines(tmp_path / "t.jsonl", retail(280)), "--out", tmp_path / "parts")
    found = Description.model_validate_json(call("stats", tmp_path / "parts", "--json")[1])
    assert (found.tasks, found.splits) == (280, {"train": 224, "validation": 28, "test": 28})
    assert found.leaks == 0
    assert found.shared_rows > 0, "a split by tasks shares users"
    frozen = Description.model_validate_json(call("stats", "retail", "--json")[1])
    assert (frozen.leaks, frozen.shared_rows) == (0, 0)


def test_tokens_are_those_of_the_models_format() -> None:
    format = find(find_model("tiny"))
    found = describe(items(*TASKS[:3]), Domains(), token_lengths(format, Domains()))
    prompts = [
        format.encode(
            [Message(role="system", content=DOMAIN.policy), Message(role="user", content=t.scenario.opening)],
            DOMAIN.specs,
            (),
        )
        for t in TASKS[:3]
    ]
    assert found.lengths["prompt tokens"].mean == mean(map(len, prompts))
    assert found.lengths["gold tokens"].max == max(sum(len(format.render(m)) for m in t.gold) for t in TASKS[:3])


def test_nothing_is_described_too() -> None:
    found = describe(iter([Bad("x:1", "", "bad")]), Domains())
    assert as_text(found).startswith("0 tasks, and 1 bad, the first x:1: bad\n")
    assert pictures(found) == {}


def test_stats(tmp_path: Path) -> None:
    code, text, _ = call("stats", "retail")
    assert code == 0
    assert text.startswith("700 tasks\n")
    assert "splits        train 500, validation 100, test 100" in text
    assert text.rstrip().endswith("0 near-duplicates, 0 rows")
    path = write_lines(tmp_path / "t.jsonl", TASKS)
    found = Description.model_validate_json(call("stats", path, "--json")[1])
    assert found == describe(items(*TASKS), Domains())


def test_bad_rows_are_counted_and_nothing_else_is_refused(tmp_path: Path) -> None:
    mixed = write_lines(tmp_path / "mixed.jsonl", TASKS[:2])
    mixed.write_text(mixed.read_text() + '{"id": 1}\n')
    code, text, _ = call("stats", mixed)
    assert (code, text.splitlines()[0].partition(", the first")[0]) == (0, "2 tasks, and 1 bad")
    assert "mixed.jsonl:3" in text
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"id": 1}\n{"id":\n')
    code, text, err = call("stats", bad, "--plots", tmp_path / "plots")
    assert (code, text, (tmp_path / "plots").exists()) == (2, "", False)
    assert "bad.jsonl: all 2 rows are bad, the first" in err
    assert "bad.jsonl:1" in err


def test_plots(tmp_path: Path) -> None:
    path, folder = write_lines(tmp_path / "t.jsonl", TASKS), tmp_path / "plots"
    code, text, _ = call("stats", path, "--plots", folder)
    assert code == 0
    names = {"user_words", "gold_turns", "gold_calls", "splits", "families", "difficulties", "tools"}
    assert {p.stem for p in folder.iterdir()} == names
    assert all(str(p) in text for p in folder.iterdir())
    for picture in folder.iterdir():
        root = ElementTree.parse(picture).getroot()
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
    code, _, err = call("stats", path, "--plots", folder)
    assert (code, "is there already" in err) == (2, True)
    assert json.loads(call("stats", path, "--json", "--plots", tmp_path / "more")[1])["tasks"] == 42


def lengths(svg: str, side: str) -> list[float]:
    root = ElementTree.fromstring(svg)
    found = [e for e in root.iter("{http://www.w3.org/2000/svg}rect") if e.get("rx")]
    return [float(e.get(side) or 0) for e in found]


def test_bars_are_as_long_as_their_counts() -> None:
    wide = lengths(bars("a < b", {"<one>" * 99: 10, "two & \0 more": 5, "none": 0}), "width")
    assert wide == [420.0, 210.0, 0.0]
    high = lengths(histogram("h", {3: 4, 5: 2}), "height")
    assert high == [160.0, 0.0, 80.0]
    many = lengths(histogram("h", dict.fromkeys(range(100), 1)), "height")
    assert len(many) == 20
    assert sum(many) == pytest.approx(20 * 160.0)


# ---- validate ----


def test_validate(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "t.jsonl", TASKS[:5])
    assert call("validate", path) == (0, f"{path}: 5 sound, 0 bad\n", "")
    assert call("validate", "toy:DOMAIN") == (0, "toy:DOMAIN: 36 sound, 0 bad\n", "")


def test_every_bad_row_is_named(tmp_path: Path) -> None:
    first, *rest = [json.loads(t.model_dump_json(exclude_defaults=True)) for t in TASKS[:6]]
    rest[0]["difficulty"] = "esay"
    rest[1]["gold"] = rest[1]["gold"][:-2]
    rest[2]["setup"] = {"orders": {"W1": {}}}
    rest[3]["id"] = first["id"]
    path = write_lines(tmp_path / "t.jsonl", [first, *rest])
    code, out, err = call("validate", path, "--keep-going")
    assert (code, out) == (1, f"{path}: 2 sound, 4 bad\n")
    places = [line.removeprefix(f"{path}:").split(": ")[:2] for line in err.splitlines()]
    assert places == [["2", "difficulty"], ["3", "gold"], ["4", "setup"], ["5", "id"]]
    code, out, stopped = call("validate", path)
    assert (code, out, stopped) == (2, "", f"understudy: {err.splitlines()[0]}\n")


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", ":1: not JSON: "),
        ("3", ":1: Input should be a valid dictionary or instance of Task"),
        ("{}", ":1: id: Field required"),
        ('{"id": 1}', ":1: id: Input should be a valid string"),
    ],
)
def test_lines_that_are_no_tasks(tmp_path: Path, line: str, problem: str) -> None:
    (tmp_path / "t.jsonl").write_text(line + "\n")
    code, out, err = call("validate", tmp_path / "t.jsonl")
    assert (code, out) == (2, "")
    assert err.startswith(f"understudy: {tmp_path / 't.jsonl'}{problem}")


@pytest.mark.parametrize(("verb", "work"), [("stats", "describe.describe"), ("validate", "convert.survey")])
def test_ctrl_c_in_what_writes_nothing_promises_nothing(
    tmp_path: Path, verb: str, work: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(f"understudy.data.{work}", interrupted)
    write_lines(tmp_path / "t.jsonl", [])
    assert call(verb, tmp_path / "t.jsonl") == (130, "", "stopped\n")


def test_validating_holds_little(tmp_path: Path) -> None:
    """What is held for a task is its id, and not the task."""
    task = TASKS[0]
    with (tmp_path / "t.jsonl").open("w") as file:
        for number in range(300):
            scenario = task.scenario.replace(instructions="x" * 50_000)
            file.write(task.replace(id=f"t{number}", scenario=scenario).model_dump_json(exclude_defaults=True) + "\n")
    tracemalloc.start()
    assert call("validate", tmp_path / "t.jsonl")[1].endswith("300 sound, 0 bad\n")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 6_000_000, "15 MB of tasks"
