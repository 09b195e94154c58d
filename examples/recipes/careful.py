"""An agent of your own, around a model behind an endpoint. A recipe: see docs/extending.md.

understudy eval retail --agent careful:Careful chat.base_url=http://127.0.0.1:8000/v1 chat.model=NAME
"""

from collections.abc import Sequence

from understudy.agent import ChatAgent
from understudy.messages import Message, ToolSpec
from understudy.tasks import Task
from understudy.trajectory import Trajectory

REMINDER = "Look everything up before you answer. Where a tool refuses a call, read why before you call it again."


class Careful(ChatAgent):
    """The endpoint's own agent, with a reminder under the domain's policy."""

    async def act(
        self, task: Task, episode: Trajectory, new: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> Message | None:
        """The reply to the new messages; an agent records both in the episode, as `ChatAgent` does."""
        if not episode.messages:
            policy = new[0].replace(content=f"{new[0].content}\n\n{REMINDER}")
            new = [policy, *new[1:]]
        return await super().act(task, episode, new, tools)
