"""Health checks: pure functions that find issues of a training run in its metrics.

A check reads the metrics of a step and of the steps before it. It returns a sentence if it finds an issue. docs/runs.md
gives the meaning of each check and what to do.

    results = check_step(metrics, earlier, config, remedies)     after every step, before its checkpoint is written
    results = check_initial_eval(metrics, config)                after the evaluation before the first RL step
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field

from understudy.core.records import Record

HealthCheck = Literal[
    "finite",
    "ratio",
    "no_policy_change",
    "no_weight_change",
    "sft_loss",
    "grad_norm",
    "clip_fraction",
    "approx_kl",
    "entropy",
    "prefix_sharing",
    "zero_variance_groups",
    "noop_baseline",
    "empty_replies",
    "malformed_replies",
    "tool_calls",
    "episode_length",
    "faults",
    "initial_success",
]


class HealthConfig(Record):
    """The checks that stop a run, and their thresholds. The other checks only log a warning."""

    stop_on: tuple[HealthCheck, ...] = ("finite",)
    """Checks that stop the run: finite, ratio, no_policy_change, no_weight_change, sft_loss, grad_norm,
    clip_fraction, approx_kl, entropy, prefix_sharing, zero_variance_groups, noop_baseline, empty_replies,
    malformed_replies, tool_calls, episode_length, faults, initial_success. The run saves a checkpoint first, unless its
    weights fail `finite`."""
    window: int = Field(default=5, ge=1)
    """Steps that a mean over recent steps covers. Checks that compare the first steps with the last need twice as
    many."""
    max_ratio_error: float = Field(default=0.1, gt=0.0)
    """Maximum difference from 1 of the mean probability ratio on the first minibatch. The trainer computes it before
    the first update, with the weights that sampled the episodes.
    """
    max_ratio_rmse: float = Field(default=0.5, gt=0.0)
    """Maximum difference from 1 of the ratios of tokens on the first minibatch, as root mean square. Rounding to
    bfloat16 gives about 0.06."""
    max_sft_loss_ratio: float = Field(default=0.9, gt=0.0, le=1.0)
    """Maximum loss of SFT, as a share of that of the window before. Checked if few tokens have most of the loss."""
    max_grad_norm_spike: float = Field(default=20.0, gt=1.0)
    """Maximum gradient norm, as a multiple of the median of the 20 steps before."""
    max_clip_fraction: float = Field(default=0.3, gt=0.0, le=1.0)
    """Maximum share of tokens that are clipped."""
    max_approx_kl: float = Field(default=0.1, gt=0.0)
    """Maximum approximate KL divergence of one step, in nats per token."""
    min_entropy_ratio: float = Field(default=0.1, gt=0.0, lt=1.0)
    """Minimum entropy, as a share of that of the first steps. Not checked at a success rate of 0.9 or more."""
    max_recomputation: float = Field(default=1.5, ge=1.0)
    """Maximum number of tokens that an update computes, as a multiple of the fewest possible: a prefix that episodes
    share is computed once in each microbatch."""
    max_zero_variance_groups: float = Field(default=0.9, gt=0.0, le=1.0)
    """Maximum share of zero-variance groups: groups in which every advantage is 0."""
    min_noop_margin: float = Field(default=0.01, ge=0.0)
    """Minimum difference between the mean reward and the reward for doing nothing."""
    max_empty_replies: float = Field(default=0.1, gt=0.0, le=1.0)
    """Maximum share of replies with neither text nor a tool call."""
    max_malformed_replies: float = Field(default=0.25, gt=0.0, le=1.0)
    """Maximum share of replies with a tool call that cannot be parsed."""
    min_tool_call_ratio: float = Field(default=0.5, gt=0.0, lt=1.0)
    """Minimum share of replies with a tool call, relative to the first steps. Not checked if the success rate is at
    least 0.9, or has risen by 0.1.
    """
    max_length_drift: float = Field(default=2.0, gt=1.0)
    """Maximum factor by which episodes get longer or shorter than in the first steps. Not checked if the success rate
    is at least 0.9, or has risen by 0.1.
    """
    max_faults: float = Field(default=0.02, ge=0.0, le=1.0)
    """Maximum share of episodes that fail by a fault. Above `max_fault_rate` the run stops in any case."""
    min_initial_success: float = Field(default=0.02, ge=0.0, le=1.0)
    """Minimum success rate of the evaluation before the first RL step."""


StepMetrics = Mapping[str, Any]
"""Metrics of a step by full name. None stands for NaN or infinity."""
CheckVerdict = str | None
"""The issue in one sentence; "" if there is none; None if the metrics are not enough to tell."""

HIGH_SUCCESS_RATE = 0.9
"""Success rate from which low entropy, fewer tool calls and another episode length are no issue."""
SUCCESS_RATE_GAIN = 0.1
"""Rise of the success rate since the first steps from which fewer tool calls and another episode length are no
issue."""
TOKEN_LOSS = "train/token_loss/"
"""Prefix of the mean losses of the few tokens that have most of the loss of an SFT step."""
GRAD_NORM_WINDOW = 20
MIN_GRAD_NORMS = 5  # fewer are not enough for a median
MIN_RATIO_MSE = 1e-10  # float32 rounding gives 1e-12, the smallest real update 1e-8


@dataclass(frozen=True, slots=True)
class HealthCheckResult:
    """The result of one check: the issue as a sentence, empty if there is none, and what to do about it."""

    check: HealthCheck
    message: str
    remedy: str

    @property
    def ok(self) -> bool:
        """True if the check found no issue."""
        return not self.message

    def __str__(self) -> str:
        return f"{self.check}: {self.message}; {self.remedy}"


def check_step(
    metrics: StepMetrics,
    earlier: Sequence[StepMetrics],
    config: HealthConfig,
    algorithm_remedies: Mapping[HealthCheck, str],
) -> list[HealthCheckResult]:
    """Return the results of all checks of a step that have enough data.

    `earlier` are the metrics of the steps before it, oldest first. Only those of the same phase are compared.
    `algorithm_remedies` are `AlgorithmConfig.health_remedies`.
    """
    same = [step for step in earlier if _phase(step) == _phase(metrics)]
    remedies = {**_REMEDIES, **algorithm_remedies}
    return _results({name: check(metrics, same, config) for name, check in _CHECKS.items()}, remedies)


def check_initial_eval(metrics: StepMetrics, config: HealthConfig) -> list[HealthCheckResult]:
    """Return the result of the check of the evaluation before the first RL step; none if it has no success rate."""
    return _results({"initial_success": _initial_success(metrics, config)}, _REMEDIES)


def health_metrics(results: Sequence[HealthCheckResult]) -> dict[str, float]:
    """Return `health/<check>` for each result: 1 if there is an issue, else 0."""
    return {f"health/{result.check}": float(not result.ok) for result in results}


def _phase(line: StepMetrics) -> str:
    """Return which data a step trained on: "episodes" (RL), "preferences" or "demonstrations" (SFT)."""
    if "rollout/episodes" in line:
        return "episodes"
    compared = "train/chosen_log_ratio" in line or "train/rejected_log_ratio" in line
    return "preferences" if compared else "demonstrations"


def _results(
    verdicts: Mapping[HealthCheck, CheckVerdict], remedies: Mapping[HealthCheck, str]
) -> list[HealthCheckResult]:
    return [HealthCheckResult(name, text, remedies[name]) for name, text in verdicts.items() if text is not None]


def _finite(line: StepMetrics, earlier: Sequence[StepMetrics], config: HealthConfig) -> CheckVerdict:
    checked = ("train/grad_norm", "train/entropy", "train/relative_weight_change", "rollout/reward")
    losses = [name for name in line if name.startswith("train/") and name.endswith("loss")]
    bad = [name for name in line if (name in checked or name in losses) and finite_number(line, name) is None]
    return f"{', '.join(bad)} is not a finite number" if bad else ""


def _ratio(line: StepMetrics, earlier: Sequence[StepMetrics], config: HealthConfig) -> CheckVerdict:
    corrected = "train/tis_ratio" in line  # then the ratio of the first minibatch is 1 by construction
    name = "train/tis_ratio" if corrected else "train/first_minibatch_ratio"
    mean, error = finite_number(line, name), finite_number(line, f"{name}_mse")
    if mean is None or error is None:
        return None
    spread = math.sqrt(max(0.0, error))
    off = abs(mean - 1.0) > config.max_ratio_error or spread > config.max_ratio_rmse
    message = f"the probability ratio should be 1; its mean is {mean:.3f}, its root mean square error {spread:.3f}"
    cause = "sampler and trainer differ" if corrected else "the first minibatch is not on policy"
    return f"{cause}: {message}" if off else ""


def _no_policy_change(line: StepMetrics, earlier: Sequence[StepMetrics], config: HealthConfig) -> CheckVerdict:
    steps = 2 * config.window
    errors = _series([*earlier, line], "train/later_minibatch_ratio_mse")[-steps:]
    if len(errors) < steps:
        return None
    return f"no update of the last {steps} steps changed a probability ratio" if max(errors) < MIN_RATIO_MSE else ""


def _no_weight_change(line: StepMetrics, earlier: Sequence[StepMetrics], config: HealthConfig) -> CheckVerdict:
    change, norm = finite_number(line, "train/relative_weight_change"), finite_number(line, "train/grad_norm")
    if change is None or norm is None:
        return None
    return f"the update changed no weight, but its gradient norm is {norm:.3g}" if change == 0.0 < norm else ""


def _sft_loss(line: StepMetrics, earlier: Sequence[StepMetrics], config: HealthConfig) -> CheckVerdict:
    losses, window = _series([*earlier, line], "train/loss"), config.window
    dominant = {name.removeprefix(TOKEN_LOSS): value for name, value in line.items() if name.startswith(TOKEN_LOSS)}
    if not dominant or len(losses) < 2 * window:
        return None
    before, now = statistics.fmean(losses[-2 * window : -window]), statistics.fmean(losses[-window:])
    if now <= config.max_sft_loss_ratio * before:
        return ""
    named = ", ".join(f"{token!r} {loss:.3g}" for token, loss in dominant.items())
    return f"the loss of SFT stays at {now:.3g} (before: {before:.3g}); most of it is that of few tokens: {named} nats"


def _grad_norm(line: StepMetrics, earlier: Sequence[StepMetrics], config: HealthConfig) -> CheckVerdict:
    norm = finite_number(line, "train/grad_norm")
    if norm is None:
        return None
    if norm == 0.0:
        return "the gradient is zero, but there are episodes to train on"
    before = _series(earlier, "train/grad_norm")[-GRAD_NORM_WINDOW:]
    if len(before) < MIN_GRAD_NORMS:
        return ""
    usual = statistics.median(before)
    message = f"the gradient norm is {norm:.3g}; the median of the steps before is {usual:.3g}"
    return message if norm > config.max_grad_norm_spike * usual else ""


def _clip_fraction(line: StepMetrics, earlier: Sequence[StepMetrics], config: HealthConfig) -> CheckVerdict:
    most, text = config.max_clip_fraction, "{:.1%} of the tokens are clipped"
    return _above(line, "train/clip_fraction", most, text) if _is_off_policy(line) else None


def _approx_kl(line: StepMetrics, earlier: Sequence[StepMetrics], config: HealthConfig) -> CheckVerdict:
    text = "the approximate KL divergence of the step is {:.3f} nats per token"
    return _above(line, "train/approx_kl", config.max_approx_kl, text) if _is_off_policy(line) else None


def _is_off_policy(line: StepMetrics) -> bool:
    """Return whether the metrics include minibatches whose weights an earlier minibatch has changed.

    On the first minibatch, clip fraction and KL only measure the difference between sampler and trainer. Engines that
    report no ratio, such as SkyRL, count as off policy.
    """
    return "train/first_minibatch_ratio" not in line or "train/later_minibatch_ratio_mse" in line


def _entropy(line: StepMetrics, earlier: Sequence[StepMetrics], config: HealthConfig) -> CheckVerdict:
    means = _first_and_last_mean(line, earlier, config, lambda step: finite_number(step, "train/entropy"))
    if means is None or "rollout/episodes" not in line:  # SFT lowers the entropy on purpose
        return None
    then, now = means
    lost = now < config.min_entropy_ratio * then and not _succeeds([*earlier, line], config)
    return f"entropy fell from {then:.3g} to {now:.3g}: replies are nearly identical" if lost else ""


def _prefix_sharing(line: StepMetrics, earlier: Sequence[StepMetrics], config: HealthConfig) -> CheckVerdict:
    computed = finite_number(line, "train/computed_tokens")
    ratio = _share(line, "train/computed_tokens", "train/distinct_tokens")
    if ratio is None or computed is None:
        return None
    message = f"the update computes {computed:.0f} tokens, {ratio:.1f} times as many as one microbatch would"
    return message if ratio > config.max_recomputation else ""


def _zero_variance_groups(line: StepMetrics, earlier: Sequence[StepMetrics], config: HealthConfig) -> CheckVerdict:
    shares = _present([*earlier, line], lambda step: _share(step, "rollout/zero_variance_groups", "rollout/groups"))
    if len(shares) < config.window or "train/value_loss" in line:  # with a critic, groups of equal rewards train too
        return None
    equal = statistics.fmean(shares[-config.window :])
    if equal < config.max_zero_variance_groups:
        return ""
    rates = _series([*earlier, line], "rollout/success_rate")[-config.window :]
    rate = statistics.fmean(rates) if rates else 0.0
    why = f"the episodes of a task all succeed or all fail ({rate:.0%} of all succeed)"
    if rate >= HIGH_SUCCESS_RATE:
        why = "nearly every episode succeeds"
    elif rate <= 1 - HIGH_SUCCESS_RATE:
        why = "nearly every episode fails"
    return f"{equal:.0%} of the groups of the last {config.window} steps have zero variance: {why}"


def _noop_baseline(line: StepMetrics, earlier: Sequence[StepMetrics], config: HealthConfig) -> CheckVerdict:
    rewards = _series([*earlier, line], "rollout/reward")[-config.window :]
    if "rollout/episodes" not in line or len(rewards) < config.window:
        return None
    mean, nothing = statistics.fmean(rewards), finite_number(line, "rollout/noop_reward") or 0.0
    message = f"the mean reward of the last {config.window} steps is {mean:.3f}; doing nothing earns {nothing:.3f}"
    return message if mean <= nothing + config.min_noop_margin else ""


def _empty_replies(line: StepMetrics, earlier: Sequence[StepMetrics], config: HealthConfig) -> CheckVerdict:
    return _replies(
        line, "rollout/replies/empty", config.max_empty_replies, "{:.1%} of the replies have neither text nor a call"
    )


def _malformed_replies(line: StepMetrics, earlier: Sequence[StepMetrics], config: HealthConfig) -> CheckVerdict:
    return _replies(
        line, "rollout/replies/malformed", config.max_malformed_replies, "{:.1%} of the replies cannot be parsed"
    )


def _tool_calls(line: StepMetrics, earlier: Sequence[StepMetrics], config: HealthConfig) -> CheckVerdict:
    kinds = ("rollout/replies/tool_calls", "rollout/replies/repaired")
    means = _first_and_last_mean(line, earlier, config, lambda step: _sum(step, kinds))
    if means is None:
        return None
    then, now = means
    lost = now < config.min_tool_call_ratio * then and not _improved(line, earlier, config)
    return f"{now:.1%} of the replies call a tool; in the first steps it was {then:.1%}" if lost else ""


def _episode_length(line: StepMetrics, earlier: Sequence[StepMetrics], config: HealthConfig) -> CheckVerdict:
    means = _first_and_last_mean(
        line, earlier, config, lambda step: _share(step, "rollout/response_tokens", "rollout/episodes")
    )
    if means is None:
        return None
    then, now = means
    drift = now > config.max_length_drift * then or now * config.max_length_drift < then
    message = f"the model samples {now:.0f} tokens per episode; in the first steps it was {then:.0f}"
    return f"{message}, and success did not rise" if drift and not _improved(line, earlier, config) else ""


def _faults(line: StepMetrics, earlier: Sequence[StepMetrics], config: HealthConfig) -> CheckVerdict:
    if "rollout/episodes" not in line:
        return None
    faults = {
        name.removeprefix("rollout/fault/"): finite_number(line, name) or 0.0
        for name in line
        if name.startswith("rollout/fault/")
    }
    if (rate := sum(faults.values())) <= config.max_faults:
        return ""
    by_component = ", ".join(f"{component} {share:.1%}" for component, share in faults.items())
    return f"{rate:.1%} of the episodes failed by a fault: {by_component}"


def _initial_success(line: StepMetrics, config: HealthConfig) -> CheckVerdict:
    all_rates = {name: finite_number(line, name) for name in line if name.endswith("/success_rate")}
    rates = [rate for name, rate in all_rates.items() if rate is not None and name.count("/") == 2]
    if not rates:
        return None
    best = max(rates)
    message = f"before RL the model succeeds on {best:.1%} of the held-out tasks: too few episodes earn a reward"
    return message if best < config.min_initial_success else ""


_CHECKS: dict[HealthCheck, Callable[[StepMetrics, Sequence[StepMetrics], HealthConfig], CheckVerdict]] = {
    "finite": _finite,
    "ratio": _ratio,
    "no_policy_change": _no_policy_change,
    "no_weight_change": _no_weight_change,
    "sft_loss": _sft_loss,
    "grad_norm": _grad_norm,
    "clip_fraction": _clip_fraction,
    "approx_kl": _approx_kl,
    "entropy": _entropy,
    "prefix_sharing": _prefix_sharing,
    "zero_variance_groups": _zero_variance_groups,
    "noop_baseline": _noop_baseline,
    "empty_replies": _empty_replies,
    "malformed_replies": _malformed_replies,
    "tool_calls": _tool_calls,
    "episode_length": _episode_length,
    "faults": _faults,
}
_REMEDIES: dict[HealthCheck, str] = {
    "finite": "resume from an earlier checkpoint with a lower learning rate, or engine.dtype=float32",
    "ratio": "check whether the sampler has the trainer's weights (understudy certify MODEL); if they only round "
    "differently, set algorithm.tis_cap=2",
    "no_policy_change": "raise algorithm.learning_rate, and check what is trained: engine.finetune, "
    "engine.train_embeddings",
    "no_weight_change": "the update is smaller than the weights' rounding: raise the learning rate, or set "
    "engine.finetune=lora or engine.dtype=float32",
    "sft_loss": "if they are control tokens, set engine.train_control_tokens=all, or format.tool_format=json",
    "grad_norm": "lower the learning rate; ignore a single spike, which engine.optimizer.max_grad_norm clips",
    "prefix_sharing": "raise engine.max_tokens_per_microbatch to twice the tokens of an episode or more, with "
    "engine.gradient_checkpointing=true if memory is short",
    "noop_baseline": "read episodes (understudy view RUN --episode 1); choose easier tasks, or a longer SFT",
    "empty_replies": "read episodes (understudy view RUN --episode 1); lower the learning rate, or raise "
    "sampling.max_response_tokens",
    "malformed_replies": "see rollout/replies/malformed/… for the kind; choose a longer SFT, a larger "
    "sampling.max_response_tokens or another format.tool_format",
    "episode_length": "read episodes; set algorithm.loss_aggregation=sequence_mean or seq_mean_token_sum_norm to "
    "weight long and short episodes differently",
    "faults": "see the errors (understudy view RUN): an endpoint or a server is down or slow, or a grader is broken",
    "initial_success": "train by SFT first (sft.steps=48 or more), or choose easier tasks (slice.families, "
    "slice.difficulties)",
}


def finite_number(line: StepMetrics, name: str) -> float | None:
    """Return a metric if it is a finite number, else None."""
    value = line.get(name)
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _present(lines: Sequence[StepMetrics], value: Callable[[StepMetrics], float | None]) -> list[float]:
    return [number for line in lines if (number := value(line)) is not None]


def _series(lines: Sequence[StepMetrics], name: str) -> list[float]:
    return _present(lines, lambda line: finite_number(line, name))


def _share(line: StepMetrics, part: str, whole: str) -> float | None:
    above, below = finite_number(line, part), finite_number(line, whole)
    return above / below if above is not None and below else None


def _sum(line: StepMetrics, names: Sequence[str]) -> float | None:
    """Return the sum of the metrics, where missing ones are 0; None for a step without episodes."""
    return sum(finite_number(line, name) or 0.0 for name in names) if "rollout/episodes" in line else None


def _above(line: StepMetrics, name: str, most: float, text: str) -> CheckVerdict:
    value = finite_number(line, name)
    if value is None:
        return None
    return f"{text.format(value)}, more than {most:g}" if value > most else ""


def _replies(line: StepMetrics, name: str, most: float, text: str) -> CheckVerdict:
    return _above({name: 0.0, **line}, name, most, text) if "rollout/episodes" in line else None


def _first_and_last_mean(
    line: StepMetrics,
    earlier: Sequence[StepMetrics],
    config: HealthConfig,
    value: Callable[[StepMetrics], float | None],
) -> tuple[float, float] | None:
    """Return the means over the first and the last `window` steps, or None if there are fewer than two windows."""
    values, window = _present([*earlier, line], value), config.window
    if len(values) < 2 * window:
        return None
    return statistics.fmean(values[:window]), statistics.fmean(values[-window:])


def _succeeds(lines: Sequence[StepMetrics], config: HealthConfig) -> bool:
    recent = _series(lines, "rollout/success_rate")[-config.window :]
    return bool(recent) and statistics.fmean(recent) >= HIGH_SUCCESS_RATE


def _improved(line: StepMetrics, earlier: Sequence[StepMetrics], config: HealthConfig) -> bool:
    means = _first_and_last_mean(line, earlier, config, lambda step: finite_number(step, "rollout/success_rate"))
    return means is not None and (means[1] >= means[0] + SUCCESS_RATE_GAIN or means[1] >= HIGH_SUCCESS_RATE)
