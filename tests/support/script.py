"""Shared parts of the domains' tests: an agent that follows a script, episodes, and a domain's tools on a small
state.
"""

import asyncio
import json
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from understudy.core.errors import ToolError
from understudy.core.messages import Message, ToolCall
from understudy.core.tasks import Score, Task
from understudy.envs.domain import Domain
from understudy.envs.state import State
from understudy.envs.tools import Toolkit
from understudy.rollouts.agent import Agent
from understudy.rollouts.rollout import EpisodeLimits, rollout


class Script:
    """An agent that gives the listed texts and calls, then empty replies."""

    def __init__(self, *replies: Message) -> None:
        self._replies = replies

    async def act(self, task: Task, episode: Any, new: Any, tools: Any) -> Message:
        episode.observe(new)
        turn = episode.num_turns
        episode.act(reply := self._replies[turn] if turn < len(self._replies) else Message(role="assistant"))
        return reply


class Desk:
    """The tools of a domain on a small state."""

    def __init__(self, state: State, tools: Toolkit) -> None:
        self.state: Any = state
        self._tools = tools

    def do(self, tool: str, /, **arguments: Any) -> Any:
        """Return the result of a call."""
        text = self._tools.call_sync(ToolCall(name=tool, arguments=arguments))
        return json.loads(text) if text[0] in "{[" else text

    def refusal(self, tool: str, kind: str = "", /, **arguments: Any) -> str:
        """Return the error text of a call that must fail and change nothing. Check the error's kind if one is given."""
        before = self.state.changes()
        with pytest.raises(ToolError) as caught:
            self.do(tool, **arguments)
        assert self.state.changes() == before
        assert kind in ("", caught.value.kind)
        return str(caught.value)


def play(domain: Domain, task: Task, agent: Agent) -> tuple[Score, list[Message]]:
    """Return the reward of an episode and its messages."""
    episode = asyncio.run(rollout(task, domain.environment(task), agent, EpisodeLimits()))
    assert episode.score is not None
    return episode.score, episode.messages


def mean_reward(domain: Domain, agent: Agent, tasks: Sequence[Task]) -> float:
    """Return the mean reward of an agent on the tasks."""
    return sum(play(domain, task, agent)[0].reward for task in tasks) / len(tasks)


def assert_openings_do_not_reveal_refusal(
    tasks: Sequence[Task], refused: Sequence[bool], low: float, high: float
) -> None:
    """Check that no word of the openings is much more frequent in granted or in refused requests than in all."""
    words = [set(re.findall(r"[a-z]{2,}", task.scenario.opening.lower())) for task in tasks]
    for word, count in Counter(w for each in words for w in each).items():
        if count > 200:
            share = sum(word in w and no for w, no in zip(words, refused, strict=True)) / count
            assert low < share < high, word
