"""Run: one training run's folder. Everything in it is written whole or not at all.

    runs/retail-001/
      config.toml                        what runs
      environment.json                   what it runs with and on, each time it is started
      metrics.jsonl                      one line a step, all metrics, its evaluation's included
      health.jsonl                       each warning: step, check, what is bad, what to do
      cost.json                          what asking models has cost, however often the run was taken up
      trajectories/step_000010.jsonl     the episodes of a step
      evaluations/000010 warm start.json an evaluation after a step
      tests/000010 warm start.json       the same on the domains that are never trained on, where there are such
      episodes/000010 warm start.jsonl   the episodes of an evaluation; of one in tests/, `… of tests.jsonl`
      checkpoints/step_000010/           what the engine saved, and manifest.json, written last
      checkpoints/latest                 a link to the last one
      demonstrations.sha256              of the file of demonstrations, where the run learns from one
      preferences.sha256                 of the file of preferences, likewise
      model/                             the trained model (for LoRA its adapters), as transformers and peft read it
      result.json  result.md             the result table
      certify.txt                        where sampler and trainer differed, if a certification failed
      skyrl/                             what SkyRL says, where it trains (its checkpoints hold `skyrl/` and `model/`)
      trackers/                          how far each tracker has got, and what those write that keep files

What cannot be written (a full disk, a folder that is read-only) is a `ConfigError`, and leaves everything as it was.
"""

import contextlib
import json
import math
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import date
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from understudy import metrics
from understudy.checkpoints import checkpoints, last_checkpoint, new_checkpoint, point_to, step_name, step_of
from understudy.config import TrainConfig
from understudy.disk import append, whole_file, whole_folder, write_whole, writing
from understudy.errors import ConfigError
from understudy.provenance import Provenance, changes, provenance
from understudy.resumption import refuse_other, rename_evaluations
from understudy.settings import dump, load
from understudy.trajectory import Trajectory, write_trajectories

HEALTH, ENVIRONMENT, COST = "health.jsonl", "environment.json", "cost.json"
MODEL = "model"
"""The trained model, in a run's folder; and the model in a checkpoint of SkyRL's, beside what it goes on from."""
OF_TESTS = " of tests"
"""What the name of an evaluation's episodes ends with where it is one in `tests/`."""
_STARTS = TypeAdapter(list[Provenance])
_BY_STEP = ("trajectories", "evaluations", "tests", "episodes", "checkpoints")


class Run:
    """A run's folder, to write to. `step` is the last checkpoint's (0 before the first), `last` its folder.

    `warnings` says what was damaged or dropped on resuming.
    """

    def __init__(self, folder: Path, config: TrainConfig) -> None:
        self.folder, self.config = folder, config
        self.step = 0
        self.last: Path | None = None
        self.warnings: list[str] = []
        self._new = False

    @classmethod
    def create(cls, folder: Path, config: TrainConfig) -> "Run":
        """A new run in a folder that is not there, or empty; one that holds anything is a `ConfigError`."""
        with writing(folder, "give another --out"):
            refuse_taken(folder)
            folder.mkdir(parents=True, exist_ok=True)
            for name in _BY_STEP:
                (folder / name).mkdir()  # of two that race for a folder, one fails here
            write_whole(folder / "config.toml", dump(config))
            run = cls(folder, config)
            run._new = True
            run._describe()
        return run

    @classmethod
    def resume(cls, folder: Path, config: TrainConfig | None = None) -> "Run":
        """A run to go on with from its last whole checkpoint; what was written after it is dropped.

        A `config` may differ from the run's own in what is `resumption.FREE`; another difference is a `ConfigError`.
        """
        own = read_config(folder)
        run = cls(folder, config or own)
        run._find_checkpoint()
        refuse_other(folder, own, run.config, run.step)
        with run._writing():
            rename_evaluations(folder, run.config)
            if run.config.steps != own.steps:
                for path in folder.glob("result.*"):  # of an end that is none any more
                    path.unlink()
            if run.config != own:
                write_whole(folder / "config.toml", dump(run.config))
            run._forget_later()
            run._describe()
        return run

    def log(self, step: int, values: Mapping[str, Any]) -> None:
        """Append one step's metrics, in one write."""
        self._append(metrics.FILE, {"step": step, **{k: _finite(v) for k, v in values.items()}})

    def warn(self, step: int, warning: Mapping[str, str]) -> None:
        """Append a warning of a step."""
        self._append(HEALTH, {"step": step, **warning})

    def keep(self, step: int, trajectories: Iterable[Trajectory]) -> None:
        """Write one step's episodes."""
        self._keep(self.folder / "trajectories" / f"{step_name(step)}.jsonl", trajectories)

    def keep_evaluation(self, name: str, trajectories: Iterable[Trajectory]) -> None:
        """Write the episodes of an evaluation, such as `000010 warm start`."""
        self._keep(self.folder / "episodes" / f"{name}.jsonl", trajectories)

    def _keep(self, path: Path, trajectories: Iterable[Trajectory]) -> None:
        with self._writing():
            path.parent.mkdir(exist_ok=True)  # a run from before there was such a folder may be gone on with
            with whole_file(path) as partial:
                write_trajectories(partial, trajectories)

    @contextlib.contextmanager
    def checkpoint(self, step: int) -> Iterator[Path]:
        """A folder to save a checkpoint to; it takes its place, whole, when the block ends without an error."""
        final = self.folder / "checkpoints" / step_name(step)
        with self._writing(), new_checkpoint(final, step) as partial:
            yield partial
        self.step, self.last = step, final

    def prune(self, keep: int, spare: Collection[int]) -> None:
        """Remove all checkpoints but the last `keep`, and those of the steps in `spare`; 0 keeps all."""
        for step, path in checkpoints(self.folder)[:-keep] if keep else ():
            if step not in spare:
                with self._writing():  # renamed first, so that half of a checkpoint is never taken for one
                    shutil.rmtree(path.rename(path.with_name(path.name + ".partial")))

    @contextlib.contextmanager
    def model(self) -> Iterator[Path]:
        """A folder to write the trained model to; it takes its place, whole, when the block ends without an error."""
        with self._writing(), whole_folder(self.folder / MODEL) as partial:
            yield partial

    def write(self, name: str, text: str) -> None:
        """Write one file of the run, such as `result.md` or `evaluations/000010 warm start.json`."""
        with self._writing():
            write_whole(self.folder / name, text)

    def withdraw(self) -> None:
        """Remove the folder of a new run that has come to nothing, not to an evaluation, so that its name is free."""
        if self._new and self.last is None and not read_metrics(self.folder):
            shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def began(self) -> date | None:
        """The day of its first start, which templates that tell the date go on telling when it is resumed."""
        return _STARTS.validate_json((self.folder / ENVIRONMENT).read_bytes())[0].day

    @property
    def how_to_resume(self) -> str:
        """The command that goes on with this run."""
        return f"understudy train --resume {self.folder}"

    def _writing(self) -> contextlib.AbstractContextManager[None]:
        return writing(self.folder, f"go on with: {self.how_to_resume}")

    def _append(self, name: str, line: Mapping[str, Any]) -> None:
        """Append a line in one write; where that fails, the file is as before."""
        with self._writing():
            append(self.folder / name, (json.dumps(line) + "\n").encode())

    def _describe(self) -> None:
        """Add this start to environment.json, and warn where it is not on what the last one was on."""
        path = self.folder / ENVIRONMENT
        starts = _STARTS.validate_json(path.read_bytes()) if path.exists() else []
        now = provenance({"seed": self.config.seed, "eval.seed": self.config.eval.seed})
        if starts and (changed := changes(starts[-1], now)):
            self.warnings.append(f"the run may come out otherwise than uninterrupted: {'; '.join(changed)}")
        write_whole(path, _STARTS.dump_json([*starts, now], indent=1).decode() + "\n")

    def _find_checkpoint(self) -> None:
        self.last, self.warnings = last_checkpoint(self.folder)
        self.step = (step_of(self.last) or 0) if self.last else 0
        if self.last is None:
            self.warnings.append(f"{self.folder} has no checkpoint yet; the run starts from its beginning")

    def _forget_later(self) -> None:
        """Drop what was written after the checkpoint, and what was left half-written."""
        last = self.step if self.last else -1
        for name in (metrics.FILE, HEALTH):
            kept = [line for line, step in _lines(self.folder / name) if step is not None and step <= last]
            if (self.folder / name).exists():
                write_whole(self.folder / name, "".join(line + "\n" for line in kept))
        for path in [path for name in _BY_STEP for path in (self.folder / name).glob("*")]:
            step = step_of(path)
            if step is None or step > last:
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        if self.last:
            point_to(self.last)


def read_config(folder: Path) -> TrainConfig:
    """The config of a run."""
    if not (folder / "config.toml").is_file():
        raise ConfigError(f"{folder} is not a run: it has no config.toml")
    return load(TrainConfig, folder / "config.toml")


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The metrics of each step; lines that are damaged are left out."""
    return [json.loads(line) for line, step in _lines(folder / metrics.FILE) if step is not None]


def read_warnings(folder: Path) -> list[dict[str, Any]]:
    """What was wrong with the run's health, in order: step, check, text, remedy."""
    return [json.loads(line) for line, step in _lines(folder / HEALTH) if step is not None]


def episode_files(folder: Path) -> dict[int, Path]:
    """The files of the episodes that a run keeps, by their steps, in order."""
    found = {step_of(path): path for path in sorted((folder / "trajectories").glob("step_*.jsonl"))}
    return {step: path for step, path in found.items() if step is not None}


def episode_file(folder: Path, step: int) -> Path:
    """The file of a step's episodes; a ConfigError where the run keeps none of it."""
    files = episode_files(folder)
    if step not in files:
        kept = ", ".join(map(str, files)) or "none"
        raise ConfigError(f"{folder} keeps no episodes of step {step}; it does of: {kept}")
    return files[step]


def evaluation_files(folder: Path) -> dict[str, Path]:
    """The files of the episodes of a run's evaluations, by the names that they were kept under, in order."""
    found = sorted((folder / "episodes").glob("*.jsonl"), key=lambda path: path.stem)
    return {path.stem: path for path in found if step_of(path) is not None}


def refuse_taken(folder: Path) -> None:
    """A `ConfigError` where the folder of a new run holds anything, or is none."""
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} is a file; give another --out")
    if folder.exists() and any(folder.iterdir()):
        what = "holds another run" if (folder / "config.toml").exists() else "is not empty"
        raise ConfigError(f"{folder} {what}; go on with it by --resume {folder}, or give another --out")


def free_folder(name: str, root: Path = Path("runs")) -> Path:
    """The first of runs/NAME-001, runs/NAME-002, … that is not there."""
    taken = {path.name for path in root.glob(f"{name}-*")}
    return root / next(f"{name}-{i:03}" for i in range(1, len(taken) + 2) if f"{name}-{i:03}" not in taken)


def _lines(path: Path) -> Iterator[tuple[str, int | None]]:
    """Each line of a JSONL file with its step, None where the line is damaged."""
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else ():
        try:
            step = json.loads(line)["step"]
        except (ValueError, KeyError, TypeError):
            step = None
        yield line, step if isinstance(step, int) else None


def _finite(value: Any) -> Any:
    """JSON has no infinities and no NaN."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
