"""The time left of a run, by phase, estimated from the durations of its own steps and evaluations."""

import math
import time
from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import cast

from understudy.runs.config import TrainConfig
from understudy.runs.phases import SFT_NAME, PhaseSpan, eval_name_after, phase_spans
from understudy.runs.resumption import TRAINED_NAME
from understudy.viewer.progress import PHASE_TITLES, RECENT_STEPS

EVALUATIONS = "evaluations"
_MIN_SHARE = 0.25  # share of the episodes that must have ended before their speed is used, because short ones end first


def find_phase(config: TrainConfig, step: int) -> str:
    """Return the title of a step's phase: `SFT`, `preferences` or `RL`. It is empty if there is no such step."""
    spans = (span for span in phase_spans(config) if span.first_step <= step <= span.last_step)
    return next((PHASE_TITLES[span.name] for span in spans), "")


@dataclass(frozen=True, slots=True)
class TimeLeft:
    """Seconds left of a run."""

    phases: Mapping[str, float]
    """Seconds by phase, evaluations last. Phases that are done or cannot be estimated yet are left out."""
    unknown: tuple[str, ...] = ()
    """Phases of which a part cannot be estimated yet."""

    @property
    def seconds(self) -> float | None:
        """The seconds of all phases, a lower bound if some are unknown. None if nothing is known."""
        return sum(self.phases.values()) if self.phases or not self.unknown else None

    def __str__(self) -> str:
        if self.seconds is None:
            return "?"
        return f"{'>=' if self.unknown else ''}{timedelta(seconds=round(self.seconds))}"


class RunClock:
    """Measures steps and evaluations from the reports of `train`, and estimates the time left.

    The steps of a phase take as long as the last five. Before the first RL step its episodes are taken to be as fast as
    those that were played last, and its update to be as fast for each trained episode as an SFT step.
    """

    def __init__(
        self,
        config: TrainConfig,
        done_steps: int = 0,
        history: Sequence[Mapping[str, object]] = (),
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin after `done_steps` steps. `history` has the metrics of steps that an earlier start of the run made."""
        self._config, self._now = config, now
        self._spans = phase_spans(config)
        self._eval_steps = [step for step in range(config.total_steps + 1) if eval_name_after(config, step)]
        self._num_done = done_steps
        self._step_seconds: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=RECENT_STEPS))
        self._eval_seconds: dict[str, float] = {}
        """The expected duration of the next evaluation on each eval set."""
        self._episode_seconds: float | None = None
        """Seconds that the last evaluation or step took to play its episodes, divided by their number."""
        self._activity, self._done, self._total = "", 0, 0
        self._evaluated = done_steps or -1
        """The last step whose evaluation has begun."""
        self._activity_start = self._step_start = now()
        for line in history:
            self._add_step_seconds(cast(int, line["step"]), line.get("time/step_seconds"), math.nan)

    @property
    def phase(self) -> str:
        """The title of the phase of the step under way; empty after the last step."""
        return find_phase(self._config, self._num_done + 1)

    @property
    def is_evaluating(self) -> bool:
        """True during an evaluation."""
        return self._activity.startswith("evaluate")

    @property
    def activity_seconds(self) -> float:
        """The time since the activity began."""
        return self._now() - self._activity_start

    def report(self, activity: str, done: int, total: int, metrics: Mapping[str, object]) -> None:
        """Record a progress report of `train`."""
        if metrics:
            self._end_step(done, metrics.get("time/step_seconds"))
            return
        if activity != self._activity:
            if self.is_evaluating or not self._activity:  # a step begins
                self._step_start = self._now()
            self._activity, self._activity_start = activity, self._now()
        self._done, self._total = done, total
        if total > 1 and done >= max(1, _MIN_SHARE * total):
            self._episode_seconds = self.activity_seconds / done
        if self.is_evaluating:
            self._evaluated = self._num_done
            if done >= total:
                self._eval_seconds[self._eval_set] = self.activity_seconds * self._later_share

    def activity_left(self) -> float | None:
        """Return the seconds left of the step or evaluation under way. None if nothing is known."""
        if self.is_evaluating:
            return self._evaluation_left()
        span = self._span(self._num_done + 1)
        seconds = self._seconds_of_step(span)[0] if span else None
        return None if seconds is None else max(0.0, seconds - (self._now() - self._step_start))

    def time_left(self) -> TimeLeft:
        """Return the estimate for the rest of the run."""
        phases, unknown = dict[str, float](), list[str]()
        for span in self._spans:
            steps = span.last_step - max(self._num_done, span.first_step - 1)
            if steps <= 0:
                continue
            title, (seconds, is_whole) = PHASE_TITLES[span.name], self._seconds_of_step(span)
            if seconds is not None:
                under_way = span.first_step <= self._num_done + 1 and self._activity and not self.is_evaluating
                gone = self._now() - self._step_start if under_way else 0.0
                phases[title] = seconds * (steps - 1) + max(0.0, seconds - gone)
            if not is_whole:
                unknown.append(title)
        evaluations = self._evaluations_left()
        if evaluations is None:
            unknown.append(EVALUATIONS)
        elif evaluations:
            phases[EVALUATIONS] = evaluations
        return TimeLeft(phases, tuple(unknown))

    @property
    def _eval_set(self) -> str:
        return self._activity.partition(" on ")[2]

    @property
    def _later_share(self) -> float:
        """The number of tasks of later evaluations on this eval set, divided by that of the one under way."""
        is_base = not self._num_done and not self._eval_set
        return self._config.eval.tasks / self._config.num_base_tasks if is_base else 1.0

    def _span(self, step: int) -> PhaseSpan | None:
        return next((span for span in self._spans if span.first_step <= step <= span.last_step), None)

    def _end_step(self, step: int, seconds: object) -> None:
        self._add_step_seconds(step, seconds, self._now() - self._step_start)
        self._num_done = step
        self._activity = ""
        self._done = 0
        self._total = 0
        self._step_start = self._now()

    def _add_step_seconds(self, step: int, seconds: object, measured: float) -> None:
        span, found = self._span(step), float(seconds) if isinstance(seconds, int | float) else measured
        if span and math.isfinite(found):
            self._step_seconds[span.name].append(found)

    def _seconds_of_step(self, span: PhaseSpan) -> tuple[float | None, bool]:
        """Return the seconds of a step, and whether they are of the whole step."""
        measured = self._step_seconds[span.name]
        if measured:
            return sum(measured) / len(measured), True
        if span.name != TRAINED_NAME:
            return None, False
        algorithm, sft = self._config.algorithm, self._step_seconds[SFT_NAME]
        if self._episode_seconds is None:
            return None, False
        sampling = algorithm.groups_per_batch * algorithm.group_size * self._episode_seconds
        if not sft:
            return sampling, False
        trained = algorithm.groups_per_batch * algorithm.most_trained_episodes * algorithm.update_epochs
        return sampling + trained * sum(sft) / len(sft) / self._config.sft.batch_size, True

    def _evaluation_left(self) -> float | None:
        if self._done >= self._total:
            return 0.0
        if self._done >= max(1, _MIN_SHARE * self._total):
            return self.activity_seconds / self._done * (self._total - self._done)
        last = self._eval_seconds.get(self._eval_set)
        return None if last is None else max(0.0, last - self.activity_seconds)

    def _evaluations_left(self) -> float | None:
        """Return the seconds of the rest of this evaluation and all later ones. None if the first has just begun."""
        left = len(self._eval_steps) - bisect_right(self._eval_steps, self._evaluated)
        now = self._evaluation_left() if self.is_evaluating else 0.0
        if now is None:
            return None
        each = dict(self._eval_seconds)
        if self.is_evaluating:
            each[self._eval_set] = (self.activity_seconds + now) * self._later_share
        return None if left and not each else now + left * sum(each.values())
