"""What SkyRL tells of a run, and its episodes, into the run's folder, under the names that metrics have here.

It is what SkyRL calls its tracker, so it is told of each step once the weights have moved. It ends the run where the
user, the cost or the run's health wants that.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from understudy.health import Finding, as_metrics, of_start, of_step
from understudy.metrics import named
from understudy.train.findings import halt, tell
from understudy.train.metrics import marked, spent, summarize
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
INSTEAD: Mapping[str, str] = {
    f"policy/minibatch_rollout_logprobs_abs_diff_{name}": f"policy/rollout_train_logprobs_abs_diff_{name}"
    for name in ("max", "mean")
}
"""What SkyRL measures while it trains, in place of what it measures before that where the loss needs no such pass."""


def translated(metrics: Mapping[str, Any]) -> Metrics:
    """SkyRL's metrics under the names that they have here; what is no number is left out."""
    numbers = {name: value for name, value in metrics.items() if isinstance(value, int | float)}
    names = {**NAMES, **{name: NAMES[usual] for name, usual in INSTEAD.items() if usual not in numbers}}
    return named({names.get(name, name): float(value) for name, value in numbers.items()})


class Journal:
    """See SkyRL's `Tracking`, whose place it takes."""

    backend = "understudy"

    def __init__(self, training: Training) -> None:
        self._training = training
        self.done = training.run.step
        """The last step that is over."""
        self.begun = False
        """Whether the episodes of the step under way are known."""
        self._ahead: dict[str, list[Trajectory]] = {}
        self._asked: Metrics | None = None  # before the evaluation that follows the step, which asks users too
        self._forget()

    def played(self, groups: Sequence[list[Trajectory]], step: int) -> None:
        """Groups of episodes of the step under way; they are written at once."""
        self._groups += groups
        self.begun = True
        self._keep(step)

    def ahead(self, slot: str, group: list[Trajectory]) -> None:
        """A group that was played for some step to come."""
        self._ahead[slot] = group

    def taken(self, slots: Iterable[str]) -> None:
        """The step under way learns from these of the groups played ahead, or has found that they teach nothing.

        Raises RolloutError where too many of their episodes failed: nobody has looked at all of them yet.
        """
        self._groups += [self._ahead.pop(slot) for slot in slots]
        self.begun = True
        refuse_faulty(self._groups, self._training.config.max_fault_rate)

    def examined(self, metrics: Metrics) -> None:
        """What an evaluation after the step under way came to."""
        self._exams |= metrics

    def look(self, data: Mapping[str, Any]) -> list[Finding]:
        """What the step under way says of the run's health, with `data` that SkyRL has not told yet.

        Its metrics so far are what a checkpoint has of it from now on.
        """
        training = self._training
        if self._asked is None:
            self._asked = self._asked_by_now()
        metrics = self._so_far(data) | self._asked
        findings = of_step(metrics, training.history, training.config.health)
        training.pending = metrics | as_metrics(findings)
        return findings

    def log(self, data: Mapping[str, Any], step: int, commit: bool = False) -> None:
        """SkyRL's metrics of a step; `commit` says that these are the last."""
        self._metrics |= data
        if commit:
            self._finish(step) if self.begun else self._begin(step)

    def finish(self) -> None:
        """SkyRL is done; everything is written already."""

    def log_samples_to_table(self, key: str, columns: list[str], samples: Sequence[Any], step: int) -> None:
        """SkyRL's samples for a table: the run's folder has all episodes."""

    def close(self) -> None:
        """Keep the episodes that were played and not trained on, whatever has ended the run before its last step."""
        left = [*self._groups, *self._ahead.values()]
        if left and self.done < self._training.total:
            self._training.run.keep(self.done + 1, itertools.chain.from_iterable(left))

    def _begin(self, step: int) -> None:
        """The line of the step that a run starts or goes on from, where it is not written yet."""
        training = self._training
        findings = of_start(self._exams, training.config.health) if step == training.config.prior else []
        halts = tell(training, step, findings)
        training.finish(step, self._exams | as_metrics(findings))
        self.done = step
        self._forget()
        if halts:
            halt(training, step, halts[0])

    def _finish(self, step: int) -> None:
        """The line of a step, what it says of the run's health, and whether the run ends here."""
        training = self._training
        self._keep(step)
        findings = self.look({})
        training.report("train", step, training.total, training.pending or {})
        halts = tell(training, step, findings)
        exams, self.done = self._exams, step
        self._forget()
        training.finish(step, exams)
        if halts:
            halt(training, step, halts[0])
        if training.ending and training.run.step == step:
            training.stop(step)

    def _so_far(self, data: Mapping[str, Any]) -> Metrics:
        """The metrics of the step under way."""
        left_out = (
            float(self._training.tasks_used - self._drawn - len(self._groups)) if self._training.tasks_used else 0.0
        )
        came_to = summarize(self._groups, self._training.config.algorithm.advantage)
        episodes = named({**came_to, "left_out": left_out, "reward/floor": self._training.floor})
        return episodes | translated({**self._metrics, **data})

    def _asked_by_now(self) -> Metrics:
        """What users and the judge were asked in this step; the judge tells it once."""
        training = self._training
        return named(spent(training.users, self._used, training.crew) | marked(training.judge, training.crew))

    def _keep(self, step: int) -> None:
        self._training.run.keep(step, itertools.chain.from_iterable(self._groups))

    def _forget(self) -> None:
        self._metrics: dict[str, Any] = {}
        self._exams: Metrics = {}
        self._groups: list[list[Trajectory]] = []
        self._asked = None
        self._used, self._drawn, self.begun = self._training.users.usage, self._training.tasks_used, False
