"""What is made once in the user's cache is made anew when it is to hold something else, or was not finished."""

from pathlib import Path

import pytest

from venvs import kept


def test_a_folder_is_made_once_for_what_it_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNDERSTUDY_CACHE", str(tmp_path))
    made: list[str] = []

    def folder(*holds: str, fails: bool = False) -> list[str]:
        def make(folder: Path) -> None:
            made.append(" ".join(holds))
            (folder / holds[0]).touch()
            assert not fails

        return sorted(path.name for path in kept("group/thing", make, *holds).iterdir())

    assert folder("a==1") == folder("a==1") == ["a==1", "whole"]
    assert folder("a==2", "b==1") == ["a==2", "whole"]
    with pytest.raises(AssertionError):
        folder("c==1", fails=True)
    assert folder("c==1") == ["c==1", "whole"]
    assert made == ["a==1", "a==2 b==1", "c==1", "c==1"]
