"""Kept episodes: a line that was cut off is dropped, whatever happens then."""

from pathlib import Path

import pytest

from test_run_disk import room
from understudy.errors import ConfigError
from understudy.kept import EPISODES, Kept, read_head
from understudy.records import Record
from understudy.trajectory import Stop, Trajectory


class What(Record):
    """What is played."""

    name: str = "x"


def test_a_cut_line_is_dropped_and_the_lines_before_it_are_never_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for task in ("a", "b"):
        Kept(tmp_path, What()).add(Trajectory(task, stop=Stop.DONE))
    whole = (tmp_path / EPISODES).read_bytes()
    (tmp_path / EPISODES).write_bytes(whole + b'{"task": "cut o')
    monkeypatch.setattr(Path, "write_bytes", None)  # it empties a file first, and then there may be no room
    assert [task for task, _ in Kept(tmp_path, What()).episodes] == ["a", "b"]
    assert (tmp_path / EPISODES).read_bytes() == whole


def test_a_file_is_no_folder_of_episodes(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name in ("file", "nowhere"):
        with pytest.raises(ConfigError, match=f"{name} holds no episodes: it has no played.json"):
            read_head(tmp_path / name, What)


def test_bare_episodes_are_given_as_they_are_kept(tmp_path: Path) -> None:
    episode = Trajectory("a", stop=Stop.DONE, tokens=[1, 2], mask=[False, True], logprobs=[0.0, -1.0])
    bare = Kept(tmp_path / "bare", What(), bare=True)
    assert (bare.add(episode).tokens, episode.tokens) == ([], [1, 2])
    assert Kept(tmp_path / "whole", What()).add(episode) is episode


def test_a_full_disk_loses_no_episode_that_is_kept(tmp_path: Path) -> None:
    kept, long = Kept(tmp_path, What()), Trajectory("b", stop=Stop.DONE, error="x" * 5000)
    kept.add(Trajectory("a", stop=Stop.DONE))
    with room(1000), pytest.raises(ConfigError, match=r"cannot be written \(.*\); see to that, then go on by --resume"):
        kept.add(long)
    kept.add(Trajectory("c", stop=Stop.DONE))
    assert [task for task, _ in Kept(tmp_path, What()).episodes] == ["a", "c"]
