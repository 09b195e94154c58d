"""Tests of the certification of a program: what is said of what it sends, and which checks fail."""

import asyncio
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from test_program_training import LETTERS

from support.program_client import ask
from support.tiny_runs import tiny
from understudy.core.messages import Message
from understudy.core.trajectory import Trajectory
from understudy.engines.factory import open_engine
from understudy.engines.models import find_model
from understudy.formats import load_chat_format
from understudy.rollouts.program import ProgramEpisode
from understudy.runs.config import parse_config
from understudy.train.certify import program_checks
from understudy.train.certify.certificate import CertificateCheck
from understudy.train.certify.certify_model import make_certification_target

__all__ = ["LETTERS", "tiny"]
TOOL = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object", "required": ["name"]}}}
NUMBERS = itertools.count()


async def agent(given: ProgramEpisode) -> None:
    """Run calls until there are none. Then ask a helper, and ask again with a changed history."""
    messages: list[Any] = list(given.prompt)
    while calls := (await ask(given, messages, tools=[TOOL], temperature=0.1)).get("tool_calls"):
        for call in calls:
            async with Client(given.mcp_url) as client:
                await client.call_tool("look_up", json.loads(call["function"]["arguments"]))
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": "3"})
    await ask(given, [{"role": "user", "content": "Help."}])
    await ask(given, [*given.prompt, {"role": "assistant", "content": "Short."}, *given.prompt], tool_choice="none")


async def counting_agent(given: ProgramEpisode) -> None:
    """Send another request each time."""
    await ask(given, [*given.prompt, {"role": "user", "content": f"Number {next(NUMBERS)}"}])


async def failing_agent(given: ProgramEpisode) -> None:
    await ask(given, list(given.prompt))
    raise KeyError("lost")


def check(tiny: Path, name: str) -> tuple[list[CertificateCheck], list[str]]:
    settings = (f"model={tiny}", f"domain={__name__}:LETTERS", f"agent.function={__name__}:{name}")
    more = ("sampling.max_response_tokens=300", "limits.max_episode_tokens=9000", "engine.dtype=float32")
    config = parse_config("", [*settings, *more, "slice.tools=", "slice.domain_policy=full"])
    engine = open_engine(find_model(config.model), config.resolved_engine, trainable=False)
    target = make_certification_target(config, tiny, engine, load_chat_format(tiny))
    try:
        return asyncio.run(program_checks.check_program(config, target))
    finally:
        engine.close()


def test_program_is_described_and_proved(tiny: Path) -> None:
    checks, notes = check(tiny, "agent")
    assert [check.name for check in checks if not check.passed] == []
    assert {"log-probabilities agree", "tokens and masks with scripted calls"} <= {check.name for check in checks}
    said = "\n".join(notes)
    assert "8 replies in 2 episodes (8 to chat); 2 of 8 continue a sequence; 6 sequences" in said
    assert "a changed assistant message (2), a conversation of its own (2)" in said
    assert "temperature (4)" in said
    assert "2 MCP sessions, 0 calls that no reply" in said
    assert "program: repeats" in said
    assert "after a malformed call it gets 2 further replies" in said


def test_program_that_does_not_repeat_is_named(tiny: Path) -> None:
    checks, notes = check(tiny, "counting_agent")
    assert all(check.passed for check in checks)
    assert any("does not repeat" in note and "request 1" in note for note in notes)


def test_program_that_fails_is_not_certified(tiny: Path) -> None:
    (only,), notes = check(tiny, "failing_agent")
    assert (only.passed, notes) == (False, [])
    assert "KeyError: 'lost'" in only.diff


def test_wrong_mask_of_a_program_is_found(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add = Trajectory.add_call

    def add_shifted(episode: Trajectory, *arguments: Any) -> None:
        add(episode, *arguments)
        sequence = episode.sequences[-1]
        at = sequence.mask.index(True)
        sequence.mask[at], sequence.logprobs[at] = False, 0.0

    monkeypatch.setattr(Trajectory, "add_call", add_shifted)
    checks, _ = check(tiny, "counting_agent")
    failed = {check.name for check in checks if not check.passed}
    assert {"tokens and masks match the messages", "tokens and masks with scripted calls"} <= failed


def _user(text: str) -> Message:
    return Message(role="user", content=text)


@pytest.mark.parametrize(
    ("asked", "opening"),
    [
        ([_user("a"), Message(role="assistant", content="b"), _user("c")], "the same messages again"),
        ([_user("a")], "the same messages again"),
        ([_user("x")], "a conversation of its own"),
        ([_user("a"), Message(role="assistant", content="other")], "a changed assistant message"),
    ],
)
def test_opening_of_a_sequence_is_named(asked: list[Message], opening: str) -> None:
    episode = Trajectory("t")
    for messages in ([_user("a")], asked):
        episode.add_call(messages, (), [1, 2], 0, Message(role="assistant", content="b"), [3], [-1.0])
    assert list(program_checks.sequence_openings(episode)) == [opening]
