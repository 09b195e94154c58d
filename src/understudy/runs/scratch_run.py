"""Scratch runs: temporary run folders of the processes whose rank is not 0.

Every process writes what rank 0 writes, so that all execute the same code. The checkpoints of scratch runs are empty.
"""

import shutil
from pathlib import Path

from understudy.clients.cost import COST_FILE
from understudy.runs.config import PROVENANCE_FILE
from understudy.runs.run import Run, list_run_evaluations
from understudy.runs.storage.episode_store import REPORT_FILE

COPIED_FILES = (PROVENANCE_FILE, COST_FILE, "metrics.jsonl")
"""Files that a run reads from its own folder. It also reads the reports of its evaluations."""


def make_scratch_run(run: Run, folder: Path) -> Run:
    """Return a run in `folder` with the state of `run`."""
    copy = Run.create(folder, run.config)
    copy.step, copy.last_checkpoint = run.step, run.last_checkpoint
    for name in COPIED_FILES:
        if (run.folder / name).exists():
            shutil.copy(run.folder / name, folder / name)
    for evaluation in list_run_evaluations(run.folder):
        target = folder / "evaluations" / evaluation.name
        target.mkdir()
        shutil.copy(evaluation.folder / REPORT_FILE, target)
    return copy
