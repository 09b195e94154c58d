"""What a run is made of: the config, the model and all else that its steps share, and how it is kept and taken up."""

import functools
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import NoReturn

from understudy.agent import EngineAgent
from understudy.certify import Watch
from understudy.config import TrainConfig
from understudy.curriculum import Supply, supply
from understudy.domains.base import TaskSource
from understudy.engines.base import Engine
from understudy.errors import RolloutError
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
    device: str = "cpu"
    """Whose memory is measured."""
    cost_before: Decimal = Decimal(0)
    """What the users' model had cost when the run was resumed."""

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
    def cost(self) -> Decimal:
        """What the users' model has cost since the run began."""
        return self.cost_before + self.users.usage.cost

    @property
    def overspent(self) -> bool:
        """Whether that is all that the config allows."""
        return bool(self.config.cost_cap) and self.cost >= self.config.cost_cap

    @property
    def ending(self) -> bool:
        """Whether the run is to end here."""
        return self.interrupted() or self.overspent

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
            progress = {"tasks_used": self.tasks_used, "rates": self.rates, "cost": str(self.cost)}
            (folder / PROGRESS).write_text(json.dumps(progress), encoding="utf-8")

    def resume(self) -> None:
        """Take up the run's last checkpoint, where there is one."""
        if self.run.last is not None:
            self.engine.load(self.run.last)
            progress = json.loads((self.run.last / PROGRESS).read_text(encoding="utf-8"))
            self.tasks_used, self.rates = progress["tasks_used"], progress["rates"]
            self.cost_before = Decimal(progress["cost"])

    def stop(self, step: int) -> NoReturn:
        """End the run after `step`, so that it can be resumed from there."""
        unpaid = self.overspent and self.run.last is None  # a run that starts anew would not know what it has cost
        if self.run.step != step or unpaid:
            self.save(step)
        if self.overspent:
            raise RolloutError(
                f"stopped after step {step}: the users' model has cost {self.cost:.4f}, and cost_cap is "
                f"{self.config.cost_cap}; raise it in {self.run.folder / 'config.toml'}, then go on with: "
                f"{self.run.how_to_resume}",
                "user",
            )
        raise KeyboardInterrupt(f"stopped after step {step}; go on with: {self.run.how_to_resume}")
