"""What SkyRL tells of a run, and its episodes, into the run's folder, under the names that metrics have here.

It is what SkyRL calls its tracker, so it is told of each step once the weights have moved. It ends the run where the
user, the cost or the run's health wants that.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from understudy.health import as_metrics, of_start, of_step
from understudy.metrics import named
from understudy.train.findings import halt, tell
from understudy.train.metrics import spent, summarize
from understudy.train.reinforcement import refuse_faulty
from understudy.train.state import Metrics, Training
from understudy.trajectory import Trajectory

NAMES: Mapping[str, str] = {
    "policy/final_loss": "loss/total",
    "policy/policy_loss": "loss/policy_loss",
    "policy/policy_entropy": "train/entropy",
    "policy/policy_kl": "train/reference_kl",
    "policy/policy_lr": "train/learning_rate",
    "policy/grad_norm": "train/grad_norm",
    "policy/loss_metrics/clip_ratio": "train/clip_fraction",
    "policy/rollout_train_logprobs_abs_diff_max": "certify/logprob_max",
    "policy/rollout_train_logprobs_abs_diff_mean": "certify/logprob_mean",
    "critic/critic_loss": "loss/value_loss",
    "critic/grad_norm": "train/value_grad_norm",
    "critic/values_clipfrac": "train/value_clip_fraction",
    "loss/avg_kl": "train/reference_kl",
    "timing/step": "timing/step_seconds",
    "timing/generate": "timing/sampling_seconds",
    "timing/train_critic_and_policy": "timing/update_seconds",
    "timing/sync_weights": "timing/sync_seconds",
}
"""SkyRL's metrics that are also known here; all others keep their names, under `train/` where they have no space."""


def translated(metrics: Mapping[str, Any]) -> Metrics:
    """SkyRL's metrics under the names that they have here; what is no number is left out."""
    numbers = {name: value for name, value in metrics.items() if isinstance(value, int | float)}
    return named({NAMES.get(name, name): float(value) for name, value in numbers.items()})


class Journal:
    """See SkyRL's `Tracking`, whose place it takes."""

    backend = "understudy"

    def __init__(self, training: Training) -> None:
        self._training = training
        self._metrics: dict[str, Any] = {}
        self._exams: Metrics = {}
        self._groups: list[list[Trajectory]] = []
        self._used, self._drawn = training.users.usage, training.tasks_used

    def played(self, groups: Sequence[list[Trajectory]], step: int | None = None) -> None:
        """Groups of episodes of the step under way; they are written at once where the step is known."""
        self._groups += groups
        if step is not None:
            self._keep(step)

    def examined(self, metrics: Metrics) -> None:
        """What an evaluation after the step under way came to."""
        self._exams |= metrics

    def so_far(self, data: Mapping[str, Any]) -> Metrics:
        """The metrics of the step under way, with what SkyRL has not told yet."""
        left_out = (
            float(self._training.tasks_used - self._drawn - len(self._groups)) if self._training.tasks_used else 0.0
        )
        came_to = summarize(self._groups, self._training.config.algorithm.advantage)
        episodes = named({**came_to, "left_out": left_out, "reward/floor": self._training.floor})
        return episodes | translated({**self._metrics, **data})

    def log(self, data: Mapping[str, Any], step: int, commit: bool = False) -> None:
        """SkyRL's metrics of a step; `commit` says that these are the last."""
        self._metrics |= data
        if self._groups:  # where they are played apart nobody has looked at all of them yet
            refuse_faulty(self._groups, self._training.config.max_fault_rate)
        if commit:
            self._finish(step) if self._groups else self._begin(step)

    def finish(self) -> None:
        """SkyRL is done; everything is written already."""

    def log_samples_to_table(self, key: str, columns: list[str], samples: Sequence[Any], step: int) -> None:
        """SkyRL's samples for a table: the run's folder has all episodes."""

    def close(self, step: int) -> None:
        """Keep the episodes that were played and not trained on, whatever has ended the run."""
        if self._groups:
            self._keep(step)

    def _begin(self, step: int) -> None:
        """The line of the step that a run starts or goes on from, where it is not written yet."""
        training, findings = self._training, of_start(self._exams, self._training.config.health)
        halts = tell(training, step, findings) if step == training.config.prior else []
        training.finish(step, self._exams | as_metrics(findings))
        self._forget()
        if halts:
            halt(training, step, halts[0])

    def _finish(self, step: int) -> None:
        """The line of a step, what it says of the run's health, and whether the run ends here."""
        training = self._training
        self._keep(step)
        metrics = self.so_far({}) | self._asked()
        findings = of_step(metrics, training.history, training.config.health)
        training.pending = metrics | as_metrics(findings)
        training.report("train", step, training.total, training.pending)
        halts = tell(training, step, findings)
        exams = self._exams
        self._forget()
        training.finish(step, exams)
        if halts:
            halt(training, step, halts[0])
        if training.ending and training.run.step == step:
            training.stop(step)

    def _asked(self) -> Metrics:
        """What users and the judge were asked in this step."""
        training = self._training
        marks = training.judge.taken() if training.judge else {}
        return named({**spent(training.users, self._used, training.crew), **marks})

    def _keep(self, step: int) -> None:
        self._training.run.keep(step, itertools.chain.from_iterable(self._groups))

    def _forget(self) -> None:
        self._metrics, self._exams, self._groups = {}, {}, []
        self._used, self._drawn = self._training.users.usage, self._training.tasks_used
