"""The user of tasks that only a language model or a person can play, for those two who need no conversation."""

from collections.abc import Sequence

from understudy.errors import ConfigError
from understudy.messages import Message
from understudy.tasks import Task


class Rehearsal:
    """Answers the gold turns as in a gold episode, and leaves at silence: for the oracle and the floor.

    Any other text is a `ConfigError`: no script knows what these users would say to it.
    """

    def __init__(self, task: Task) -> None:
        self._task = task.id
        self._opening = task.scenario.opening
        self._texts = [message.content for message in task.gold if message.content]

    async def reply(self, transcript: Sequence[Message]) -> str | None:
        """The opening, "Done." to each gold text but the last, and None to that one and to silence."""
        if not transcript:
            return self._opening
        said = transcript[-1].content
        if said and said not in self._texts:
            raise ConfigError(
                f"task {self._task} has no scripted user to answer {said[:40]!r}: only a language model or a person "
                "can play it; give environment(task, user=...) one. The agents gold and silent need none"
            )
        return "Done." if said and said != self._texts[-1] else None
