"""Calls of user code: tools, rewards, users and agents that the package did not ship may raise any exception.

Each call is made inside `user_code`, `tool_code` or `task_code`, which attribute the exception to its component.
Exceptions of the package itself are not caught: they are bugs, and propagate.
"""

import asyncio
import signal
import sysconfig
import threading
import traceback
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from understudy.core.errors import ConfigError, ExceptionReport, Fault, RolloutError, TaskError, ToolError

MAX_TEXT_LENGTH = 300
"""The largest number of characters of an exception's text in a message."""
MAX_TRACEBACK_LENGTH = 6000
"""The largest number of characters of a stored traceback; the end is kept."""
_PACKAGE = str(Path(__file__).parent.parent)
_INSTALLED = (_PACKAGE, *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")))


@dataclass(slots=True)
class _WaitLimit:
    """A time limit, and which component waited when it was reached."""

    timeout: asyncio.Timeout
    component: Fault = "environment"
    what: str = ""

    def note(self, component: Fault, what: str) -> None:
        """Note that the limit has cancelled a call of this component. The first one is the innermost."""
        if self.timeout.expired() and not self.what:
            self.component, self.what = component, what


_WAIT_LIMIT: ContextVar[_WaitLimit | None] = ContextVar("_WAIT_LIMIT", default=None)


@contextmanager
def user_code(component: Fault, what: str) -> Iterator[None]:
    """Turn an exception of the block into a RolloutError with the fault `component`.

    `what` begins the text, such as "the reward function". ConfigError, TaskError, RolloutError and running out of
    memory pass unchanged.
    """
    try:
        yield
    except asyncio.CancelledError:
        _note_wait(component, what)
        raise
    except (ConfigError, TaskError, RolloutError):
        raise
    except Exception as e:
        if is_out_of_memory(e):
            raise
        report = report_exception(e, component, what)
        raise RolloutError(str(report), component, report=report) from e


@contextmanager
def tool_code(name: str) -> Iterator[None]:
    """Turn an exception of the tool `name` into a ToolError of kind `tool_exception`, whose text the model reads.

    The text has the exception's type and message, and no file names. ToolError and the exceptions that pass
    `user_code` pass unchanged.
    """
    try:
        yield
    except asyncio.CancelledError:
        _note_wait("tool", f"the tool {name}")
        raise
    except (ConfigError, TaskError, RolloutError, ToolError):
        raise
    except Exception as e:
        if is_out_of_memory(e):
            raise
        report = report_exception(e, "tool", f"the tool {name}")
        raise ToolError(report.exception, "tool_exception", report) from e


@asynccontextmanager
async def wait_limit(seconds: float, setting: str) -> AsyncIterator[None]:
    """Raise RolloutError if the block, which awaits calls of user code, runs longer than `seconds`.

    The fault is that of the innermost `user_code` or `tool_code` that waits, and the message names `setting`. The block
    is cancelled, so the limit cannot end code that never awaits or that ignores its cancellation.
    """
    limit = _WaitLimit(asyncio.timeout(seconds))
    token = _WAIT_LIMIT.set(limit)
    try:
        async with limit.timeout:
            yield
    except TimeoutError as e:
        if not limit.timeout.expired():
            raise
        raise RolloutError(
            f"{limit.what or 'the environment'} did not return in {seconds:g} s; end its wait, or raise {setting}",
            limit.component,
        ) from e
    finally:
        _WAIT_LIMIT.reset(token)


def _note_wait(component: Fault, what: str) -> None:
    if limit := _WAIT_LIMIT.get():
        limit.note(component, what)


class _TimeLimitReached(BaseException):
    """Ends a tool. It is no Exception, so that the tool cannot catch it by mistake."""


@contextmanager
def tool_time_limit(name: str, seconds: float) -> Iterator[None]:
    """Raise RolloutError with the fault `tool` if the block, which calls the tool `name`, runs longer than `seconds`.

    The limit needs the timer of the main thread. Other threads, Windows and programs with a timer of their own have no
    limit. It cannot end a single call of C code.
    """
    if (
        threading.current_thread() is not threading.main_thread()
        or not hasattr(signal, "SIGALRM")
        or signal.getsignal(signal.SIGALRM) is not signal.SIG_DFL
    ):
        yield
        return

    def on_alarm(number: int, frame: FrameType | None) -> None:
        raise _TimeLimitReached

    signal.signal(signal.SIGALRM, on_alarm)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
    except _TimeLimitReached:
        raise RolloutError(
            f"the tool {name} did not return in {seconds:g} s; end its loop, or raise max_call_seconds of its class",
            "tool",
        ) from None
    finally:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)


@contextmanager
def task_code(what: str) -> Iterator[None]:
    """Turn an exception of code that makes tasks into a TaskError. The exceptions that pass `user_code` pass too."""
    try:
        yield
    except (ConfigError, TaskError, RolloutError):
        raise
    except Exception as e:
        if is_out_of_memory(e):
            raise
        raise TaskError(str(report_exception(e, "environment", what))) from e


def report_exception(error: Exception, component: Fault, what: str) -> ExceptionReport:
    """Return the report of an exception of user code."""
    return ExceptionReport(component, what, describe_exception(error), locate_exception(error), format_traceback(error))


def is_out_of_memory(error: Exception) -> bool:
    """Return whether an exception is a MemoryError, or PyTorch's OutOfMemoryError, which this package cannot import."""
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"


def describe_exception(error: BaseException) -> str:
    """Return the type and the text of an exception in one line, such as `KeyError: 'W9'`."""
    text = " ".join(str(error).split())
    if len(text) > MAX_TEXT_LENGTH:
        text = f"{text[:MAX_TEXT_LENGTH]}…"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def locate_exception(error: BaseException) -> str:
    """Return the file and line of the innermost frame outside of installed packages, such as `sums.py:12`.

    If all frames are in installed packages, the innermost frame counts.
    """
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith((*_INSTALLED, "<"))]
    if not frames:
        return "no location"
    last = (own or frames)[-1]
    return f"{Path(last.filename).name}:{last.lineno}"


def format_traceback(error: BaseException) -> str:
    """Return the traceback of an exception and of its causes, cut to `MAX_TRACEBACK_LENGTH` characters at the start."""
    text = "".join(traceback.format_exception(error)).rstrip()
    return text if len(text) <= MAX_TRACEBACK_LENGTH else f"…{text[-MAX_TRACEBACK_LENGTH:]}"
