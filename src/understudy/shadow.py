"""Shadow: what a process that is not the first of its crew has for a run, in a folder that goes away with it.

It writes there what the first one writes to the run, so that all do the same; of that, checkpoints are empty.
"""

import shutil
from pathlib import Path

from understudy.run import COST, ENVIRONMENT, Run

READ = (ENVIRONMENT, COST, "metrics.jsonl", "evaluations", "tests")
"""What a run reads of itself."""


def shadow(run: Run, folder: Path) -> Run:
    """A run in `folder` as `run` is in its own."""
    copy = Run.create(folder, run.config)
    copy.step, copy.last = run.step, run.last
    for name in READ:
        source = run.folder / name
        if source.is_dir():
            shutil.copytree(source, folder / name, dirs_exist_ok=True)
        elif source.exists():
            shutil.copy(source, folder / name)
    return copy
