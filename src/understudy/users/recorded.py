"""RecordedUser: says again what a user once said. What that user did with tools of their own is not done again."""

from collections.abc import Sequence

from understudy.messages import Message
from understudy.users.user import User


class RecordedUser:
    """The user of an episode that was played; after the recorded words `then` speaks, or nobody."""

    def __init__(self, words: Sequence[str], then: User | None = None) -> None:
        self._words, self._then = list(words), then

    async def reply(self, transcript: Sequence[Message]) -> str | None:
        """The next of the words."""
        said = sum(message.role == "user" for message in transcript)
        if said < len(self._words):
            return self._words[said]
        return await self._then.reply(transcript) if self._then else None
