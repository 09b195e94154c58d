"""What a run is made of: the config, the model and all else that its steps share, and how it is kept and taken up."""

import functools
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from understudy.agent import EngineAgent
from understudy.certify import Watch
from understudy.config import TrainConfig
from understudy.curriculum import Supply, supply
from understudy.domains.base import TaskSource
from understudy.engines.base import Engine
from understudy.evaluate import inhabited
from understudy.formats import ChatFormat
from understudy.run import Run
from understudy.tasks import Task
from understudy.train.exam import Exam
from understudy.trajectory import Trajectory
from understudy.users import Cast

PROGRESS = "progress.json"
Metrics = dict[str, float]
Report = Callable[[str, int, int, Mapping[str, float]], None]
"""Told of progress: phase, how much of it is done, how much there is, and the metrics of a finished step. Where there
is nothing to do (0 of 0), the phase is a line that stays."""


@dataclass
class Training:
    """What a run is made of, and how many tasks of the stream it has used."""

    config: TrainConfig
    run: Run
    domain: TaskSource
    engine: Engine
    format: ChatFormat
    report: Report
    users: Cast
    watch: Watch
    exams: Sequence[Exam]
    tasks_used: int = 0
    rates: dict[str, float] = field(default_factory=dict)
    """Success rates of the curriculum's cells."""
    demonstrations: list[Trajectory] = field(default_factory=list)
    interrupted: Callable[[], bool] = field(default=lambda: False)
    """Whether the user wishes the run to end (Ctrl-C)."""

    @functools.cached_property
    def played(self) -> TaskSource:
        """The domain with the users of the config; demonstrations, floor and oracle keep the scripted ones."""
        return inhabited(self.domain, self.users)

    @property
    def agent(self) -> EngineAgent:
        """The policy in training."""
        penalty = self.config.format.repair_penalty
        return EngineAgent(self.engine, self.format, self.config.sampling, repair_penalty=penalty)

    @property
    def total(self) -> int:
        """Steps of both phases."""
        return self.config.sft.steps + self.config.steps

    def stream(self, used: int) -> Iterator[Task]:
        """The training tasks after the first `used`."""
        return itertools.islice(self.domain.stream("train", self.config.seed), used, None)

    def supply(self, done: float) -> Supply:
        """The training tasks that the curriculum wants next, when `done` of reinforcement's steps are done."""
        used, seed = self.tasks_used, self.config.seed
        return supply(self.config.curriculum, self.stream(used), used, seed, done, self.rates)

    def save(self, step: int) -> None:
        """Write a checkpoint of the weights after `step`."""
        with self.run.checkpoint(step) as folder:
            self.engine.save(folder)
            progress = {"tasks_used": self.tasks_used, "rates": self.rates}
            (folder / PROGRESS).write_text(json.dumps(progress), encoding="utf-8")

    def resume(self) -> None:
        """Take up the run's last checkpoint, where there is one."""
        if self.run.last is not None:
            self.engine.load(self.run.last)
            progress = json.loads((self.run.last / PROGRESS).read_text(encoding="utf-8"))
            self.tasks_used, self.rates = progress["tasks_used"], progress["rates"]

    def stop(self, step: int) -> NoReturn:
        """End the run after `step`, so that it can be resumed from there."""
        if self.run.step != step:
            self.save(step)
        raise KeyboardInterrupt(f"stopped after step {step}; go on with: {self.run.how_to_resume}")
