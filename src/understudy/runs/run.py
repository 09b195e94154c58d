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
import glob
import itertools
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
from pydantic_core import from_json

from understudy.core.errors import ConfigError, no_such_path
from understudy.core.files import (
    RETRY_HINT,
    append_bytes,
    atomic_file,
    atomic_folder,
    atomic_write,
    cached_until_changed,
    digest_file,
    os_errors_as_config_errors,
    read_bytes,
)
from understudy.core.settings import dump_toml, missing_keys, parse_values, read_text
from understudy.core.trajectory import Trajectory, write_trajectories
from understudy.rollouts.group import Group
from understudy.runs import metrics
from understudy.runs.config import ADDED_KEYS, PROVENANCE_FILE, TrainConfig, load_config
from understudy.runs.metrics import RecordKind
from understudy.runs.phases import has_checkpoint_after
from understudy.runs.provenance import Provenance, collect_provenance, provenance_changes
from understudy.runs.resumption import rename_evaluations, validate_resumed_config
from understudy.runs.storage.checkpoints import (
    LATEST_LINK,
    last_checkpoint,
    link_latest,
    list_checkpoints,
    parse_step,
    step_name,
    write_checkpoint,
)
from understudy.runs.storage.episode_store import REPORT_FILE
from understudy.runs.storage.task_store import TASKS_FILE, TaskStore, read_stored_tasks
from understudy.runs.storage.trained_episodes import TRAINED_FOLDER, EpisodeTrainingData, trained_file

CONFIG_FILE, HEALTH_FILE = "config.toml", "health.jsonl"
DIFF_FILE = "certify.txt"
"""The file in the run's folder with the differences that the last failed certification found."""
MODEL_FOLDER = "model"
"""Folder of the trained model in a run, and of the exported model in a checkpoint of SkyRL."""
_STARTS = TypeAdapter(Annotated[list[Provenance], Field(min_length=1)])
_EVALUATION = re.compile(r"\d{6,} (?P<stage>step \d+|\S+)(?: (?P<eval_set>\S+))?")
"""Name of the folder of an evaluation: its step, the name of the weights, and that of the eval set, if it has one."""
_MAX_NAMED = 8
"""The largest number of damaged lines that a warning names."""
_RECORD_KEYS = {metrics.METRICS_FILE: ("kind",), HEALTH_FILE: ("check", "text", "remedy")}
"""Keys, besides `step`, that each record of a file has. Their values are texts."""
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
        self._made: list[Path] = []
        self._new = False
        self._tasks: TaskStore | None = None

    @classmethod
    def create(cls, folder: Path, config: TrainConfig) -> "Run":
        """Create a run in a folder that is missing or empty. Raise ConfigError if the folder has content."""
        with os_errors_as_config_errors(folder, "give another --out"):
            validate_new_folder(folder)
            created = [path for path in folder.parents if not path.exists()]
            folder.mkdir(parents=True, exist_ok=True)
            for name in _BY_STEP:
                (folder / name).mkdir()  # if two processes create the same run, one fails here
            atomic_write(folder / CONFIG_FILE, dump_toml(config))
            run = cls(folder, config)
            run._new, run._made = True, created
            run._record_provenance()
        return run

    @classmethod
    def resume(cls, folder: Path, config: TrainConfig | None = None) -> "Run":
        """Open a run to resume it from its last complete checkpoint. Remove what was written after that checkpoint.

        `config` may differ from the run's config in `resumption.MUTABLE_KEYS`. Raise ConfigError for other
        differences, and if the checkpoints of a run are gone.
        """
        stored = read_run_config(folder)
        _starts(folder)
        run = cls(folder, config or stored)
        run._find_checkpoint()
        if run.last_checkpoint is None:
            _validate_never_saved(folder, stored)
        validate_resumed_config(folder, stored, run.config, run.step)
        if _has_changed_config(folder):
            run.warnings.append(f"{folder / CONFIG_FILE} was edited since the last start; its new values are used")
        with run._writing():
            for name in _BY_STEP:
                (folder / name).mkdir(exist_ok=True)  # a copy of a run may lack empty folders
            rename_evaluations(folder, run.config)
            if run.config.steps != stored.steps:
                for path in folder.glob("result.*"):  # the result of the old last step
                    path.unlink()
            if run.config != stored:
                atomic_write(folder / CONFIG_FILE, dump_toml(run.config))
            if (folder / TASKS_FILE).exists():
                run._tasks = TaskStore(folder)
            run._drop_later_steps()
            run._record_provenance()
        run._warn_of_lost_records()
        return run

    def store_config(self, config: TrainConfig) -> None:
        """Replace the config with which the run was started now."""
        self.config = config
        with self._writing():
            atomic_write(self.folder / CONFIG_FILE, dump_toml(config))
            *earlier, now = _starts(self.folder)
            self._write_starts([*earlier, now.replace(config_sha256=digest_file(self.folder / CONFIG_FILE))])

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

    def checkpoint_folder(self, step: int) -> Path:
        """Return the folder of the checkpoint that this run writes after a step."""
        return self.folder / "checkpoints" / step_name(step)

    @contextlib.contextmanager
    def write_checkpoint(self, step: int) -> Iterator[Path]:
        """Yield a temporary folder to save the checkpoint of a step to.

        It becomes the last checkpoint if the block succeeds.
        """
        final = self.checkpoint_folder(step)
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
        """Remove a new run that stores nothing but its config, and the folders that were made for it."""
        stored = (path for name in _BY_STEP for path in (self.folder / name).iterdir())
        is_empty = self.last_checkpoint is None and not read_metrics(self.folder) and not any(stored)
        if self._new and is_empty and not (self.folder / DIFF_FILE).exists():
            shutil.rmtree(self.folder, ignore_errors=True)
            with contextlib.suppress(OSError):  # one of them has other content
                for path in self._made:
                    path.rmdir()

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
        seeds = {"seed": self.config.seed, "eval.seed": self.config.eval.seed}
        now = collect_provenance(seeds).replace(config_sha256=digest_file(self.folder / CONFIG_FILE))
        if starts and (changed := provenance_changes(starts[-1], now)):
            self.warnings.append(f"the results may differ from those of an uninterrupted run: {'; '.join(changed)}")
        self._write_starts([*starts, now])

    def _write_starts(self, starts: list[Provenance]) -> None:
        atomic_write(self.folder / PROVENANCE_FILE, _STARTS.dump_json(starts, indent=1).decode() + "\n")

    def _find_checkpoint(self) -> None:
        self.last_checkpoint, self.warnings = last_checkpoint(self.folder)
        self.step = (parse_step(self.last_checkpoint) or 0) if self.last_checkpoint else 0
        if self.last_checkpoint is None:
            self.warnings.append(f"{self.folder} has no checkpoint yet; the run restarts from step 0")

    def _drop_later_steps(self) -> None:
        """Remove what the run wrote after the checkpoint, and what is incomplete. Keep files of other names."""
        for name in (metrics.METRICS_FILE, HEALTH_FILE):
            if (self.folder / name).exists():
                self._drop_later_lines(name)
        evaluated = {record["step"] for record in read_metrics(self.folder, "eval")}
        for path in [path for name in _BY_STEP for path in (self.folder / name).glob("*")]:
            step = parse_step(path)
            if step is not None and step <= self.step and _is_unfinished_evaluation(path) and step in evaluated:
                self.warnings.append(f"{path} has lost its {REPORT_FILE}; the results of the run are without it")
            elif _is_incomplete(path) or (step is not None and step > self.step):
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        if self.last_checkpoint:
            link_latest(self.last_checkpoint)

    def _drop_later_lines(self, name: str) -> None:
        """Remove the lines after the checkpoint. Damaged lines are moved to another file.

        An unreadable last line without a line end is removed, because a crash cut it off.
        """
        file = self.folder / name
        lines = list(_lines(file))
        damaged = [line.number for line in lines if line.record is None and not line.is_cut_off]
        if damaged:
            moved = file.with_name(f"{name}.damaged")
            append_bytes(moved, b"".join(lines[number - 1].data + b"\n" for number in damaged))
            numbers = ", ".join(map(str, damaged[:_MAX_NAMED])) + (", …" if len(damaged) > _MAX_NAMED else "")
            self.warnings.append(f"{file}: {len(damaged)} damaged lines ({numbers}) are moved to {moved.name}")
        kept = [line.data for line in lines if line.record is not None and line.record["step"] <= self.step]
        atomic_write(file, b"".join(line + b"\n" for line in kept))

    def _warn_of_lost_records(self) -> None:
        """Warn if files lack records of steps and evaluations that came before the checkpoint."""
        logged = {record["step"]: record for record in read_metrics(self.folder, "train")}
        rl_steps = [step for step in logged if step > self.config.steps_before_rl]
        trained_steps = [step for step in rl_steps if "train/loss" in logged[step]]
        if self.config.engine.kind == "skyrl":  # it stores none
            trained_steps = []
        evaluated = [record["step"] for record in read_metrics(self.folder, "eval")]
        for name, what, due, found in (
            (metrics.METRICS_FILE, "metrics", range(1, self.step + 1), logged),
            ("trajectories", "episodes", rl_steps, episode_files(self.folder)),
            (TRAINED_FOLDER, "training data", trained_steps, _steps_in(self.folder / TRAINED_FOLDER)),
            ("evaluations", "evaluations", evaluated, _steps_in(self.folder / "evaluations")),
        ):
            if lost := [step for step in due if step not in found]:
                steps = f"{len(lost)} of {len(due)} steps, such as step {lost[0]}"
                self.warnings.append(f"{self.folder / name} has lost the {what} of {steps}")
        if self._tasks and self._tasks.was_cut_off:
            self.warnings.append(f"{self.folder / TASKS_FILE}: the last line was cut off and is removed")
        tasks = read_stored_tasks(self.folder)
        rl_files = [file for step, file in episode_files(self.folder).items() if step > self.config.steps_before_rl]
        ids = {file.name: set(itertools.islice(_task_ids(file), 1)) for file in rl_files}
        for file in rl_files[-1:]:  # the last tasks are lost first
            ids[file.name] = set(_task_ids(file))
        if without := [name for name, found in ids.items() if found - tasks.keys()]:
            files = f"{len(without)} of {len(rl_files)} files of episodes, such as {without[0]}"
            self.warnings.append(f"{self.folder / TASKS_FILE} has lost tasks of {files}")


def is_run_folder(folder: Path) -> bool:
    """Return whether the folder holds a run, even one whose config is lost. Raise ConfigError if it cannot be read."""
    try:
        return any((folder / name).is_file() for name in (CONFIG_FILE, PROVENANCE_FILE))
    except PermissionError as e:
        raise ConfigError(f"{folder} cannot be read ({e.strerror}); fix that, then {RETRY_HINT}") from e


def read_run_config(folder: Path) -> TrainConfig:
    """Return the config of a run. Raise ConfigError if the folder holds none, or a damaged one."""
    if not is_run_folder(folder):
        why = f"it has no {CONFIG_FILE}" if folder.exists() else no_such_path(str(folder))
        raise ConfigError(f"{folder} is not a run: {why}")
    validate_config_file(folder)
    file = folder / CONFIG_FILE
    # The config of a run that has not started may change twice within a tick of the file system's clock.
    return _load_started(file) if (folder / PROVENANCE_FILE).is_file() else load_config(file)


@cached_until_changed(256)
def _load_started(file: Path) -> TrainConfig:
    return load_config(file)


def validate_config_file(folder: Path) -> None:
    """Raise ConfigError if the config file of a run has lost keys since the last start of the run.

    A key that is missing has its default, so a file that is cut off would be read as another config.
    """
    file = folder / CONFIG_FILE
    remedy = "restore it from a copy, or start a new run with another --out"
    if not file.exists():
        raise ConfigError(f"{file} is missing; {remedy}")
    text = read_text(file)
    if text.strip() and not _has_changed_config(folder):
        return
    added = {f"{section}.{key}" for section, keys in ADDED_KEYS.items() for key in keys}
    if lost := [key for key in missing_keys(load_config(file), parse_values(text, str(file))) if key not in added]:
        raise ConfigError(f"{file} is damaged: it has lost {len(lost)} keys, such as {lost[0]!r}; {remedy}")


def _validate_never_saved(folder: Path, config: TrainConfig) -> None:
    """Raise ConfigError if a run without checkpoints has records that it can only have after its first checkpoint."""
    trained = {record["step"]: record for record in read_metrics(folder, "train")}
    evaluated = {evaluation.step for evaluation in list_run_evaluations(folder)}
    last = max(trained, default=0)
    # A step is recorded before its checkpoint, so a killed run may lack that of its last step.
    was_due = any(
        has_checkpoint_after(config, step) and not record.get("health/finite")
        for step, record in trained.items()
        if step < last
    )
    was_finished = config.total_steps > 0 and any((folder / name).exists() for name in ("result.json", MODEL_FOLDER))
    if was_due or was_finished or any(evaluated) or (folder / "checkpoints" / LATEST_LINK).is_symlink():
        raise ConfigError(
            f"{folder} has records of {max([last, *evaluated])} steps but no checkpoint; restore "
            f"{folder / 'checkpoints'} from a copy, or start a new run with another --out"
        )


def _has_changed_config(folder: Path) -> bool:
    """Return whether the config file differs from that of the run's last start, as far as this is known."""
    try:
        recorded = _STARTS.validate_json((folder / PROVENANCE_FILE).read_bytes())[-1].config_sha256
    except (OSError, ValidationError):
        return False
    return bool(recorded) and recorded != digest_file(folder / CONFIG_FILE)


def read_metrics(folder: Path, kind: RecordKind | None = None) -> list[dict[str, Any]]:
    """Return the metrics of each step, in the order in which the steps were first recorded.

    Without `kind`, the records of training and evaluation of a step are merged. Damaged lines are left out.
    """
    by_step: dict[int, dict[str, Any]] = {}
    for line in _lines(folder / metrics.METRICS_FILE):
        if line.record is not None:
            record = dict(line.record)
            if record.pop("kind") == kind or kind is None:
                by_step.setdefault(record["step"], {}).update(record)
    return list(by_step.values())


def read_warnings(folder: Path) -> list[dict[str, Any]]:
    """Return a run's health warnings in order: `step`, `check`, `text` and `remedy`. Damaged lines are left out."""
    return [line.record for line in _lines(folder / HEALTH_FILE) if line.record is not None]


def list_damaged_lines(folder: Path) -> list[str]:
    """Return one text for each file of records that has damaged lines, with the numbers of lines."""
    problems = []
    for name in (metrics.METRICS_FILE, HEALTH_FILE):
        damaged = [str(line.number) for line in _lines(folder / name) if line.record is None and not line.is_cut_off]
        if damaged:
            problems.append(f"{folder / name}: damaged lines are left out: {', '.join(damaged[:_MAX_NAMED])}")
    return problems


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
    files = {parse_step(path): path for path in sorted((folder / "trajectories").glob("step_*.jsonl"))}
    return {step: path for step, path in files.items() if step is not None}


def _steps_in(folder: Path) -> set[int | None]:
    """Return the steps in the names of a folder's files and folders."""
    return {parse_step(path) for path in folder.iterdir()}


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
    evaluations = [(path.parent, parse_step(path.parent)) for path in reports]
    return [RunEvaluation(path, step) for path, step in evaluations if step is not None]


def eval_set_of(name: str) -> str:
    """Return the name of the eval set in the name of an evaluation's folder; empty for held-out tasks."""
    match = _EVALUATION.fullmatch(name)
    return (match["eval_set"] or "") if match else ""


def find_run(evaluation: Path) -> Path | None:
    """Return the run that an evaluation's folder belongs to, or None."""
    parent = evaluation.absolute().parent
    return parent.parent if parent.name == "evaluations" and is_run_folder(parent.parent) else None


def _is_incomplete(path: Path) -> bool:
    """Return whether a run did not finish a file or folder. A copied run may have a folder in place of its link."""
    is_evaluation = parse_step(path) is not None and _is_unfinished_evaluation(path)
    return is_evaluation or path.suffix == ".partial" or path.name == LATEST_LINK


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
    taken = {path.name for path in root.glob(f"{glob.escape(name)}-*")}
    return root / next(f"{name}-{i:03}" for i in range(1, len(taken) + 2) if f"{name}-{i:03}" not in taken)


@dataclass(frozen=True)
class _Line:
    """A line of metrics.jsonl or health.jsonl."""

    number: int
    """The number of the line, from 1."""
    data: bytes
    """The line without its end."""
    record: dict[str, Any] | None
    """The record, with its `step` and the keys of `_RECORD_KEYS`; None if the line is damaged."""
    is_cut_off: bool = False
    """True if the line has no end."""


def _lines(file: Path) -> Iterator[_Line]:
    """Yield the lines of metrics.jsonl or health.jsonl; none if there is no such file."""
    *lines, rest = read_bytes(file).split(b"\n") if file.exists() else [b""]
    for number, line in enumerate([*lines, rest] if rest else lines, 1):
        try:
            record = from_json(line)
        except ValueError:
            record = None
        yield _Line(number, line, record if _is_record(record, file.name) else None, number > len(lines))


def _task_ids(file: Path) -> Iterator[str]:
    """Yield the task ids of the episodes in a file up to the first that cannot be read."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError), file.open("rb") as lines:
        for line in lines:
            yield str(from_json(line)["task_id"])


def _is_record(record: Any, name: str) -> bool:
    """Return whether a value is a record of the file of this name."""
    if not isinstance(record, dict) or type(record.get("step")) is not int:
        return False
    return all(isinstance(record.get(key), str) for key in _RECORD_KEYS[name])


def _finite(value: Any) -> Any:
    """Return the value, or None for infinity and NaN, which JSON does not have."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
