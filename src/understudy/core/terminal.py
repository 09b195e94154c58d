"""The terminal: read a line from a person, and print a conversation."""

import contextlib
import re
import signal
import threading
from unicodedata import category

from rich.console import Console
from rich.text import Text

with contextlib.suppress(ModuleNotFoundError):  # not available on every platform
    import readline  # noqa: F401  # gives `input` a history and line editing

_SPEAKER = re.compile(r" *(\w*) [|>] ")
_STYLES = {"system": "dim", "user": "green", "assistant": "cyan", "agent": "cyan", "tool": "yellow", "db": "magenta"}


class PersonLeft(BaseException):
    """A person left an episode: /quit, end of input, or Ctrl-C.

    It is no Exception, so that `user_code` does not report it, and no KeyboardInterrupt, because asyncio prints
    the traceback of one that is raised in a task.
    """


class InputEnded(PersonLeft):
    """The input ended (Ctrl-D): no further line can be read."""


def read_line(prompt: str) -> str:
    """Return a line from `input`. Raise InputEnded at its end, and PersonLeft at once at Ctrl-C.

    It works in an event loop too.
    """
    try:
        if threading.current_thread() is not threading.main_thread():
            return input(prompt)
        handler = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            return input(prompt)
        finally:
            signal.signal(signal.SIGINT, handler)
    except EOFError:
        raise InputEnded from None
    except KeyboardInterrupt:
        raise PersonLeft from None


def print_conversation(text: str) -> None:
    """Print a conversation with one colour per speaker if the terminal supports colours."""
    console = Console(highlight=False, soft_wrap=True)
    style = ""
    for line in map(escape_control_characters, text.splitlines() or [""]):
        speaker = _SPEAKER.match(line)
        if not speaker:
            style = ""
        elif speaker[1]:  # a continuation line has no name and keeps the style
            style = _STYLES.get(speaker[1], "")
        console.print(Text(line, style))


def escape_control_characters(text: str) -> str:
    """Return the text with terminal control characters (escapes, bells, direction marks) replaced by U+FFFD."""
    return "".join(c if _is_safe(c) else "\N{REPLACEMENT CHARACTER}" for c in text)


def _is_safe(character: str) -> bool:
    return character.isprintable() or character in "\n\t" or category(character) == "Zs"
