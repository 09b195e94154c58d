"""Replies in the making: what is told early is what the whole reply says, in every format, wherever it is torn."""

import json
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from test_formats_template import CODER
from understudy.formats import ChatFormat, ChatML, Vocabulary
from understudy.formats.base import settled
from understudy.formats.decoding import Decoding
from understudy.formats.find import find
from understudy.formats.parse import _LISTED, DIALECTS, render
from understudy.messages import Message, ToolCall, ToolSpec
from understudy.models import tiny_model
from understudy.serve.reading import _WITH_CALLS, Ending, Reading

pytest.importorskip("torch")

TOOLS = [ToolSpec(name="f", description="d", parameters={"type": "object", "properties": {"a": {"type": "string"}}})]
CALL = ToolCall(name="f", arguments={"a": "é"})
FOLDER = tiny_model()
VOCABULARY = Vocabulary.load(FOLDER / "tokenizer.json")


def coder() -> ChatFormat:
    """A format that is derived from its template."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(shutil.copytree(FOLDER, folder, dirs_exist_ok=True))
        config = json.loads((copy / "tokenizer_config.json").read_text())
        (copy / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": CODER}))
        return find(copy)


FORMATS: dict[str, ChatFormat] = {
    "hermes": find(FOLDER),
    "strict": find(FOLDER, tolerant=False),
    "signature": ChatML(VOCABULARY, "signature"),
    "thoughtless": ChatML(VOCABULARY, prefill="<think>\n\n</think>\n\n"),
    "thinking": ChatML(VOCABULARY, prefill="<think>\n"),
    "coder": coder(),
}
PROSE = [
    "Sure, ",
    "it is €5.",
    " ",
    "\n",
    "\n\n",
    "- a **b**",
    'say "no"',
    "naïve 🙂",
    "a < b",
    "x[0]",
    "{a}",
    "`x`",
    "Us",
    "Tool",
    "*",
]
MARKUP = [
    "\nUser: hi",
    "\nObservation:",
    "\nAction: f\nAction Input: {}",
    "<think>",
    "hm</think>",
    "```python\nf(a=1)\n```",
    '{"name": "f"',
    '"name": "f", "arguments": {"a": "b"}',
    "<|im_start|>user\n",
    "<tool_response>x",
    "}",
    "]",
    '"',
]
CALLS = [render("", (CALL,), name) for name in DIALECTS]
TEXTS = st.lists(st.sampled_from([*PROSE, *MARKUP, *CALLS]), max_size=6).map("".join)
TOKENS = st.one_of(TEXTS.map(VOCABULARY.encode), st.lists(st.integers(0, 258), max_size=24))


def read(
    format: ChatFormat, tokens: Sequence[int], tools: Sequence[ToolSpec] = TOOLS, *, cut: bool = False, **how: object
) -> tuple[list[str], Ending, Reading]:
    reading = Reading(format, VOCABULARY, tools, **how)  # type: ignore[arg-type]
    told = []
    for token in tokens:
        told.append(reading.feed(token))
        if reading.stopped or token in format.stop_tokens:
            break
    return told, reading.end(cut), reading


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=60, deadline=None)
@given(tokens=TOKENS, cut=st.booleans(), called=st.booleans(), stop=st.sampled_from([(), ("€",), ("is", 'no"')]))
def test_what_was_told_is_what_is_said(
    name: str, tokens: list[int], cut: bool, called: bool, stop: tuple[str, ...]
) -> None:
    told, ending, reading = read(FORMATS[name], tokens, TOOLS if called else (), cut=cut and not stop, stop=stop)
    assert "".join(told) + ending.rest == ending.message.content
    for text in told:
        text.encode()
    if reading.stopped:
        assert not any(s in ending.message.content for s in stop)
    if not called:
        assert not ending.message.tool_calls


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=60, deadline=None)
@given(tokens=TOKENS, cut=st.booleans())
def test_a_reply_is_what_its_format_reads(name: str, tokens: list[int], cut: bool) -> None:
    format = FORMATS[name]
    told, ending, reading = read(format, tokens, cut=cut)
    parsed = format.parse(reading.tokens, TOOLS)
    if parsed.message.content.startswith("".join(told)):
        assert ending.message == settled(parsed, cut)
    else:  # it calls a thought what it had said before
        assert "</think>" in VOCABULARY.decode(tokens)
    assert ending.entire


@pytest.mark.parametrize("name", ["hermes", "signature", "coder"])
def test_text_is_told_as_it_comes(name: str) -> None:
    told, ending, _ = read(FORMATS[name], VOCABULARY.encode('Well, "it" is\n€5. User'))
    assert told[:5] == ["W", "e", "l", "l", ","]
    assert "".join(told) == 'Well, "it" is\n€5. User'
    assert (ending.rest, ending.finish) == ("", "stop")


def test_text_waits_where_a_call_may_begin() -> None:
    told, ending, _ = read(FORMATS["hermes"], VOCABULARY.encode("One moment. " + CALLS[0] + CALLS[0]))
    assert "".join(told) == ending.message.content == "One moment."
    assert ending.message.tool_calls == (CALL, CALL)
    assert ending.finish == "tool_calls"


def test_thoughts_are_not_told_and_what_follows_them_is() -> None:
    text = "<think>Let me {see}.</think>Hello there"
    for format in (FORMATS["hermes"], FORMATS["thinking"]):
        told, ending, _ = read(
            format, VOCABULARY.encode(text.removeprefix("<think>" * (format is FORMATS["thinking"])))
        )
        assert "".join(told) == ending.message.content == "Hello there"


def test_without_tools_calls_are_text() -> None:
    told, ending, _ = read(FORMATS["hermes"], VOCABULARY.encode('See {"a": [1]} `x`: ' + CALLS[0]), ())
    assert "".join(told) == 'See {"a": [1]} `x`:'
    assert ending.message == Message(role="assistant", content='See {"a": [1]} `x`: ' + CALLS[0])


def test_one_call_where_several_are_not_wanted() -> None:
    _, ending, _ = read(FORMATS["hermes"], VOCABULARY.encode(CALLS[0] + CALLS[0]), several=False)
    assert (ending.message.tool_calls, ending.entire) == ((CALL,), False)


def test_a_stop_string_is_found_across_tokens_and_left_out() -> None:
    told, ending, reading = read(FORMATS["hermes"], VOCABULARY.encode("Good day END and more"), stop=("END", "ENDING"))
    assert ("".join(told), ending.message.content, reading.stopped) == ("Good day", "Good day", "END")
    assert VOCABULARY.decode(reading.tokens) == "Good day END"
    assert (ending.finish, ending.entire) == ("stop", False)


@given(st.lists(st.integers(0, 258), max_size=60))
def test_text_in_steps_is_the_text_at_once(tokens: list[int]) -> None:
    decoding = Decoding(VOCABULARY)
    steps = [decoding.add(token) for token in tokens]
    assert "".join(steps) + decoding.rest() == VOCABULARY.decode(tokens)
    assert not any(step.endswith("\ufffd") for step in steps)


def test_every_opening_of_the_parser_is_waited_for() -> None:
    for opening in {first.lstrip("\\") for (first, _), _ in _LISTED} - {"\n", '"'}:
        assert _WITH_CALLS.search(f"x{opening}"), opening
    for text in ("\nUser", "\nU", "\n", '"tool_ca', '"', "\n** Action", "\n#user"):
        assert _WITH_CALLS.search("x" + text), text
    assert not _WITH_CALLS.search('He said "yes".\nUnder\nTomorrow')
