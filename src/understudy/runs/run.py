"""Run: the folder of a training run. Files and checkpoints are written atomically.

    runs/retail-001/
      config.toml                        the config
      provenance.json                    for each start: versions, machine, git commits and seeds
      metrics.jsonl                      a record for each step, then one for its evaluation, if it has one
      health.jsonl                       warnings: step, check, text, remedy; for exceptions of user code
                                         also their place and traceback
      status.json                        whether the run runs, what it does, and how it ended
      notes.jsonl                        notes and tags of the run and its episodes, from the viewer
      cost.jsonl                         the cost of each paid request to an endpoint (users, judge), of all starts
      tasks.jsonl                        the tasks of the episodes in trajectories/, each once
      trajectories/step_000010.jsonl     the episodes of a step, or the conversations of a step on preferences
      trained/step_000010.jsonl          what they were trained with: reward, advantages, the trainer's logprobs
      evaluations/000010 sft/            an evaluation after a step, in the layout of `evaluation.runner`
      evaluations/000010 sft ood/        an evaluation on the domains of `eval.ood_domains`
      evaluations/000010 sft NAME/       an evaluation on a test set of `data.tests`
      checkpoints/step_000010/           files of the engine and of the trainer, and manifest.json, written last
      checkpoints/latest                 a link to the last checkpoint
      demonstrations.sha256              the digest of the file of demonstrations, if there is one
      preferences.sha256                 the digest of the file of preferences, if there is one
      task_files.sha256                  the digests of the files of tasks, if there are any
      model/                             the trained model (for LoRA its adapters), for transformers and peft
      result.json  result.md             the result table
      certify.txt                        the difference of sampler and trainer, if a certification failed
      skyrl/                             the output of SkyRL, if it trains (its checkpoints hold `skyrl/` and `model/`)
      trackers/                          the last record sent to each tracker, and files of trackers

A failed write (a full disk, a read-only folder) raises ConfigError and leaves the files as they were.
"""

import contextlib
import json
import math
import re
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from understudy.core.errors import ConfigError, no_such_path
from understudy.core.files import append_bytes, atomic_file, atomic_folder, atomic_write, os_errors_as_config_errors
from understudy.core.settings import dump_toml
from understudy.core.trajectory import Trajectory, write_trajectories
from understudy.rollouts.group import Group
from understudy.runs import metrics
from understudy.runs.config import TrainConfig, load_config
from understudy.runs.metrics import RecordKind
from understudy.runs.provenance import Provenance, collect_provenance, provenance_changes
from understudy.runs.resumption import rename_evaluations, validate_resumed_config
from understudy.runs.storage.checkpoints import (
    last_checkpoint,
    link_latest,
    list_checkpoints,
    parse_step,
    step_name,
    write_checkpoint,
)
from understudy.runs.storage.episode_store import REPORT_FILE
from understudy.runs.storage.task_store import TaskStore
from understudy.runs.storage.trained_episodes import TRAINED_FOLDER, EpisodeTrainingData, trained_file

CONFIG_FILE, HEALTH_FILE, PROVENANCE_FILE = "config.toml", "health.jsonl", "provenance.json"
MODEL_FOLDER = "model"
"""Folder of the trained model in a run, and of the exported model in a checkpoint of SkyRL."""
_STARTS = TypeAdapter(Annotated[list[Provenance], Field(min_length=1)])
_EVALUATION = re.compile(r"\d{6,} (?P<stage>step \d+|\S+)(?: (?P<eval_set>\S+))?")
"""Name of the folder of an evaluation: its step, the name of the weights, and that of the eval set, if it has one."""
_BY_STEP = ("trajectories", TRAINED_FOLDER, "evaluations", "checkpoints")


@dataclass(frozen=True)
class RunEvaluation:
    """A finished evaluation of a run."""

    folder: Path
    step: int
    """Step after which the weights were evaluated; 0 before the first."""

    @property
    def name(self) -> str:
        """Name of the folder, such as `000010 sft` or `000010 sft ood`."""
        return self.folder.name

    @property
    def eval_set(self) -> str:
        """Name of the eval set: `ood`, or that of a test set of `data.tests`; empty for held-out tasks."""
        return eval_set_of(self.name)

    @property
    def stage(self) -> str:
        """Name of the evaluated weights, such as `sft`."""
        match = _EVALUATION.fullmatch(self.name)
        return match["stage"] if match else self.name


class Run:
    """The folder of a run, to write to.

    `step` is the step of the last checkpoint (0 if there is none), `last_checkpoint` its folder. `warnings` lists what
    `resume` found damaged, missing or changed.
    """

    def __init__(self, folder: Path, config: TrainConfig) -> None:
        self.folder, self.config = folder, config
        self.step = 0
        self.last_checkpoint: Path | None = None
        self.warnings: list[str] = []
        self._new = False
        self._tasks: TaskStore | None = None

    @classmethod
    def create(cls, folder: Path, config: TrainConfig) -> "Run":
        """Create a run in a folder that is missing or empty. Raise ConfigError if the folder has content."""
        with os_errors_as_config_errors(folder, "give another --out"):
            validate_new_folder(folder)
            folder.mkdir(parents=True, exist_ok=True)
            for name in _BY_STEP:
                (folder / name).mkdir()  # if two processes create the same run, one fails here
            atomic_write(folder / CONFIG_FILE, dump_toml(config))
            run = cls(folder, config)
            run._new = True
            run._record_provenance()
        return run

    @classmethod
    def resume(cls, folder: Path, config: TrainConfig | None = None) -> "Run":
        """Open a run to resume it from its last complete checkpoint. Remove what was written after that checkpoint.

        `config` may differ from the run's config in `resumption.MUTABLE_KEYS`. Raise ConfigError for other
        differences.
        """
        own = read_run_config(folder)
        _starts(folder)
        run = cls(folder, config or own)
        run._find_checkpoint()
        validate_resumed_config(folder, own, run.config, run.step)
        with run._writing():
            for name in _BY_STEP:
                (folder / name).mkdir(exist_ok=True)  # a copy of a run may lack empty folders
            rename_evaluations(folder, run.config)
            if run.config.steps != own.steps:
                for path in folder.glob("result.*"):  # the result of the old last step
                    path.unlink()
            if run.config != own:
                atomic_write(folder / CONFIG_FILE, dump_toml(run.config))
            run._drop_later_steps()
            run._record_provenance()
        return run

    def log_metrics(self, step: int, values: Mapping[str, Any], kind: RecordKind = "train") -> None:
        """Append a record of metrics in one write."""
        record = {"step": step, "kind": kind, **{name: _finite(value) for name, value in values.items()}}
        self._append(metrics.METRICS_FILE, record)

    def log_warning(self, step: int, warning: Mapping[str, str]) -> None:
        """Append a health warning of a step."""
        self._append(HEALTH_FILE, {"step": step, **warning})

    def save_groups(self, step: int, groups: Sequence[Group]) -> None:
        """Write the episodes of a step, and their tasks if they are not stored yet."""
        with self._writing():
            self._tasks = self._tasks or TaskStore(self.folder)
            self._tasks.add(group.task for group in groups)
        self.save_episodes(step, [episode for group in groups for episode in group.episodes])

    def save_episodes(self, step: int, episodes: Iterable[Trajectory]) -> None:
        """Write the episodes of a step without tasks, such as conversations of a file."""
        path = self.folder / "trajectories" / f"{step_name(step)}.jsonl"
        with self._writing(), atomic_file(path) as partial:
            write_trajectories(partial, episodes)

    def save_trained_episodes(self, step: int, episodes: Sequence[EpisodeTrainingData]) -> None:
        """Write the rewards, advantages and log-probabilities that the episodes of a step were trained with."""
        text = "".join(episode.model_dump_json(exclude_defaults=True) + "\n" for episode in episodes)
        with self._writing():
            atomic_write(trained_file(self.folder, step), text)

    def evaluation_folder(self, step: int, stage: str, eval_set: str = "") -> Path:
        """Return the folder of an evaluation of the weights after `step`. The set of held-out tasks has no name."""
        return self.folder / "evaluations" / " ".join(filter(None, (f"{step:06}", stage, eval_set)))

    @contextlib.contextmanager
    def write_checkpoint(self, step: int) -> Iterator[Path]:
        """Yield a temporary folder to save the checkpoint of a step to.

        It becomes the last checkpoint if the block succeeds.
        """
        final = self.folder / "checkpoints" / step_name(step)
        with self._writing(), write_checkpoint(final, step) as partial:
            yield partial
        self.step, self.last_checkpoint = step, final

    def prune_checkpoints(self, num_last: int, protected_steps: Collection[int]) -> None:
        """Remove all checkpoints except the last `num_last` and those of `protected_steps`. 0 keeps all."""
        for step, path in list_checkpoints(self.folder)[:-num_last] if num_last else ():
            if step not in protected_steps:
                with self._writing():  # renamed first, so that a partly removed checkpoint has another name
                    shutil.rmtree(path.rename(path.with_name(path.name + ".partial")))

    @contextlib.contextmanager
    def write_model(self) -> Iterator[Path]:
        """Yield a temporary folder to write the trained model to. It becomes `model/` if the block succeeds."""
        with self._writing(), atomic_folder(self.folder / MODEL_FOLDER) as partial:
            yield partial

    def write_file(self, name: str, text: str) -> None:
        """Write a text file of the run atomically, such as `result.md`."""
        with self._writing():
            atomic_write(self.folder / name, text)

    def discard(self) -> None:
        """Remove the folder of a new run that has neither a checkpoint nor metrics, to free its name."""
        if self._new and self.last_checkpoint is None and not read_metrics(self.folder):
            shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def created_at(self) -> date:
        """The date of the run's first start.

        Chat templates that print today's date print this date when the run is resumed.
        """
        return _starts(self.folder)[0].started_on

    @property
    def resume_command(self) -> str:
        """The command that resumes this run."""
        return f"understudy train --resume {self.folder}"

    def _writing(self) -> contextlib.AbstractContextManager[None]:
        return os_errors_as_config_errors(self.folder, f"resume with: {self.resume_command}")

    def _append(self, name: str, line: Mapping[str, Any]) -> None:
        """Append a line in one write. The file is unchanged if that fails."""
        with self._writing():
            append_bytes(self.folder / name, (json.dumps(line) + "\n").encode())

    def _record_provenance(self) -> None:
        """Add this start to provenance.json. Warn if versions or devices differ from those of the last start."""
        starts = [] if self._new else _starts(self.folder)
        now = collect_provenance({"seed": self.config.seed, "eval.seed": self.config.eval.seed})
        if starts and (changed := provenance_changes(starts[-1], now)):
            self.warnings.append(f"the results may differ from those of an uninterrupted run: {'; '.join(changed)}")
        atomic_write(self.folder / PROVENANCE_FILE, _STARTS.dump_json([*starts, now], indent=1).decode() + "\n")

    def _find_checkpoint(self) -> None:
        self.last_checkpoint, self.warnings = last_checkpoint(self.folder)
        self.step = (parse_step(self.last_checkpoint) or 0) if self.last_checkpoint else 0
        if self.last_checkpoint is None:
            self.warnings.append(f"{self.folder} has no checkpoint yet; the run restarts from step 0")

    def _drop_later_steps(self) -> None:
        """Remove what was written after the checkpoint, and what is incomplete."""
        for name in (metrics.METRICS_FILE, HEALTH_FILE):
            lines = [line for line, step in _lines(self.folder / name) if step is not None and step <= self.step]
            if (self.folder / name).exists():
                atomic_write(self.folder / name, "".join(line + "\n" for line in lines))
        for path in [path for name in _BY_STEP for path in (self.folder / name).glob("*")]:
            step = parse_step(path)
            if step is None or step > self.step or _is_unfinished_evaluation(path):
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        if self.last_checkpoint:
            link_latest(self.last_checkpoint)


def is_run_folder(folder: Path) -> bool:
    """Return whether the folder holds a run."""
    return (folder / CONFIG_FILE).is_file()


def read_run_config(folder: Path) -> TrainConfig:
    """Return the config of a run. Raise ConfigError if the folder holds none."""
    if not is_run_folder(folder):
        why = f"it has no {CONFIG_FILE}" if folder.exists() else no_such_path(str(folder))
        raise ConfigError(f"{folder} is not a run: {why}")
    return load_config(folder / CONFIG_FILE)


def read_metrics(folder: Path, kind: RecordKind | None = None) -> list[dict[str, Any]]:
    """Return the metrics of each step, in the order in which the steps were first recorded.

    Without `kind`, the records of training and evaluation of a step are merged. Damaged lines are left out.
    """
    found: dict[int, dict[str, Any]] = {}
    for line, step in _lines(folder / metrics.METRICS_FILE):
        if step is not None:
            record = json.loads(line)
            if record.pop("kind") == kind or kind is None:
                found.setdefault(step, {}).update(record)
    return list(found.values())


def read_warnings(folder: Path) -> list[dict[str, Any]]:
    """Return a run's health warnings in order: `step`, `check`, `text` and `remedy`. Damaged lines are left out."""
    return [json.loads(line) for line, step in _lines(folder / HEALTH_FILE) if step is not None]


def _starts(folder: Path) -> list[Provenance]:
    """Return the starts of a run.

    Raise ConfigError if provenance.json is missing, damaged or of another version.
    """
    try:
        return _STARTS.validate_json((folder / PROVENANCE_FILE).read_bytes())
    except (OSError, ValidationError) as e:
        raise ConfigError(
            f"{folder} cannot be resumed: its {PROVENANCE_FILE} is missing, damaged, or from another version of "
            "understudy; start a new run with another --out"
        ) from e


def episode_files(folder: Path) -> dict[int, Path]:
    """Return the files of a run's stored episodes by step, in order."""
    found = {parse_step(path): path for path in sorted((folder / "trajectories").glob("step_*.jsonl"))}
    return {step: path for step, path in found.items() if step is not None}


def episode_file(folder: Path, step: int) -> Path:
    """Return the file of a step's episodes. Raise ConfigError if none are stored."""
    files = episode_files(folder)
    if step not in files:
        stored = ", ".join(map(str, files)) or "none"
        raise ConfigError(f"{folder} stores no episodes of step {step}; stored steps: {stored}")
    return files[step]


def list_run_evaluations(folder: Path) -> list[RunEvaluation]:
    """Return the finished evaluations of a run, in the order of their steps."""
    reports = sorted((folder / "evaluations").glob(f"*/{REPORT_FILE}"))
    found = [(path.parent, parse_step(path.parent)) for path in reports]
    return [RunEvaluation(path, step) for path, step in found if step is not None]


def eval_set_of(name: str) -> str:
    """Return the name of the eval set in the name of an evaluation's folder; empty for held-out tasks."""
    match = _EVALUATION.fullmatch(name)
    return (match["eval_set"] or "") if match else ""


def find_run(evaluation: Path) -> Path | None:
    """Return the run that an evaluation's folder belongs to, or None."""
    parent = evaluation.absolute().parent
    return parent.parent if parent.name == "evaluations" and is_run_folder(parent.parent) else None


def _is_unfinished_evaluation(path: Path) -> bool:
    return path.parent.name == "evaluations" and path.is_dir() and not (path / REPORT_FILE).is_file()


def validate_new_folder(folder: Path) -> None:
    """Raise ConfigError if a new run's folder is a file or has content."""
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} is a file; give another --out")
    if folder.exists() and any(folder.iterdir()):
        what = "holds another run" if (folder / CONFIG_FILE).exists() else "is not empty"
        raise ConfigError(f"{folder} {what}; resume it with --resume {folder}, or give another --out")


def next_run_folder(name: str, root: Path = Path("runs")) -> Path:
    """Return the first of `runs/NAME-001`, `runs/NAME-002`, … that does not exist."""
    taken = {path.name for path in root.glob(f"{name}-*")}
    return root / next(f"{name}-{i:03}" for i in range(1, len(taken) + 2) if f"{name}-{i:03}" not in taken)


def _lines(path: Path) -> Iterator[tuple[str, int | None]]:
    """Yield each line of a JSONL file and its step, None for a damaged line."""
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else ():
        try:
            step = json.loads(line)["step"]
        except (ValueError, KeyError, TypeError):
            step = None
        yield line, step if isinstance(step, int) else None


def _finite(value: Any) -> Any:
    """Return the value, or None for infinity and NaN, which JSON does not have."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
