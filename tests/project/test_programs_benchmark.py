"""Test benchmarks/programs.py: what it demonstrates, and what it rewards."""

import json
import sys
from collections.abc import Sequence

import pytest

from support.paths import ROOT
from understudy.core.messages import Message, ToolCall
from understudy.core.trajectory import Trajectory
from understudy.rollouts.program_reward import RecordedEpisode

sys.path.append(str(ROOT / "benchmarks"))

import programs

TOOLS = [{"type": "function", "function": {"name": "look_up"}}]


@pytest.mark.parametrize(
    ("called", "reward"),
    [
        (["Quartz", "Jade"], 1.0),
        (["Quartz"], 0.0),
        (["Jade", "Quartz"], 0.0),
        (["Quartz", "Jade", "Zinc", "Zinc"], 0.0),
    ],
)
def test_only_exact_look_ups_earn(called: Sequence[str], reward: float) -> None:
    task = programs.TWO.tasks("test")[0]
    episode = Trajectory(task.id)
    episode.observe([Message(role="user", content=task.scenario.opening)], [0])
    for name in called:
        call = ToolCall(name="look_up", arguments={"name": name})
        episode.act(Message(role="assistant", tool_calls=(call,)), [1], [-1.0])
    given = Message(role="assistant", tool_calls=(ToolCall(name="look_up", arguments={"name": "Zinc"}),))
    episode.observe([given], [2])  # sampled elsewhere
    assert programs.reward(RecordedEpisode(task, episode, "21")) == reward


def test_demonstrations_look_up_all_names_and_are_written_once() -> None:
    firsts, rows = [], []
    for task in programs.ONE.tasks("train")[:30]:
        messages = [{"role": "user", "content": task.scenario.opening}]
        while messages[-1]["role"] != "assistant" or messages[-1].get("tool_calls"):
            if calls := messages[-1].get("tool_calls"):
                firsts.append(json.loads(calls[0]["function"]["arguments"])["name"])
                messages.append({"role": "tool", "content": "21", "tool_call_id": calls[0]["id"]})
            messages.append(programs.demonstrate({"messages": messages, "tools": TOOLS}))
            rows.append({"messages": list(messages), "tools": TOOLS})
    assert set(firsts) == set(programs.NAMES)
    assert [row["messages"][-1]["content"] for row in programs.complete_conversations(rows)] == ["21"] * 30
