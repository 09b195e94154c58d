"""Test the episode store: truncated lines are dropped, and a full disk loses no stored episode."""

from pathlib import Path

import pytest

from support.disk import limited_file_size
from understudy.core.errors import ConfigError
from understudy.core.records import Record
from understudy.core.trajectory import StopReason, Trajectory
from understudy.runs.storage.episode_store import EPISODES_FILE, EpisodeStore, read_store_spec


class StoreSpec(Record):
    """A minimal spec of a store."""

    name: str = "x"


def test_truncated_last_line_is_dropped_without_rewriting_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for task in ("a", "b"):
        EpisodeStore(tmp_path, StoreSpec()).add(Trajectory(task, stop_reason=StopReason.DONE))
    whole = (tmp_path / EPISODES_FILE).read_bytes()
    (tmp_path / EPISODES_FILE).write_bytes(whole + b'{"task_id": "cut o')
    monkeypatch.setattr(Path, "write_bytes", None)  # it truncates the file first, and the disk may then be full
    assert [task for task, _ in EpisodeStore(tmp_path, StoreSpec()).episodes] == ["a", "b"]
    assert (tmp_path / EPISODES_FILE).read_bytes() == whole


def test_store_spec_of_a_file_or_missing_folder_raises(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name, why in (("file", r"spec\.json"), ("nowhere", "no file or folder")):
        with pytest.raises(ConfigError, match=rf"{name}\b.*{why}"):
            read_store_spec(tmp_path / name, StoreSpec)


def test_strip_tokens_stores_and_returns_episodes_without_tokens(tmp_path: Path) -> None:
    episode = Trajectory("a", stop_reason=StopReason.DONE, tokens=[1, 2], mask=[False, True], logprobs=[0.0, -1.0])
    bare = EpisodeStore(tmp_path / "bare", StoreSpec(), strip_tokens=True)
    assert (bare.add(episode).tokens, episode.tokens) == ([], [1, 2])
    assert EpisodeStore(tmp_path / "whole", StoreSpec()).add(episode) is episode


def test_full_disk_keeps_the_stored_episodes(tmp_path: Path) -> None:
    store, long = EpisodeStore(tmp_path, StoreSpec()), Trajectory("b", stop_reason=StopReason.DONE, error="x" * 5000)
    store.add(Trajectory("a", stop_reason=StopReason.DONE))
    with limited_file_size(1000), pytest.raises(ConfigError, match="--resume"):
        store.add(long)
    store.add(Trajectory("c", stop_reason=StopReason.DONE))
    assert [task for task, _ in EpisodeStore(tmp_path, StoreSpec()).episodes] == ["a", "c"]
