"""A tracker for SkyRL that writes metrics, with our names, and episodes into the run's folder.

SkyRL calls it after each update. It stops the run on Ctrl-C, at the cost limit, and for the checks of `health.stop_on`.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from understudy.rollouts.group import Group
from understudy.runs.health import HealthCheckResult, check_initial_eval, check_step, health_metrics
from understudy.runs.metrics import add_prefixes
from understudy.train.metrics import judge_metrics, rollout_metrics, user_usage_metrics
from understudy.train.phases.rl import validate_fault_rate
from understudy.train.state import Metrics, TrainingContext, TrainingProgress
from understudy.train.step_records import log_eval, log_step, report_exceptions, report_issues, stop_unhealthy_run

METRIC_NAMES: Mapping[str, str] = {
    "policy/final_loss": "train/loss",
    "policy/policy_loss": "train/policy_loss",
    "policy/policy_entropy": "train/entropy",
    "policy/policy_kl": "train/kl",
    "policy/policy_lr": "train/learning_rate",
    "policy/grad_norm": "train/grad_norm",
    "policy/loss_metrics/clip_ratio": "train/clip_fraction",
    "policy/rollout_train_logprobs_abs_diff_max": "certify/logprob_diff_max",
    "policy/rollout_train_logprobs_abs_diff_mean": "certify/logprob_diff_mean",
    "critic/critic_loss": "train/value_loss",
    "critic/grad_norm": "train/value_grad_norm",
    "critic/values_clipfrac": "train/value_clip_fraction",
    "loss/avg_kl": "train/kl",
    "timing/step": "time/step_seconds",
    "timing/generate": "time/rollout_seconds",
    "timing/train_critic_and_policy": "time/update_seconds",
    "timing/sync_weights": "time/weight_sync_seconds",
}
"""SkyRL's names of metrics, and ours. Other metrics keep their names and get our prefixes."""
FALLBACK_METRICS: Mapping[str, str] = {
    f"policy/minibatch_rollout_logprobs_abs_diff_{name}": f"policy/rollout_train_logprobs_abs_diff_{name}"
    for name in ("max", "mean")
}
"""Maps metrics that SkyRL measures during the update to the equivalent metrics of its separate pass.

Some losses skip that pass. Then the metric of the update gets our name of its equivalent.
"""


def translate_metrics(metrics: Mapping[str, Any]) -> Metrics:
    """Return SkyRL's metrics with our names. Values that are not numbers are dropped."""
    numbers = {name: value for name, value in metrics.items() if isinstance(value, int | float)}
    names = {
        **METRIC_NAMES,
        **{name: METRIC_NAMES[usual] for name, usual in FALLBACK_METRICS.items() if usual not in numbers},
    }
    return add_prefixes({names.get(name) or _renamed(name): float(value) for name, value in numbers.items()})


def _renamed(name: str) -> str:
    return f"time/{name.removeprefix('timing/')}" if name.startswith("timing/") else name


class TrackingAdapter:
    """A replacement of SkyRL's `Tracking` that writes the run's folder."""

    backend = "understudy"

    def __init__(self, context: TrainingContext, progress: TrainingProgress) -> None:
        self._context, self._progress = context, progress
        self.last_step = context.run.step
        """The last finished step."""
        self.has_groups = False
        """True if the episodes of the current step are known."""
        self._ahead: dict[str, Group] = {}
        self._metrics: dict[str, Any] = {}
        self._logged: Metrics | None = None
        self._issues: list[HealthCheckResult] = []
        self._halts: list[HealthCheckResult] = []
        self._groups: list[Group] = []
        self._reset_step()

    def add_groups(self, groups: Sequence[Group], step: int) -> None:
        """Add groups of the current step, and write their episodes."""
        self._groups += groups
        self.has_groups = True
        self._save_groups(step)

    def queue_group(self, slot: str, group: Group) -> None:
        """Add a group that was played for a later step."""
        self._ahead[slot] = group

    def take_queued_groups(self, slots: Iterable[str]) -> None:
        """Move queued groups to the current step, which trains on them or drops them.

        Raise RolloutError if too many of their episodes failed.
        """
        self._groups += [self._ahead.pop(slot) for slot in slots]
        self.has_groups = True
        episodes = [episode for group in self._groups for episode in group.episodes]
        validate_fault_rate(episodes, self._context.config.max_fault_rate, self._context.run.resume_command)

    def log_step(self, step: int, data: Mapping[str, Any]) -> list[HealthCheckResult]:
        """Write the metrics of the current step and return its health issues. A second call writes nothing.

        `data` has metrics that SkyRL has not reported yet. Call this before the step's evaluation and checkpoint.
        """
        if self._logged is None:
            metrics = self._step_metrics(data) | self._usage_metrics()
            config = self._context.config
            results = check_step(metrics, self._progress.history, config.health, config.algorithm.health_remedies)
            self._issues = [result for result in results if not result.ok]
            self._halts = report_issues(self._context, self._progress, step, results)
            self._logged = metrics | health_metrics(results)
            log_step(self._context, self._progress, step, self._logged)
        return self._issues

    def log_eval(self, step: int, metrics: Metrics) -> None:
        """Write the metrics of the evaluation after a step. Raise RolloutError if `health.stop_on` stops the run."""
        config = self._context.config
        results = check_initial_eval(metrics, config.health) if step == config.steps_before_rl else []
        log_eval(self._context, self._progress, step, metrics, results)

    def log(self, data: Mapping[str, Any], step: int, commit: bool = False) -> None:
        """Store metrics of a step, as SkyRL reports them. If `commit` is True, the step is finished."""
        self._metrics |= data
        if commit and self.has_groups:
            self._finish(step)
        elif commit:
            self.last_step = step
            self._reset_step()

    def finish(self) -> None:
        """Do nothing: everything is written already."""

    def log_samples_to_table(self, key: str, columns: list[str], samples: Sequence[Any], step: int) -> None:
        """Do nothing: the run's folder has all episodes."""

    def close(self) -> None:
        """Write the episodes that no step was trained on, if the run ended before its last step."""
        left = [*self._groups, *self._ahead.values()]
        if left and self.last_step < self._context.config.total_steps:
            self._context.run.save_groups(self.last_step + 1, left)

    def _finish(self, step: int) -> None:
        """Write the remaining records of a step, and stop the run if that is due."""
        context = self._context
        self._save_groups(step)
        self.log_step(step, {})
        logged = self._logged or {}
        late = {name: value for name, value in translate_metrics(self._metrics).items() if name not in logged}
        if late:  # times that are known only after the checkpoint
            context.run.log_metrics(step, late)
        context.report("train", step, context.config.total_steps, {**logged, **late})
        self.last_step, halts = step, self._halts
        self._reset_step()
        if halts:
            stop_unhealthy_run(context.run, step, halts[0])
        if context.should_stop and context.run.step == step:
            context.raise_stopped(step)

    def _step_metrics(self, data: Mapping[str, Any]) -> Metrics:
        """Return the metrics of the current step."""
        used = self._progress.tasks_used
        skipped_tasks = float(used - self._drawn - len(self._groups)) if used else 0.0
        came_to = rollout_metrics(self._groups, self._context.config.algorithm.advantage_estimator)
        episodes = add_prefixes(
            {**came_to, "skipped_tasks": skipped_tasks, "rollout/noop_reward": self._context.noop_reward}
        )
        return episodes | translate_metrics({**self._metrics, **data})

    def _usage_metrics(self) -> Metrics:
        """Return the usage of user model and judge in this step. A second call returns no usage of the judge."""
        context = self._context
        return add_prefixes(
            user_usage_metrics(context.users, self._used, context.process_group)
            | judge_metrics(context.reward_judge, context.process_group)
        )

    def _save_groups(self, step: int) -> None:
        self._context.run.save_groups(step, self._groups)
        report_exceptions(self._context, step, [episode for group in self._groups for episode in group.episodes])

    def _reset_step(self) -> None:
        self._metrics = {}
        self._logged = None
        self._issues = []
        self._halts = []
        self._groups = []
        self._used, self._drawn, self.has_groups = self._context.users.usage, self._progress.tasks_used, False
