"""Users that replay recorded episodes, completely or up to a given message."""

from collections.abc import Sequence

from understudy.core.messages import Message
from understudy.envs.users.user import User


class ReplayUser:
    """User that repeats recorded messages and then leaves. It does not repeat calls of the user's own tools."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._words = list(texts)

    async def reply(self, transcript: Sequence[Message]) -> str | None:
        """Return the next recorded message, or None after the last."""
        said = _said(transcript)
        return self._words[said] if said < len(self._words) else None


class SwitchingUser:
    """User that is `first` for `count` messages and `then` for all later ones."""

    def __init__(self, first: User, count: int, then: User) -> None:
        self._first, self._count, self._then = first, count, then

    async def reply(self, transcript: Sequence[Message]) -> str | None:
        """Return the reply of the current user."""
        speaker = self._first if _said(transcript) < self._count else self._then
        return await speaker.reply(transcript)


def _said(transcript: Sequence[Message]) -> int:
    return sum(message.role == "user" for message in transcript)
