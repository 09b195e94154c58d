"""A person at the terminal with scripted lines."""

from collections.abc import Iterable

from understudy.cli.play import TerminalPlayer
from understudy.core.terminal import InputEnded


def scripted_player(lines: Iterable[str]) -> tuple[TerminalPlayer, list[str]]:
    """Return a person who types `lines` and then closes the terminal, and the list of texts shown."""
    shown: list[str] = []
    typed = iter(lines)

    def ask(prompt: str) -> str:
        line = next(typed, None)
        if line is None:
            raise InputEnded
        return line

    return TerminalPlayer(ask, shown.append), shown
