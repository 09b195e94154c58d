"""The log of a run, `run.log`: the lines that a terminal shows, with times; with `debug` each episode and retry too."""

import contextlib
import logging
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from understudy.core.secrets import mask_secrets

LOG_FILE = "run.log"
_LOGGER = logging.getLogger("understudy")
_STEP_METRICS = ("rollout/reward", "rollout/success_rate", "train/loss", "time/step_seconds")


class RunLog:
    """Appends what the package logs in a `with` block to the run's `run.log`, and the error that ends the block.

    Only loggers below `understudy` are recorded, because other libraries may log keys and addresses.
    """

    def __init__(self, folder: Path, debug: bool = False) -> None:
        self._level = logging.DEBUG if debug else logging.INFO
        self._handler = _LogFile(folder / LOG_FILE, encoding="utf-8", delay=True)
        self._handler.setFormatter(_MaskedLine("%(asctime)s %(levelname)s %(message)s"))

    def __enter__(self) -> Self:
        self._level_before = _LOGGER.level
        _LOGGER.setLevel(self._level)
        _LOGGER.addHandler(self._handler)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is not None:
            _LOGGER.error("%s: %s", type(error).__name__, error)
            _LOGGER.debug("%s", "".join(traceback.format_exception(error)).rstrip())
        _LOGGER.removeHandler(self._handler)
        _LOGGER.setLevel(self._level_before)
        self._handler.close()

    def report(self, activity: str, done: int, total: int, metrics: Mapping[str, float]) -> None:
        """Log a progress report of `train`: a line of text, a finished step with its main metrics, or part of an
        activity."""
        if not total:
            _LOGGER.info("%s", activity)
        elif metrics:
            values = " ".join(f"{name}={metrics[name]:.4g}" for name in _STEP_METRICS if name in metrics)
            _LOGGER.info("step %d/%d %s", done, total, values)
        else:
            _LOGGER.debug("%s %d/%d", activity, done, total)


class _MaskedLine(logging.Formatter):
    """Formats a line without secrets."""

    def format(self, record: logging.LogRecord) -> str:
        return mask_secrets(super().format(record))


class _LogFile(logging.FileHandler):
    """Appends to a file. A failed write is ignored: the run itself writes to the same disk and reports the error."""

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(OSError):  # the file is opened here
            super().emit(record)

    def close(self) -> None:
        with contextlib.suppress(OSError):  # what a failed write has left in the buffer fails again
            super().close()

    def handleError(self, record: logging.LogRecord) -> None:
        pass
