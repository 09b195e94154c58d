"""Tests of agent programs with real frameworks, each unchanged: their calls, masks and rewards.

The programs are in `support/agent_programs`. The model calls a tool twice and then answers.
"""

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from test_program import SUMS

from support.replying import ReplySampler, say
from support.software import agent_frameworks_python
from support.tiny_runs import make_tiny_model
from understudy.core.messages import Message, ToolCall
from understudy.core.trajectory import Trajectory
from understudy.engines.interface import SamplingParams
from understudy.envs.task_source import find_tool_specs
from understudy.formats import FormatTokenizer
from understudy.rollouts.program import ProgramAgent
from understudy.rollouts.program_config import ProgramConfig
from understudy.rollouts.rollout import EpisodeLimits, play_episode
from understudy.serve.requests import ChatCompletionRequest
from understudy.train.certify.audit import audit_tokens
from understudy.train.certify.program_checks import ScriptedModel

PROGRAMS = Path(__file__).parents[1] / "support" / "agent_programs"
ARGUMENTS = {"look_up": {"name": "a"}, "ask_first": {"input": "a?"}, "ask_second": {"input": "b?"}}
LIMITS = EpisodeLimits(max_retries=0, max_episode_tokens=100_000)


@dataclass(frozen=True, slots=True)
class TwoCalls(ScriptedModel):
    """A model that calls tools twice, or two agents at once, and answers 42."""

    def _reply(self, request: ChatCompletionRequest) -> Message:
        messages, names = request.conversation, [tool.name for tool in request.callable_tools]
        num_replies = sum(message.role == "assistant" for message in messages)
        is_summarized = any("summary" in message.content for message in messages if message.role == "user")
        if "ask_second" in names:
            calls = names if not num_replies else []
        else:
            usable = [name for name in names if name in ARGUMENTS or name.startswith("transfer_")]
            calls = usable[:1] if num_replies < 2 and not is_summarized else []
        if not calls and "final_answer" in names:
            return Message(role="assistant", tool_calls=(ToolCall(name="final_answer", arguments={"answer": "42"}),))
        called = (ToolCall(name=name, arguments=ARGUMENTS.get(name, {})) for name in calls)
        return Message(role="assistant", content="" if calls else "42", tool_calls=tuple(called))


class InventedTool(TwoCalls):
    """A model that first calls a tool which does not exist."""

    def _reply(self, request: ChatCompletionRequest) -> Message:
        told = any(each.role == "assistant" or "invented" in each.content for each in request.conversation)
        if not told:
            return Message(role="assistant", tool_calls=(ToolCall(name="invented"),))
        return TwoCalls._reply(self, request)


def play(
    python: str, command: str, monkeypatch: pytest.MonkeyPatch, folder: Path, kind: type[ScriptedModel] = TwoCalls
) -> tuple[Trajectory, str]:
    """Play one episode. Return it, and for each call whether it has opened a sequence (N) or continues one (E)."""
    marks, add = list[str](), Trajectory.add_call

    def add_marked(episode: Trajectory, *arguments: Any) -> None:
        before = len(episode.sequences) if episode.tokens else 0
        add(episode, *arguments)
        marks.append("N" if len(episode.sequences) > before else "E")

    monkeypatch.setattr(Trajectory, "add_call", add_marked)
    sampler = ReplySampler(folder, say(""))
    vocabulary = FormatTokenizer.load(folder / "tokenizer.json")
    model = kind("tiny", sampler, sampler.format, vocabulary)
    name, *arguments = command.split()
    config = ProgramConfig(command=" ".join([python, str(PROGRAMS / f"{name}.py"), *arguments]))
    agent = ProgramAgent(config, model, SamplingParams(max_response_tokens=500))
    episode = asyncio.run(play_episode(SUMS, SUMS.tasks("train")[0], agent, LIMITS, seed=3))
    assert episode.fault is None, episode.error
    tools = find_tool_specs(SUMS, episode.domain)
    assert list(audit_tokens(episode, sampler.format, tools, vocabulary.decode)) == []
    return episode, "".join(marks)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.mark.slow
@pytest.mark.parametrize("command", ["openai_chat", "openai_responses"])
def test_loop_with_the_client_of_openai(command: str, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    episode, marks = play(sys.executable, command, monkeypatch, tiny)
    assert (episode.reward, marks, episode.num_turns) == (1.0, "NEE", 3)


@pytest.mark.programs
@pytest.mark.parametrize(
    ("command", "marks"),
    [
        ("langgraph_agent", "NEE"),
        ("langgraph_agent summary", "NENN"),
        ("openai_agents", "NEE"),
        ("openai_agents chat", "NEE"),
        ("openai_agents chat handoff", "NNE"),
        ("openai_agents handoff", "NNE"),
        ("openai_agents tools", "NNNEEEEE"),
        ("pydantic_agent", "NEE"),
        ("mcp_chat", "NEE"),
        ("smol_agent", "NNN"),
        ("autogen_agent", "NEE"),
    ],
)
def test_framework(command: str, marks: str, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    episode, found = play(agent_frameworks_python(), command, monkeypatch, tiny)
    assert episode.reward == 1.0
    assert _sorted_if_parallel(command, found) == marks
    counts = episode.event_counts
    assert counts.get("program/mcp_sessions", 0) == int(command in ("pydantic_agent", "mcp_chat"))
    assert counts.get("program/own_calls", 0) == 0
    assert counts.get("program/unconstrained", 0) == (3 if command == "smol_agent" else 0)


@pytest.mark.programs
@pytest.mark.parametrize(
    ("command", "fails"),
    [
        ("langgraph_agent", False),
        ("openai_agents", True),
        ("openai_agents chat", True),
        ("openai_agents handoff", True),
        ("openai_agents tools", True),
        ("openai_chat", False),
        ("openai_responses", False),
        ("pydantic_agent", False),
        ("mcp_chat", False),
        ("smol_agent", False),
        ("autogen_agent", False),
    ],
)
def test_model_that_invents_a_tool_is_told_or_fails(
    command: str, fails: bool, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The framework tells the model, or ends: then the episode is graded."""
    episode, _ = play(agent_frameworks_python(), command, monkeypatch, tiny, InventedTool)
    assert (episode.reward, "ModelBehaviorError" in episode.error) == (float(not fails), fails)
    assert episode.event_counts.get("program/wrong_call", 0) == int(fails)
    assert (episode.num_turns > 1) is not fails


def _sorted_if_parallel(command: str, marks: Sequence[str]) -> str:
    return "".join(sorted(marks, reverse=True) if command.endswith("tools") else marks)
