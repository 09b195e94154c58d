"""Test experiment trackers: the real libraries store what was sent, and a failing tracker does not stop a run."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from support import trackers_venv
from understudy.runs.config import TrainConfig
from understudy.runs.run import Run
from understudy.runs.trackers import TrackerProcesses, TrackingConfig

ROOT = Path(__file__).parents[2]
SECRET = "0123456789abcdef0123456789abcdef01234567"
LINES: list[dict[str, float | None]] = [
    {"step": 0, "eval/toy/success_rate": 0.25},
    {"step": 1, "rollout/reward": 0.5, "rollout/replies/malformed/json": 0.125, "lost": None},
    {"step": 1, "eval/toy/success_rate": 0.5},
    {"step": 2, "rollout/reward": 0.75, "lost": None},
    {"step": 3, "rollout/reward": 1.0, "lost": None},
]
DRIVER = """
import json, sys
from pathlib import Path
from understudy.runs.trackers import TrackerProcesses, TrackingConfig
folder, names, lines = Path(sys.argv[1]), json.loads(sys.argv[2]), json.loads(sys.argv[3])
tracking = TrackingConfig(project="proving", offline=True)
trackers = TrackerProcesses(names, tracking, folder, {"seed": 7, "sft": {"steps": 3}})
with (folder / "metrics.jsonl").open("a") as f:
    for line in lines:
        f.write(json.dumps(line) + "\\n")
print(json.dumps(trackers.close(300)))
"""


def metric_values(metrics: dict[str, Any]) -> dict[str, float]:
    return {k: v for k, v in metrics.items() if k != "step" and v is not None}


@pytest.fixture
def run_in_trackers_venv(tmp_path: Path) -> Any:
    """Return a function that runs code in the trackers' venv, with fake keys and all files under `tmp_path`."""
    python = trackers_venv.install()
    keys = {"WANDB_API_KEY": SECRET, "HF_TOKEN": SECRET, "MLFLOW_TRACKING_TOKEN": SECRET}
    where = {
        "HOME": str(tmp_path),
        "PYTHONPATH": str(ROOT / "src"),
        "MLFLOW_TRACKING_URI": (tmp_path / "mlruns").as_uri(),
        "MLFLOW_ALLOW_FILE_STORE": "true",
        "TRACKIO_DIR": str(tmp_path / "trackio"),
        "HF_HUB_OFFLINE": "1",
    }

    def run(code: str, *arguments: str) -> Any:
        command = [str(python), "-c", code, *arguments]
        done = subprocess.run(
            command, cwd=tmp_path, env=os.environ | keys | where, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run


READERS = {
    "tensorboard": """
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(str(folder / "trackers" / "tensorboard")); events.Reload()
found = {name: [[e.step, e.value] for e in events.Scalars(name)] for name in events.Tags()["scalars"]}
runs = 1
""",
    "mlflow": """
import mlflow
(experiment,) = mlflow.search_experiments(filter_string="name = 'proving'")
all = mlflow.search_runs([experiment.experiment_id], output_format="list")
client, run = mlflow.MlflowClient(), all[0]
assert run.data.params == {"seed": "7", "sft.steps": "3"}, run.data.params
assert run.info.status == "FINISHED"
found = {k: [[m.step, m.value] for m in client.get_metric_history(run.info.run_id, k)] for k in run.data.metrics}
runs = len(all)
""",
    "trackio": """
import sqlite3
rows = sqlite3.connect(folder.parent / "trackio" / "proving.db")
found = {}
for step, metrics in rows.execute("select step, metrics from metrics order by id"):
    for name, value in json.loads(metrics).items():
        found.setdefault(name, []).append([step, value])
runs = rows.execute("select count(distinct run_id) from metrics").fetchone()[0]
""",
    "wandb": """
from wandb.proto import wandb_internal_pb2
def records(data):  # after 7 bytes of wandb's, LevelDB's log: blocks of 32 KiB; a part has a checksum, a length, a type
    at, whole = 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or its last part
            record = wandb_internal_pb2.Record()
            record.ParseFromString(whole)
            yield record
            whole = b""
found, ids = {}, set()
for path in sorted((folder / "trackers" / "wandb").glob("offline-run-*/*.wandb")):
    for record in records(path.read_bytes()):
        if record.WhichOneof("record_type") == "run":
            ids.add(record.run.run_id)
            assert record.run.project == "proving"
        if record.WhichOneof("record_type") == "history":
            row = {i.key or i.nested_key[0]: json.loads(i.value_json) for i in record.history.item}
            for name, value in row.items():
                if "/" in name:
                    found.setdefault(name, []).append([row["step"], value])
runs = len(ids)
""",
}


@pytest.mark.trackers
@pytest.mark.parametrize("name", READERS)
def test_tracker_stores_each_value_once_and_continues_a_resumed_run(
    tmp_path: Path, run_in_trackers_venv: Any, name: str
) -> None:
    folder = tmp_path / "run-001"
    folder.mkdir()
    assert run_in_trackers_venv(DRIVER, str(folder), json.dumps([name]), json.dumps(LINES[:4])) == []
    kept = [line for line in LINES if line["step"] in (0, 1)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in kept))  # as a resume does
    assert run_in_trackers_venv(DRIVER, str(folder), json.dumps([name]), json.dumps(LINES[3:])) == []
    code = f"import json, sys\nfrom pathlib import Path\nfolder = Path(sys.argv[1])\n{READERS[name]}"
    read = run_in_trackers_venv(f"{code}\nprint(json.dumps([runs, found]))", str(folder))
    expected: dict[str, list[list[float]]] = {}
    for line in LINES:
        for metric, value in metric_values(line).items():
            expected.setdefault(metric, []).append([line["step"], value])  # type: ignore[list-item]
    assert read == [1, expected]
    assert not [path for path in folder.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run.create(tmp_path / "run", TrainConfig())


def test_missing_tracker_library_is_reported_once(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    with TrackerProcesses(["wandb"], TrackingConfig(), run.folder, {}) as trackers:
        run.log_metrics(1, {"a/b": 1.0})
        lines = wait_for_messages(trackers)
        assert trackers.poll() == []
        assert trackers.close() == []
    (line,) = lines
    assert re.search(r"\bwandb\b.*: ModuleNotFoundError: No module named 'wandb'.*'understudy-rl\[wandb\]'", line)
    assert not (run.folder / "trackers" / "wandb.json").exists()


FAILING_TRACKERS = {
    how: f"""
import os, time
class Run:
    taken = 0
    def log(self, metrics, step):
        self.taken += 1
        if self.taken == 2:
            {does}
    def finish(self): pass
def init(*_, **__): return Run()
"""
    for how, does in {
        "hangs": "time.sleep(600)",
        "fails": "raise OSError('no route to ' + os.environ['A_KEY'])",
    }.items()
}


def wait_for_messages(trackers: TrackerProcesses) -> list[str]:
    deadline = time.monotonic() + 120
    while not (lines := trackers.poll()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return lines


@pytest.mark.parametrize("how", ["hangs", "fails"])
def test_tracker_that_hangs_or_fails_is_dropped(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """A module named `trackio` accepts one step only."""
    (tmp_path / "trackio.py").write_text(FAILING_TRACKERS[how])
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{ROOT / 'src'}")
    monkeypatch.setenv("A_KEY", SECRET)
    trackers = TrackerProcesses(["trackio"], TrackingConfig(), run.folder, {})
    state = run.folder / "trackers" / "trackio.json"
    run.log_metrics(1, {"a/b": 1.0})
    deadline = time.monotonic() + 120
    while not state.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert json.loads(state.read_text()) == {"sent": [1, 1]}
    started = time.monotonic()
    run.log_metrics(2, {"a/b": 1.0})
    assert time.monotonic() - started < 60, "nothing waits for it"
    lines = trackers.close(3.0) if how == "hangs" else wait_for_messages(trackers)
    why = r"\b3 s\b" if how == "hangs" else r"OSError: no route to \[A_KEY\]"
    (line,) = lines
    assert re.search(rf"\btrackio\b.*: .*{why}", line)
    assert trackers.close() == []


def test_tracker_that_cannot_start_is_reported(run: Run) -> None:
    (run.folder / "trackers").touch()
    trackers = TrackerProcesses(["wandb"], TrackingConfig(), run.folder, {})
    (line,) = trackers.poll()
    assert re.search(r"\bwandb\b.*: \[Errno 17\] File exists", line)
    assert (trackers.poll(), trackers.close()) == ([], [])


def test_tracker_process_exits_if_its_input_ends() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "understudy.runs.trackers", "wandb"],
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        input="{",
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)


def test_no_tracker_starts_no_process(run: Run) -> None:
    with TrackerProcesses([], TrackingConfig(), run.folder, {}) as trackers:
        assert trackers.poll() == []
    assert not (run.folder / "trackers").exists()
    assert "understudy.runs.trackers.wandb" not in sys.modules
