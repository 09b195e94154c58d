"""Test the index of episodes: refreshing, filters, search, facets, and concurrent use."""

import contextlib
import json
import shutil
import sqlite3
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.viewer_episodes import FAMILIES, numbered_episode, write_numbered_episodes
from support.viewing import make_run, write_step
from understudy.core.errors import ConfigError
from understudy.core.trajectory import read_trajectories, write_trajectories
from understudy.runs.run import episode_files
from understudy.runs.storage.annotations import Annotation, write_annotation
from understudy.viewer.api import open_index
from understudy.viewer.index import EpisodeIndex
from understudy.viewer.query import QueryError, query_facets, query_rows


@pytest.fixture(scope="module")
def episode_index(tmp_path_factory: pytest.TempPathFactory) -> EpisodeIndex:
    folder = tmp_path_factory.mktemp("many")
    for step in range(1, 5):
        write_numbered_episodes(folder, step, range(20 * step, 20 * step + 20))
    index = EpisodeIndex(folder, folder / "index.sqlite")
    index.refresh()
    return index


def all_rows(index: EpisodeIndex, **values: str) -> list[dict[str, Any]]:
    return list(query_rows(index, {"limit": "500", **values})["rows"])


def test_rows_equal_the_stored_episodes(episode_index: EpisodeIndex) -> None:
    first = all_rows(episode_index, sort="step")[0]
    assert first == {
        "step": 1,
        "number": 1,
        "task": "toy/train/price/easy/20",
        "domain": "toy",
        "family": "price",
        "difficulty": "hard",
        "outcome": "failure",
        "cause": None,
        "stop": "done",
        "fault": "",
        "reward": 0.0,
        "turns": 1,
        "tokens": 20,
        "seconds": 20.5,
        "tool": ["find_user", "get_order"],
        "event": ["refused"],
        "tag": [],
        "note": "",
    }
    assert [(row["step"], row["number"]) for row in all_rows(episode_index)] == [
        (s, n) for s in (4, 3, 2, 1) for n in range(1, 21)
    ]


FILTERS = {
    "family": lambda e, value: e.family in value.split(","),
    "difficulty": lambda e, value: e.difficulty in value.split(","),
    "fault": lambda e, value: e.fault in value.split(","),
    "tool": lambda e, value: set(value.split(",")) <= {c.name for m in e.messages for c in m.tool_calls},
    "event": lambda e, value: value in e.event_counts,
    "min_reward": lambda e, value: e.score is not None and e.score.reward >= float(value),
    "text": lambda e, value: value.lower().replace("straße", "stra") in e.messages[1].content.lower(),
}
VALUES = {
    "family": st.sampled_from(["cancel", "return,price", "other"]),
    "difficulty": st.sampled_from(["easy", "hard", "easy,hard"]),
    "fault": st.sampled_from(["user", "grader"]),
    "tool": st.sampled_from(["find_user", "find_user,get_order"]),
    "event": st.just("refused"),
    "min_reward": st.sampled_from(["0.5", "1", "0"]),
    "text": st.sampled_from(["lamp", "LAM", "straße", "W1042", "number 4"]),
}


@given(chosen=st.fixed_dictionaries({}, optional=VALUES), by=st.sampled_from(["tokens", "-seconds"]))
def test_filters_match_a_plain_python_filter(episode_index: EpisodeIndex, chosen: dict[str, str], by: str) -> None:
    all_episodes = [e for path in episode_files(episode_index.folder).values() for e in read_trajectories(path)[0]]
    expected = [e for e in all_episodes if all(FILTERS[name](e, value) for name, value in chosen.items())]
    asked = {**chosen, **({"text": f'"{chosen["text"]}"'} if " " in chosen.get("text", "") else {})}
    found = all_rows(episode_index, **asked, sort=by)
    if " " not in chosen.get("text", ""):  # a phrase matches only whole words
        assert [row["task"] for row in found] == [e.task_id for e in (expected if by == "tokens" else expected[::-1])]
    counted = query_facets(episode_index, asked)
    assert counted["total"] == len(found)
    assert counted["successes"] == sum(row["outcome"] == "success" for row in found)
    assert sum(count for _, count in counted["fields"]["outcome"]) == len(found)


def test_full_text_search_matches_words_phrases_and_exclusions(episode_index: EpisodeIndex) -> None:
    def search_numbers(text: str) -> set[int]:
        return {int(row["task"].rpartition("/")[2]) for row in all_rows(episode_index, text=text)}

    everything = set(range(20, 100))
    assert search_numbers('"number 21"') == {21}, "a phrase is whole words"
    assert search_numbers("id22") == {22}, "arguments are searched"
    assert search_numbers("endpoint") == {n for n in everything if n % 4 == 3}, "errors are searched"
    assert search_numbers("lamp -w1042") == search_numbers("lamp") - search_numbers("w1042")
    assert search_numbers("policies") == set(), "the system prompt, which all share, is not searched"
    assert search_numbers("strasse") == set()
    assert search_numbers("stra") == search_numbers("Straße") != set(), "a word's beginning is enough"
    assert search_numbers('... -! " *') == everything, "what has no letter is no search"
    for hostile in (
        '"',
        "a OR b",
        "NEAR(a b)",
        "text: x",
        "'; drop table episodes; --",
        "^x",
        "{a}",
    ):
        search_numbers(hostile)


def test_invalid_queries_are_rejected(episode_index: EpisodeIndex) -> None:
    """SQLite would raise an error of its own for most of them."""
    wild: list[dict[str, str]] = [
        {"text": "a\x00b"},
        {"text": " ".join("abcdefgh" * 20)},
        {"tool": ",".join("x" * 2000)},
        {"outcome": ",".join("x" * 40_000)},
        {"min_step": "two"},
        {"max_reward": "nan"},
        {"max_reward": "inf"},
        {"min_reward": "1" * 400},
        {"offset": "-1"},
        {"offset": "9" * 5000},
        {"limit": "1e3"},
        {"sort": "step; drop table episodes"},
        {"tag": "\ud800"},
    ]
    for values in wild:
        with pytest.raises(QueryError, match=next(iter(values)) + "|filters"):
            query_rows(episode_index, values)
    for values in [each for each in wild if not each.keys() & {"offset", "limit", "sort"}]:
        with pytest.raises(QueryError):
            query_facets(episode_index, values)


def test_episodes_are_filtered_by_tag_and_note(tmp_path: Path) -> None:
    write_numbered_episodes(tmp_path, 1, range(5))
    index = EpisodeIndex(tmp_path, tmp_path / "index.sqlite")
    index.refresh()
    write_annotation(tmp_path, Annotation(item="1/2", tags=("odd", "best")))
    write_annotation(tmp_path, Annotation(item="1/4", tags=("odd",), note="why?"))
    write_annotation(tmp_path, Annotation(item="9/9", tags=("odd",)))
    write_annotation(tmp_path, Annotation(item="000001 eval/1", tags=("odd",)))
    odd = query_rows(index, {"tag": "odd"})["rows"]
    assert [(row["number"], row["tag"], row["note"]) for row in odd] == [(2, ["odd", "best"], ""), (4, ["odd"], "why?")]
    assert [row["number"] for row in query_rows(index, {"tag": "odd,best"})["rows"]] == [2]
    assert [row["number"] for row in query_rows(index, {"noted": "yes", "tag": "odd"})["rows"]] == [4]
    assert query_rows(index, {"tag": "none"})["total"] == 0
    fields = query_facets(index, {})["fields"]
    assert (dict(fields["tag"]), fields["noted"]) == ({"odd": 2, "best": 1}, [("yes", 1)])
    write_annotation(tmp_path, Annotation(item="1/2"))
    assert [row["number"] for row in query_rows(index, {"tag": "odd"})["rows"]] == [4]


def test_causes_of_failures_are_found_in_the_background_and_filtered(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=2)
    index = EpisodeIndex(run.folder, tmp_path / "index.sqlite")
    index.refresh()
    assert {row["outcome"]: row["cause"] for row in all_rows(index)} == {"success": "", "failure": None, "fault": None}
    while index.start_explaining():
        time.sleep(0.01)
    causes = {(row["outcome"], row["cause"]) for row in all_rows(index)}
    assert causes == {("success", ""), ("failure", "gave_up"), ("fault", "user_fault")}
    assert {row["number"] for row in all_rows(index, cause="user_fault")} == {9}
    assert dict(query_facets(index, {"cause": "user_fault"})["fields"]["cause"]) == {"gave_up": 8, "user_fault": 2}
    write_step(run, 3)
    index.refresh()
    assert sum(row["cause"] is None for row in all_rows(index)) == 5
    assert index.start_explaining()


def test_failures_that_cannot_be_explained_have_no_cause(tmp_path: Path) -> None:
    """The folder has no config, so no domain can be loaded."""
    write_numbered_episodes(tmp_path, 1, range(100))
    index = EpisodeIndex(tmp_path, tmp_path / "index.sqlite")
    index.refresh()
    index.explain()
    assert {row["cause"] for row in all_rows(index)} == {""}
    assert not index.start_explaining()


def test_facet_counts_ignore_their_own_filter(episode_index: EpisodeIndex) -> None:
    counts = query_facets(episode_index, {"family": "cancel", "difficulty": "easy"})["fields"]
    assert {name for name, _ in counts["family"]} == set(FAMILIES)
    assert {name for name, _ in counts["difficulty"]} == {"easy", "hard"}
    assert sum(n for _, n in counts["outcome"]) == len(all_rows(episode_index, family="cancel", difficulty="easy"))


def test_pages_concatenate_to_all_rows(episode_index: EpisodeIndex) -> None:
    whole = all_rows(episode_index, sort="-tokens")
    pages = [query_rows(episode_index, {"sort": "-tokens", "offset": str(at), "limit": "7"}) for at in range(0, 80, 7)]
    assert [row for page in pages for row in page["rows"]] == whole
    assert {page["total"] for page in pages} == {80}
    assert query_rows(episode_index, {"offset": "1000"})["rows"] == []


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"sort": "rewrad"}, "'rewrad'.*'reward'"),
        ({"offset": "-1"}, r"\boffset\b.*'-1'"),
        ({"limit": "many"}, r"\blimit\b.*'many'"),
    ],
)
def test_invalid_query_raises_config_error(episode_index: EpisodeIndex, values: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        query_rows(episode_index, values)


def test_refresh_indexes_in_parts_newest_step_first(tmp_path: Path) -> None:
    for step in (1, 2):
        write_numbered_episodes(tmp_path, step, range(100))
    index = EpisodeIndex(tmp_path, tmp_path / "i.sqlite")
    progress, seen = index.refresh(0.0), []
    while progress.done_bytes < progress.total_bytes:
        seen.append({row["step"] for row in all_rows(index)})
        progress = index.refresh(0.0)
    assert seen[0] == {2}
    assert len(seen) > 3
    assert len(all_rows(index)) == 200
    assert len({(row["step"], row["number"]) for row in all_rows(index)}) == 200


def test_refresh_follows_added_grown_changed_and_deleted_files(tmp_path: Path) -> None:
    write_numbered_episodes(tmp_path, 1, range(3))
    index = EpisodeIndex(tmp_path, tmp_path / "i.sqlite")
    index.refresh()
    write_trajectories(write_numbered_episodes(tmp_path, 2, range(3, 5)), [])
    write_trajectories(tmp_path / "trajectories" / "step_000001.jsonl", [numbered_episode(90)])
    index.refresh()
    numbers = [(row["step"], row["number"], row["tokens"]) for row in all_rows(index, sort="step")]
    assert numbers == [(1, 1, 0), (1, 2, 1), (1, 3, 2), (1, 4, 90), (2, 1, 3), (2, 2, 4)]
    write_numbered_episodes(tmp_path, 1, range(50, 53))
    index.refresh()
    assert [row["tokens"] for row in all_rows(index, sort="step")] == [50, 51, 52, 3, 4]
    assert all_rows(index, text='"number 2"') == [], "the words of what is gone lead nowhere"
    (tmp_path / "trajectories" / "step_000002.jsonl").unlink()
    index.refresh()
    assert {row["step"] for row in all_rows(index)} == {1}
    assert EpisodeIndex(tmp_path, tmp_path / "i.sqlite").progress().done_bytes > 0, "a later look goes on with it"


def test_damaged_lines_are_reported_and_skipped(tmp_path: Path) -> None:
    path = write_numbered_episodes(tmp_path, 1, range(3))
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0], b"{not json\n", b'{"task_id": 7}\n', lines[1], lines[2][:40]]))
    index = EpisodeIndex(tmp_path, tmp_path / "i.sqlite")
    damaged = index.refresh().damaged
    assert [line.partition(": ")[0] for line in damaged] == [f"{path}:{n}" for n in (2, 3, 5)]
    assert "task_id: Input should be a valid string" in damaged[1]
    assert [row["number"] for row in all_rows(index)] == [1, 4]
    assert index.progress().done_bytes == index.progress().total_bytes, "a line that is cut off is not waited for"
    with path.open("ab") as f:
        f.write(lines[2][40:])
    assert [line.partition(": ")[0] for line in index.refresh().damaged] == [f"{path}:{n}" for n in (2, 3)]
    assert [row["number"] for row in all_rows(index)] == [1, 4, 5]


def test_damaged_or_outdated_index_is_rebuilt(tmp_path: Path) -> None:
    write_numbered_episodes(tmp_path, 1, range(3))
    place = tmp_path / "i.sqlite"
    place.write_bytes(b"no database" * 1000)
    index = EpisodeIndex(tmp_path, place)
    index.refresh()
    assert len(all_rows(index)) == 3
    with sqlite3.connect(place) as database:
        database.execute("pragma user_version = 99")
    database.close()
    index = EpisodeIndex(tmp_path, place)
    index.refresh()
    assert len(all_rows(index)) == 3


def test_unwritable_cache_raises_config_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("UNDERSTUDY_CACHE", str(tmp_path / "file"))
    with pytest.raises(ConfigError, match="UNDERSTUDY_CACHE"):
        EpisodeIndex(tmp_path)


def test_an_index_that_becomes_unusable_raises_config_error(tmp_path: Path) -> None:
    write_numbered_episodes(tmp_path, 1, range(3))
    index = EpisodeIndex(tmp_path, tmp_path / "cache" / "i.sqlite")
    shutil.rmtree(tmp_path / "cache")
    with pytest.raises(ConfigError, match="UNDERSTUDY_CACHE"):
        index.refresh()
    (tmp_path / "folder.sqlite").mkdir()
    with pytest.raises(ConfigError, match="UNDERSTUDY_CACHE"):
        EpisodeIndex(tmp_path, tmp_path / "folder.sqlite")


def test_queries_do_not_wait_for_a_running_refresh(episode_index: EpisodeIndex) -> None:
    with episode_index._taking_up:
        assert episode_index.refresh().done_bytes == episode_index.progress().total_bytes
    assert json.dumps(all_rows(episode_index)[:1])


def test_concurrent_threads_share_one_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNDERSTUDY_CACHE", str(tmp_path / "cache"))
    barrier = Barrier(8)

    def open_in_thread(_: int) -> EpisodeIndex:
        barrier.wait()
        found = open_index(tmp_path / "run")
        assert found.refresh().total_bytes == 0
        return found

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(open_in_thread, range(8)))) == 1


class InstructionCountingIndex(EpisodeIndex):
    """An index that counts its database's instructions, in hundreds."""

    work = 0

    @contextlib.contextmanager
    def open(self) -> Iterator[sqlite3.Connection]:
        with super().open() as database:
            database.set_progress_handler(self._count, 100)
            yield database

    def _count(self) -> None:
        self.work += 1


def test_facet_cost_grows_linearly_with_episodes(tmp_path: Path) -> None:
    work = []
    for name, count in (("few", 250), ("many", 1000)):
        (tmp_path / name).mkdir()
        write_numbered_episodes(tmp_path / name, 1, range(1, count))
        index = InstructionCountingIndex(tmp_path / name, tmp_path / f"{name}.sqlite")
        index.refresh()
        index.work = 0
        query_facets(index, {})
        work.append(index.work)
    assert work[1] < 6 * work[0]
