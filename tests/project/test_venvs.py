"""Test cached folders of the test support: created once per contents, and again if unfinished."""

from pathlib import Path

import pytest

from support.venvs import make_cached_folder


def test_cached_folder_is_created_once_per_contents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNDERSTUDY_CACHE", str(tmp_path))
    created: list[str] = []

    def cached_folder(*holds: str, fails: bool = False) -> list[str]:
        def make(folder: Path) -> None:
            created.append(" ".join(holds))
            (folder / holds[0]).touch()
            assert not fails

        return sorted(path.name for path in make_cached_folder("group/thing", make, *holds).iterdir())

    assert cached_folder("a==1") == cached_folder("a==1") == ["a==1", "whole"]
    assert cached_folder("a==2", "b==1") == ["a==2", "whole"]
    with pytest.raises(AssertionError):
        cached_folder("c==1", fails=True)
    assert cached_folder("c==1") == ["c==1", "whole"]
    assert created == ["a==1", "a==2 b==1", "c==1", "c==1"]
