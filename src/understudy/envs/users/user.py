"""Protocol of users, and a user that says only its opening."""

from collections.abc import Sequence
from typing import Protocol

from understudy.core.errors import ToolError
from understudy.core.messages import Message, ToolCall
from understudy.core.tasks import Scenario
from understudy.core.user_code import user_code
from understudy.envs.tools import UserTools


class User(Protocol):
    """Protocol of the user in a conversation with the agent."""

    async def reply(self, transcript: Sequence[Message]) -> str | None:
        """Return the next message to the agent, or None to end the conversation.

        An empty transcript asks for the opening. An environment also takes users whose `reply` is not a coroutine.
        """


class UserFactory(Protocol):
    """Protocol of a function that creates the user of one episode."""

    def __call__(self, scenario: Scenario, seed: int, user_tools: UserTools | None) -> User:
        """Return the user of a scenario. `user_tools` are the user's own tools, or None if the domain has none."""


def make_user(factory: UserFactory, scenario: Scenario, seed: int, user_tools: UserTools | None) -> User:
    """Return the user of one episode. An exception of the factory is a RolloutError with the fault "user"."""
    with user_code("user", "the user simulator", factory):
        return factory(scenario, seed, user_tools)


class OpeningOnlyUser:
    """User that says only its opening. The agent's first text ends the episode."""

    def __init__(self, opening: str) -> None:
        self._opening = opening

    async def reply(self, transcript: Sequence[Message]) -> str | None:
        """Return the opening for an empty transcript, else None."""
        return None if transcript else self._opening


def run_user_tool(user_tools: UserTools, call: ToolCall) -> str:
    """Run a call of the user's own tool. Return the result, or the error as text. An exception of the tool passes."""
    try:
        return user_tools.call_sync(call)
    except ToolError as e:
        if e.report:
            raise
        return f"Error: {e}"
