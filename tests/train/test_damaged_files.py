"""Test that a damaged file of a run is named in one line by every command that reads it, and that resuming loses
nothing without saying so."""

import io
import shutil
import sys
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from support.tiny_runs import InterruptAtStep, ignore_progress, score_distinct_characters, tiny, tiny_config
from understudy.cli import main as cli
from understudy.core.settings import dump_toml
from understudy.runs.run import Run, read_metrics
from understudy.runs.storage.checkpoints import find_damage, list_checkpoints
from understudy.train.loop import train

__all__ = ["tiny"]

EVALUATION = "evaluations/000001 sft"
FILES = (
    "config.toml",
    "metrics.jsonl",
    "health.jsonl",
    "tasks.jsonl",
    "provenance.json",
    "trajectories/step_000002.jsonl",
    "trained/step_000002.jsonl",
    "checkpoints/step_000002/manifest.json",
    "checkpoints/step_000002/progress.json",
    "checkpoints/step_000002/optimizer.safetensors",
    f"{EVALUATION}/spec.json",
    f"{EVALUATION}/report.json",
    f"{EVALUATION}/episodes.jsonl",
    f"{EVALUATION}/tasks.jsonl",
)
READERS = (
    "view {run} --text",
    "view {run} --json",
    "view {run} --step 2 --episode 1",
    "score {run}",
    "compare {run} {run}/evaluations/000000_base",
    "data collect {run} --kto {out}/kto.jsonl --allow-test-data",
)
LOADERS = ("export {run} --out {out}/model", "eval {run} --tasks 1 --out {out}/evaluation", "train {run} --dry-run")
"""Commands that read a run's config and checkpoints."""
RESUME = "train --resume {run}"


@pytest.fixture(scope="module", autouse=True)
def distinct_rewards() -> Iterator[None]:
    """Score episodes by their number of distinct characters, so that the gold answer earns 1 in two turns."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("understudy.envs.domain.score_episode", score_distinct_characters)
        yield


@pytest.fixture(scope="module")
def stopped(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run that was interrupted after two of four steps."""
    folder = tmp_path_factory.mktemp("stopped") / "run"
    run = Run.create(folder, tiny_config(tiny, "sft.steps=1", "steps=3"))
    with pytest.raises(KeyboardInterrupt):
        train(run.config, run, InterruptAtStep("train", 2))
    shutil.copytree(folder / "evaluations" / "000000 base", folder / "evaluations" / "000000_base")
    return folder


def damages(content: bytes) -> dict[str, bytes | None]:
    """Return contents that take the place of a file's; None stands for a folder."""
    first, end, rest = content.partition(b"\n")
    return {
        "empty": b"",
        "half": content[: len(content) // 2],
        "not UTF-8": content[:40] + b"\xff\xfe" + content[40:],
        "another type": b"[1]\n",
        "deep": b"[" * 100_000,
        "digits": b"1" * 5000,
        "a bad line": first + end + b'{"half\n' + rest,
        "folder": None,
    }


def damage(file: Path, content: bytes | None) -> None:
    file.unlink()
    file.mkdir() if content is None else file.write_bytes(content)


def run_program(words: str, places: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch) -> int:
    """Run a command. Fail the test if it ends in another way than by an exit code."""
    arguments = [word.format(**places) for word in words.split(" ")]
    monkeypatch.setattr(sys, "argv", ["understudy", *arguments])
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    try:
        cli.main()
    except SystemExit as stop:
        return int(stop.code or 0)
    except Exception:  # noqa: BLE001  # the traceback that a user would see
        pytest.fail(f"{words}: {traceback.format_exc()}")
    raise AssertionError(words)


def commands(file: str, number: int, kind: str) -> Iterator[str]:
    """Return the commands that read a file with the damage `kind`, which is the damage of this number.

    The commands take turns, so that each file meets each damage and each command, but not each pair of them.
    """
    turn = FILES.index(file) + number
    yield from READERS if kind == "folder" else (READERS[turn % len(READERS)],)
    if file.startswith(("config", "checkpoints")) and kind in ("half", "deep", "folder"):
        yield LOADERS[turn % len(LOADERS)]
    if kind == ("half" if FILES.index(file) % 2 else "a bad line"):
        yield RESUME


@pytest.mark.slow
@pytest.mark.parametrize("file", FILES)
def test_a_damaged_file_of_a_run_is_named_in_one_line(
    file: str, stopped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    named = 0
    for number, (kind, content) in enumerate(damages((stopped / file).read_bytes()).items()):
        for words in commands(file, number, kind):
            work = tmp_path / "work"
            shutil.rmtree(work, ignore_errors=True)
            shutil.copytree(stopped, work / "run", symlinks=True)
            damage(work / "run" / file, content)
            (work / "out").mkdir()
            capfd.readouterr()
            code = run_program(words, {"run": work / "run", "out": work / "out"}, monkeypatch)
            out, err = capfd.readouterr()
            assert code in (0, 2), (words, kind, err)
            assert "Traceback" not in out + err
            if code == 2:
                last = next((line for line in err.splitlines() if line.startswith("understudy: ")), "")
                assert last, (words, kind, err)
                assert Path(file).name in last or str(work) in err, (words, kind, err)
                named += 1
    assert named or "checkpoints" in file or file.startswith(("trained", EVALUATION)), f"no command reads {file}"


def resume_warnings(stopped: Path, folder: Path, file: str, content: bytes | None) -> list[str]:
    """Damage a file of a copy of the run, and return the warnings of resuming it."""
    shutil.copytree(stopped, folder, symlinks=True)
    damage(folder / file, content)
    return [line for line in Run.resume(folder).warnings if "uninterrupted" not in line]


def test_resuming_moves_damaged_lines_and_says_which_steps_are_lost(stopped: Path, tmp_path: Path) -> None:
    lines = (stopped / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    steps = [record["step"] for record in read_metrics(stopped, "train")]
    assert steps == [1, 2]
    broken = b"".join(b'{"half\n' if b'"step": 2, "kind": "train"' in line else line for line in lines)
    moved, lost = resume_warnings(stopped, tmp_path / "run", "metrics.jsonl", broken)
    assert "metrics.jsonl.damaged" in moved
    assert (tmp_path / "run" / "metrics.jsonl.damaged").read_bytes() == b'{"half\n'
    assert "metrics.jsonl" in lost
    assert "step 2" in lost
    assert [record["step"] for record in read_metrics(tmp_path / "run", "train")] == [1]
    health = b'{"step": 1}\n' + (stopped / "health.jsonl").read_bytes()
    (moved,) = resume_warnings(stopped, tmp_path / "other", "health.jsonl", health)
    assert "health.jsonl.damaged" in moved


@pytest.mark.parametrize(
    ("file", "keep", "named"),
    [("tasks.jsonl", 0.0, "tasks.jsonl"), ("tasks.jsonl", 0.5, "tasks.jsonl"), ("metrics.jsonl", 0.0, "metrics.jsonl")],
)
def test_resuming_says_that_a_file_has_lost_lines(
    file: str, keep: float, named: str, stopped: Path, tmp_path: Path
) -> None:
    content = (stopped / file).read_bytes()
    warnings = resume_warnings(stopped, tmp_path / "run", file, content[: int(len(content) * keep)])
    assert warnings
    assert all(named in line for line in warnings)


@pytest.mark.parametrize("name", ["metrics.jsonl", "tasks.jsonl", "trajectories", "trained", "evaluations"])
def test_resuming_says_what_was_deleted(name: str, stopped: Path, tmp_path: Path) -> None:
    shutil.copytree(stopped, tmp_path / "run", symlinks=True)
    deleted = tmp_path / "run" / name
    if name == "trained" and not list(deleted.iterdir()):
        pytest.fail("no step was trained")
    shutil.rmtree(deleted) if deleted.is_dir() else deleted.unlink()
    (warning,) = (line for line in Run.resume(tmp_path / "run").warnings if "uninterrupted" not in line)
    assert warning.startswith(f"{deleted} has lost ")


def test_resuming_keeps_an_evaluation_that_has_lost_its_report(stopped: Path, tmp_path: Path) -> None:
    shutil.copytree(stopped, tmp_path / "run", symlinks=True)
    report = tmp_path / "run" / EVALUATION / "report.json"
    report.unlink()
    (warning,) = (line for line in Run.resume(tmp_path / "run").warnings if "uninterrupted" not in line)
    assert str(report.parent) in warning
    assert (report.parent / "episodes.jsonl").is_file()


def test_a_config_that_has_lost_keys_is_not_read_as_another_config(stopped: Path, tmp_path: Path) -> None:
    from understudy.core.errors import ConfigError
    from understudy.runs.run import read_run_config
    from understudy.runs.targets import resolve

    folder = tmp_path / "run"
    shutil.copytree(stopped, folder, symlinks=True)
    file, whole = folder / "config.toml", (folder / "config.toml").read_text()
    for part in ("", "# a comment\n", whole[: whole.index("[limits]")]):
        file.write_text(part)
        for read in (read_run_config, Run.resume, lambda path: resolve([str(path)])):
            with pytest.raises(ConfigError, match=r"config\.toml.*lost"):
                read(folder)
    file.write_text(dump_toml(read_run_config(stopped).replace(save_every=7)))
    resumed = Run.resume(folder)
    assert resumed.config.save_every == 7
    assert any("config.toml" in line for line in resumed.warnings)
    file.unlink()
    for read in (Run.resume, lambda path: resolve([str(path)])):
        with pytest.raises(ConfigError, match=r"config\.toml is missing; .*--out"):
            read(folder)


@pytest.mark.slow
def test_equal_runs_have_byte_equal_checkpoints_and_models(tiny: Path, tmp_path: Path) -> None:
    for name, settings in {
        "full": ("algorithm.kl_coef=0.1",),
        "lora": ("engine.finetune=lora", "engine.train_embeddings=false", "algorithm.kl_coef=0.1"),
    }.items():
        contents = []
        for number in range(2):
            run = Run.create(
                tmp_path / f"{name}-{number}", tiny_config(tiny, *settings, "sft.steps=1", "steps=1", "eval.tasks=1")
            )
            train(run.config, run, ignore_progress)
            assert all(find_damage(folder) is None for _, folder in list_checkpoints(run.folder))
            files = [path for part in ("checkpoints", "model") for path in sorted((run.folder / part).rglob("*"))]
            contents.append({str(f.relative_to(run.folder)): f.read_bytes() for f in files if f.is_file()})
        assert len(contents[0]) > 5
        assert contents[0].keys() == contents[1].keys()
        assert [name for name in contents[0] if contents[0][name] != contents[1][name]] == []


def test_checkpoint_at_the_end_of_a_phase_has_no_moments(tiny: Path, tmp_path: Path) -> None:
    """The next phase begins without them."""
    from safetensors import safe_open

    settings = ("sft.steps=2", "steps=1", "save_every=1", "keep_checkpoints=3", "eval.tasks=1")
    run = Run.create(tmp_path / "run", tiny_config(tiny, *settings))
    train(run.config, run, ignore_progress)
    has_moments = {}
    for step, folder in list_checkpoints(run.folder):
        with safe_open(folder / "optimizer.safetensors", framework="np") as file:
            has_moments[step] = any(name.startswith("exp_avg") for name in file.keys())  # noqa: SIM118
    assert has_moments == {1: True, 2: False, 3: True}


def test_metadata_of_a_checkpoint_is_one_entry(tiny: Path, tmp_path: Path) -> None:
    """Several entries are written in a random order, which two runs in one process may share."""
    from safetensors import safe_open

    run = Run.create(tmp_path / "run", tiny_config(tiny, "algorithm.kl_coef=0.1", "sft.steps=0", "steps=1"))
    train(run.config, run, ignore_progress)
    assert run.last_checkpoint is not None
    with safe_open(run.last_checkpoint / "optimizer.safetensors", framework="pt") as file:
        assert len(file.metadata()) == 1
