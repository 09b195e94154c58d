"""Live view of training: progress, curves and the last metrics. Without a terminal it prints one line per step."""

import math
import time
from collections import deque
from collections.abc import Mapping
from datetime import timedelta
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live as Display
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from understudy.viewer.run_text import MAIN_METRICS, sparkline


class LiveView:
    """The live view of a run.

    with LiveView(total_steps=60, title="retail") as live:
        live.phase("sampling")
        live.add_step(step, {"rollout/reward": 0.4, "time/tokens_per_second": 900.0})
    """

    def __init__(self, total_steps: int, title: str, console: Console | None = None, done_steps: int = 0) -> None:
        self._console = console or Console(stderr=True)
        self._title, self._total = title, total_steps
        self._curves: dict[str, deque[float]] = {name: deque(maxlen=200) for name in MAIN_METRICS}
        self._metrics: Mapping[str, object] = {}
        self._notes: deque[str] = deque(maxlen=5)
        what, left = TextColumn("{task.description}"), TextColumn("{task.fields[left]}")
        self._progress = Progress(what, BarColumn(None), MofNCompleteColumn(), left, console=self._console)
        self._bar = self._progress.add_task("starting", total=total_steps, completed=done_steps, left="")
        self._display = Display(get_renderable=self._render, console=self._console, refresh_per_second=4)
        self._last = time.monotonic()
        self._seconds: deque[float] = deque(maxlen=5)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._display.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._console.is_terminal:
            self._display.stop()

    def report(self, phase: str, done: int, total: int, metrics: Mapping[str, object]) -> None:
        """Show a progress report of `train`.

        With `metrics` it is a finished step, without them the progress of a phase. With a `total` of 0, `phase` is a
        permanent line.
        """
        if not total:
            self.note(phase)
            return
        if metrics:
            self._progress.update(self._bar, total=total)
            self._total = total
            self.add_step(done, metrics)
        self.phase(phase if metrics or total == 1 else f"{phase} {done}/{total}")

    def phase(self, text: str) -> None:
        """Show the current phase."""
        self._progress.update(self._bar, description=text)

    def note(self, text: str) -> None:
        """Show a permanent line, such as a warning, a checkpoint or an evaluation."""
        if self._console.is_terminal:
            self._notes.append(text)
        else:
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def add_step(self, step: int, metrics: Mapping[str, object]) -> None:
        """Show a finished step."""
        self._metrics = metrics
        for name, curve in self._curves.items():
            value = metrics.get(name)
            if isinstance(value, int | float) and math.isfinite(value):
                curve.append(float(value))
        self._pace(metrics.get("time/step_seconds"))
        self._progress.update(self._bar, completed=step, left=self._remaining(step))
        if not self._console.is_terminal:
            self._console.print(self._line(step), markup=False, highlight=False, soft_wrap=True)

    def _line(self, step: int) -> str:
        values = " ".join(f"{name}={_short(value)}" for name, value in self._shown())
        return f"step {step}/{self._total} {values} left={self._remaining(step)}"

    def _shown(self) -> list[tuple[str, object]]:
        """Return the metrics without those of `health/`, whose problems appear as notes."""
        return [(name, value) for name, value in self._metrics.items() if not name.startswith("health/")]

    def _pace(self, seconds: object) -> None:
        """Record a step's seconds. None means the time since the last step, which includes evaluations."""
        now = time.monotonic()
        self._seconds.append(float(seconds) if isinstance(seconds, int | float) else now - self._last)
        self._last = now

    def _remaining(self, step: int) -> str:
        """Estimate the remaining time from the last five steps only, because SFT and RL steps differ in duration."""
        seconds = sum(self._seconds) / len(self._seconds) * (self._total - step)
        return str(timedelta(seconds=round(seconds)))

    def _render(self) -> Panel:
        curves = [Text(self._curve(name, values)) for name, values in self._curves.items() if values]
        notes = [Text(note, style="yellow") for note in self._notes]
        return Panel(Group(self._progress, *curves, self._table(), *notes), title=self._title, title_align="left")

    def _curve(self, name: str, values: deque[float]) -> str:
        recent = list(values)[-10:]
        mean = sum(recent) / len(recent)
        return f"{name:<21} {sparkline(list(values))} {values[-1]:.3f}, mean of the last {len(recent)} {mean:.3f}"

    def _table(self) -> Table:
        """Return the last metrics in three columns."""
        table = Table.grid(padding=(0, 2))
        cells = [f"{name} {_short(value)}" for name, value in self._shown()]
        for i in range(0, len(cells), 3):
            table.add_row(*cells[i : i + 3])
        return table


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
