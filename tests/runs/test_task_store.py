"""Test the task store: each task once, valid after a crash, and one task per id."""

from pathlib import Path

import pytest

from support.run_folder import CONFIG, episode
from toy import DOMAIN
from understudy.core.errors import ConfigError, TaskError
from understudy.rollouts.group import Group
from understudy.runs.run import Run
from understudy.runs.storage.task_store import TASKS_FILE, TaskStore, read_stored_tasks, validate_same_tasks

TASKS = DOMAIN.tasks("train")[:4]


def test_task_is_stored_once(tmp_path: Path) -> None:
    TaskStore(tmp_path).add([TASKS[0], TASKS[1], TASKS[0]])
    TaskStore(tmp_path).add(TASKS[1:3])
    assert list(read_stored_tasks(tmp_path).values()) == list(TASKS[:3])
    assert len((tmp_path / TASKS_FILE).read_bytes().splitlines()) == 3
    assert read_stored_tasks(tmp_path / "nowhere") == {}


def test_truncated_line_is_written_again(tmp_path: Path) -> None:
    file = tmp_path / TASKS_FILE
    TaskStore(tmp_path).add(TASKS[:2])
    whole = file.read_bytes()
    file.write_bytes(whole[:-7])
    assert list(read_stored_tasks(tmp_path)) == [TASKS[0].id]
    validate_same_tasks(tmp_path, TASKS[:2])
    TaskStore(tmp_path).add(TASKS[:2])
    assert file.read_bytes() == whole


def test_different_task_with_a_stored_id_is_rejected(tmp_path: Path) -> None:
    TaskStore(tmp_path).add(TASKS[:1])
    other = TASKS[1].replace(id=TASKS[0].id)
    before = (tmp_path / TASKS_FILE).read_bytes()
    with pytest.raises(TaskError, match=TASKS[0].id):
        TaskStore(tmp_path).add([TASKS[2], other])
    for tasks in ([other], TASKS[1:]):
        with pytest.raises(TaskError, match=rf"{TASKS_FILE}: 1 of 1 .*{TASKS[0].id}"):
            validate_same_tasks(tmp_path, tasks)
    assert (tmp_path / TASKS_FILE).read_bytes() == before


def test_damaged_task_line_raises_with_its_number(tmp_path: Path) -> None:
    TaskStore(tmp_path).add(TASKS[:1])
    with (tmp_path / TASKS_FILE).open("ab") as file:
        file.write(b"{}\n")
    with pytest.raises(ConfigError, match=rf"{TASKS_FILE}:2: "):
        read_stored_tasks(tmp_path)


def test_run_stores_tasks_before_their_episodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run.create(tmp_path / "run", CONFIG)
    run.save_groups(1, [Group(task, [episode(task.id)]) for task in TASKS[:2]])
    run.save_groups(2, [Group(task, [episode(task.id)]) for task in TASKS[1:3]])
    assert list(read_stored_tasks(run.folder).values()) == list(TASKS[:3])

    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("understudy.runs.run.write_trajectories", crash)
    with pytest.raises(KeyboardInterrupt):
        run.save_groups(3, [Group(TASKS[3], [episode(TASKS[3].id)])])
    assert TASKS[3].id in read_stored_tasks(run.folder)
    assert not (run.folder / "trajectories" / "step_000003.jsonl").exists()
