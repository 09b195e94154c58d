"""Test runs and data files on a full disk, in read-only folders, and with a clock that goes back."""

import contextlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.data_kit import run_data_command, write_lines
from support.disk import limited_file_size
from support.groups import make_groups
from support.run_folder import CONFIG, episode, save_checkpoint
from understudy.core.errors import ConfigError
from understudy.core.files import write_text
from understudy.runs.run import Run, read_metrics
from understudy.runs.storage.checkpoints import find_damage, list_checkpoints
from understudy.runs.targets import detect_target

NOBODY = 65534


@contextlib.contextmanager
def without_root() -> Iterator[None]:
    """Drop root's permissions for a while."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """Return a temporary folder that every user can enter."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    for path in (folder, *folder.rglob("*")):
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o755)
    shutil.rmtree(folder)


def read_files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


WRITES: dict[str, Callable[[Run], object]] = {
    "metrics": lambda run: run.log_metrics(2, {"reward": 1.0, "text": "x" * 5000}),
    "health": lambda run: run.log_warning(2, {"check": "loss", "text": "x" * 5000, "remedy": "y"}),
    "episodes": lambda run: run.save_groups(2, make_groups([episode()] * 50)),
    "a file": lambda run: run.write_file("result.md", "x" * 5000),
    "a checkpoint": lambda run: save_checkpoint(run, 2, "x" * 5000),
}


@pytest.mark.parametrize("write", WRITES)
def test_full_disk_gives_one_error_line_and_changes_nothing(tmp_path: Path, write: str) -> None:
    run = Run.create(tmp_path / "run", CONFIG)
    run.log_metrics(1, {"reward": 0.5})
    run.log_warning(1, {"check": "loss", "text": "x", "remedy": "y"})
    run.save_groups(1, make_groups([episode()]))
    save_checkpoint(run, 1)
    before = read_files(run.folder)
    error_pattern = r"\b.*(File too large|No space left).*understudy train --resume "
    with (
        limited_file_size(1000),
        pytest.raises(ConfigError, match=re.escape(str(run.folder)) + error_pattern) as caught,
    ):
        WRITES[write](run)
    assert "\n" not in str(caught.value)
    assert read_files(run.folder) == before
    resumed = Run.resume(run.folder)
    assert resumed.step == 1
    WRITES[write](resumed)
    assert read_files(run.folder) != before


@pytest.mark.parametrize("write", WRITES)
def test_read_only_run_folder_raises_and_changes_nothing(public_folder: Path, write: str) -> None:
    own = public_folder / "own"
    own.mkdir(mode=0o777)
    own.chmod(0o777)
    with without_root():
        run = Run.create(own / "run", CONFIG)
        save_checkpoint(run, 1)
        before = read_files(run.folder)
        for path in (run.folder, *run.folder.iterdir()):
            if path.is_dir():
                path.chmod(0o555)
        with pytest.raises(ConfigError, match=r"\brun\b.*Permission denied"):
            WRITES[write](run)
        with pytest.raises(ConfigError, match="Permission denied"):
            Run.resume(run.folder)
    assert read_files(run.folder) == before


@pytest.mark.parametrize("unreadable", ["", "checkpoints"])
def test_folder_without_permission_raises_and_changes_nothing(public_folder: Path, unreadable: str) -> None:
    run = Run.create(public_folder / "run", CONFIG)
    save_checkpoint(run, 1)
    before = read_files(run.folder)
    (run.folder / unreadable).chmod(0)
    actions: list[Callable[[], object]] = [lambda: Run.resume(run.folder)]
    if not unreadable:
        actions.append(lambda: detect_target(str(run.folder)))
        actions.append(lambda: detect_target(str(run.folder / "trajectories")))
    for act in actions:
        with without_root(), pytest.raises(ConfigError, match=r"\brun\b.*cannot be read \(Permission denied\)") as e:
            act()
        assert "\n" not in str(e.value)
    (run.folder / unreadable).chmod(0o755)
    assert read_files(run.folder) == before


def error_on_full_disk(tmp_path: Path, *command: object) -> str:
    """Run a command on a full disk and return its error line."""
    with limited_file_size(1000):
        code, out, err = run_data_command(*command)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "File too large" in err
    return err


def test_data_commands_on_a_full_disk_can_resume(tmp_path: Path) -> None:
    row = {"messages": [{"role": "user", "content": "x" * 300}, {"role": "assistant", "content": "y"}]}
    rows, out = write_lines(tmp_path / "rows.jsonl", [row] * 20), tmp_path / "out.jsonl"
    assert str(out) in error_on_full_disk(tmp_path, "convert", rows, out)
    assert out.with_name("out.jsonl.partial").is_file()
    assert run_data_command("convert", rows, out, "--resume") == (0, f"{out}: 20\n", "")
    before = read_files(tmp_path)
    error_on_full_disk(tmp_path, "export", "trl", out, "--out", tmp_path / "exported")
    assert read_files(tmp_path) == before


def test_data_commands_without_permission_give_one_error_line(public_folder: Path) -> None:
    row = {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]}
    rows = write_lines(public_folder / "rows.jsonl", [row])

    def convert_and_export(name: str) -> list[tuple[int, str, str]]:
        convert = run_data_command("convert", rows, public_folder / f"{name}.jsonl")
        return [convert, run_data_command("export", "trl", rows, "--out", public_folder / name)]

    assert [code for code, _, _ in convert_and_export("made")] == [0, 0]
    with without_root():  # after the imports: this user may be unable to read the interpreter's files
        for code, _, err in convert_and_export("other"):
            assert (code, err.count("\n"), "Permission denied" in err) == (2, 1, True), err
        with pytest.raises(ConfigError, match="Permission denied"):
            write_text(public_folder / "report.md", "x")
    rows.chmod(0o000)
    with without_root():
        code, _, err = run_data_command("convert", rows, public_folder / "o.jsonl")
    assert code == 2
    assert re.search(r"rows\.jsonl\b.*Permission denied", err)


def test_run_in_an_invalid_path_raises_config_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"file/run\b.*Not a directory.*--out"):
        Run.create(tmp_path / "file" / "run", CONFIG)


def test_resume_ignores_file_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest checkpoint is the one of the highest step."""
    clock = iter(range(10**9, 0, -3600))
    monkeypatch.setattr(time, "time", lambda: float(next(clock)))
    run = Run.create(tmp_path / "run", CONFIG)
    for step in (1, 2, 3):
        run.log_metrics(step, {"reward": step / 10})
        save_checkpoint(run, step)
        os.utime(run.folder / "checkpoints" / f"step_{step:06}", (next(clock),) * 2)
    resumed = Run.resume(run.folder)
    assert (resumed.step, [line["step"] for line in read_metrics(run.folder)]) == (3, [1, 2, 3])


def test_pruning_keeps_the_last_and_the_best_checkpoints(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", CONFIG)
    for step in range(1, 7):
        save_checkpoint(run, step)
        run.prune_checkpoints(2, {3})
    assert [step for step, _ in list_checkpoints(run.folder)] == [3, 5, 6]
    assert all(find_damage(path) is None for _, path in list_checkpoints(run.folder))
    latest = run.folder / "checkpoints" / "latest"
    assert latest.is_symlink()
    assert find_damage(latest) is None
    assert latest.resolve().name == "step_000006"
    (run.folder / "checkpoints" / "step_000006" / "weights").write_text("damaged")
    resumed = Run.resume(run.folder)
    assert (resumed.step, latest.resolve().name) == (5, "step_000005")
    run.prune_checkpoints(0, ())
    assert [step for step, _ in list_checkpoints(run.folder)] == [3, 5]
