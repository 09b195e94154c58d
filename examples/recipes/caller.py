"""A user of your own: one who is asked to hurry, and hangs up when it takes too long. A recipe: see docs/extending.md.

understudy eval caller:HURRIED --agent gold
"""

from collections.abc import Sequence

from understudy.domains.base import find
from understudy.messages import Message
from understudy.tasks import Scenario
from understudy.tools import Device
from understudy.users import ScriptedUser

PATIENCE = 12
"""Messages of the agent that this user hears."""


class Hurried:
    """The scripted user, until it has heard too much."""

    def __init__(self, scenario: Scenario, seed: int, device: Device | None) -> None:
        self._user = ScriptedUser(scenario, seed, device)

    async def reply(self, transcript: Sequence[Message]) -> str | None:
        """The next message, or None to end; the transcript is empty when the opening is asked for."""
        heard = sum(message.role == "assistant" and not message.tool_calls for message in transcript)
        return await self._user.reply(transcript) if heard < PATIENCE else None


HURRIED = find("retail").with_users(Hurried)
