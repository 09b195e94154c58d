"""The exceptions that the package raises on purpose.

    ToolError      a tool refuses a call; the model reads the text as the tool's result
    RolloutError   the infrastructure of an episode failed; the episode is retried, then dropped and counted
                   TimeLimitError is one: a call did not return within its time limit
                   RunStoppedError is one: a run ended itself at a limit or a health check
    TaskError      a task or a domain is invalid; the command line prints one line and exits with 2
    ConfigError    a setting, name or file is wrong or missing; the command line prints one line and exits with 2
                   LimitReachedError is one: the cost limit stopped a command, which exits with 1

An error text says what is wrong, the value, what is allowed and what to do. The tools, rewards, users and agents of a
user may raise any exception: `core.user_code` turns it into a ToolError or a RolloutError where they are called. Any
other exception is a bug of the package and propagates.
"""

import difflib
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

_MAX_NAMES = 8
"""The largest number of names that an error text lists."""
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|\d+")
ToolErrorKind = Literal[
    "refused", "unknown_tool", "invalid_arguments", "malformed", "unconfirmed", "forbidden", "tool_exception"
]
"""Kinds of tool errors. `unconfirmed` is a write without the user's consent, `forbidden` an access to another user's
data, `tool_exception` an exception of the tool that is not a ToolError."""
Fault = Literal["agent", "user", "tool", "mcp", "grader", "environment", "engine"]
"""Components at fault. `grader` includes reward functions, `environment` is the code that makes an episode."""


@dataclass(frozen=True, slots=True)
class ExceptionReport:
    """An exception that user code raised, for logs."""

    component: Fault
    """The component whose code raised it."""
    what: str
    """What was called, such as `the tool lookup`."""
    exception: str
    """Type and text of the exception in one line."""
    location: str
    """File and line of the user's code, such as `sums.py:12`."""
    traceback: str
    hint: str = ""
    """What to write instead, if that is known."""

    def __str__(self) -> str:
        """Return the report in one line."""
        return f"{self.what} raised {self.exception} ({self.location})" + (f"; {self.hint}" if self.hint else "")


class ToolError(Exception):
    """A tool refused a call.

    The state is rolled back and the model reads the text. Metrics count errors by `kind`. `report` describes the
    exception if `kind` is `tool_exception`.
    """

    def __init__(self, text: str, kind: ToolErrorKind = "refused", report: ExceptionReport | None = None) -> None:
        super().__init__(text)
        self.kind = kind
        self.report = report


class RolloutError(Exception):
    """An episode failed before its end. `fault` names the component at fault.

    The episode has no score and is never trained on. `context_full` marks a conversation that exceeds the model's
    context. After its first turn, an API agent catches such an error, and the episode ends with the stop reason
    `max_tokens`. `report` describes the exception if user code raised one. `is_repeatable` is False if a new attempt
    of the episode would fail too.
    """

    def __init__(
        self,
        text: str,
        fault: Fault,
        context_full: bool = False,
        report: ExceptionReport | None = None,
        is_repeatable: bool = True,
    ) -> None:
        super().__init__(text)
        self.fault: Fault = fault
        self.context_full = context_full
        self.report = report
        self.is_repeatable = is_repeatable

    def __reduce__(self) -> tuple[type["RolloutError"], tuple[str, Fault, bool, ExceptionReport | None, bool]]:
        """Return what pickle needs to restore the error with its fault in another process."""
        return type(self), (str(self), self.fault, self.context_full, self.report, self.is_repeatable)


class TimeLimitError(RolloutError):
    """A call of user code did not return within its time limit."""


class RunStoppedError(RolloutError):
    """A run ended itself at a limit or at a check of its health. It can be resumed."""


class TaskError(Exception):
    """A task cannot be scored: its gold solution fails, or doing nothing earns a reward."""


class ConfigError(Exception):
    """A name, key or value does not exist or is out of range."""


class LimitReachedError(ConfigError):
    """The cost limit is reached, so no further request may be sent. A higher limit continues the work."""


def install_hint(extra: str) -> str:
    """Return the end of an error text that says how to install an extra.

    The distribution is `understudy-rl`, because `understudy` on PyPI is another project. The command also works for an
    installation from a clone: pip reads the extra's requirements from the installed package.
    """
    return f"run pip install 'understudy-rl[{extra}]'"


def no_such_path(text: str) -> str:
    """Return an error text: that a path does not exist, and the closest name or the names beside it."""
    path = Path(os.path.expanduser(text))
    if not path.parent.is_dir():
        return f"there is no file or folder {text}, nor the folder {path.parent}"
    beside = sorted(child.name for child in path.parent.iterdir() if not child.name.startswith("."))
    close = difflib.get_close_matches(path.name, beside, n=1, cutoff=0.5)
    shown = ", ".join(beside[:_MAX_NAMES]) + (", …" if len(beside) > _MAX_NAMES else "")
    if close:
        return f"there is no file or folder {text}; did you mean {path.parent / close[0]}?"
    return f"there is no file or folder {text}; the folder {path.parent.resolve().name} has {shown or 'no files'}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of an error text: `name`, the closest known name by letters and words, and all allowed names."""
    allowed = sorted(known)
    hint = f"did you mean {close!r}? " if (close := _find_closest(name, allowed)) else ""
    return f"{name!r}; {hint}allowed: {', '.join(allowed) or 'none'}"


def _find_closest(name: str, allowed: Sequence[str]) -> str:
    """Return the name with the most letters and words of `name`; empty if no name shares half of its letters or a long
    word."""
    words = _long_words(name)
    scores = dict[str, float]()
    for each in difflib.get_close_matches(name, allowed, n=_MAX_NAMES, cutoff=0.5):
        scores[each] = difflib.SequenceMatcher(None, each, name).ratio()
    for each in allowed:
        if shared := words & _long_words(each):
            scores[each] = scores.get(each, 0.0) + len(shared) / len(words | _long_words(each))
    return max(scores, key=lambda each: scores[each], default="")


def _long_words(name: str) -> set[str]:
    return {word.lower() for word in _WORD.findall(name) if len(word) > 3}
