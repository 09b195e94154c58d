"""Users of episodes that were played: one who says the same again, and one who hands over to another halfway."""

from collections.abc import Sequence

from understudy.messages import Message
from understudy.users.user import User


class RecordedUser:
    """Says again what a user once said, and then leaves. What that user did with tools of their own is not done."""

    def __init__(self, words: Sequence[str]) -> None:
        self._words = list(words)

    async def reply(self, transcript: Sequence[Message]) -> str | None:
        """The next of the words."""
        said = _said(transcript)
        return self._words[said] if said < len(self._words) else None


class RelayedUser:
    """Speaks as `first` does for `count` messages, and as `then` from there on."""

    def __init__(self, first: User, count: int, then: User) -> None:
        self._first, self._count, self._then = first, count, then

    async def reply(self, transcript: Sequence[Message]) -> str | None:
        """What the one whose turn it is says."""
        speaker = self._first if _said(transcript) < self._count else self._then
        return await speaker.reply(transcript)


def _said(transcript: Sequence[Message]) -> int:
    return sum(message.role == "user" for message in transcript)
