"""The user of benchmark tasks for the agents `gold` and `noop`, which need no conversation."""

from collections.abc import Awaitable, Callable, Sequence

from understudy.core.errors import ConfigError
from understudy.core.messages import Message
from understudy.core.tasks import Task

USERS_TO_CHOOSE = (
    "set user.kind=instruction for users who say everything at once, or user.kind=llm and endpoints.default.model=…"
)


class GoldUser:
    """A user that answers the gold agent's texts and leaves when the agent is silent.

    Any other text raises `ConfigError`, because these tasks have no scripted user. `on_gold_text` is awaited with the
    index of each gold text that was sent; it runs the user's tool calls that follow the text.
    """

    def __init__(self, task: Task, on_gold_text: Callable[[int], Awaitable[None]] | None = None) -> None:
        self._task, self._act = task.id, on_gold_text
        self._opening = task.scenario.opening
        self._texts = [message.content for message in task.gold if message.content]
        self._heard = 0

    async def reply(self, transcript: Sequence[Message]) -> str | None:
        """Return the opening of an empty transcript, and "Done." after each gold text but the last.

        Return None, which ends the conversation, after the last gold text and after an empty text.
        """
        if not transcript:
            return self._opening
        said = transcript[-1].content
        if not said:
            return None
        if said not in self._texts[self._heard : self._heard + 1]:
            raise ConfigError(
                f"task {self._task} has no scripted user, so nobody can answer {said[:40]!r}; {USERS_TO_CHOOSE}, or "
                "pass environment(task, user=...) in Python. Only the agents gold and noop need no user"
            )
        if self._act:
            await self._act(self._heard)
        self._heard += 1
        return "Done." if self._heard < len(self._texts) else None
