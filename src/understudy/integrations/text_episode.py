"""TextEpisode: an episode for frameworks whose environments take and give text alone, such as skyrl-gym.

The model is told of its tools in the system message, its calls are read out of the text of its replies, and results
come back as a user's text. With the dialect `hermes` that is, to the letter, what the templates of Qwen2.5 and Qwen3
make of tools, calls and results, so the model sees the tokens that it was trained on.

Such frameworks do not say whether a reply ended or was cut off at its length limit. So a last call that is not complete
is never run; where tokens are known (`agent.EngineAgent`), one that ended is repaired.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby

from understudy.environment import Environment
from understudy.formats.base import settled
from understudy.formats.chatml import QWEN_TOOLS, wire_text
from understudy.formats.hermes import RESULT, RESULT_END
from understudy.formats.options import Dialect
from understudy.formats.parse import parsed
from understudy.formats.told import spelled
from understudy.messages import Message, ToolSpec, identified
from understudy.tasks import Score

Said = dict[str, str]
"""A message: its `role`, one of system, user and assistant, and its `content`."""


class TextEpisode:
    """One episode. After `max_turns` replies it is scored as cut off, as by a rollout's limit."""

    def __init__(self, environment: Environment, *, dialect: Dialect, max_turns: int) -> None:
        self.score: Score | None = None
        """There when the episode is over."""
        self.turns = 0
        """Replies so far."""
        self.replies: Counter[str] = Counter()
        """How they were read: `calls`, `text`, `repaired`, `malformed`, `empty`."""
        self.errors: Counter[str] = Counter()
        """Calls that were answered with an error, by kind."""
        self._environment, self._dialect, self._max_turns = environment, dialect, max_turns

    async def start(self) -> list[Said]:
        """The policy with the tools, and the user's opening."""
        step = await self._environment.start()
        return told(step.messages, self._environment.tools, self._dialect)

    async def step(self, text: str) -> list[Said]:
        """What a reply is answered: nothing where it ends the episode."""
        found = parsed(text, self._dialect, self._environment.tools)
        reply = identified(settled(found, cut=True), self.turns)
        self.turns += 1
        step = await self._environment.step(reply)
        self.replies[found.status] += 1
        self.errors.update(step.errors)
        self.score = step.score
        if self.score is None and self.turns >= self._max_turns:
            self.score = await self._environment.grade(ended=False)
        return [] if self.score else told(step.messages, (), self._dialect)

    async def close(self) -> None:
        """Give back what the episode holds."""
        await self._environment.close()


def told(messages: Sequence[Message], tools: Sequence[ToolSpec], dialect: Dialect) -> list[Said]:
    """Messages as a model in text is told them; the tools come at the end of the system message, if there are any."""
    if dialect == "hermes":
        messages, tools = [*_as_qwen(messages, tools)], ()
    return [{"role": message.role, "content": message.content} for message in spelled(messages, tools, dialect)]


def _as_qwen(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Iterator[Message]:
    """Results that follow each other are one text, a line apart."""
    before, after = QWEN_TOOLS
    block = before + "\n".join(map(wire_text, tools)) + after
    for role, group in groupby(messages, key=lambda message: message.role):
        if role == "system":
            yield from (m.replace(content=f"{m.content}\n\n{block}") if tools else m for m in group)
        elif role == "tool":
            results = (f"{RESULT}\n{message.content}\n{RESULT_END}" for message in group)
            yield Message(role="user", content="\n".join(results))
        else:
            yield from group
