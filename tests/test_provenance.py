"""What a run runs with: of this very process, and what differs from one start to the next."""

import json
import platform
import subprocess
from datetime import date
from pathlib import Path

import pytest

import understudy
from understudy import run as runs
from understudy.config import TrainConfig
from understudy.provenance import Provenance, changes, provenance
from understudy.run import Run
from understudy.settings import parse
from understudy.shadow import shadow


def git(folder: Path, *arguments: str) -> str:
    own = ["-c", "user.name=x", "-c", "user.email=x@x", "-c", "commit.gpgsign=false"]
    return subprocess.run(["git", *own, *arguments], cwd=folder, capture_output=True, text=True, check=True).stdout


def test_a_run_says_what_it_ran_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git(tmp_path, "init", "-q")
    (tmp_path / "file").write_text("1")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "-qm", "one")
    monkeypatch.chdir(tmp_path)
    run = Run.create(tmp_path / "run", parse(TrainConfig, "", ["seed=4", "eval.seed=5"]))
    (tmp_path / "file").write_text("2")
    Run.resume(run.folder)
    first, second = json.loads((run.folder / "environment.json").read_text())
    assert first["versions"]["python"] == platform.python_version()
    assert first["versions"]["understudy"] == understudy.__version__
    assert first["seeds"] == {"seed": 4, "eval.seed": 5}
    assert first["memory"] > 1 << 28
    commit = git(tmp_path, "rev-parse", "HEAD").strip()
    assert first["git"]["working folder"] == {"commit": commit, "dirty": False}
    assert second["git"]["working folder"] == {"commit": commit, "dirty": True}


def test_a_folder_that_is_no_checkout_has_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert "working folder" not in provenance({}).git


def test_a_folder_that_cannot_be_entered_has_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "cwd", lambda: tmp_path / "gone")
    assert "working folder" not in provenance({}).git


def test_a_run_goes_on_in_the_day_it_began(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", TrainConfig())
    kept = run.folder / "environment.json"
    kept.write_text(json.dumps([starts := json.loads(kept.read_text())[0] | {"day": "2024-07-26"}]))
    resumed = Run.resume(run.folder)
    assert resumed.began == shadow(resumed, tmp_path / "shadow").began == date(2024, 7, 26)
    del starts["day"]
    kept.write_text(json.dumps([starts]))
    assert Run.resume(run.folder).began is None, "runs from before it was kept say what the day is"


def test_resuming_with_another_version_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = provenance({})
    other = now.replace(versions=now.versions | {"torch": "0.1", "pydantic": "0.2"}, devices=("H200",))
    assert changes(now, now) == []
    assert changes(now, other)[-1] == f"devices: {', '.join(now.devices) or 'none'} then, H200 now"
    run = Run.create(tmp_path / "run", TrainConfig())

    def changed(seeds: dict[str, int]) -> Provenance:
        return other

    monkeypatch.setattr(runs, "provenance", changed)
    warnings = Run.resume(run.folder).warnings
    assert warnings[-1].startswith("the run may come out otherwise than uninterrupted: ")
    assert "0.2 now" in warnings[-1]
