"""Compute the steps of a run whose length is given in epochs."""

import itertools
import math

from understudy.core.errors import ConfigError
from understudy.envs.task_source import TaskSource, describe_no_tasks
from understudy.runs.config import TrainConfig


def resolve_epochs(config: TrainConfig) -> tuple[TrainConfig, str]:
    """Return the config with `steps` in place of `epochs`, and a line that says how many; "" if `epochs` is 0.

    Raise ConfigError if the training tasks have no end, or if there are none.
    """
    if not config.epochs:
        return config, ""
    source = config.open_source()
    count = count_train_tasks(source, config.seed)
    groups = config.algorithm.groups_per_batch
    steps = math.ceil(config.epochs * count / groups)
    batches = f"with algorithm.groups_per_batch = {groups}: {steps} steps"
    line = f"epochs = {config.epochs:g} over {count} training tasks, {batches}"
    return config.replace(steps=steps, epochs=0.0), line


def count_train_tasks(source: TaskSource, seed: int) -> int:
    """Return the number of training tasks. Raise ConfigError if the source generates tasks without end, or has none."""
    listed = {task.id for task in source.tasks("train")}
    if not listed:
        raise ConfigError(describe_no_tasks(source, "train"))
    two_epochs = itertools.islice(source.stream("train", seed), 2 * len(listed) + 1)
    if any(task.id not in listed for task in two_epochs):
        raise ConfigError(f"{source.name} generates training tasks without end, so it has no epochs; set steps instead")
    return len(listed)
