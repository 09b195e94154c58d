"""Test the provenance record: versions, seeds, git commits, and changes between starts."""

import json
import platform
import subprocess
from datetime import date
from pathlib import Path

import pytest

import understudy
from understudy.core.errors import ConfigError
from understudy.runs import run as runs
from understudy.runs.config import TrainConfig, parse_config
from understudy.runs.provenance import Provenance, collect_provenance, provenance_changes
from understudy.runs.run import Run
from understudy.runs.scratch_run import make_scratch_run


def git(folder: Path, *arguments: str) -> str:
    own = ["-c", "user.name=x", "-c", "user.email=x@x", "-c", "commit.gpgsign=false"]
    return subprocess.run(["git", *own, *arguments], cwd=folder, capture_output=True, text=True, check=True).stdout


def test_provenance_records_versions_seeds_memory_and_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git(tmp_path, "init", "-q")
    (tmp_path / "file").write_text("1")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "-qm", "one")
    monkeypatch.chdir(tmp_path)
    run = Run.create(tmp_path / "run", parse_config("", ["seed=4", "eval.seed=5"]))
    (tmp_path / "file").write_text("2")
    Run.resume(run.folder)
    first, second = json.loads((run.folder / "provenance.json").read_text())
    assert first["versions"]["python"] == platform.python_version()
    assert first["versions"]["understudy"] == understudy.__version__
    assert first["seeds"] == {"seed": 4, "eval.seed": 5}
    assert first["memory_bytes"] > 1 << 28
    commit = git(tmp_path, "rev-parse", "HEAD").strip()
    assert first["git"]["working folder"] == {"commit": commit, "dirty": False}
    assert second["git"]["working folder"] == {"commit": commit, "dirty": True}


def test_folder_outside_git_has_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert "working folder" not in collect_provenance({}).git


def test_missing_working_folder_has_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "cwd", lambda: tmp_path / "gone")
    assert "working folder" not in collect_provenance({}).git


def test_resumed_run_keeps_its_creation_date(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", TrainConfig())
    file = run.folder / "provenance.json"
    file.write_text(json.dumps([json.loads(file.read_text())[0] | {"started_on": "2024-07-26"}]))
    resumed = Run.resume(run.folder)
    assert resumed.created_at == make_scratch_run(resumed, tmp_path / "scratch").created_at == date(2024, 7, 26)


@pytest.mark.parametrize("starts", ["[]", '[{"versions": {}}]', "{"])
def test_resume_with_invalid_provenance_is_rejected_and_changes_nothing(tmp_path: Path, starts: str) -> None:
    run = Run.create(tmp_path / "run", TrainConfig())
    run.log_metrics(3, {"train/loss": 1.0})
    (run.folder / "provenance.json").write_text(starts)
    before = {path: path.read_bytes() for path in run.folder.rglob("*") if path.is_file()}
    with pytest.raises(ConfigError, match=r"provenance\.json .*another version"):
        Run.resume(run.folder)
    assert {path: path.read_bytes() for path in run.folder.rglob("*") if path.is_file()} == before


def test_run_copied_without_empty_folders_resumes(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", TrainConfig())
    (run.folder / "trajectories").rmdir()
    Run.resume(run.folder).save_groups(1, [])
    assert (run.folder / "trajectories" / "step_000001.jsonl").exists()


def test_resume_warns_of_changed_versions_and_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = collect_provenance({})
    other = now.replace(versions=now.versions | {"torch": "0.1", "pydantic": "0.2"}, gpus=("H200",))
    assert provenance_changes(now, now) == []
    assert provenance_changes(now, other)[-1] == f"devices: {', '.join(now.gpus) or 'none'} then, H200 now"
    run = Run.create(tmp_path / "run", TrainConfig())

    def collect_other(seeds: dict[str, int]) -> Provenance:
        return other

    monkeypatch.setattr(runs, "collect_provenance", collect_other)
    warnings = Run.resume(run.folder).warnings
    assert ": " in warnings[-1]
    assert "0.2 now" in warnings[-1]
