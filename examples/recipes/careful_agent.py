"""A custom agent that uses a model behind an endpoint. A recipe: see docs/extending.md.

understudy eval retail --agent careful_agent:CarefulAgent \\
    endpoints.default.base_url=http://127.0.0.1:8000/v1 endpoints.default.model=NAME
"""

from collections.abc import Sequence

from understudy.core.messages import Message, ToolSpec
from understudy.core.tasks import Task
from understudy.core.trajectory import Trajectory
from understudy.rollouts.agent import APIAgent

REMINDER = "Look everything up before you answer. Where a tool refuses a call, read why before you call it again."


class CarefulAgent(APIAgent):
    """The agent of an endpoint, with a reminder after the domain's policy."""

    async def act(
        self, task: Task, episode: Trajectory, new_messages: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> Message | None:
        """Return the reply to the new messages. `APIAgent.act` appends both to the episode, as every agent must."""
        if not episode.messages:
            policy = [message.content for message in new_messages if message.role == "system"]
            others = [message for message in new_messages if message.role != "system"]
            new_messages = [Message(role="system", content="\n\n".join([*policy, REMINDER])), *others]
        return await super().act(task, episode, new_messages, tools)
