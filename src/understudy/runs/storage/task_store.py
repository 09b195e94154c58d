"""Store the tasks of stored episodes: `tasks.jsonl` in the folder of a run or an evaluation.

An episode names its task by id. Each task is stored once, before its first episode.
"""

from collections.abc import Iterable
from pathlib import Path

from understudy.core.errors import ConfigError, TaskError
from understudy.core.files import append_bytes, cached_until_changed, fsync, read_bytes, repair_jsonl
from understudy.core.tasks import Task, parse_tasks, task_fingerprint, tasks_to_jsonl

TASKS_FILE = "tasks.jsonl"


class TaskStore:
    """The stored tasks of a folder. A line that a crash cut off is removed; `was_cut_off` says so."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / TASKS_FILE
        self.was_cut_off = repair_jsonl(self._file)
        self._fingerprints = {name: task_fingerprint(task) for name, task in read_stored_tasks(folder).items()}

    def add(self, tasks: Iterable[Task]) -> None:
        """Store the tasks that are not stored yet.

        Raise TaskError if a different task is stored under one of the ids, and OSError if the file cannot be written.
        """
        new: dict[str, Task] = {}
        for task in tasks:
            stored = self._fingerprints.get(task.id)
            if stored not in (None, task_fingerprint(task)):
                raise TaskError(
                    f"{self._file}: task {task.id} differs from the stored one; its domain has changed since this "
                    "folder was started, so start anew with another --out"
                )
            if stored is None:
                new[task.id] = task
                self._fingerprints[task.id] = task_fingerprint(task)
        if new:
            append_bytes(self._file, tasks_to_jsonl(new.values()))
            fsync(self._file)


def read_stored_tasks(folder: Path) -> dict[str, Task]:
    """Return the stored tasks of a folder by id. The result is empty if it has no `tasks.jsonl`.

    An incomplete last line is left out. Raise ConfigError if another line is damaged.
    """
    file = folder / TASKS_FILE
    return _read(file) if file.is_file() else {}


@cached_until_changed(4)
def _read(file: Path) -> dict[str, Task]:
    data = read_bytes(file)
    try:
        return {task.id: task for task in parse_tasks(data[: data.rfind(b"\n") + 1], file)}
    except TaskError as e:
        raise ConfigError(f"{e}; mend or remove that line (a removed task is missing for its episodes)") from e


def validate_same_tasks(folder: Path, tasks: Iterable[Task]) -> None:
    """Raise TaskError if a stored task is missing in `tasks`, or differs from the task with its id."""
    fingerprints = {task.id: task_fingerprint(task) for task in tasks}
    stored = read_stored_tasks(folder)
    changed = [name for name, task in stored.items() if fingerprints.get(name) != task_fingerprint(task)]
    if changed:
        raise TaskError(
            f"{folder / TASKS_FILE}: {len(changed)} of {len(stored)} stored tasks are missing or different now, such "
            f"as {changed[0]}; start anew with another --out"
        )
