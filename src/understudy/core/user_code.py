"""Calls of user code: tools, rewards, users and agents that the package did not ship may raise any exception.

Each call is made inside `user_code`, `tool_code` or `task_code`, which attribute the exception to its component.
Exceptions of the package itself are not caught: they are bugs, and propagate.
"""

import asyncio
import dis
import functools
import inspect
import re
import signal
import sysconfig
import threading
import traceback
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from pydantic import ValidationError

from understudy.core.errors import (
    ConfigError,
    ExceptionReport,
    Fault,
    RolloutError,
    TaskError,
    TimeLimitError,
    ToolError,
)
from understudy.core.items import describe_validation
from understudy.core.json_values import replace_surrogates
from understudy.core.process_state import restore_process_state
from understudy.core.secrets import mask_secrets
from understudy.core.terminal import PersonLeft

MAX_TEXT_LENGTH = 300
"""The largest number of characters of an exception's text in a message."""
MAX_TRACEBACK_LENGTH = 6000
"""The largest number of characters of a stored traceback; the end is kept."""
_PACKAGE = str(Path(__file__).parent.parent)
_ASYNCIO = str(Path(asyncio.__file__).parent)
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
def user_code(component: Fault, what: str, called: object = None) -> Iterator[None]:
    """Turn an exception of the block into a RolloutError with the fault `component`.

    `what` begins the text, such as "the reward function". `called` is the user's object, whose definition is the
    location of an exception that its code does not raise, such as one for a wrong signature. ConfigError, TaskError,
    RolloutError, PersonLeft, Ctrl-C, SIGTERM and the cancellation of the block's own asyncio task pass unchanged. So
    does running out of memory in code of the component `engine`, which shares the memory of the model.
    """
    task = _current_task()
    try:
        yield
    except (ConfigError, TaskError, RolloutError):
        raise
    except BaseException as e:
        if not _is_of_user(e, task) or (component == "engine" and _is_out_of_memory(e)):
            _note_wait(e, component, what)
            raise
        report = report_exception(e, component, what, called)
        raise RolloutError(str(report), component, report=report) from e
    finally:
        restore_process_state()


@contextmanager
def tool_code(name: str, called: object = None) -> Iterator[None]:
    """Turn an exception of the tool `name` into a ToolError of kind `tool_exception`, whose text the model reads.

    The text has the exception's type and message, and no file names. ToolError and the exceptions that pass
    `user_code` pass unchanged.
    """
    task = _current_task()
    try:
        yield
    except (ConfigError, TaskError, RolloutError, ToolError):
        raise
    except BaseException as e:
        if not _is_of_user(e, task):
            _note_wait(e, "tool", f"the tool {name}")
            raise
        report = report_exception(e, "tool", f"the tool {name}", called)
        raise ToolError(report.exception, "tool_exception", report) from e
    finally:
        restore_process_state()


def _current_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # no event loop runs in this thread
        return None


def _is_of_user(error: BaseException, entered_in: asyncio.Task[Any] | None) -> bool:
    """Return whether user code raised an exception, and nothing outside of it.

    `entered_in` is the asyncio task that entered the block. A group is of the user if all its exceptions are.
    """
    if isinstance(error, BaseExceptionGroup):
        return all(_is_of_user(each, entered_in) for each in error.exceptions)
    if isinstance(error, asyncio.CancelledError):
        task = _current_task()
        return task is None or not task.cancelling()
    if isinstance(error, GeneratorExit):  # Python raises it too where a coroutine is closed, but not in its own task
        return entered_in is not None and entered_in is _current_task()
    if isinstance(error, KeyboardInterrupt | SystemExit):  # the handlers of Ctrl-C and SIGTERM raise them in any code
        return _is_raised_by_user(error)
    return not isinstance(error, PersonLeft | _TimeLimitReached)


def _is_raised_by_user(error: BaseException) -> bool:
    """Return whether a `raise` or `sys.exit` outside of this package and of asyncio raised an exception.

    Python's own handler of Ctrl-C raises KeyboardInterrupt between any two instructions.
    """
    frame = error.__traceback__
    while frame and frame.tb_next:
        frame = frame.tb_next
    if frame is None:
        return False
    code = frame.tb_frame.f_code
    if code.co_filename.startswith((_PACKAGE, _ASYNCIO)):
        return False
    return isinstance(error, SystemExit) or code.co_code[frame.tb_lasti] == dis.opmap["RAISE_VARARGS"]


@asynccontextmanager
async def wait_limit(seconds: float, setting: str) -> AsyncIterator[None]:
    """Raise TimeLimitError if the block, which awaits calls of user code, runs longer than `seconds`.

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
        raise TimeLimitError(
            f"{limit.what or 'the environment'} did not return in {seconds:g} s; end its wait, or raise {setting}",
            limit.component,
        ) from e
    finally:
        _WAIT_LIMIT.reset(token)


def _note_wait(error: BaseException, component: Fault, what: str) -> None:
    limit = _WAIT_LIMIT.get()
    if limit and isinstance(error, asyncio.CancelledError):
        limit.note(component, what)


class _TimeLimitReached(BaseException):
    """Ends a tool. It is no Exception, so that the tool cannot catch it by mistake."""


@contextmanager
def tool_time_limit(name: str, seconds: float) -> Iterator[None]:
    """Raise TimeLimitError with the fault `tool` if the block, which calls the tool `name`, runs longer than `seconds`.

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
        raise TimeLimitError(
            f"the tool {name} did not return in {seconds:g} s; end its loop, or raise max_call_seconds of its class",
            "tool",
        ) from None
    finally:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)


@contextmanager
def task_code(what: str, called: object = None) -> Iterator[None]:
    """Turn an exception of code that makes tasks into a TaskError.

    The exceptions that pass `user_code` pass too, and GeneratorExit: the block may yield tasks, and be closed.
    """
    try:
        yield
    except (ConfigError, TaskError, RolloutError):
        raise
    except BaseException as e:
        if not _is_of_user(e, None):
            raise
        raise TaskError(str(report_exception(e, "environment", what, called))) from e
    finally:
        restore_process_state()


def _close_unawaited(error: BaseException) -> None:
    """Close coroutines that asyncio refused to run, such as those of `asyncio.run` in a running loop.

    Python would warn that nothing awaited them.
    """
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_code.co_filename.startswith(_ASYNCIO):
            for value in frame.f_locals.values():
                if inspect.iscoroutine(value) and inspect.getcoroutinestate(value) == inspect.CORO_CREATED:
                    value.close()


def report_exception(error: BaseException, component: Fault, what: str, called: object = None) -> ExceptionReport:
    """Return the report of an exception of user code. `called` is the user's object that was called."""
    _close_unawaited(error)
    location = locate_exception(error, called)
    text, trace = describe_exception(error), format_traceback(error)
    return ExceptionReport(component, what, text, location, trace, _find_hint(error))


_USES: Mapping[str, str] = {
    "Message": "a Message has message.content (its text), message.role and message.tool_calls",
    "ToolCall": "a ToolCall has call.name and call.arguments, a dict",
    "ToolExample": "an example has example.prompt, example.answer and example.info, the dict of further data",
    "Task": "a Task has task.id, task.scenario, task.gold and task.outputs",
    "State": "a State has its tables as attributes, such as self._state.TABLE[key]",
}
"""How to read the objects that user code gets, by their class."""
_WRONG_OBJECT = re.compile(r"'(\w+)' object|(?:not|got|type) '(\w+)'|not (\w+)(?: found|$)")
_OF_MESSAGES = re.compile(r"'(?:list|tuple)' object has no attribute '(?:content|role|tool_calls|lower|strip|split)'")


def _find_hint(error: BaseException) -> str:
    """Return how to read an object of the package that user code has used as a dict or a text, or ""."""
    if not isinstance(error, TypeError | AttributeError):
        return ""
    if _OF_MESSAGES.search(str(error)):
        return "a transcript is a list of messages: the text of the last one is transcript[-1].content"
    found = _WRONG_OBJECT.search(str(error))
    return _USES.get(next(filter(None, found.groups()), ""), "") if found else ""


def _is_out_of_memory(error: BaseException) -> bool:
    """Return whether an exception is a MemoryError, or PyTorch's OutOfMemoryError, which this package cannot import."""
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"


def describe_exception(error: BaseException) -> str:
    """Return the type and the text of an exception in one line, such as `KeyError: 'W9'`, without secrets."""
    text = "its text cannot be shown"
    with suppress(Exception):  # the user's class of exceptions may have a bug of its own
        text = str(error)
        if isinstance(error, ValidationError):  # pydantic's own text has a line and an address for each field
            text = ": ".join(filter(None, (error.title, *describe_validation(error))))
        text = mask_secrets(replace_surrogates(" ".join(text.split())))
    if len(text) > MAX_TEXT_LENGTH:
        text = f"{text[:MAX_TEXT_LENGTH]}…"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def locate_exception(error: BaseException, called: object = None) -> str:
    """Return the file and line of the innermost frame outside of installed packages, such as `sums.py:12`.

    If all frames are in installed packages, return where `called` is defined, if it is not in one, or else the
    innermost frame.
    """
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not is_installed(frame.filename)]
    definition = None if own else locate_definition(called)
    if definition or not frames:
        return definition or "no location"
    last = (own or frames)[-1]
    return f"{Path(last.filename).name}:{last.lineno}"


def is_installed(file: str) -> bool:
    """Return whether a file is of an installed package, also of a parent environment or of the user's site."""
    folders = Path(file).parts
    return file.startswith((*_INSTALLED, "<")) or "site-packages" in folders or "dist-packages" in folders


def name_definition(called: Any) -> str:
    """Return the name of a class or function with its file and line, such as `MySource (my_source.py:12)`."""
    location = locate_definition(called)
    return f"{called.__qualname__} ({location})" if location else str(called.__qualname__)


def locate_definition(called: object) -> str | None:
    """Return the file and line of a function, or of a class or that of an object; None in installed packages."""
    if isinstance(called, functools.partial):
        return locate_definition(called.func)
    if inspect.ismethod(called):
        return locate_definition(called.__func__) or locate_definition(called.__self__)
    if inspect.isfunction(called):
        called = inspect.unwrap(called)
    defined: Any = called if inspect.isfunction(called) or isinstance(called, type) else type(called)
    try:
        file, (_, index) = inspect.getsourcefile(defined), inspect.findsource(defined)
    except (OSError, TypeError, SyntaxError):  # it is built in, or its file is gone or has changed
        return None
    return None if file is None or is_installed(file) else f"{Path(file).name}:{index + 1}"


def format_traceback(error: BaseException) -> str:
    """Return the traceback of an exception and of its causes, without secrets.

    It is cut to `MAX_TRACEBACK_LENGTH` characters at the start.
    """
    text = mask_secrets(replace_surrogates("".join(traceback.format_exception(error)).rstrip()))
    return text if len(text) <= MAX_TRACEBACK_LENGTH else f"…{text[-MAX_TRACEBACK_LENGTH:]}"
