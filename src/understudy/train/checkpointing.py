"""Checkpoints of a run: the engine's weights and the progress.

A checkpoint is written while the next step plays its episodes, which changes no weights. A run that stops early writes
a checkpoint from which it can be resumed.
"""

import math
from typing import NoReturn

from understudy.engines.interface import Engine, SavesInBackground
from understudy.evaluation.reports.files import read_report
from understudy.runs.run import Run, list_run_evaluations
from understudy.runs.storage.checkpoints import list_checkpoints
from understudy.train.state import PROGRESS_FILE, TrainingContext, TrainingProgress


def save_checkpoint(context: TrainingContext, progress: TrainingProgress, step: int) -> None:
    """Write a checkpoint after `step`, and remove old ones according to `keep_checkpoints`."""
    finish_checkpoint(context)
    with context.run.write_checkpoint(step) as folder:
        context.engine.save(folder)
        (folder / PROGRESS_FILE).write_text(progress.dump(), encoding="utf-8")
    prune_checkpoints(context)


def start_checkpoint(context: TrainingContext, progress: TrainingProgress, step: int) -> None:
    """Start to write a checkpoint after `step`; `finish_checkpoint` ends it. Other engines write it now."""
    if not isinstance(context.engine, SavesInBackground):
        save_checkpoint(context, progress, step)
        return
    finish_checkpoint(context)
    write_state, stored = context.engine.prepare_save(), progress.dump()

    def write() -> None:
        with context.run.write_checkpoint(step) as folder:
            write_state(folder)
            (folder / PROGRESS_FILE).write_text(stored, encoding="utf-8")

    context.writer.start(step, write)


def finish_checkpoint(context: TrainingContext) -> None:
    """Wait until the checkpoint that is being written is complete, if there is one. Raise ConfigError if it failed."""
    if context.writer.finish():
        prune_checkpoints(context)


def load_checkpoint(run: Run, engine: Engine) -> TrainingProgress:
    """Load the weights of the run's last checkpoint, if there is one, into the engine. Return the progress."""
    if run.last_checkpoint is not None:
        engine.load(run.last_checkpoint)
    return TrainingProgress.load(run)


def stop_run(context: TrainingContext, progress: TrainingProgress, step: int) -> NoReturn:
    """Write a checkpoint after `step` if there is none, and raise as `TrainingContext.raise_stopped` does."""
    finish_checkpoint(context)
    if context.run.step != step:
        save_checkpoint(context, progress, step)
    context.raise_stopped(step)


def prune_checkpoints(context: TrainingContext) -> None:
    """Remove old checkpoints according to `keep_checkpoints`. The best on validation tasks stays."""
    protected = _best_step(context.run) if context.config.eval.split == "validation" else ()
    context.run.prune_checkpoints(context.config.keep_checkpoints, protected)


def _best_step(run: Run) -> list[int]:
    """Return a list with the step that has the highest success rate on held-out tasks.

    Only steps with a checkpoint count. If several steps have the highest rate, the list has the first. It is empty if
    none of these steps was evaluated.
    """
    saved, rates = {step for step, _ in list_checkpoints(run.folder)}, {}
    for evaluation in list_run_evaluations(run.folder):
        if evaluation.step in saved and not evaluation.eval_set:
            rate = read_report(evaluation.folder).agent_rows[-1].result.success_rate.mean
            if not math.isnan(rate):  # NaN if faults ended all episodes
                rates[evaluation.step] = rate
    return [max(rates, key=rates.__getitem__)] if rates else []
