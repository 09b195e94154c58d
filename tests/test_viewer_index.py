"""The index of episodes: what it takes up, when, and that what it finds is what plain Python finds."""

import contextlib
import json
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy.errors import ConfigError
from understudy.messages import Message, ToolCall
from understudy.tasks import Score
from understudy.trajectory import Stop, Trajectory, read_trajectories, write_trajectories
from understudy.viewer.answers import index_of
from understudy.viewer.index import Index, episode_files
from understudy.viewer.query import facets, rows

FAMILIES, TOOLS, WORDS = ("cancel", "return", "price"), ("find_user", "get_order"), ("Straße", "lamp", "W1042", "no")


def episode(number: int) -> Trajectory:
    """Each number another mixture of everything."""
    reward = (0.0, 1.0, 0.5, None)[number % 4]
    said = f"{WORDS[number % 4]} and a {WORDS[(number // 4) % 4]}, number {number}"
    calls = tuple(ToolCall(name=name, arguments={"id": f"id{number}"}) for name in TOOLS[: number % 3])
    return Trajectory(
        f"toy/train/{FAMILIES[number % 3]}/easy/{number}",
        "toy",
        FAMILIES[number % 3],
        "easy" if number % 2 else "hard",
        messages=[
            Message(role="system", content="be kind to policies"),
            Message(role="user", content=said),
            Message(role="assistant", tool_calls=calls),
        ],
        tokens=[1] * (number + 1),
        mask=[False, *[True] * number],
        logprobs=[0.0] * (number + 1),
        score=None if reward is None else Score(reward=reward),
        stop=Stop.FAULT if reward is None else Stop.DONE,
        fault="user" if reward is None else None,
        error="endpoint gone" if reward is None else "",
        counts={"calls": 1, **({"refused": 2} if number % 5 == 0 else {})},
        seconds={"agent": float(number), "environment": 0.5},
    )


def keep(folder: Path, step: int, numbers: range) -> Path:
    path = folder / "trajectories" / f"step_{step:06}.jsonl"
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    write_trajectories(path, map(episode, numbers))
    return path


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Index:
    folder = tmp_path_factory.mktemp("many")
    for step in range(1, 5):
        keep(folder, step, range(20 * step, 20 * step + 20))
    index = Index(folder, folder / "index.sqlite")
    index.refresh()
    return index


def all_rows(index: Index, **values: str) -> list[dict[str, Any]]:
    return list(rows(index, {"limit": "500", **values})["rows"])


def test_rows_say_what_is_in_the_files(many: Index) -> None:
    first = all_rows(many, sort="step")[0]
    assert first == {
        "step": 1,
        "number": 1,
        "task": "toy/train/price/easy/20",
        "domain": "toy",
        "family": "price",
        "difficulty": "hard",
        "outcome": "failure",
        "stop": "done",
        "fault": "",
        "reward": 0.0,
        "turns": 1,
        "tokens": 20,
        "seconds": 20.5,
        "tool": ["find_user", "get_order"],
        "event": ["refused"],
    }
    assert [(row["step"], row["number"]) for row in all_rows(many)] == [
        (s, n) for s in (4, 3, 2, 1) for n in range(1, 21)
    ]


FILTERS = {
    "family": lambda e, value: e.family in value.split(","),
    "difficulty": lambda e, value: e.difficulty in value.split(","),
    "fault": lambda e, value: e.fault in value.split(","),
    "tool": lambda e, value: set(value.split(",")) <= {c.name for m in e.messages for c in m.tool_calls},
    "event": lambda e, value: value in e.counts,
    "least": lambda e, value: e.score is not None and e.score.reward >= float(value),
    "text": lambda e, value: value.lower().replace("straße", "stra") in e.messages[1].content.lower(),
}
VALUES = {
    "family": st.sampled_from(["cancel", "return,price", "other"]),
    "difficulty": st.sampled_from(["easy", "hard", "easy,hard"]),
    "fault": st.sampled_from(["user", "grader"]),
    "tool": st.sampled_from(["find_user", "find_user,get_order"]),
    "event": st.just("refused"),
    "least": st.sampled_from(["0.5", "1", "0"]),
    "text": st.sampled_from(["lamp", "LAM", "straße", "W1042", "number 4"]),
}


@given(chosen=st.fixed_dictionaries({}, optional=VALUES), by=st.sampled_from(["tokens", "-seconds"]))
def test_filters_find_what_plain_python_finds(many: Index, chosen: dict[str, str], by: str) -> None:
    every = [e for path in episode_files(many.folder).values() for e in read_trajectories(path)[0]]
    wanted = [e for e in every if all(FILTERS[name](e, value) for name, value in chosen.items())]
    asked = {**chosen, **({"text": f'"{chosen["text"]}"'} if " " in chosen.get("text", "") else {})}
    found = all_rows(many, **asked, sort=by)
    if " " not in chosen.get("text", ""):  # a phrase is whole words
        assert [row["task"] for row in found] == [e.task for e in (wanted if by == "tokens" else wanted[::-1])]
    counted = facets(many, asked)
    assert counted["total"] == len(found)
    assert counted["successes"] == sum(row["outcome"] == "success" for row in found)
    assert sum(count for _, count in counted["fields"]["outcome"]) == len(found)


def test_search(many: Index) -> None:
    def found(text: str) -> set[int]:
        return {int(row["task"].rpartition("/")[2]) for row in all_rows(many, text=text)}

    everything = set(range(20, 100))
    assert found('"number 21"') == {21}, "a phrase is whole words"
    assert found("id22") == {22}, "arguments are searched"
    assert found("endpoint") == {n for n in everything if n % 4 == 3}, "errors are searched"
    assert found("lamp -w1042") == found("lamp") - found("w1042")
    assert found("policies") == set(), "the system prompt, which all share, is not searched"
    assert found("strasse") == set()
    assert found("stra") == found("Straße") != set(), "a word's beginning is enough"
    assert found('... -! " *') == everything, "what has no letter is no search"
    for hostile in (
        '"',
        "a OR b",
        "NEAR(a b)",
        "text: x",
        "'; drop table episodes; --",
        "^x",
        "{a}",
        "\x00",
    ):
        found(hostile)


def test_a_column_is_counted_without_its_own_filter(many: Index) -> None:
    counts = facets(many, {"family": "cancel", "difficulty": "easy"})["fields"]
    assert {name for name, _ in counts["family"]} == set(FAMILIES)
    assert {name for name, _ in counts["difficulty"]} == {"easy", "hard"}
    assert sum(n for _, n in counts["outcome"]) == len(all_rows(many, family="cancel", difficulty="easy"))


def test_pages(many: Index) -> None:
    whole = all_rows(many, sort="-tokens")
    pages = [rows(many, {"sort": "-tokens", "offset": str(at), "limit": "7"}) for at in range(0, 80, 7)]
    assert [row for page in pages for row in page["rows"]] == whole
    assert {page["total"] for page in pages} == {80}
    assert rows(many, {"offset": "1000"})["rows"] == []


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"sort": "rewrad"}, "did you mean 'reward'?"),
        ({"offset": "-1"}, "offset is '-1'"),
        ({"limit": "many"}, "limit is 'many'"),
    ],
)
def test_what_cannot_be_asked(many: Index, values: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said.replace("?", r"\?")):
        rows(many, values)


def test_the_index_is_made_bit_by_bit_newest_first(tmp_path: Path) -> None:
    for step in (1, 2):
        keep(tmp_path, step, range(100))
    index = Index(tmp_path, tmp_path / "i.sqlite")
    progress, seen = index.refresh(0.0), []
    while progress.done < progress.of:
        seen.append({row["step"] for row in all_rows(index)})
        progress = index.refresh(0.0)
    assert seen[0] == {2}
    assert len(seen) > 3
    assert len(all_rows(index)) == 200
    assert len({(row["step"], row["number"]) for row in all_rows(index)}) == 200


def test_files_that_come_grow_change_and_go(tmp_path: Path) -> None:
    keep(tmp_path, 1, range(3))
    index = Index(tmp_path, tmp_path / "i.sqlite")
    index.refresh()
    write_trajectories(keep(tmp_path, 2, range(3, 5)), [])
    write_trajectories(tmp_path / "trajectories" / "step_000001.jsonl", [episode(90)])
    index.refresh()
    numbers = [(row["step"], row["number"], row["tokens"]) for row in all_rows(index, sort="step")]
    assert numbers == [(1, 1, 0), (1, 2, 1), (1, 3, 2), (1, 4, 90), (2, 1, 3), (2, 2, 4)]
    keep(tmp_path, 1, range(50, 53))
    index.refresh()
    assert [row["tokens"] for row in all_rows(index, sort="step")] == [50, 51, 52, 3, 4]
    assert all_rows(index, text='"number 2"') == [], "the words of what is gone lead nowhere"
    (tmp_path / "trajectories" / "step_000002.jsonl").unlink()
    index.refresh()
    assert {row["step"] for row in all_rows(index)} == {1}
    assert Index(tmp_path, tmp_path / "i.sqlite").progress().done > 0, "a later look goes on with it"


def test_damaged_lines_are_named_and_left_out(tmp_path: Path) -> None:
    path = keep(tmp_path, 1, range(3))
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0], b"{not json\n", b'{"task": 7}\n', lines[1], lines[2][:40]]))
    index = Index(tmp_path, tmp_path / "i.sqlite")
    damaged = index.refresh().damaged
    assert [line.partition(": ")[0] for line in damaged] == [f"{path}:{n}" for n in (2, 3, 5)]
    assert "task: Input should be a valid string" in damaged[1]
    assert [row["number"] for row in all_rows(index)] == [1, 4]
    assert index.progress().done == index.progress().of, "a line that is cut off is not waited for"
    with path.open("ab") as f:
        f.write(lines[2][40:])
    assert [line.partition(": ")[0] for line in index.refresh().damaged] == [f"{path}:{n}" for n in (2, 3)]
    assert [row["number"] for row in all_rows(index)] == [1, 4, 5]


def test_an_index_that_is_damaged_or_old_is_made_anew(tmp_path: Path) -> None:
    keep(tmp_path, 1, range(3))
    place = tmp_path / "i.sqlite"
    place.write_bytes(b"no database" * 1000)
    index = Index(tmp_path, place)
    index.refresh()
    assert len(all_rows(index)) == 3
    with sqlite3.connect(place) as database:
        database.execute("pragma user_version = 99")
    database.close()
    index = Index(tmp_path, place)
    index.refresh()
    assert len(all_rows(index)) == 3


def test_a_cache_that_cannot_be_written_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("UNDERSTUDY_CACHE", str(tmp_path / "file"))
    with pytest.raises(ConfigError, match="set UNDERSTUDY_CACHE to a folder that can be written"):
        Index(tmp_path)


def test_another_thread_does_not_wait_for_the_index(many: Index) -> None:
    with many._taking_up:
        assert many.refresh().done == many.progress().of
    assert json.dumps(all_rows(many)[:1])


def test_threads_that_ask_at_once_share_one_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNDERSTUDY_CACHE", str(tmp_path / "cache"))
    together = Barrier(8)

    def asked(_: int) -> Index:
        together.wait()
        found = index_of(tmp_path / "run")
        assert found.refresh().of == 0
        return found

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(asked, range(8)))) == 1


class Counted(Index):
    """An index that counts what its database does, in hundreds of instructions."""

    work = 0

    @contextlib.contextmanager
    def open(self) -> Iterator[sqlite3.Connection]:
        with super().open() as database:
            database.set_progress_handler(self._count, 100)
            yield database

    def _count(self) -> None:
        self.work += 1


def test_the_counts_of_four_times_the_episodes_are_four_times_the_work(tmp_path: Path) -> None:
    work = []
    for name, count in (("few", 250), ("many", 1000)):
        (tmp_path / name).mkdir()
        keep(tmp_path / name, 1, range(1, count))
        index = Counted(tmp_path / name, tmp_path / f"{name}.sqlite")
        index.refresh()
        index.work = 0
        facets(index, {})
        work.append(index.work)
    assert work[1] < 6 * work[0]
