"""What a run is made of: the config, the model and all else that its steps share, and how it is kept and taken up."""

import functools
import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, NoReturn

from understudy.agent import EngineAgent
from understudy.certify import Watch
from understudy.checkpoints import checkpoints
from understudy.config import TrainConfig
from understudy.crew import ALONE, Crew
from understudy.curriculum import Supply, supply
from understudy.domains.base import TaskSource
from understudy.engines.base import Engine
from understudy.errors import RolloutError
from understudy.evaluate import inhabited
from understudy.evaluation import Evaluation
from understudy.formats import ChatFormat
from understudy.rollout import Source
from understudy.run import COST, Run, read_metrics
from understudy.shaping import Judge, Shaped, Shaping
from understudy.tasks import Task
from understudy.trackers import Trackers
from understudy.train.exam import Exam
from understudy.train.lessons import judge_of
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
    crew: Crew = ALONE
    tasks_used: int = 0
    rates: dict[str, float] = field(default_factory=dict)
    """Success rates of the curriculum's cells."""
    demonstrations: list[Trajectory] = field(default_factory=list)
    handed_over: list[Trajectory] = field(default_factory=list)
    """Those of them that come from `sft.file`."""
    preferences: list[tuple[Trajectory, ...]] = field(default_factory=list)
    """Pairs, the better one first, or single conversations; a reward of 1 is a wanted one."""
    history: list[dict[str, Any]] = field(default_factory=list)
    """The metrics of the steps that are done, as they are written."""
    pending: dict[str, float] | None = field(default_factory=dict)
    """Metrics of the last step that are not written yet, because its evaluation belongs to them; None once they are."""
    trackers: Trackers | None = None
    floor: float = 0.0
    """What doing nothing earns on tasks of the training split."""
    nothing: dict[str, Evaluation] = field(default_factory=dict)
    """The same of each exam's tasks, by its folder, once that is known."""
    interrupted: Callable[[], bool] = field(default=lambda: False)
    """Whether the user wishes the run to end (Ctrl-C). All processes of the crew ask, or none."""
    device: str = "cpu"
    """Whose memory is measured."""
    cost_before: Decimal = Decimal(0)
    """What users and judge had cost when the run was resumed."""
    _following: Iterator[Task] = field(default=iter(()), init=False, repr=False)
    """The training tasks after the first `_given`."""
    _given: int = field(default=-1, init=False)

    @functools.cached_property
    def played(self) -> TaskSource:
        """The domain with the users of the config; demonstrations, floor and oracle keep the scripted ones."""
        return inhabited(self.domain, self.users)

    @functools.cached_property
    def trained_on(self) -> Source:
        """What is played to learn from: as `played`, and failures may earn credit for how far they got."""
        shaping = self.config.algorithm.shaping
        return Shaped(self.played, shaping, self.judge) if shaping != Shaping() else self.played

    @functools.cached_property
    def judge(self) -> Judge | None:
        """Who marks failures, where somebody is to."""
        return judge_of(self.config)

    @property
    def agent(self) -> EngineAgent:
        """The policy in training."""
        penalty = self.config.format.repair_penalty
        return EngineAgent(self.engine, self.format, self.config.sampling, repair_penalty=penalty)

    @property
    def cost(self) -> Decimal:
        """What users and judge have cost since the run began, to all processes of the crew, which all ask, or none."""
        judged = self.judge.cost if self.judge else Decimal(0)
        return self.cost_before + sum(self.crew.gather(self.users.usage.cost + judged))

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
        """Steps of all phases."""
        return self.config.total

    def stream(self, used: int) -> Iterator[Task]:
        """The training tasks after the first `used`."""
        return itertools.islice(self.domain.stream("train", self.config.seed), used, None)

    def supply(self, done: float) -> Supply:
        """The training tasks that the curriculum wants next, when `done` of reinforcement's steps are done."""
        used, seed = self.tasks_used, self.config.seed
        if self._given != used:  # not gone on from: the tasks before it would have to be made again at each step
            self._given, self._following = used, self._counted(self.stream(used))
        return supply(self.config.curriculum, self._following, used, seed, done, self.rates)

    def _counted(self, tasks: Iterator[Task]) -> Iterator[Task]:
        for task in tasks:
            self._given += 1
            yield task

    def save(self, step: int) -> None:
        """Write a checkpoint of the weights after `step`, and remove those that are not to be kept."""
        progress = {"tasks_used": self.tasks_used, "rates": self.rates, "metrics": self.pending}
        with self.run.checkpoint(step) as folder:
            self.engine.save(folder)
            (folder / PROGRESS).write_text(json.dumps(progress), encoding="utf-8")
        self.run.prune(self.config.keep, self._best() if self.config.eval.split == "validation" else ())

    def _best(self) -> list[int]:
        """The step, of those with a checkpoint, after which the model succeeded most often; the first of equals."""
        saved, rates = {step for step, _ in checkpoints(self.run.folder)}, {}
        for path in sorted((self.run.folder / "evaluations").glob("*.json")):
            if (step := int(path.name.partition(" ")[0])) in saved:
                rate = Evaluation.model_validate_json(path.read_text(encoding="utf-8")).success.mean
                if not math.isnan(rate):  # of episodes that all failed through no fault of the agent's
                    rates[step] = rate
        return [max(rates, key=rates.__getitem__)] if rates else []

    def resume(self) -> None:
        """Take up the run's last checkpoint, where there is one."""
        self.history = read_metrics(self.run.folder)
        if self.run.last is not None:
            self.engine.load(self.run.last)
            progress = json.loads((self.run.last / PROGRESS).read_text(encoding="utf-8"))
            self.tasks_used, self.rates = progress["tasks_used"], progress["rates"]
            self.pending = progress.get("metrics") or {}
        if self.history and self.history[-1]["step"] == self.run.step:
            self.pending = None
        if (spent := self.run.folder / COST).exists():
            self.cost_before = Decimal(json.loads(spent.read_text(encoding="utf-8")))

    def note_cost(self) -> None:
        """Write down what has been spent, if anything: what a run is taken up from gives nothing of it back."""
        if cost := self.cost:
            self.run.write(COST, json.dumps(str(cost)))

    def finish(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write the metrics of a step, with those of its evaluation."""
        self.note_cost()
        if self.pending is not None:
            line = {**self.pending, **metrics}
            self.run.log(step, line)
            self.history.append({"step": step, **line})
            self.pending = None
        for text in self.trackers.look() if self.trackers else ():
            self.report(text, 0, 0, {})

    def stop(self, step: int) -> NoReturn:
        """End the run after `step`, so that it can be resumed from there."""
        self.note_cost()
        if self.run.step != step:
            self.save(step)
        self.crew.gather(None)  # so that none ends, which would end all, before the checkpoint is whole
        if self.overspent:
            raise RolloutError(
                f"stopped after step {step}: what was asked has cost {self.cost:.4f}, and cost_cap "
                f"is {self.config.cost_cap}; go on with a higher one: {self.run.how_to_resume} cost_cap=…",
                "user",
            )
        raise KeyboardInterrupt(f"stopped after step {step}; go on with: {self.run.how_to_resume}")
