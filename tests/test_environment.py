"""ToolEnvironment and ConsentGate: order, errors, and what reaches whom."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from understudy.environment import ConsentGate, Step, ToolEnvironment, consent_at
from understudy.errors import ToolError
from understudy.messages import Message, ToolCall
from understudy.records import Record
from understudy.rewards import product
from understudy.state import State, Table
from understudy.tasks import Score
from understudy.tools import Toolkit


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


class Lines:
    """A user who says given lines, and remembers what was said to it."""

    def __init__(self, *lines: str | None) -> None:
        self._lines = iter(lines)
        self.heard: list[str] = []

    async def reply(self, transcript: Sequence[Message]) -> str | None:
        self.heard += [message.content for message in transcript[-1:]]
        return next(self._lines)


def grade(transcript: Sequence[Message], ended: bool) -> Score:
    return product({"ended": float(ended), "turns": float(sum(m.role == "assistant" for m in transcript))})


class Scene:
    """An environment on empty notes."""

    def __init__(self, *lines: str | None) -> None:
        self.state, transcript = Notes(), list[Message]()
        self.user = Lines("Hi.", *lines)
        gate = ConsentGate(NoteTools(self.state), self.state, transcript)
        shown = [spec for spec in gate.specs() if spec.name != "hidden"]
        self.environment = ToolEnvironment("Be good.", gate, self.user, grade, shown, transcript)
        self.first = asyncio.run(self.environment.start())

    def say(self, text: str) -> Step:
        return asyncio.run(self.environment.step(Message(role="assistant", content=text)))

    def call(self, *calls: ToolCall, text: str = "") -> Step:
        return asyncio.run(self.environment.step(Message(role="assistant", content=text, tool_calls=calls)))


def write(key: str, text: str = "x", identity: str = "") -> ToolCall:
    return ToolCall(name="write", arguments={"key": key, "text": text}, id=identity)


def test_it_begins_with_the_policy_and_the_opening() -> None:
    scene = Scene()
    assert [(m.role, m.content) for m in scene.first.messages] == [("system", "Be good."), ("user", "Hi.")]
    assert [spec.name for spec in scene.environment.tools] == ["write", "read"]


def test_text_goes_to_the_user_who_may_end_it() -> None:
    scene = Scene("More.", None)
    assert scene.say("One?").messages == (Message(role="user", content="More."),)
    end = scene.say("Two.")
    assert end.score == Score(reward=2.0, parts={"ended": 1.0, "turns": 2.0})
    assert end.messages == ()
    assert scene.user.heard == ["One?", "Two."]


def test_all_calls_run_in_order_and_the_user_hears_nothing() -> None:
    scene = Scene("Yes.")
    scene.say("Shall I proceed?")
    step = scene.call(write("a", identity="1"), ToolCall(name="read", arguments={"key": "a"}, id="2"), text="aside")
    assert [(m.role, m.tool_call_id, m.content) for m in step.messages] == [
        ("tool", "1", "ok"),
        ("tool", "2", '{"text":"x"}'),
    ]
    assert scene.user.heard == ["Shall I proceed?"]
    assert step.errors == ()


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (ToolCall(name="read", malformed="not JSON"), "malformed", "Error: not JSON"),
        (ToolCall(name="", malformed="no name"), "malformed", "Error: no name"),
        (ToolCall(name="red"), "unknown_tool", "did you mean 'read'"),
        (ToolCall(name="hidden"), "unknown_tool", "allowed: read, write"),
        (ToolCall(name="read", arguments={"kee": "a"}), "bad_arguments", "it takes (key)"),
        (ToolCall(name="read", arguments={"key": "a"}), "refused", "Error: no note 'a'"),
    ],
)
def test_broken_calls_come_back_as_errors(call: ToolCall, kind: str, text: str) -> None:
    scene = Scene()
    step = scene.call(call)
    assert step.errors == (kind,)
    assert text in step.messages[0].content
    assert scene.user.heard == []


def test_a_write_without_a_yes_is_undone() -> None:
    scene = Scene()
    step = scene.call(write("a"))
    assert step.errors == ("unconfirmed",)
    assert "has not confirmed" in step.messages[0].content
    assert scene.state.changes() == {}


def test_reading_and_values_need_no_yes() -> None:
    scene = Scene()
    scene.state.patch({"notes": {"a": {"text": "x"}}})
    assert scene.call(ToolCall(name="read", arguments={"key": "a"})).errors == ()
    assert scene.state.changes() == {"reader": "a"}


def test_writing_what_is_there_already_is_a_write() -> None:
    scene = Scene()
    scene.state.patch({"notes": {"a": {"text": "x"}}})
    assert scene.call(write("a")).errors == ("unconfirmed",)


def test_one_yes_is_for_one_change() -> None:
    scene = Scene("Yes.", "Yes.")
    scene.say("Shall I proceed?")
    step = scene.call(write("a"), write("b"))
    assert [m.content[:30] for m in step.messages] == ["ok", "Error: the user confirmed one "]
    assert scene.call(write("b")).errors == ("unconfirmed",)
    scene.say("And b, do you confirm?")
    assert scene.call(write("b")).errors == ()
    assert set(scene.state.notes) == {"a", "b"}


def test_a_refused_call_does_not_spend_the_yes() -> None:
    scene = Scene("Yes.")
    scene.say("Shall I proceed?")
    assert scene.call(write("a", "bad"), write("a")).errors == ("refused",)
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
def test_consent_is_a_yes_to_a_question(question: str, answer: str, given: bool) -> None:
    scene = Scene(answer)
    scene.say(question)
    assert (consent_at(scene.environment.transcript) is not None) == given


def test_the_opening_is_no_consent() -> None:
    assert consent_at([]) is None
    assert consent_at([Message(role="user", content="Yes.")]) is None


def test_a_cut_episode_is_graded_as_it_stands() -> None:
    scene = Scene()
    score: Any = asyncio.run(scene.environment.grade(ended=False))
    assert score.parts["ended"] == 0.0
