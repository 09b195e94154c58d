"""Tests of ToolEnvironment and ConsentGate: order of calls, errors, consent, and messages to the user."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from understudy.core.errors import ToolError
from understudy.core.messages import Message, ToolCall
from understudy.core.records import Record
from understudy.core.tasks import Score
from understudy.envs.environment import ConsentGate, StepResult, ToolEnvironment, find_consent
from understudy.envs.rewards import product_score
from understudy.envs.state import State, Table
from understudy.envs.tools import Toolkit


class Note(Record):
    text: str


class Notes(State):
    notes: Table[Note]
    reader: str = ""


class NoteTools(Toolkit):
    _state: Notes

    def write(self, key: str, text: str) -> str:
        """Write a note."""
        self._state.notes[key] = Note(text=text)
        if text == "bad":
            raise ToolError("no")
        return "ok"

    def read(self, key: str) -> Note:
        """Read a note."""
        if key not in self._state.notes:
            raise ToolError(f"no note {key!r}")
        self._state.reader = key
        return self._state.notes[key]

    def hidden(self) -> str:
        """Not shown."""
        return "secret"


class FixedLinesUser:
    """A user that replies with fixed lines and records the texts it receives."""

    def __init__(self, *lines: str | None) -> None:
        self._lines = iter(lines)
        self.received: list[str] = []

    async def reply(self, transcript: Sequence[Message]) -> str | None:
        self.received += [message.content for message in transcript[-1:]]
        return next(self._lines)


def grade(transcript: Sequence[Message], ended: bool) -> Score:
    return product_score(
        {"within_limits": float(ended), "turn_efficiency": sum(m.role == "assistant" for m in transcript) / 10}
    )


class Scene:
    """An environment on empty notes with a user of fixed lines."""

    def __init__(self, *lines: str | None) -> None:
        self.state, transcript = Notes(), list[Message]()
        self.user = FixedLinesUser("Hi.", *lines)
        gate = ConsentGate(NoteTools(self.state), self.state, transcript)
        shown = [spec for spec in gate.specs() if spec.name != "hidden"]
        self.environment = ToolEnvironment("Be good.", gate, self.user, grade, shown, transcript)
        self.first = asyncio.run(self.environment.start())

    def say(self, text: str) -> StepResult:
        return asyncio.run(self.environment.step(Message(role="assistant", content=text)))

    def call(self, *calls: ToolCall, text: str = "") -> StepResult:
        return asyncio.run(self.environment.step(Message(role="assistant", content=text, tool_calls=calls)))


def write(key: str, text: str = "x", identity: str = "") -> ToolCall:
    return ToolCall(name="write", arguments={"key": key, "text": text}, id=identity)


def test_episode_starts_with_policy_and_opening() -> None:
    scene = Scene()
    assert [(m.role, m.content) for m in scene.first.messages] == [("system", "Be good."), ("user", "Hi.")]
    assert [spec.name for spec in scene.environment.tools] == ["write", "read"]


def test_without_a_policy_there_is_no_system_message() -> None:
    environment = ToolEnvironment("", NoteTools(Notes()), FixedLinesUser("Hi."), grade)
    assert [message.role for message in asyncio.run(environment.start()).messages] == ["user"]


def test_text_goes_to_user_and_user_ends_episode() -> None:
    scene = Scene("More.", None)
    assert scene.say("One?").messages == (Message(role="user", content="More."),)
    end = scene.say("Two.")
    assert end.score == Score(reward=0.2, parts={"within_limits": 1.0, "turn_efficiency": 0.2})
    assert end.messages == ()
    assert scene.user.received == ["One?", "Two."]


def test_lone_surrogates_of_users_and_tools_are_replaced() -> None:
    scene = Scene("caf\udce9")
    steps = scene.say("Where?"), scene.call(ToolCall(name="read", arguments={"key": "\ud83d"}))
    assert [step.messages[0].content for step in steps] == ["caf\ufffd", "Error: no note '\\ud83d'"]
    scene.state.notes["a"] = Note(text="caf\udce9")
    assert scene.call(ToolCall(name="read", arguments={"key": "a"})).messages[0].content == '{"text":"caf\ufffd"}'
    assert scene.call(ToolCall(name="\ud83d")).messages[0].content.startswith("Error: unknown tool")
    assert all("\ud83d" not in message.content for message in scene.environment.transcript)


def test_calls_run_in_order_and_are_hidden_from_user() -> None:
    scene = Scene("Yes.")
    scene.say("Shall I proceed?")
    step = scene.call(write("a", identity="1"), ToolCall(name="read", arguments={"key": "a"}, id="2"), text="aside")
    assert [(m.role, m.tool_call_id, m.content) for m in step.messages] == [
        ("tool", "1", "ok"),
        ("tool", "2", '{"text":"x"}'),
    ]
    assert scene.user.received == ["Shall I proceed?"]
    assert step.error_kinds == ()


def test_calls_that_come_one_by_one_leave_the_transcript_of_one_reply() -> None:
    calls = [write("a", identity="1"), ToolCall(name="reed", id="2"), write("b", identity="3")]
    whole, parts = Scene("Yes."), Scene("Yes.")
    for scene in (whole, parts):
        scene.say("Shall I proceed?")
    at_once = whole.call(*calls, text="aside")
    steps = [parts.call(calls[0], text="aside")]
    steps += [asyncio.run(parts.environment.extend_reply(call)) for call in calls[1:]]
    assert parts.environment.transcript == whole.environment.transcript
    assert tuple(message for step in steps for message in step.messages) == at_once.messages
    assert tuple(kind for step in steps for kind in step.error_kinds) == at_once.error_kinds
    assert at_once.error_kinds == ("unknown_tool", "unconfirmed")


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (ToolCall(name="read", parse_error="not JSON"), "malformed", "Error: not JSON"),
        (ToolCall(name="", parse_error="no name"), "malformed", "Error: no name"),
        (ToolCall(name="red"), "unknown_tool", "did you mean 'read'"),
        (ToolCall(name="hidden"), "unknown_tool", "allowed: read, write"),
        (ToolCall(name="read", arguments={"kee": "a"}), "invalid_arguments", "it takes (key)"),
        (ToolCall(name="read", arguments={"key": "a"}), "refused", "Error: no note 'a'"),
    ],
)
def test_invalid_call_returns_error_result(call: ToolCall, kind: str, text: str) -> None:
    scene = Scene()
    step = scene.call(call)
    assert step.error_kinds == (kind,)
    assert text in step.messages[0].content
    assert scene.user.received == []


def test_write_without_consent_is_undone() -> None:
    scene = Scene()
    step = scene.call(write("a"))
    assert step.error_kinds == ("unconfirmed",)
    assert "has not confirmed" in step.messages[0].content
    assert scene.state.changes() == {}


def test_reads_and_value_fields_need_no_consent() -> None:
    scene = Scene()
    scene.state.patch({"notes": {"a": {"text": "x"}}})
    assert scene.call(ToolCall(name="read", arguments={"key": "a"})).error_kinds == ()
    assert scene.state.changes() == {"reader": "a"}


def test_write_of_same_value_needs_consent() -> None:
    scene = Scene()
    scene.state.patch({"notes": {"a": {"text": "x"}}})
    assert scene.call(write("a")).error_kinds == ("unconfirmed",)


def test_one_consent_allows_one_change() -> None:
    scene = Scene("Yes.", "Yes.")
    scene.say("Shall I proceed?")
    step = scene.call(write("a"), write("b"))
    assert [m.content[:30] for m in step.messages] == ["ok", "Error: the user confirmed one "]
    assert scene.call(write("b")).error_kinds == ("unconfirmed",)
    scene.say("And b, do you confirm?")
    assert scene.call(write("b")).error_kinds == ()
    assert set(scene.state.notes) == {"a", "b"}


def test_refused_call_does_not_use_up_consent() -> None:
    scene = Scene("Yes.")
    scene.say("Shall I proceed?")
    assert scene.call(write("a", "bad"), write("a")).error_kinds == ("refused",)
    assert scene.state.changes() == {"notes": {"a": Note(text="x")}}


@pytest.mark.parametrize(
    ("question", "answer", "given"),
    [
        ("Shall I proceed?", "Yes, please.", True),
        ("Please confirm with yes.", "OK", True),
        ("Do you confirm?", "no", False),
        ("Do you confirm?", "Yesterday.", False),
        ("What is your email?", "Sure, it is a@b.c.", False),
        ("I will do it.", "Yes.", False),
    ],
)
def test_consent_requires_yes_after_question(question: str, answer: str, given: bool) -> None:
    scene = Scene(answer)
    scene.say(question)
    assert (find_consent(scene.environment.transcript) is not None) == given


def test_opening_is_not_consent() -> None:
    assert find_consent([]) is None
    assert find_consent([Message(role="user", content="Yes.")]) is None


def test_truncated_episode_is_graded() -> None:
    scene = Scene()
    score: Any = asyncio.run(scene.environment.grade(ended=False))
    assert score.parts["within_limits"] == 0.0
