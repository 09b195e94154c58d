"""A machine that refuses: a full disk, a folder that is read-only, a clock that goes back. One line, nothing lost."""

import contextlib
import os
import re
import resource
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from data_kit import call, write_lines
from test_run import CONFIG, episode, save
from understudy.checkpoints import checkpoints, damage
from understudy.disk import write_text
from understudy.errors import ConfigError
from understudy.run import Run, read_metrics

NOBODY = 65534


@contextlib.contextmanager
def room(size: int) -> Iterator[None]:
    """No file may get larger: writing fails where a full disk would, in the middle."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextlib.contextmanager
def ordinary() -> Iterator[None]:
    """Who may write everywhere is nobody for a while."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that anyone gets to."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    for path in (folder, *folder.rglob("*")):
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o755)
    shutil.rmtree(folder)


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


WRITES: dict[str, Callable[[Run], object]] = {
    "metrics": lambda run: run.log(2, {"reward": 1.0, "text": "x" * 5000}),
    "health": lambda run: run.warn(2, {"text": "x" * 5000}),
    "episodes": lambda run: run.keep(2, [episode()] * 50),
    "a file": lambda run: run.write("result.md", "x" * 5000),
    "a checkpoint": lambda run: save(run, 2, "x" * 5000),
}


@pytest.mark.parametrize("what", WRITES)
def test_a_full_disk_is_one_line_and_leaves_all_as_it_was(tmp_path: Path, what: str) -> None:
    run = Run.create(tmp_path / "run", CONFIG)
    run.log(1, {"reward": 0.5})
    run.warn(1, {"text": "x"})
    run.keep(1, [episode()])
    save(run, 1)
    before = files(run.folder)
    told = r" cannot be written \(.*\); see to that, then go on with: understudy train --resume "
    with room(1000), pytest.raises(ConfigError, match=re.escape(str(run.folder)) + told) as caught:
        WRITES[what](run)
    assert "\n" not in str(caught.value)
    assert files(run.folder) == before
    resumed = Run.resume(run.folder)
    assert resumed.step == 1
    WRITES[what](resumed)
    assert files(run.folder) != before


@pytest.mark.parametrize("what", WRITES)
def test_a_folder_that_became_read_only(open_folder: Path, what: str) -> None:
    own = open_folder / "own"
    own.mkdir(mode=0o777)
    own.chmod(0o777)
    with ordinary():
        run = Run.create(own / "run", CONFIG)
        save(run, 1)
        before = files(run.folder)
        for path in (run.folder, *run.folder.iterdir()):
            if path.is_dir():
                path.chmod(0o555)
        with pytest.raises(ConfigError, match=r"run cannot be written \(.*Permission denied\)"):
            WRITES[what](run)
        with pytest.raises(ConfigError, match="Permission denied"):
            Run.resume(run.folder)
    assert files(run.folder) == before


def full(tmp_path: Path, *command: object) -> str:
    """What a command says where the disk is full."""
    with room(1000):
        code, out, err = call(*command)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "cannot be written (" in err
    return err


def test_files_of_data_on_a_full_disk(tmp_path: Path) -> None:
    row = {"messages": [{"role": "user", "content": "x" * 300}, {"role": "assistant", "content": "y"}]}
    rows, out = write_lines(tmp_path / "rows.jsonl", [row] * 20), tmp_path / "out.jsonl"
    assert str(out) in full(tmp_path, "convert", rows, out)
    assert out.with_name("out.jsonl.partial").is_file()
    assert call("convert", rows, out, "--resume") == (0, f"{out}: 20\n", "")
    before = files(tmp_path)
    full(tmp_path, "export", "trl", out, "--out", tmp_path / "exported")
    assert files(tmp_path) == before


def test_files_of_data_where_nobody_may_write(open_folder: Path) -> None:
    row = {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]}
    rows = write_lines(open_folder / "rows.jsonl", [row])

    def told(name: str) -> list[tuple[int, str, str]]:
        convert = call("convert", rows, open_folder / f"{name}.jsonl")
        return [convert, call("export", "trl", rows, "--out", open_folder / name)]

    assert [code for code, _, _ in told("made")] == [0, 0]
    with ordinary():  # all is imported: nobody may not read the interpreter's files, either
        for code, _, err in told("other"):
            assert (code, err.count("\n"), "Permission denied); see to that" in err) == (2, 1, True), err
        with pytest.raises(ConfigError, match="Permission denied"):
            write_text(open_folder / "report.md", "x")
    rows.chmod(0o000)
    with ordinary():
        code, _, err = call("convert", rows, open_folder / "o.jsonl")
    assert (code, "rows.jsonl cannot be read (Permission denied)" in err) == (2, True)


def test_where_no_folder_can_be_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"file/run cannot be written \(.*Not a directory\); .* give another --out"):
        Run.create(tmp_path / "file" / "run", CONFIG)


def test_a_clock_that_goes_back_breaks_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps are counted, never dated."""
    clock = iter(range(10**9, 0, -3600))
    monkeypatch.setattr(time, "time", lambda: float(next(clock)))
    run = Run.create(tmp_path / "run", CONFIG)
    for step in (1, 2, 3):
        run.log(step, {"reward": step / 10})
        save(run, step)
        os.utime(run.folder / "checkpoints" / f"step_{step:06}", (next(clock),) * 2)
    resumed = Run.resume(run.folder)
    assert (resumed.step, [line["step"] for line in read_metrics(run.folder)]) == (3, [1, 2, 3])


def test_only_the_last_and_the_best_are_kept(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", CONFIG)
    for step in range(1, 7):
        save(run, step)
        run.prune(2, {3})
    assert [step for step, _ in checkpoints(run.folder)] == [3, 5, 6]
    assert all(damage(path) is None for _, path in checkpoints(run.folder))
    latest = run.folder / "checkpoints" / "latest"
    assert latest.is_symlink()
    assert damage(latest) is None
    assert latest.resolve().name == "step_000006"
    (run.folder / "checkpoints" / "step_000006" / "weights").write_text("damaged")
    resumed = Run.resume(run.folder)
    assert (resumed.step, latest.resolve().name) == (5, "step_000005")
    run.prune(0, ())
    assert [step for step, _ in checkpoints(run.folder)] == [3, 5]
