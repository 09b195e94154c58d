"""Weights & Biases. It reads WANDB_API_KEY, WANDB_BASE_URL and WANDB_MODE of the environment."""

import wandb

from understudy.trackers.options import About
from understudy.trackers.sink import Sink


def start(about: About) -> Sink:
    """The run of this id, new or gone on with."""
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
    run.define_metric("*", step_metric="step")  # its own step only rises, and a resumed run's may be sent again
    return Sink(lambda step, metrics: run.log({"step": step, **metrics}), run.finish)
