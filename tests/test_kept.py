"""Kept episodes: a line that was cut off is dropped, whatever happens then."""

from pathlib import Path

import pytest

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
