"""Health: what a step's metrics say about the run. Pure: metrics in, findings out.

A check looks at the metrics of one step and of those before it, and finds it well, or bad in one plain sentence, or has
nothing to go by. docs/health.md says of each what it means and what to do.

    findings = of_step(line, earlier, config)        after every step, before its checkpoint is written
    findings = of_start(line, config)                of the evaluation that reinforcement learning starts from
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field

from understudy.records import Record

Check = Literal[
    "finite",
    "ratio",
    "stuck",
    "weights",
    "gradient",
    "clipping",
    "kl",
    "entropy",
    "groups",
    "floor",
    "empty",
    "malformed",
    "calls",
    "length",
    "faults",
    "start",
]


class HealthConfig(Record):
    """What a healthy run looks like, and which sign of trouble ends it. A check that finds something warns."""

    halt_on: tuple[Check, ...] = ("finite",)
    """Checks that stop the run, with a checkpoint to go on from: finite, ratio, stuck, weights, gradient, clipping, kl,
    entropy, groups, floor, empty, malformed, calls, length, faults, start. NaN and infinity never go away."""
    window: int = Field(default=5, ge=1)
    """Steps that are taken together where one alone says little; twice as many are needed to compare then and now."""
    ratio_mean: float = Field(default=0.1, gt=0.0)
    """How far from 1 the mean probability ratio may be while the weights are those that sampled."""
    ratio_spread: float = Field(default=0.5, gt=0.0)
    """How far from 1 a single token's may then be, as root mean square. Rounding to bfloat16 is about 0.06."""
    gradient_spike: float = Field(default=20.0, gt=1.0)
    """How many times the median of the 20 steps before a gradient's norm may be."""
    clip_fraction: float = Field(default=0.3, gt=0.0, le=1.0)
    """Share of tokens that may be clipped."""
    kl: float = Field(default=0.1, gt=0.0)
    """How far one step may move the policy, in nats a token."""
    entropy_fall: float = Field(default=0.1, gt=0.0, lt=1.0)
    """What share of its entropy at first the policy has to keep, unless it succeeds."""
    equal_groups: float = Field(default=0.9, gt=0.0, le=1.0)
    """Share of groups that may teach nothing."""
    floor_margin: float = Field(default=0.01, ge=0.0)
    """How much more than doing nothing the model has to earn."""
    empty: float = Field(default=0.1, gt=0.0, le=1.0)
    """Share of replies that may say and call nothing."""
    malformed: float = Field(default=0.25, gt=0.0, le=1.0)
    """Share of replies whose calls may be unreadable."""
    calls_fall: float = Field(default=0.5, gt=0.0, lt=1.0)
    """What share of its tool calls at first the model has to keep, unless it succeeds more often."""
    length_drift: float = Field(default=2.0, gt=1.0)
    """How many times longer or shorter episodes may get, unless they succeed more often."""
    faults: float = Field(default=0.02, ge=0.0, le=1.0)
    """Share of episodes that the machinery may fail; above `max_fault_rate` the run stops in any case."""
    start: float = Field(default=0.02, ge=0.0, le=1.0)
    """How often a model has to succeed for reinforcement learning to have something to learn from."""


Line = Mapping[str, Any]
"""A step's metrics under their full names; None is a number that was none."""
Verdict = str | None
"""What is bad, in a sentence; empty where all is well; None where there is nothing to go by."""

SUCCEEDS = 0.9
"""A policy that succeeds so often may say always the same, and its groups may all be equal."""
GAINED = 0.1
"""More success than at first by this much excuses shorter or longer episodes, and fewer calls."""
MEDIAN_OF = 20
FEWEST = 5  # gradients that a median is taken of
STILL = 1e-10  # of a squared ratio error: float32 rounds to 1e-12, the smallest real update comes to 1e-8


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found: `text` is a sentence where it is bad, `remedy` what to do about it."""

    check: Check
    text: str
    remedy: str

    @property
    def ok(self) -> bool:
        """Whether all is well."""
        return not self.text

    def __str__(self) -> str:
        return f"{self.check}: {self.text}; {self.remedy}"


def of_step(line: Line, earlier: Sequence[Line], config: HealthConfig) -> list[Finding]:
    """What a step's metrics say, with those of the steps before it; a check that cannot tell finds nothing."""
    same = [each for each in earlier if _phase(each) == _phase(line)]
    return _findings({name: check(line, same, config) for name, check in _CHECKS.items()})


def of_start(line: Line, config: HealthConfig) -> list[Finding]:
    """What the evaluation before the first step of reinforcement learning says."""
    return _findings({"start": _start(line, config)})


def as_metrics(findings: Sequence[Finding]) -> dict[str, float]:
    """`health/<check>`: 1 where something is bad, 0 where not."""
    return {f"health/{finding.check}": float(not finding.ok) for finding in findings}


def _phase(line: Line) -> str:
    """What a step learned from: its own episodes, preferences, or demonstrations."""
    if "generation/episodes" in line:
        return "episodes"
    compared = "train/wanted_margin" in line or "train/unwanted_margin" in line
    return "preferences" if compared else "demonstrations"


def _findings(verdicts: Mapping[Check, Verdict]) -> list[Finding]:
    return [Finding(name, text, _REMEDIES[name]) for name, text in verdicts.items() if text is not None]


def _finite(line: Line, earlier: Sequence[Line], config: HealthConfig) -> Verdict:
    vital = ("train/grad_norm", "train/entropy", "train/weight_change", "reward/average_reward")
    bad = [name for name in line if (name in vital or name.startswith("loss/")) and _number(line, name) is None]
    return f"{', '.join(bad)} is not a finite number" if bad else ""


def _ratio(line: Line, earlier: Sequence[Line], config: HealthConfig) -> Verdict:
    made_up_for = "train/sampler_ratio" in line  # then the first minibatch shows nothing of it
    name = "train/sampler_ratio" if made_up_for else "train/first_ratio"
    mean, error = _number(line, name), _number(line, f"{name}_error")
    if mean is None or error is None:
        return None
    spread = math.sqrt(max(0.0, error))
    off = abs(mean - 1.0) > config.ratio_mean or spread > config.ratio_spread
    told = f"its probability ratio is {mean:.3f} on average and {spread:.3f} from 1, where it has to be 1"
    whose = "the sampler is not the trainer" if made_up_for else "the first minibatch is not on policy"
    return f"{whose}: {told}" if off else ""


def _stuck(line: Line, earlier: Sequence[Line], config: HealthConfig) -> Verdict:
    steps = 2 * config.window
    errors = _series([*earlier, line], "train/later_ratio_error")[-steps:]
    if len(errors) < steps:
        return None
    return f"in {steps} steps no update has moved a probability ratio" if max(errors) < STILL else ""


def _weights(line: Line, earlier: Sequence[Line], config: HealthConfig) -> Verdict:
    change, norm = _number(line, "train/weight_change"), _number(line, "train/grad_norm")
    if change is None or norm is None:
        return None
    return f"the update changed no weight, though its gradient is {norm:.3g}" if change == 0.0 < norm else ""


def _gradient(line: Line, earlier: Sequence[Line], config: HealthConfig) -> Verdict:
    norm = _number(line, "train/grad_norm")
    if norm is None:
        return None
    if norm == 0.0:
        return "the gradient is zero, though there are episodes to learn from"
    before = _series(earlier, "train/grad_norm")[-MEDIAN_OF:]
    if len(before) < FEWEST:
        return ""
    usual = statistics.median(before)
    return f"the gradient's norm is {norm:.3g}; it was {usual:.3g}" if norm > config.gradient_spike * usual else ""


def _clipping(line: Line, earlier: Sequence[Line], config: HealthConfig) -> Verdict:
    most, text = config.clip_fraction, "{:.1%} of the tokens are clipped"
    return _above(line, "train/clip_fraction", most, text) if _moved(line) else None


def _kl(line: Line, earlier: Sequence[Line], config: HealthConfig) -> Verdict:
    text = "one step moved the policy by {:.3f} nats a token"
    return _above(line, "train/approx_kl", config.kl, text) if _moved(line) else None


def _moved(line: Line) -> bool:
    """Whether a minibatch met weights that an earlier one had moved; the first tells sampler from trainer, no more.

    Where no ratio is told, as by SkyRL, one may have.
    """
    return "train/first_ratio" not in line or "train/later_ratio_error" in line


def _entropy(line: Line, earlier: Sequence[Line], config: HealthConfig) -> Verdict:
    found = _then_and_now(line, earlier, config, lambda each: _number(each, "train/entropy"))
    if found is None or "generation/episodes" not in line:  # imitation is to lower it
        return None
    then, now = found
    lost = now < config.entropy_fall * then and not _succeeds([*earlier, line], config)
    return f"entropy fell from {then:.3g} to {now:.3g}: replies are all but the same" if lost else ""


def _groups(line: Line, earlier: Sequence[Line], config: HealthConfig) -> Verdict:
    shares = _present([*earlier, line], lambda each: _share(each, "generation/equal_groups", "generation/groups"))
    if len(shares) < config.window or "loss/value_loss" in line:  # a critic learns from any group
        return None
    equal = statistics.fmean(shares[-config.window :])
    if equal < config.equal_groups:
        return ""
    rates = _series([*earlier, line], "reward/success_rate")[-config.window :]
    rate = statistics.fmean(rates) if rates else 0.0
    why = f"each task succeeds always or never ({rate:.0%} of the episodes do)"
    if rate >= SUCCEEDS:
        why = "nearly every episode succeeds"
    elif rate <= 1 - SUCCEEDS:
        why = "nearly every episode fails alike"
    return f"{equal:.0%} of the groups of the last {config.window} steps teach nothing by their rewards: {why}"


def _floor(line: Line, earlier: Sequence[Line], config: HealthConfig) -> Verdict:
    rewards = _series([*earlier, line], "reward/average_reward")[-config.window :]
    if "generation/episodes" not in line or len(rewards) < config.window:
        return None
    mean, nothing = statistics.fmean(rewards), _number(line, "reward/floor") or 0.0
    told = f"the reward of the last {config.window} steps is {mean:.3f}, and doing nothing earns {nothing:.3f}"
    return told if mean <= nothing + config.floor_margin else ""


def _empty(line: Line, earlier: Sequence[Line], config: HealthConfig) -> Verdict:
    return _replies(line, "generation/replies/empty", config.empty, "{:.1%} of the replies say and call nothing")


def _malformed(line: Line, earlier: Sequence[Line], config: HealthConfig) -> Verdict:
    return _replies(line, "generation/replies/malformed", config.malformed, "{:.1%} of the replies cannot be read")


def _calls(line: Line, earlier: Sequence[Line], config: HealthConfig) -> Verdict:
    kinds = ("generation/replies/calls", "generation/replies/repaired")
    found = _then_and_now(line, earlier, config, lambda each: _sum(each, kinds))
    if found is None:
        return None
    then, now = found
    lost = now < config.calls_fall * then and not _improved(line, earlier, config)
    return f"{now:.1%} of the replies call a tool; at first {then:.1%} did" if lost else ""


def _length(line: Line, earlier: Sequence[Line], config: HealthConfig) -> Verdict:
    found = _then_and_now(
        line, earlier, config, lambda each: _share(each, "generation/sampled_tokens", "generation/episodes")
    )
    if found is None:
        return None
    then, now = found
    drift = now > config.length_drift * then or now * config.length_drift < then
    told = f"the model says {now:.0f} tokens an episode; at first it said {then:.0f}, and it succeeds no more often"
    return told if drift and not _improved(line, earlier, config) else ""


def _faults(line: Line, earlier: Sequence[Line], config: HealthConfig) -> Verdict:
    if "generation/episodes" not in line:
        return None
    whose = {name.removeprefix("fault/"): _number(line, name) or 0.0 for name in line if name.startswith("fault/")}
    if (rate := sum(whose.values())) <= config.faults:
        return ""
    return f"{rate:.1%} of the episodes failed, by whose fault: " + ", ".join(f"{w} {r:.1%}" for w, r in whose.items())


def _start(line: Line, config: HealthConfig) -> Verdict:
    found = {name: _number(line, name) for name in line if name.endswith("/success_rate")}
    trained = [rate for name, rate in found.items() if name.startswith("eval/")] or [*found.values()]
    rates = [rate for rate in trained if rate is not None]
    if not rates:
        return None
    best = max(rates)
    told = f"before reinforcement learning the model succeeds on {best:.1%} of the held-out tasks"
    return f"{told}: hardly an episode earns anything, so that it cannot learn yet" if best < config.start else ""


_CHECKS: dict[Check, Callable[[Line, Sequence[Line], HealthConfig], Verdict]] = {
    "finite": _finite,
    "ratio": _ratio,
    "stuck": _stuck,
    "weights": _weights,
    "gradient": _gradient,
    "clipping": _clipping,
    "kl": _kl,
    "entropy": _entropy,
    "groups": _groups,
    "floor": _floor,
    "empty": _empty,
    "malformed": _malformed,
    "calls": _calls,
    "length": _length,
    "faults": _faults,
}
_REMEDIES: dict[Check, str] = {
    "finite": "go on from an earlier checkpoint with a lower learning rate, or engine.dtype=float32",
    "ratio": "the sampler has other weights than the trainer (see: understudy certify MODEL), or rounds otherwise, "
    "which algorithm.importance_cap=2 makes up for",
    "stuck": "raise algorithm.learning_rate, and see what is trained: engine.finetune, engine.train_embeddings",
    "weights": "the step is smaller than the weights' rounding: raise the learning rate, or take engine.finetune=lora "
    "or engine.dtype=float32",
    "gradient": "lower the learning rate; after a single spike, which engine.optimizer.max_grad_norm cuts, nothing",
    "clipping": "lower algorithm.learning_rate, or algorithm.updates_per_step",
    "kl": "lower algorithm.learning_rate, or set algorithm.kl_coefficient",
    "entropy": "lower algorithm.learning_rate, raise algorithm.loss.clip_high to 0.28, or set algorithm.kl_coefficient",
    "groups": "where episodes fail, easier tasks or a longer warm start; where they succeed, harder tasks; "
    "algorithm.refill samples more groups",
    "floor": "read episodes (understudy view RUN --episode 1); then easier tasks, or a longer warm start",
    "empty": "read episodes (understudy view RUN --episode 1); lower the learning rate, or raise sampling.max_tokens",
    "malformed": "see generation/replies/malformed/… for the kind: a longer warm start, a larger sampling.max_tokens, "
    "another format.dialect",
    "calls": "the model gives up its tools: read episodes, lower algorithm.learning_rate, set algorithm.kl_coefficient",
    "length": "read episodes; algorithm.per=sequence or constant weighs long and short otherwise",
    "faults": "see the errors (understudy view RUN): an endpoint or a server is down or slow, or a grader is broken",
    "start": "give it a warm start, sft.steps=48 or more, or easier tasks by slice.families and slice.difficulties",
}


def _number(line: Line, name: str) -> float | None:
    """The value, where it is a finite number."""
    value = line.get(name)
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _present(lines: Sequence[Line], value: Callable[[Line], float | None]) -> list[float]:
    return [found for line in lines if (found := value(line)) is not None]


def _series(lines: Sequence[Line], name: str) -> list[float]:
    return _present(lines, lambda line: _number(line, name))


def _share(line: Line, part: str, whole: str) -> float | None:
    above, below = _number(line, part), _number(line, whole)
    return above / below if above is not None and below else None


def _sum(line: Line, names: Sequence[str]) -> float | None:
    """The sum of those that are there, 0 where none is; None of a step without episodes."""
    return sum(_number(line, name) or 0.0 for name in names) if "generation/episodes" in line else None


def _above(line: Line, name: str, most: float, text: str) -> Verdict:
    value = _number(line, name)
    if value is None:
        return None
    return f"{text.format(value)}, more than {most:g}" if value > most else ""


def _replies(line: Line, name: str, most: float, text: str) -> Verdict:
    return _above({name: 0.0, **line}, name, most, text) if "generation/episodes" in line else None


def _then_and_now(
    line: Line, earlier: Sequence[Line], config: HealthConfig, value: Callable[[Line], float | None]
) -> tuple[float, float] | None:
    """The means of the first and of the last `window` steps, where they do not overlap."""
    found, window = _present([*earlier, line], value), config.window
    if len(found) < 2 * window:
        return None
    return statistics.fmean(found[:window]), statistics.fmean(found[-window:])


def _succeeds(lines: Sequence[Line], config: HealthConfig) -> bool:
    recent = _series(lines, "reward/success_rate")[-config.window :]
    return bool(recent) and statistics.fmean(recent) >= SUCCEEDS


def _improved(line: Line, earlier: Sequence[Line], config: HealthConfig) -> bool:
    found = _then_and_now(line, earlier, config, lambda each: _number(each, "reward/success_rate"))
    return found is not None and (found[1] >= found[0] + GAINED or found[1] >= SUCCEEDS)
