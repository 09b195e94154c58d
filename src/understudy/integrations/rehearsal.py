"""The user of tasks that only a language model or a person can play, for those two who need no conversation."""

from collections.abc import Awaitable, Callable, Sequence

from understudy.errors import ConfigError
from understudy.messages import Message
from understudy.tasks import Task


class Rehearsal:
    """Answers the gold turns as in a gold episode, and leaves at silence: for the oracle and the floor.

    Any other text is a `ConfigError`: no script knows what these users would say to it. `act` does what the user does
    after the gold text of that number.
    """

    def __init__(self, task: Task, act: Callable[[int], Awaitable[None]] | None = None) -> None:
        self._task, self._act = task.id, act
        self._opening = task.scenario.opening
        self._texts = [message.content for message in task.gold if message.content]
        self._heard = 0

    async def reply(self, transcript: Sequence[Message]) -> str | None:
        """The opening, "Done." to each gold text but the last, and None to that one and to silence."""
        if not transcript:
            return self._opening
        said = transcript[-1].content
        if not said:
            return None
        if said not in self._texts[self._heard : self._heard + 1]:
            raise ConfigError(
                f"task {self._task} has no scripted user to answer {said[:40]!r}: only a language model or a person "
                "can play it; set user.kind=llm and user.chat.model=…, in Python environment(task, user=...). Agents "
                "gold and silent need none"
            )
        if self._act:
            await self._act(self._heard)
        self._heard += 1
        return "Done." if self._heard < len(self._texts) else None
