"""The protocol of users, and the one who says a single thing."""

from collections.abc import Sequence
from typing import Protocol

from understudy.messages import Message
from understudy.tasks import Scenario
from understudy.tools import Device


class User(Protocol):
    """The other side of a conversation."""

    async def reply(self, transcript: Sequence[Message]) -> str | None:
        """The next message to the agent, or None to end. An empty transcript asks for the opening."""


class MakeUser(Protocol):
    """Makes the user of one episode."""

    def __call__(self, scenario: Scenario, seed: int, device: Device | None) -> User:
        """The user of a scenario; `device` is what this user has as tools, if anything."""


class NoUser:
    """Nobody answers: the opening is all there is, and the agent's first text ends the episode."""

    def __init__(self, opening: str) -> None:
        self._opening = opening

    async def reply(self, transcript: Sequence[Message]) -> str | None:
        """The opening, then None."""
        return None if transcript else self._opening
