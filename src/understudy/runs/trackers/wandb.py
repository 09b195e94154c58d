"""Weights & Biases. Its client reads WANDB_API_KEY, WANDB_BASE_URL and WANDB_MODE from the environment."""

import wandb

from understudy.runs.trackers.config import TrackerRunInfo
from understudy.runs.trackers.sink import MetricSink


def start_tracker(about: TrackerRunInfo) -> MetricSink:
    """Continue or start the wandb run with this id."""
    how = about.tracking
    run = wandb.init(
        project=how.project,
        entity=how.entity or None,
        id=about.id,
        name=about.name,
        dir=str(about.folder / "trackers"),
        config=about.config,
        mode="offline" if how.offline else None,
        resume="allow",
        save_code=False,
        settings=wandb.Settings(console="off"),
    )
    run.define_metric("step")
    run.define_metric("*", step_metric="step")  # wandb's own step cannot decrease, as it may in a resumed run
    return MetricSink(lambda step, metrics: run.log({"step": step, **metrics}), run.finish)
