"""The four errors that the package raises on purpose; anything else is a bug and ends the program with its traceback.

    ToolError      a tool refuses a call: part of the game, the model reads the text
    RolloutError   the machinery around an episode failed: the episode is retried, then dropped and counted
    TaskError      a task or a domain is invalid: one line, exit code 2
    ConfigError    the user asked for something that is not there: one line, exit code 2

A text says what is wrong, which value, what is allowed and what to do.
"""

import difflib
from collections.abc import Iterable
from typing import Literal

CallFault = Literal["refused", "unknown_tool", "bad_arguments", "malformed", "unconfirmed", "forbidden"]
"""`unconfirmed` is a write without the user's consent, `forbidden` a grasp at what belongs to somebody else."""
Fault = Literal["agent", "user", "tool", "mcp", "grader", "engine"]


class ToolError(Exception):
    """A tool refused a call. The state is rolled back and the model sees the text; `kind` is what metrics count."""

    def __init__(self, text: str, kind: CallFault = "refused") -> None:
        super().__init__(text)
        self.kind = kind


class RolloutError(Exception):
    """An episode could not be played to its end, and `fault` says whose fault that was. Never trained as reward 0.

    `full` is that of a model whose context has no room for the conversation: an agent's episode ends there.
    """

    def __init__(self, text: str, fault: Fault, full: bool = False) -> None:
        super().__init__(text)
        self.fault: Fault = fault
        self.full = full

    def __reduce__(self) -> tuple[type["RolloutError"], tuple[str, Fault, bool]]:
        """It travels between processes, as an actor's does, with whose fault it is."""
        return type(self), (str(self), self.fault, self.full)


class TaskError(Exception):
    """A task that cannot be scored: its gold fails, or doing nothing is rewarded."""


class ConfigError(Exception):
    """A name, key or value that does not exist or is out of range."""


def installation(extra: str) -> str:
    """How to get what an extra has, as the tail of an error text; `understudy` on PyPI is another project."""
    return f"run pip install -e '.[{extra}]' in the clone of understudy"


def nearest(name: str, known: Iterable[str]) -> str:
    """`name` as the tail of an error text: the closest known name, and all that are allowed."""
    allowed = sorted(known)
    close = difflib.get_close_matches(name, allowed, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"{name!r}; {hint}allowed: {', '.join(allowed)}"
