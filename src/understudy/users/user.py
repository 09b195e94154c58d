"""What a user is, and the one who says a single thing."""

from collections.abc import Sequence
from typing import Protocol

from understudy.errors import ToolError
from understudy.messages import Message, ToolCall
from understudy.tasks import Scenario
from understudy.tools import Device


class User(Protocol):
    """The other side of a conversation."""

    async def reply(self, transcript: Sequence[Message]) -> str | None:
        """The next message to the agent, or None to end. An empty transcript asks for the opening."""


class MakeUser(Protocol):
    """Makes the user of one episode."""

    def __call__(self, scenario: Scenario, seed: int, device: Device | None) -> User:
        """The user of a scenario; `device` holds the user's own tools, where the domain gives them any."""


class NoUser:
    """Nobody answers: the opening is all there is, and the agent's first text ends the episode."""

    def __init__(self, opening: str) -> None:
        self._opening = opening

    async def reply(self, transcript: Sequence[Message]) -> str | None:
        """The opening, then None."""
        return None if transcript else self._opening


def used(device: Device, call: ToolCall) -> str:
    """What a tool of the user's own shows, or why it refuses."""
    try:
        return device.run(call)
    except ToolError as e:
        return f"Error: {e}"
