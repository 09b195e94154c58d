"""Test the streaming parser: streamed text equals the whole reply's content, in every format."""

import json
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.chat_templates import CODER
from support.tool_families import FAMILIES, FIRST, SECOND
from understudy.core.messages import Message, ToolCall, ToolSpec
from understudy.engines.models import tiny_model
from understudy.formats import ChatFormat, ChatML, FormatTokenizer
from understudy.formats.chat_format import mark_truncated_call
from understudy.formats.detokenizer import IncrementalDetokenizer
from understudy.formats.loading import load_chat_format
from understudy.formats.parsing.parse import _LISTED, TOOL_FORMATS, render_reply
from understudy.serve.streaming_parser import _WITH_CALLS, ReplyEnd, StreamingParser

TOOLS = [ToolSpec(name="f", description="d", parameters={"type": "object", "properties": {"a": {"type": "string"}}})]
CALL = ToolCall(name="f", arguments={"a": "é"})
FOLDER = tiny_model()
VOCABULARY = FormatTokenizer.load(FOLDER / "tokenizer.json")


def load_coder_format() -> ChatFormat:
    """Load a format that is derived from its template."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(shutil.copytree(FOLDER, folder, dirs_exist_ok=True))
        config = json.loads((copy / "tokenizer_config.json").read_text())
        (copy / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": CODER}))
        return load_chat_format(copy)


FORMATS: dict[str, ChatFormat] = {
    "hermes": load_chat_format(FOLDER),
    "signature": ChatML(VOCABULARY, "signature"),
    "thoughtless": ChatML(VOCABULARY, prefill="<think>\n\n</think>\n\n"),
    "thinking": ChatML(VOCABULARY, prefill="<think>\n"),
    "coder": load_coder_format(),
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
    "◁think▷hm◁/think▷",
    "<seed:think>hm</seed:think>",
    "\nHere is my thought process: hm Here is my response: x",
    'functools[{"name": "f", "arguments": {"a": "b"}}]',
    "<tool_calls>x</tool_calls>",
    "]<]minimax[>[",
    "<|tool_call_start|>[f(a='b')]<|tool_call_end|>[f(a='b')]",
    "}",
    "]",
    '"',
]
CALLS = [render_reply("", (CALL,), name) for name in TOOL_FORMATS]
TEXTS = st.lists(st.sampled_from([*PROSE, *MARKUP, *CALLS]), max_size=6).map("".join)
TOKENS = st.one_of(TEXTS.map(VOCABULARY.encode), st.lists(st.integers(0, 258), max_size=24))


def stream_reply(
    format: ChatFormat,
    tokens: Sequence[int],
    tools: Sequence[ToolSpec] = TOOLS,
    *,
    truncated: bool = False,
    **how: object,
) -> tuple[list[str], ReplyEnd, StreamingParser]:
    reading = StreamingParser(format, VOCABULARY, tools, **how)  # type: ignore[arg-type]
    streamed = []
    for token in tokens:
        streamed.append(reading.feed(token))
        if reading.stopped or token in format.stop_token_ids:
            break
    return streamed, reading.finish(truncated), reading


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=60, deadline=None)
@given(tokens=TOKENS, cut=st.booleans(), called=st.booleans(), stop=st.sampled_from([(), ("€",), ("is", 'no"')]))
def test_streamed_text_equals_the_content(
    name: str, tokens: list[int], cut: bool, called: bool, stop: tuple[str, ...]
) -> None:
    streamed, ending, reading = stream_reply(
        FORMATS[name], tokens, TOOLS if called else (), truncated=cut and not stop, stop=stop
    )
    assert "".join(streamed) + ending.remaining_text == ending.message.content
    for text in streamed:
        text.encode()
    if reading.stopped:
        assert not any(s in ending.message.content for s in stop)
    if not called:
        assert not ending.message.tool_calls


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=60, deadline=None)
@given(tokens=TOKENS, cut=st.booleans())
def test_message_equals_the_formats_parse(name: str, tokens: list[int], cut: bool) -> None:
    format = FORMATS[name]
    streamed, ending, reading = stream_reply(format, tokens, truncated=cut)
    parsed = format.parse(reading.tokens, TOOLS)
    if parsed.message.content.startswith("".join(streamed)):
        assert ending.message == mark_truncated_call(parsed, cut)
    else:  # the text before `</think>` was streamed, and the format parses it as thinking
        assert "</think>" in VOCABULARY.decode(tokens)
    assert ending.is_complete


@pytest.mark.parametrize("name", ["hermes", "signature", "coder"])
def test_text_is_streamed_token_by_token(name: str) -> None:
    streamed, ending, _ = stream_reply(FORMATS[name], VOCABULARY.encode('Well, "it" is\n€5. User'))
    assert streamed[:5] == ["W", "e", "l", "l", ","]
    assert "".join(streamed) == 'Well, "it" is\n€5. User'
    assert (ending.remaining_text, ending.finish_reason) == ("", "stop")


def test_text_is_held_back_where_a_call_may_begin() -> None:
    streamed, ending, _ = stream_reply(FORMATS["hermes"], VOCABULARY.encode("One moment. " + CALLS[0] + CALLS[0]))
    assert "".join(streamed) == ending.message.content == "One moment."
    assert ending.message.tool_calls == (CALL, CALL)
    assert ending.finish_reason == "tool_calls"


@pytest.mark.parametrize("family", FAMILIES)
def test_calls_of_every_family_are_held_back(family: str) -> None:
    """Cases of vLLM's streaming tests: text before and after calls, and no part of a call in any streamed text."""
    reply = f"Sure. {FAMILIES[family]}\nDone."
    streamed, ending, _ = stream_reply(FORMATS["hermes"], VOCABULARY.encode(reply))
    assert "".join(streamed) == "Sure."
    assert ending.message.content == "Sure.\nDone."
    assert [call.name for call in ending.message.tool_calls] == [FIRST[0], SECOND[0]]
    assert (ending.finish_reason, ending.remaining_text) == ("tool_calls", "\nDone.")


def test_thinking_is_not_streamed_and_text_after_it_is() -> None:
    text = "<think>Let me {see}.</think>Hello there"
    for format in (FORMATS["hermes"], FORMATS["thinking"]):
        streamed, ending, _ = stream_reply(
            format, VOCABULARY.encode(text.removeprefix("<think>" * (format is FORMATS["thinking"])))
        )
        assert "".join(streamed) == ending.message.content == "Hello there"


def test_calls_without_tools_stay_text() -> None:
    streamed, ending, _ = stream_reply(FORMATS["hermes"], VOCABULARY.encode('See {"a": [1]} `x`: ' + CALLS[0]), ())
    assert "".join(streamed) == 'See {"a": [1]} `x`:'
    assert ending.message == Message(role="assistant", content='See {"a": [1]} `x`: ' + CALLS[0])


@pytest.mark.parametrize(
    ("name", "sampled", "text"),
    [
        ("hermes", f"<think>secret</think>\nSuch as {CALLS[0]} please.", f"Such as {CALLS[0]} please."),
        ("thinking", f"secret</think>\n{CALLS[0]}", CALLS[0]),
        ("hermes", f"{CALLS[0]}<|im_start|>user\nhi", CALLS[0]),
        ("hermes", "User: Hello\nAssistant: Hi", "User: Hello\nAssistant: Hi"),
    ],
)
def test_text_without_tools_is_without_thoughts_and_turns_of_others(name: str, sampled: str, text: str) -> None:
    streamed, ending, _ = stream_reply(FORMATS[name], VOCABULARY.encode(sampled), ())
    assert ending.message == Message(role="assistant", content=text)
    assert "".join(streamed) + ending.remaining_text == text


def test_call_that_a_stop_string_cuts_is_malformed() -> None:
    call = '<tool_call>\n{"name": "f", "arguments": {"a": "b", "c": 1}}\n</tool_call>'
    for stop in ('"b"', ', "c"'):
        _, ending, _ = stream_reply(FORMATS["hermes"], VOCABULARY.encode(call), stop=(stop,))
        assert [(made.name, made.arguments) for made in ending.message.tool_calls] == [("f", {})]
        assert ending.message.tool_calls[0].parse_error
        assert ending.message.content == ""


def test_only_one_call_without_parallel_tool_calls() -> None:
    _, ending, _ = stream_reply(FORMATS["hermes"], VOCABULARY.encode(CALLS[0] + CALLS[0]), parallel_tool_calls=False)
    assert (ending.message.tool_calls, ending.is_complete) == ((CALL,), False)


def test_stop_string_across_tokens_is_found_and_removed() -> None:
    streamed, ending, reading = stream_reply(
        FORMATS["hermes"], VOCABULARY.encode("Good day END and more"), stop=("END", "ENDING")
    )
    assert ("".join(streamed), ending.message.content, reading.stopped) == ("Good day", "Good day", "END")
    assert VOCABULARY.decode(reading.tokens) == "Good day END"
    assert (ending.finish_reason, ending.is_complete) == ("stop", False)


@given(st.lists(st.integers(0, 258), max_size=60))
def test_incremental_decoding_equals_decoding_at_once(tokens: list[int]) -> None:
    decoding = IncrementalDetokenizer(VOCABULARY)
    steps = [decoding.add(token) for token in tokens]
    assert "".join(steps) + decoding.pending_text() == VOCABULARY.decode(tokens)
    assert not any(step.endswith("\ufffd") for step in steps)


def test_every_call_opening_holds_text_back() -> None:
    for opening in {first.lstrip("\\") for (first, _), _ in _LISTED} - {"\n", '"', "]"}:
        assert _WITH_CALLS.search(f"x{opening}"), opening
    for text in (
        "]",
        "]<",
        "]<]minimax[>[",
        " f",
        "functools[",
        "◁",
        "\nHere is my",
        "\nUser",
        "\nU",
        "\n",
        '"tool_ca',
        '"',
        "\n** Action",
        "\n#user",
    ):
        assert _WITH_CALLS.search("x" + text), text
    for text in ("a]b", "0] ", "for ", "function", "x"):
        assert not _WITH_CALLS.search(text), text
    assert not _WITH_CALLS.search('He said "yes".\nUnder\nTomorrow')
