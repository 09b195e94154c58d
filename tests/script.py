"""What the tests of domains share: an agent that follows a script, episodes, and a desk's tools at hand."""

import asyncio
import json
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from understudy.agent import Agent
from understudy.domains.base import Domain
from understudy.errors import ToolError
from understudy.messages import Message, ToolCall
from understudy.rollout import Limits, rollout
from understudy.state import State
from understudy.tasks import Score, Task
from understudy.tools import Toolkit


class Script:
    """An agent that says and calls what it is given, then falls silent."""

    def __init__(self, *replies: Message) -> None:
        self._replies = replies

    async def act(self, task: Task, episode: Any, new: Any, tools: Any) -> Message:
        episode.observe(new)
        reply = self._replies[episode.turns] if episode.turns < len(self._replies) else Message(role="assistant")
        episode.act(reply)
        return reply


class Desk:
    """The tools of a domain on a small state."""

    def __init__(self, state: State, tools: Toolkit) -> None:
        self.state: Any = state
        self._tools = tools

    def do(self, tool: str, /, **arguments: Any) -> Any:
        """What a call returns."""
        text = self._tools.run(ToolCall(name=tool, arguments=arguments))
        return json.loads(text) if text[0] in "{[" else text

    def refusal(self, tool: str, kind: str = "", /, **arguments: Any) -> str:
        """Why a call is refused, which has to be for a reason of this kind, if one is given."""
        before = self.state.changes()
        with pytest.raises(ToolError) as caught:
            self.do(tool, **arguments)
        assert self.state.changes() == before
        assert kind in ("", caught.value.kind)
        return str(caught.value)


def play(domain: Domain, task: Task, agent: Agent) -> tuple[Score, list[Message]]:
    """What an episode earns, and what was said in it."""
    episode = asyncio.run(rollout(task, domain.environment(task), agent, Limits()))
    assert episode.score is not None
    return episode.score, episode.messages


def mean(domain: Domain, agent: Agent, tasks: Sequence[Task]) -> float:
    """What an agent earns."""
    return sum(play(domain, task, agent)[0].reward for task in tasks) / len(tasks)


def assert_openings_tell_nothing(tasks: Sequence[Task], refused: Sequence[bool], low: float, high: float) -> None:
    """No word of the openings is much more frequent in granted or in refused requests than in all."""
    words = [set(re.findall(r"[a-z]{2,}", task.scenario.opening.lower())) for task in tasks]
    for word, count in Counter(w for each in words for w in each).items():
        if count > 200:
            share = sum(word in w and no for w, no in zip(words, refused, strict=True)) / count
            assert low < share < high, word
