"""Contexts of runs without a model, for tests of code that needs only parts of a context."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from understudy.envs.users import UserSimulatorFactory
from understudy.runs.config import TrainConfig
from understudy.runs.run import Run
from understudy.runs.trackers import TrackerProcesses
from understudy.train.state import TrainingContext


def make_context(folder: Path, config: TrainConfig, **parts: Any) -> TrainingContext:
    """Return the context of a new run in `folder`, with the given parts only: domain, engine, format, certifier."""
    missing: Any = None
    context = TrainingContext(
        config=config,
        run=Run.create(folder, config),
        domain=missing,
        engine=missing,
        format=missing,
        users=UserSimulatorFactory(config.user),
        eval_sets=(),
        certifier=missing,
        trackers=TrackerProcesses((), config.tracking, folder, {}),
        report=lambda *_: None,
        is_interrupted=lambda: False,
    )
    return replace(context, **parts)
