"""The state of a run: its context, which does not change, and its progress, which checkpoints store."""

import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, NoReturn, Self

from pydantic_core import from_json

from understudy.clients.cost import CostTracker
from understudy.core.errors import ConfigError, RunStoppedError
from understudy.core.files import read_bytes
from understudy.core.tasks import Task
from understudy.engines.interface import Engine
from understudy.engines.local.gpu_usage import GPUUsage
from understudy.engines.process_group import SINGLE_PROCESS, ProcessGroup
from understudy.envs.task_source import TaskSource
from understudy.envs.users import UserSimulatorFactory
from understudy.formats import ChatFormat
from understudy.rollouts.reward_shaping import RewardJudge
from understudy.rollouts.rollout import EpisodeCallback
from understudy.runs.config import TrainConfig
from understudy.runs.metrics import RecordKind
from understudy.runs.run import Run, read_metrics
from understudy.runs.trackers import TrackerProcesses
from understudy.train.background import BackgroundWriter
from understudy.train.certify import RunCertifier
from understudy.train.eval_sets import EvalSet

PROGRESS_FILE = "progress.json"
SAMPLE, UPDATE = "sample", "update"
"""Activities of a step, as they are reported: playing episodes, and updating the weights."""
Metrics = dict[str, float]
ProgressReporter = Callable[[str, int, int, Mapping[str, float]], None]
"""Reports progress. The arguments are the name of an activity, its finished steps, its total steps, and the metrics
of the last step.

If the total is 0, the name is a line of text to show.
"""
"""Gets each episode as it ends."""


@dataclass(frozen=True, kw_only=True)
class TrainingContext:
    """The parts of a run that all steps use."""

    config: TrainConfig
    run: Run
    domain: TaskSource
    engine: Engine
    format: ChatFormat
    users: UserSimulatorFactory
    eval_sets: Sequence[EvalSet]
    certifier: RunCertifier
    trackers: TrackerProcesses
    report: ProgressReporter
    is_interrupted: Callable[[], bool]
    """Returns whether the user pressed Ctrl-C. All processes of the group must call it together."""
    process_group: ProcessGroup = SINGLE_PROCESS
    on_episode: EpisodeCallback = lambda episode: None
    """Gets each episode that this process has played."""
    reward_judge: RewardJudge | None = None
    """Grades failed episodes, if `algorithm.shaping` asks for it."""
    noop_reward: float = 0.0
    """The mean reward of doing nothing on the training tasks."""
    device: str = "cpu"
    """The device whose memory is measured."""
    gpu_usage: GPUUsage = field(default_factory=lambda: GPUUsage("cpu"))
    """Samples the memory and utilization of a GPU."""
    cost_tracker: CostTracker = field(default_factory=CostTracker)
    """Counts the cost of the user model and the reward judge, since the first start of the run."""
    writer: BackgroundWriter = field(default_factory=BackgroundWriter)
    """Writes the checkpoints."""

    @property
    def cost(self) -> Decimal:
        """The cost of user model and reward judge in all processes, since the first start of the run.

        All processes of the group must read it together.
        """
        self.gather_costs()
        return self.cost_tracker.total_cost

    @property
    def over_cost_limit(self) -> bool:
        """True if `cost_limit` is reached."""
        return bool(self.config.cost_limit) and self.cost >= self.config.cost_limit

    @property
    def should_stop(self) -> bool:
        """True if the run has to stop after the current step."""
        return self.is_interrupted() or self.over_cost_limit

    def train_tasks(self, skip: int = 0) -> Iterator[Task]:
        """Return the stream of training tasks without the first `skip`."""
        return itertools.islice(self.domain.stream("train", self.config.seed), skip, None)

    def gather_costs(self) -> None:
        """Add the costs of the other processes since the last call. All processes of the group must call this."""
        for rank, usage_by_role in enumerate(self.process_group.all_gather(self.cost_tracker.pop_own_usage())):
            for role, usage in usage_by_role.items() if rank != self.process_group.rank else ():
                self.cost_tracker.add_usage(role, usage)

    def log_metrics(self, step: int, metrics: Mapping[str, float], kind: RecordKind) -> None:
        """Write a record of metrics, and report trackers that have failed."""
        self.gather_costs()
        self.run.log_metrics(step, metrics, kind)
        for text in self.trackers.poll():
            self.report(text, 0, 0, {})

    def raise_stopped(self, step: int) -> NoReturn:
        """Stop the run: raise RunStoppedError if `cost_limit` is reached, else KeyboardInterrupt.

        `step` is the last finished step, whose checkpoint must be written. All processes must call this together.
        """
        self.gather_costs()
        self.process_group.all_gather(None)  # the first process to exit ends the others, so wait for the checkpoint
        if self.over_cost_limit:
            raise RunStoppedError(
                f"stopped after step {step}: user model and reward judge have cost {self.cost:.4f}, and cost_limit = "
                f"{self.config.cost_limit}; to resume with a higher limit: {self.run.resume_command} cost_limit=…",
                "user",
            )
        raise KeyboardInterrupt(f"stopped after step {step}; to resume: {self.run.resume_command}")


@dataclass
class TrainingProgress:
    """The state that changes from step to step, besides the weights."""

    tasks_used: int = 0
    """The number of tasks drawn from the training stream."""
    bucket_success_rates: dict[str, float] = field(default_factory=dict)
    """The success rate of each bucket of the curriculum."""
    history: list[dict[str, Any]] = field(default_factory=list)
    """The training metrics of all finished steps. They are stored in metrics.jsonl, not in checkpoints."""

    def dump(self) -> str:
        """Return the text of a checkpoint's `progress.json`."""
        return json.dumps({"tasks_used": self.tasks_used, "bucket_success_rates": self.bucket_success_rates})

    @classmethod
    def load(cls, run: Run) -> Self:
        """Return the progress of a run at its last checkpoint."""
        history = read_metrics(run.folder, "train")
        if run.last_checkpoint is None:
            return cls(history=history)
        file = run.last_checkpoint / PROGRESS_FILE
        try:
            return cls(**from_json(read_bytes(file)), history=history)
        except (ValueError, TypeError) as e:
            raise ConfigError(f"{file} holds no progress of this version of understudy ({e})") from e
