"""Test near-duplicate detection and `data split`: detection is exact, and near-duplicates share a split."""

import itertools
import math
import random
from collections import Counter
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.data_kit import retail_tasks, run_data_command, write_lines
from understudy.core.errors import ConfigError
from understudy.core.messages import Message, ToolCall
from understudy.core.tasks import Fact, Scenario, Task, UserGoal, read_tasks
from understudy.envs.task_source import find_policy
from understudy.sources.loading import load_source
from understudy.sources.task_files.near_duplicates import (
    MIN_OVERLAP,
    SHINGLE_WORDS,
    NearDuplicateIndex,
    gold_content_key,
    user_words,
)
from understudy.sources.task_files.splits import ExactGroups, NearDuplicateGroups, assign_splits


def make_task(number: int, words: str, family: str = "f", **fields: object) -> Task:
    """Return a task whose user says `words` and whose gold calls no other number has."""
    calls = (Message(role="assistant", tool_calls=(ToolCall(name="do", arguments={"number": number}),)),)
    defaults = {"id": f"t{number}", "domain": "d", "split": "train", "family": family, "difficulty": "easy"}
    scenario = Scenario(instructions="", opening=words)
    return Task.model_validate({**defaults, "scenario": scenario, "gold": calls, **fields})


def jaccard_index(first: Task, second: Task) -> Fraction:
    """Compute the Jaccard index of two tasks' shingles from its definition."""

    def shingles(words: list[str]) -> set[tuple[str, ...]]:
        return {tuple(words[i : i + SHINGLE_WORDS]) for i in range(max(1, len(words) - SHINGLE_WORDS + 1))}

    a, b = shingles(user_words(first)), shingles(user_words(second))
    return Fraction(len(a & b), len(a | b))


_texts = st.lists(st.sampled_from(["a", "b", "c", "1", "2"]), max_size=14).map(" ".join)


@given(st.lists(_texts, max_size=12))
@settings(max_examples=200, deadline=None)
def test_index_finds_exactly_the_near_duplicates(texts: list[str]) -> None:
    tasks = [make_task(number, words) for number, words in enumerate(texts)]
    similar = NearDuplicateIndex()
    for number, mine in enumerate(tasks):
        expected = [n for n in range(number) if jaccard_index(tasks[n], mine) >= MIN_OVERLAP]
        assert similar.find(mine) == expected
        assert similar.add(mine) == expected


def test_index_finds_exactly_the_near_duplicates_in_templated_text() -> None:
    rng = random.Random(0)
    names = [f"name{i}" for i in range(7)]
    frame = "hello my name is {} and i want order {} sent to {} please and thank you very much for all the help {}"
    tasks = [make_task(n, frame.format(*(rng.choice(names) for _ in range(4)))) for n in range(150)]
    similar = NearDuplicateIndex()
    found = {(other, n) for n, mine in enumerate(tasks) for other in similar.add(mine)}
    pairs = itertools.combinations(range(150), 2)
    assert found == {(a, b) for a, b in pairs if jaccard_index(tasks[a], tasks[b]) >= MIN_OVERLAP}
    assert len(found) > 20


def test_same_gold_calls_in_one_family_are_near_duplicates() -> None:
    first = make_task(1, "I want to cancel my order")
    others = make_task(1, "Good morning there", id="again"), make_task(1, "Completely else it is", family="g")
    similar = NearDuplicateIndex()
    similar.add(first)
    assert [similar.find(other) for other in others] == [[0], []]
    (message,) = first.gold
    named = first.replace(gold=(message.replace(tool_calls=(message.tool_calls[0].replace(id="x"),)),))
    assert similar.find(named.replace(scenario=others[0].scenario)) == [0], "ids of calls do not count"


@pytest.mark.parametrize("calls", [(), (ToolCall(name="read_clock"),)], ids=["no call", "call without arguments"])
def test_tasks_without_arguments_are_compared_by_user_words(calls: tuple[ToolCall, ...]) -> None:
    gold = (Message(role="assistant", tool_calls=calls),)
    first, other = (make_task(0, words, gold=gold, id=words) for words in ("how late is it", "what is the time now"))
    similar = NearDuplicateIndex()
    assert [similar.add(first), similar.add(other), similar.add(first)] == [[], [], [0]]
    groups = ExactGroups()
    for one in (first, other, first):
        groups.add(one)
    assert list(groups.group_ids()) == [0, 1, 0]


def test_user_words_include_opening_facts_and_goals() -> None:
    wish = UserGoal(text="a b", facts=(Fact(text="c D", keywords=("x",)),))
    user = Scenario(
        instructions="not this", opening="One, two", facts=(Fact(text="three", keywords=()),), goals=(wish,)
    )
    assert user_words(make_task(1, "").replace(scenario=user)) == ["one", "two", "three", "a", "b", "c", "d"]


def test_sign_of_a_number_belongs_to_it() -> None:
    words = [user_words(make_task(n, f"How much is {n} C in F?")) for n in (-3, 3)]
    assert words == [["how", "much", "is", "-3", "c", "in", "f"], ["how", "much", "is", "3", "c", "in", "f"]]
    assert user_words(make_task(0, "well-known, 3-4")) == ["well", "known", "3", "4"]


def test_tasks_without_opening_are_compared_by_instructions() -> None:
    plots = [" ".join(f"{word}{number}" for word in ("you", "want", "order", "back")) for number in range(10)]
    tasks = [make_task(n, "", scenario=Scenario(instructions=plot, opening="")) for n, plot in enumerate(plots)]
    similar = NearDuplicateIndex()
    assert [similar.add(each) for each in tasks] == [[]] * 10
    assert set(split_tasks(tasks, (0.5, 0.5))) == {0, 1}
    assert similar.find(make_task(10, "", scenario=Scenario(instructions=plots[3], opening=""))) == [3]


def test_shared_opening_alone_is_no_near_duplicate() -> None:
    tasks, similar = retail_tasks(2000), NearDuplicateIndex()
    assert len({t.scenario.opening for t in tasks}) < len(tasks)
    assert sum(bool(similar.add(t)) for t in tasks) < 10


def split_tasks(
    tasks: list[Task], ratios: tuple[float, ...] = (0.8, 0.1, 0.1), seed: int = 0, near: bool = True
) -> bytes:
    groups = NearDuplicateGroups() if near else ExactGroups()
    for one in tasks:
        groups.add(one)
    return assign_splits(groups, ratios, seed)


@given(
    st.lists(st.tuples(_texts, st.sampled_from("fgh")), min_size=1, max_size=40),
    st.sampled_from([(0.8, 0.1, 0.1), (0.5, 0.5), (0.9, 0.1)]),
    st.integers(0, 3),
)
@settings(deadline=None)
def test_near_duplicates_share_a_split(drawn: list[tuple[str, str]], ratios: tuple[float, ...], seed: int) -> None:
    tasks = [make_task(number, words, family) for number, (words, family) in enumerate(drawn)]
    parts = split_tasks(tasks, ratios, seed)
    assert len(parts) == len(tasks)
    for a, b in itertools.combinations(range(len(tasks)), 2):
        assert parts[a] == parts[b] or jaccard_index(tasks[a], tasks[b]) < MIN_OVERLAP


@given(st.integers(0, 5), st.lists(st.sampled_from(["one", "two", "three"]), min_size=30, max_size=200))
@settings(deadline=None)
def test_every_family_and_the_total_keep_the_ratios(seed: int, families: list[str]) -> None:
    tasks = [make_task(n, f"a{n} b{n} c{n}", family) for n, family in enumerate(families)]
    parts = split_tasks(tasks, (0.8, 0.1, 0.1), seed)
    for name, count in Counter(families).items():
        mine = Counter(part for part, family in zip(parts, families, strict=True) if family == name)
        for part, ratio in enumerate((0.8, 0.1, 0.1)):
            assert abs(mine[part] - ratio * count) <= 2
    for part, ratio in enumerate((0.8, 0.1, 0.1)):
        assert abs(parts.count(part) - ratio * len(tasks)) < 1


def test_split_depends_on_the_seed_and_not_on_wording() -> None:
    tasks = retail_tasks(60)
    reworded = [t.replace(scenario=t.scenario.replace(persona="terse")) for t in tasks]
    assert split_tasks(tasks, near=False) == split_tasks(reworded, near=False)
    assert split_tasks(tasks) == split_tasks(tasks) != split_tasks(tasks, seed=1)


def test_copies_share_a_split() -> None:
    tasks = retail_tasks(40)
    copies = [t.replace(id=f"copy of {t.id}") for t in tasks]
    for near in (True, False):
        parts = split_tasks([*tasks, *copies], near=near)
        assert parts[:40] == parts[40:]


@pytest.mark.parametrize("ratios", [(1.0,), (0.5, 0.4), (1.2, -0.2), (1.0, 0.0), (math.nan, 1.0)])
def test_invalid_ratios_raise_config_error(ratios: tuple[float, ...]) -> None:
    with pytest.raises(ConfigError, match=r"\b1\b"):
        split_tasks(retail_tasks(3), ratios)


def test_split_command_writes_three_splits(tmp_path: Path) -> None:
    tasks = [*retail_tasks(84), *(t.replace(id=f"{t.id}-copy") for t in retail_tasks(30))]
    path = write_lines(tmp_path / "t.jsonl", tasks)
    code, text, _ = run_data_command("split", path, "--out", tmp_path / "parts", "--seed", 3)
    assert code == 0
    written = {p.stem: read_tasks(p) for p in (tmp_path / "parts").iterdir()}
    assert {name: len(part) for name, part in written.items()} == {"train": 91, "validation": 12, "test": 11}
    assert [line.rpartition(": ")[2] for line in text.splitlines()] == ["91", "12", "11"]
    assert all({t.split for t in part} == {name} for name, part in written.items())
    back = {t.id: t.replace(split="train") for part in written.values() for t in part}
    assert back == {t.id: t for t in tasks}
    for a, b in itertools.combinations(written.values(), 2):
        assert not {gold_content_key(t) for t in a} & {gold_content_key(t) for t in b}
    assert run_data_command("split", path, "--out", tmp_path / "parts")[0] == 2


def test_split_command_keeps_the_row_format(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "t.jsonl", retail_tasks(30))
    run_data_command("convert", path, tmp_path / "rows.parquet")
    assert (
        run_data_command("split", tmp_path / "rows.parquet", "--out", tmp_path / "parts", "--ratios", "0.5,0.5")[0] == 0
    )
    assert sorted(p.name for p in (tmp_path / "parts").iterdir()) == ["train.parquet", "validation.parquet"]
    assert run_data_command("validate", tmp_path / "parts" / "train.parquet")[1].endswith("15 sound, 0 bad\n")


def test_split_command_keeps_the_policies_of_rows(tmp_path: Path) -> None:
    rows = [
        {
            "prompt": [{"role": "system", "content": f"Policy {name}."}, {"role": "user", "content": said}],
            "actions": [{"name": name, "kwargs": {"order_id": "W1"}}],
            "domain": "shop",
        }
        for name, said in (("cancel_order", "Cancel W1, please."), ("refund_order", "My money for W1 back!"))
    ]
    path, parts = write_lines(tmp_path / "rows.jsonl", rows), tmp_path / "parts"
    assert run_data_command("split", path, "--out", parts, "--ratios", "0.5,0.5", "--format", "jsonl")[0] == 0
    source = load_source([str(parts / "train.jsonl"), str(parts / "validation.jsonl")])
    tasks = [*source.tasks("train"), *source.tasks("validation")]
    policies = {task.gold_calls[0].name: find_policy(source, task) for task in tasks}
    assert policies == {name: f"Policy {name}." for name in ("cancel_order", "refund_order")}
    code, _, err = run_data_command("convert", path, tmp_path / "tasks.jsonl", "--to", "tasks")
    assert (code, "2 tasks" in err, "--to skyrl" in err) == (0, True, True)


@pytest.mark.parametrize(
    ("ratios", "error_part"),
    [
        ("0.8;0.2", "'0.8;0.2'"),
        ("0.8,0.1", "1"),
        ("1", "train, validation"),
        ("0.25,0.25,0.25,0.25", "4 ratios"),
    ],
)
def test_split_command_rejects_invalid_ratios(tmp_path: Path, ratios: str, error_part: str) -> None:
    path = write_lines(tmp_path / "t.jsonl", retail_tasks(6))
    code, out, err = run_data_command("split", path, "--out", tmp_path / "parts", "--ratios", ratios)
    assert (code, out) == (2, "")
    assert error_part in err
    assert [p.name for p in tmp_path.iterdir()] == ["t.jsonl"]
