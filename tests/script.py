"""An agent that follows a script, and one episode played by an agent: for the tests of domains."""

import asyncio
from typing import Any

from understudy.agent import Agent
from understudy.domains.base import Domain
from understudy.messages import Message
from understudy.rollout import Limits, rollout
from understudy.tasks import Score, Task


class Script:
    """An agent that says and calls what it is given, then falls silent."""

    def __init__(self, *replies: Message) -> None:
        self._replies = replies

    async def act(self, task: Task, episode: Any, new: Any, tools: Any) -> Message:
        episode.observe(new)
        reply = self._replies[episode.turns] if episode.turns < len(self._replies) else Message(role="assistant")
        episode.act(reply)
        return reply


def play(domain: Domain, task: Task, agent: Agent) -> tuple[Score, list[Message]]:
    """What an episode earns, and what was said in it."""
    episode = asyncio.run(rollout(task, domain.environment(task), agent, Limits()))
    assert episode.score is not None
    return episode.score, episode.messages
