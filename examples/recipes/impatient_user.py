"""A custom user simulator that leaves if the conversation takes too long. A recipe: see docs/extending.md.

understudy eval impatient_user:IMPATIENT --agent gold
"""

from collections.abc import Sequence

from understudy import load
from understudy.core.messages import Message
from understudy.core.tasks import Scenario
from understudy.envs.tools import UserTools
from understudy.envs.users import ScriptedUser

MAX_MESSAGES = 12
"""Number of the agent's messages after which the user leaves."""


class ImpatientUser:
    """The scripted user, which leaves after `MAX_MESSAGES` messages of the agent."""

    def __init__(self, scenario: Scenario, seed: int, user_tools: UserTools | None) -> None:
        self._user = ScriptedUser(scenario, seed, user_tools)

    async def reply(self, transcript: Sequence[Message]) -> str | None:
        """Return the next message, or None to end the episode. For the opening, the transcript is empty."""
        heard = sum(message.role == "assistant" and not message.tool_calls for message in transcript)
        return await self._user.reply(transcript) if heard < MAX_MESSAGES else None


IMPATIENT = load("retail").with_users(ImpatientUser)
