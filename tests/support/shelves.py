"""A small dataset with its own tools and reward, and an agent with fixed replies."""

import asyncio
from collections.abc import Sequence

from understudy.core.errors import ToolError
from understudy.core.messages import Message, ToolCall
from understudy.core.tasks import Task
from understudy.core.trajectory import Trajectory
from understudy.sources.tool_dataset import ToolDataset, ToolEpisode, ToolExample


class Shelf(ToolEpisode):
    """A shelf that stores the things put on it in this episode."""

    def __init__(self, example: ToolExample) -> None:
        super().__init__(example)
        self._held: list[str] = []

    def put(self, thing: str) -> list[str]:
        """Put a thing on the shelf."""
        if thing in self._held:
            raise ToolError(f"{thing} is there already")
        self._held.append(thing)
        return self._held

    async def look(self) -> str:
        """What is on the shelf."""
        await asyncio.sleep(0)
        return ", ".join(self._held) or "nothing"

    def reward(self, transcript: Sequence[Message]) -> float:
        """Return 0.5 for the right things and 0.5 for having looked at them."""
        looked = any(message.content == "cup" for message in transcript if message.role == "tool")
        return 0.5 * (self._held == ["cup"]) + 0.5 * looked


def call(name: str, **arguments: object) -> ToolCall:
    return ToolCall(name=name, arguments=arguments)


GOLD = (call("put", thing="cup"), call("look"))
ROWS = [
    ToolExample(
        prompt=f"{name} wants the cup on the shelf.", gold_calls=GOLD, answer="Done.", family=name[0], split=split
    )
    for name, split in (("Ada", "train"), ("Ben", "validation"), ("Cleo", "test"))
]
SHELVES = ToolDataset("shelves", "You tidy up.", ROWS, Shelf)


class FixedReplies:
    """An agent with fixed replies."""

    def __init__(self, *replies: Message | str) -> None:
        self._replies = [Message(role="assistant", content=r) if isinstance(r, str) else r for r in replies]

    async def act(self, task: Task, episode: Trajectory, new: Sequence[Message], tools: Sequence[object]) -> Message:
        episode.observe(new)
        episode.act(reply := self._replies[episode.num_turns])
        return reply


HELLO = FixedReplies("Hello.")


def make_hello(model: object) -> FixedReplies:
    """Return an agent, as a function that `--agent` names does."""
    return HELLO
