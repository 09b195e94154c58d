"""Near-duplicates are found exactly, and never come into two parts of a split."""

import itertools
import random
from collections import Counter
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_kit import call, retail, write_lines
from understudy.data.parts import Distinct, Near, deal
from understudy.errors import ConfigError
from understudy.messages import Message, ToolCall
from understudy.similar import OVERLAP, SHINGLE, Similar, said_words, substance
from understudy.tasks import Fact, Scenario, Task, Wish, read_tasks


def task(number: int, words: str, family: str = "f", **fields: object) -> Task:
    """A task with these words, whose gold calls are no other's."""
    calls = (Message(role="assistant", tool_calls=(ToolCall(name="do", arguments={"number": number}),)),)
    whole = {"id": f"t{number}", "domain": "d", "split": "train", "family": family, "difficulty": "easy"}
    scenario = Scenario(instructions="", opening=words)
    return Task.model_validate({**whole, "scenario": scenario, "gold": calls, **fields})


def overlap(first: Task, second: Task) -> Fraction:
    """The Jaccard index of two tasks' shingles, straight from its definition."""

    def shingles(words: list[str]) -> set[tuple[str, ...]]:
        return {tuple(words[i : i + SHINGLE]) for i in range(max(1, len(words) - SHINGLE + 1))}

    a, b = shingles(said_words(first)), shingles(said_words(second))
    return Fraction(len(a & b), len(a | b))


_texts = st.lists(st.sampled_from(["a", "b", "c", "1", "2"]), max_size=14).map(" ".join)


@given(st.lists(_texts, max_size=12))
@settings(max_examples=200, deadline=None)
def test_every_pair_is_found_and_no_other(texts: list[str]) -> None:
    tasks = [task(number, words) for number, words in enumerate(texts)]
    similar = Similar()
    for number, mine in enumerate(tasks):
        expected = [n for n in range(number) if overlap(tasks[n], mine) >= OVERLAP]
        assert similar.find(mine) == expected
        assert similar.add(mine) == expected


def test_every_pair_is_found_in_text_made_of_templates() -> None:
    rng = random.Random(0)
    names = [f"name{i}" for i in range(7)]
    frame = "hello my name is {} and i want order {} sent to {} please and thank you very much for all the help {}"
    tasks = [task(n, frame.format(*(rng.choice(names) for _ in range(4)))) for n in range(150)]
    similar = Similar()
    found = {(other, n) for n, mine in enumerate(tasks) for other in similar.add(mine)}
    pairs = itertools.combinations(range(150), 2)
    assert found == {(a, b) for a, b in pairs if overlap(tasks[a], tasks[b]) >= OVERLAP}
    assert len(found) > 20


def test_the_same_gold_calls_in_one_family_are_near() -> None:
    first = task(1, "I want to cancel my order")
    others = task(1, "Good morning there", id="again"), task(1, "Completely else it is", family="g")
    similar = Similar()
    similar.add(first)
    assert [similar.find(other) for other in others] == [[0], []]
    (message,) = first.gold
    named = first.replace(gold=(message.replace(tool_calls=(message.tool_calls[0].replace(id="x"),)),))
    assert similar.find(named.replace(scenario=others[0].scenario)) == [0], "ids of calls do not count"


def test_tasks_without_calls_are_told_apart_by_their_words() -> None:
    first, other = (task(0, words, gold=(), id=words) for words in ("how late is it", "what is the time now"))
    similar = Similar()
    assert [similar.add(first), similar.add(other), similar.add(first)] == [[], [], [0]]
    groups = Distinct()
    for one in (first, other, first):
        groups.add(one)
    assert list(groups.labels()) == [0, 1, 0]


def test_all_that_the_user_says_counts() -> None:
    wish = Wish(says="a b", facts=(Fact(says="c D", cues=("x",)),))
    user = Scenario(instructions="not this", opening="One, two", facts=(Fact(says="three", cues=()),), wishes=(wish,))
    assert said_words(task(1, "").replace(scenario=user)) == ["one", "two", "three", "a", "b", "c", "d"]


def test_users_who_find_their_own_words_are_told_apart_by_what_they_are_told() -> None:
    plots = [" ".join(f"{word}{number}" for word in ("you", "want", "order", "back")) for number in range(10)]
    tasks = [task(n, "", scenario=Scenario(instructions=plot, opening="")) for n, plot in enumerate(plots)]
    similar = Similar()
    assert [similar.add(each) for each in tasks] == [[]] * 10
    assert set(dealt(tasks, (0.5, 0.5))) == {0, 1}
    assert similar.find(task(10, "", scenario=Scenario(instructions=plots[3], opening=""))) == [3]


def test_openings_alone_make_no_near_duplicates() -> None:
    """Different talks begin with the same words."""
    tasks, similar = retail(2000), Similar()
    assert len({t.scenario.opening for t in tasks}) < len(tasks)
    assert sum(bool(similar.add(t)) for t in tasks) < 10


# ---- dealing ----


def dealt(tasks: list[Task], ratios: tuple[float, ...] = (0.8, 0.1, 0.1), seed: int = 0, near: bool = True) -> bytes:
    groups = Near() if near else Distinct()
    for one in tasks:
        groups.add(one)
    return deal(groups, ratios, seed)


@given(
    st.lists(st.tuples(_texts, st.sampled_from("fgh")), min_size=1, max_size=40),
    st.sampled_from([(0.8, 0.1, 0.1), (0.5, 0.5), (0.9, 0.1)]),
    st.integers(0, 3),
)
@settings(deadline=None)
def test_no_near_duplicates_in_two_parts(drawn: list[tuple[str, str]], ratios: tuple[float, ...], seed: int) -> None:
    tasks = [task(number, words, family) for number, (words, family) in enumerate(drawn)]
    parts = dealt(tasks, ratios, seed)
    assert len(parts) == len(tasks)
    for a, b in itertools.combinations(range(len(tasks)), 2):
        assert parts[a] == parts[b] or overlap(tasks[a], tasks[b]) < OVERLAP


@given(st.integers(0, 5), st.lists(st.sampled_from(["one", "two", "three"]), min_size=30, max_size=200))
@settings(deadline=None)
def test_strata_and_the_whole_keep_the_ratios(seed: int, families: list[str]) -> None:
    tasks = [task(n, f"a{n} b{n} c{n}", family) for n, family in enumerate(families)]
    parts = dealt(tasks, (0.8, 0.1, 0.1), seed)
    for name, count in Counter(families).items():
        mine = Counter(part for part, family in zip(parts, families, strict=True) if family == name)
        for part, ratio in enumerate((0.8, 0.1, 0.1)):
            assert abs(mine[part] - ratio * count) <= 2
    for part, ratio in enumerate((0.8, 0.1, 0.1)):
        assert abs(parts.count(part) - ratio * len(tasks)) < 1


def test_the_order_of_words_and_wording_do_not_matter() -> None:
    tasks = retail(60)
    reworded = [t.replace(scenario=t.scenario.replace(persona="terse")) for t in tasks]
    assert dealt(tasks, near=False) == dealt(reworded, near=False)
    assert dealt(tasks) == dealt(tasks) != dealt(tasks, seed=1)


def test_copies_stay_together() -> None:
    tasks = retail(40)
    copies = [t.replace(id=f"copy of {t.id}") for t in tasks]
    for near in (True, False):
        parts = dealt([*tasks, *copies], near=near)
        assert parts[:40] == parts[40:]


@pytest.mark.parametrize("ratios", [(1.0,), (0.5, 0.4), (1.2, -0.2), (1.0, 0.0)])
def test_ratios_that_are_none(ratios: tuple[float, ...]) -> None:
    with pytest.raises(ConfigError, match="positive numbers that sum to 1 are needed"):
        dealt(retail(3), ratios)


# ---- the verb ----


def test_split(tmp_path: Path) -> None:
    tasks = [*retail(84), *(t.replace(id=f"{t.id}-copy") for t in retail(30))]
    path = write_lines(tmp_path / "t.jsonl", tasks)
    code, text, _ = call("split", path, "--out", tmp_path / "parts", "--seed", 3)
    assert code == 0
    made = {p.stem: read_tasks(p) for p in (tmp_path / "parts").iterdir()}
    assert {name: len(part) for name, part in made.items()} == {"train": 91, "validation": 12, "test": 11}
    assert [line.rpartition(": ")[2] for line in text.splitlines()] == ["91", "12", "11"]
    assert all({t.split for t in part} == {name} for name, part in made.items())
    back = {t.id: t.replace(split="train") for part in made.values() for t in part}
    assert back == {t.id: t for t in tasks}
    for a, b in itertools.combinations(made.values(), 2):
        assert not {substance(t) for t in a} & {substance(t) for t in b}
    assert call("split", path, "--out", tmp_path / "parts")[0] == 2


def test_split_of_rows_gives_rows(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "t.jsonl", retail(30))
    call("convert", path, tmp_path / "rows.parquet")
    assert call("split", tmp_path / "rows.parquet", "--out", tmp_path / "parts", "--ratios", "0.5,0.5")[0] == 0
    assert sorted(p.name for p in (tmp_path / "parts").iterdir()) == ["train.parquet", "validation.parquet"]
    assert call("validate", tmp_path / "parts" / "train.parquet")[1].endswith("15 sound, 0 bad\n")


@pytest.mark.parametrize(
    ("ratios", "said"),
    [
        ("0.8;0.2", "ratios '0.8;0.2': numbers with commas are needed"),
        ("0.8,0.1", "positive numbers that sum to 1"),
        ("1", "1 ratios: two (train, validation) or three (and test) are needed"),
        ("0.25,0.25,0.25,0.25", "4 ratios: two"),
    ],
)
def test_mistakes(tmp_path: Path, ratios: str, said: str) -> None:
    path = write_lines(tmp_path / "t.jsonl", retail(6))
    code, out, err = call("split", path, "--out", tmp_path / "parts", "--ratios", ratios)
    assert (code, out) == (2, "")
    assert said in err
    assert [p.name for p in tmp_path.iterdir()] == ["t.jsonl"]
