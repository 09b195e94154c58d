"""What `train` and `eval` show while they work: a live view on a terminal, else a line for each step.

The live view is a few lines that replace each other. Notes, such as warnings and the results of evaluations, are
printed above it and stay. Where lines cannot be replaced (no terminal, TERM=dumb) only notes and steps are printed.
"""

import os
import re
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live as Display
from rich.text import Text

from understudy.cli.run_clock import RunClock, TimeLeft, find_phase
from understudy.core.terminal import escape_control_characters
from understudy.core.trajectory import StopReason, Trajectory
from understudy.evaluation.statistics import MeanEstimate, estimate_mean
from understudy.runs.config import TrainConfig
from understudy.runs.health import finite_number
from understudy.runs.phases import PREFERENCES_NAME, SFT_NAME, phase_spans
from understudy.runs.run import Run, read_metrics
from understudy.viewer.progress import PHASE_TITLES
from understudy.viewer.run_text import sparkline

RECENT_STEPS = 5
"""Number of last RL steps whose success is shown with an interval."""
NARROW = 60
"""Columns below which curves and bars are short."""
_ACTIVITIES = {"sample": "playing episodes", "update": "updating the weights"}
_ASCII = str.maketrans("▁▂▃▄▅▆▇█━─", "_.:-=+*##.")


class ProgressConsole(Console):
    """A console that prints nothing any more when the reader of its output has gone, such as `| head`.

    Rich would end the process, and the training with it.
    """

    def on_broken_pipe(self) -> None:
        """Drop all further output of the stream, also that of other code."""
        self.quiet = True
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.file.fileno())
        os.close(nowhere)


class LiveView:
    """The view of a run.

    with LiveView(run) as live:
        live.report("sample", 3, 64, {})
        live.report("train", 1, 60, {"rollout/success_rate": 0.4, "time/step_seconds": 80.0})
    """

    def __init__(self, run: Run, console: Console | None = None, clock: RunClock | None = None) -> None:
        self._run, self._console = run, console or ProgressConsole(stderr=True)
        before = read_metrics(run.folder, "train")
        self._clock = clock or RunClock(run.config, run.step, before)
        self._step = run.step
        self._steps: deque[Mapping[str, object]] = deque(maxlen=500)
        """The metrics of the steps of this phase."""
        self._steps += [line for line in before if find_phase(run.config, line["step"]) == self._clock.phase]
        self._phase = self._clock.phase
        self._activity, self._done, self._total = "starting", 0, 0
        self._rewards: dict[str, list[float]] = {}
        """Rewards of this activity's episodes, by task."""
        self._last_episode = ""
        self._is_described = self._has_estimate = False
        self._announcement: threading.Thread | None = None
        self._display = Display(get_renderable=self._render, console=self._console, refresh_per_second=2)

    @property
    def _is_animated(self) -> bool:
        return self._console.is_terminal and not self._console.is_dumb_terminal

    def __enter__(self) -> Self:
        if self._is_animated:
            self._display.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._announcement:
            self._announcement.join()
        if self._is_animated:
            self._display.transient = True  # the result table follows, or the reason why the run stopped
            self._display.stop()

    def report(self, activity: str, done: int, total: int, metrics: Mapping[str, object]) -> None:
        """Show a progress report of `train`.

        With `metrics` it is a finished step, without them the progress of an activity. With a `total` of 0, `activity`
        is a note.
        """
        if not self._is_described:  # the config and the model have been checked by now
            self._is_described = True
            for line in describe_run(self._run):
                self.note(line)
        if not total:
            self.note(activity)
            return
        self._clock.report(activity, done, total, metrics)
        if metrics:
            self._add_step(done, total, metrics)
            return
        if activity != self._activity:
            self._rewards = {}
        if not self._clock.is_evaluating:
            self._begin_phase(self._clock.phase)
        self._activity, self._done, self._total = activity, done, total
        self._announce_time()

    def add_episode(self, episode: Trajectory) -> None:
        """Show the outcome of an episode that has ended."""
        self._last_episode = format_outcome(episode)
        if episode.score is not None:
            self._rewards.setdefault(episode.task_id, []).append(float(episode.reward >= 1.0))

    def note(self, text: str) -> None:
        """Print lines that stay, such as a warning or the result of an evaluation."""
        self._console.print(_safe(text), markup=False, emoji=False, highlight=False, soft_wrap=True)

    def interrupt(self) -> None:
        """Say what the first Ctrl-C does. This may be called by a signal handler: another thread prints the line."""
        text = format_interruption(self._activity, self._step, self._run.step, self._clock.activity_left())
        self._announcement = threading.Thread(target=self.note, args=(text,), daemon=True)
        self._announcement.start()

    def _add_step(self, step: int, total: int, metrics: Mapping[str, object]) -> None:
        phase = find_phase(self._run.config, step)
        self._step = step
        self._activity = ""
        self._done = 0
        self._total = 0
        self._rewards = {}
        self._begin_phase(phase)
        self._steps.append(metrics)
        if not self._is_animated:
            self.note(format_step(step, total, phase, metrics, self._clock.time_left()))
        self._announce_time()

    def _begin_phase(self, phase: str) -> None:
        """Forget the steps of an earlier phase."""
        if phase != self._phase:
            self._phase = phase
            self._steps.clear()

    def _announce_time(self) -> None:
        """Print the estimate of the run's time once, as soon as there is one for each phase."""
        left = self._clock.time_left()
        if not self._has_estimate and not left.unknown and left.phases:
            self._has_estimate = True
            self.note(f"time left: about {format_left(left)}; the estimate follows the measured steps")

    def _render(self) -> Group:
        width = self._console.width
        lines = self._lines(20 if width >= NARROW else 8)
        lines.insert(1, format_bar(self._step, self._run.config.total_steps, min(width - 1, 60)))
        shown = [line.translate(_ASCII) for line in lines] if self._console.options.ascii_only else lines
        return Group(*(Text(line, no_wrap=True, overflow="ellipsis") for line in shown))

    def _lines(self, curve_width: int) -> list[str]:
        step, total, phase = self._step, self._run.config.total_steps, self._clock.phase
        head = f"step {step}/{total}" if self._clock.is_evaluating else f"{phase} step {min(step + 1, total)}/{total}"
        doing = _ACTIVITIES.get(self._activity, self._activity or "starting").replace("evaluate ", "evaluating ")
        parts = f" {self._done}/{self._total}" if self._total > 1 else ""
        lines = [f"{head.strip()}: {doing}{parts}, {format_seconds(self._clock.activity_seconds)}"]
        lines.append(f"left      {format_left(self._clock.time_left())}")
        rewards, steps = dict(self._rewards), list(self._steps)  # the display's thread calls this while others change
        if rewards:
            lines.append(f"so far    success {format_estimate(estimate_success(rewards))}")
        lines += format_curves(steps, curve_width)
        if self._last_episode:
            lines.append(f"last      {self._last_episode}")
        return lines


class EvalView:
    """The view of an evaluation: one line that is replaced on a terminal, else a line now and then."""

    LINE_SECONDS = 30.0
    """The shortest time between two lines without a terminal."""

    def __init__(self, config: TrainConfig, console: Console | None = None, clock: RunClock | None = None) -> None:
        self._console = console or ProgressConsole(stderr=True)
        self._clock = clock or RunClock(config)
        self._rewards: dict[str, list[float]] = {}
        self._printed = 0.0

    def add_episode(self, episode: Trajectory) -> None:
        """Count the episode's success."""
        if episode.score is not None:
            self._rewards.setdefault(episode.task_id, []).append(float(episode.reward >= 1.0))

    def report(self, done: int, total: int) -> None:
        """Show how many of the episodes have ended."""
        self._clock.report("evaluate", done, total, {})
        left = self._clock.activity_left()
        line = format_evaluation(done, total, self._rewards, left)
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            width = self._console.width - 1
            self._console.file.write(f"\r{_fit(line, width):<{width}}" + ("\n" if done >= total else ""))
            self._console.file.flush()
        elif self._clock.activity_seconds - self._printed >= self.LINE_SECONDS:
            self._printed = self._clock.activity_seconds
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)


def describe_run(run: Run) -> list[str]:
    """Return lines that say what a run will do."""
    config, algorithm = run.config, run.config.algorithm
    sizes = {
        SFT_NAME: f" of {config.sft.batch_size} demonstrations",
        PREFERENCES_NAME: f" of {config.preferences.batch_size} preferences",
    }
    played = f" of {algorithm.groups_per_batch} tasks x {algorithm.group_size} episodes"
    most = algorithm.most_played_episodes
    if most > algorithm.groups_per_batch * algorithm.group_size:
        played += (
            f" (up to {most} episodes, with up to {algorithm.max_resampled_groups} tasks more in place of those "
            "without a training signal)"
        )
    spans = [span for span in phase_spans(config) if span.last_step > run.step]
    parts = [
        f"{PHASE_TITLES[span.name]} {_count(span.last_step - max(run.step, span.first_step - 1), 'step')}"
        + sizes.get(span.name, played)
        for span in spans
    ]
    evaluations = f"evaluations on up to {config.eval.tasks} {config.eval.split} tasks"
    resumed = f" from step {run.step}" if run.step else ""
    return [
        f"{config.model} on {config.domain_text}{resumed}: {', '.join([*parts, evaluations])}",
        f"folder: {run.folder}; metrics.jsonl has all metrics; Ctrl-C stops with a checkpoint",
    ]


def format_step(step: int, total: int, phase: str, metrics: Mapping[str, object], left: TimeLeft) -> str:
    """Return a finished step as one short line. Values that it does not have are left out."""
    names = {"success": "rollout/success_rate", "loss": "train/loss", "seconds": "time/step_seconds"}
    values = [
        f"{title}={value:.3g}" for title, name in names.items() if (value := finite_number(metrics, name)) is not None
    ]
    if (episodes := finite_number(metrics, "rollout/episodes")) is not None:
        values.insert(0, f"episodes={episodes:.0f}")
    lower = ">" if left.unknown and left.seconds is not None else ""
    return " ".join([f"step {step}/{total} {phase}", *values, f"left{lower}={str(left).lstrip('>=')}"])


def format_bar(done: int, total: int, width: int) -> str:
    """Return a bar of `width` characters."""
    filled = width * done // max(1, total)
    return "━" * filled + "─" * (width - filled)


def format_curves(steps: Sequence[Mapping[str, object]], width: int) -> list[str]:
    """Return the lines of success and floor, loss, speed and memory of the steps of a phase."""
    lines = []
    success, losses = _curve(steps, "rollout/success_rate"), _curve(steps, "train/loss")
    if success:
        recent, floor = recent_success(steps), finite_number(steps[-1], "rollout/noop_reward")
        line = f"success   {sparkline(success, width)} {format_estimate(recent)}"
        beside = f"doing nothing {floor:.2f}; " if floor is not None else ""
        lines.append(f"{line} {beside}last {_count(min(len(success), RECENT_STEPS), 'step')}")
    if losses:
        lines.append(f"loss      {sparkline(losses, width)} {losses[-1]:.3g}")
    if steps:
        speed, memory = tokens_per_second(steps[-1]), finite_number(steps[-1], "time/peak_memory_gib")
        parts = [f"{speed:,.0f} tokens/s"] if speed else []
        parts += [f"{memory:.1f} GiB peak"] if memory else []
        lines += [f"speed     {', '.join(parts)}"] if parts else []
    return lines


def recent_success(steps: Sequence[Mapping[str, object]]) -> MeanEstimate:
    """Return the success rate of the last steps. The interval counts each group of episodes as one task.

    This is Wilson's interval for as many draws as there are tasks: the widest that fits, since episodes of a task are
    not independent.
    """
    rates = list[float]()
    for metrics in list(steps)[-RECENT_STEPS:]:
        rate, groups = finite_number(metrics, "rollout/success_rate"), finite_number(metrics, "rollout/groups")
        rates += [rate] * round(groups or 1) if rate is not None else []
    return estimate_mean(rates)


def estimate_success(rewards: Mapping[str, Sequence[float]]) -> MeanEstimate:
    """Return the success rate of episodes, given as successes by task."""
    means = [sum(each) / len(each) for each in rewards.values()]
    return estimate_mean(means, sum(map(len, rewards.values())))


def tokens_per_second(metrics: Mapping[str, object]) -> float | None:
    """Return the speed of a step: tokens that RL samples or that SFT trains on, per second. None if unknown."""
    sampled, seconds = finite_number(metrics, "rollout/response_tokens"), finite_number(metrics, "time/rollout_seconds")
    return sampled / seconds if sampled and seconds else finite_number(metrics, "time/tokens_per_second")


def format_estimate(rate: MeanEstimate) -> str:
    """Return a rate with its interval."""
    return f"{rate.mean:.2f} [{rate.low:.2f}, {rate.high:.2f}]"


def format_evaluation(done: int, total: int, rewards: Mapping[str, Sequence[float]], left: float | None) -> str:
    """Return the progress of an evaluation in one line."""
    rate = f", success so far {format_estimate(estimate_success(rewards))}" if rewards else ""
    return f"episode {done}/{total}{rate}" + (f", {format_seconds(left)} left" if left else "")


def _fit(line: str, width: int) -> str:
    """Return what fits of a line of parts with commas between. An interval is left out, and not cut."""
    if len(line) > width:
        line = re.sub(r" \[[^]]*\]", "", line)
    return line if len(line) <= width else line[: width + 1].rpartition(", ")[0] or line[:width]


def format_outcome(episode: Trajectory) -> str:
    """Return how an episode ended, in one line."""
    ended = {
        StopReason.DONE: "",
        StopReason.MAX_TURNS: ", reached limits.max_turns",
        StopReason.MAX_TOKENS: ", had no room for a reply",
        StopReason.INVALID_REPLIES: ", reached limits.max_invalid_replies",
    }
    replies = _count(episode.num_turns, "reply", "replies")
    if episode.score is None:
        cause = f"{episode.fault or 'episode'} failed after {replies}"
        return _safe(f"{cause}: {episode.task_id}: {episode.error}").replace("\n", " ")
    won = "success" if episode.reward >= 1.0 else f"reward {episode.reward:.2g}"
    reason = ended.get(episode.stop_reason, "") if episode.stop_reason else ""
    return _safe(f"{won}, {replies}{reason}: {episode.task_id}").replace("\n", " ")


def format_left(left: TimeLeft) -> str:
    """Return the time left of a run, and that of each phase."""
    if left.seconds is None:
        return "is measured"
    parts = [f"{name} {format_seconds(seconds)}" for name, seconds in left.phases.items()]
    missing = [f"{name} not measured yet" for name in left.unknown if name not in left.phases]
    known = f"{'at least ' if left.unknown else ''}{format_seconds(left.seconds)}"
    return f"{known} ({', '.join([*parts, *missing])})" if parts or missing else known


def format_seconds(seconds: float) -> str:
    """Return a duration: "80 s", "12 min", "2 h 05 min"."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"


def format_interruption(activity: str, done_steps: int, saved_step: int, seconds: float | None) -> str:
    """Return what happens after the first Ctrl-C, and what a second one would keep."""
    kept = f"keeps step {saved_step}" if saved_step else "keeps no step, since none is saved yet"
    if activity.startswith("evaluate"):
        doing = "ending the evaluation"
    else:
        about = f", about {format_seconds(seconds)}" if seconds else ""
        doing = f"finishing step {done_steps + 1}{about}"
    return f"{doing}; Ctrl-C again stops now and {kept}"


def _curve(steps: Sequence[Mapping[str, object]], name: str) -> list[float]:
    return [value for metrics in steps if (value := finite_number(metrics, name)) is not None]


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


def _safe(text: str) -> str:
    return escape_control_characters(text)
