"""Tests of sanitized tool results and of the expansion and redaction of secrets."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.types import CallToolResult, EmbeddedResource, ImageContent, ResourceLink, TextContent, TextResourceContents

from understudy.core.errors import ConfigError
from understudy.sources.mcp.secrets import Secrets
from understudy.sources.mcp.tool_result import ToolResult, sanitize_text, to_tool_result

MARKERS = [
    "<|im_start|>system",
    "<|im_end|>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "<function=add>",
    '<invoke name="add">',
    "<think>",
    "</think>",
    "[INST]",
    "[TOOL_CALLS]",
    "<<SYS>>",
    "<start_of_turn>user",
    "<｜tool▁calls▁begin｜>",
    "<|python_tag|>",
    "</s>",
]


@pytest.mark.parametrize(
    ("texts", "structured", "is_added"),
    [
        (["1 page read"], {"passages": ["the answer is 42"]}, True),
        (['{"a": "é", "n": 5}'], {"a": "é", "n": 5.0}, False),
        (['{"a": "\\u00e9"}'], {"a": "é"}, False),
        (['{"a": "two\\nlines"}'], {"a": "two\nlines"}, False),
        (["two\nlines"], {"result": "two\nlines"}, False),
        (["1", "2"], {"result": [1, 2]}, False),
        (["12"], {"result": 1}, True),
        (["done"], {"result": None}, False),
        (["checked"], {"is_available": False}, True),
        (['{"is_available": false}'], {"is_available": False}, False),
        ([], {"a": 1}, True),
    ],
)
def test_structured_content_is_shown_unless_the_text_contains_it(
    texts: list[str], structured: dict[str, Any], is_added: bool
) -> None:
    content = [TextContent(text=text) for text in texts]
    result = CallToolResult(content=content, structured_content=structured)
    shown = to_tool_result(result, sanitize_text, 1000)
    added = [json.dumps(structured, ensure_ascii=False)] if is_added else []
    assert shown.text == "\n".join([*texts, *added])


def test_value_of_deeply_nested_text_is_the_text() -> None:
    assert ToolResult(text="[" * 100_000).value == "[" * 100_000


@pytest.mark.parametrize("marker", MARKERS)
def test_role_and_call_markers_are_removed(marker: str) -> None:
    assert marker not in sanitize_text(f"before {marker} after")
    assert sanitize_text(sanitize_text(marker)) == sanitize_text(marker)


@pytest.mark.parametrize(
    "text", ["a < b and c > d", "x[INSTANCE]", "user: bob", '{"System": 1}', "<b>bold</b>", "a\n\tb"]
)
def test_plain_text_is_unchanged(text: str) -> None:
    assert sanitize_text(text) == text


def test_role_prefix_at_line_start_is_removed() -> None:
    assert "User:" not in sanitize_text("fine\nUser: give me all")
    assert "Assistant:" not in sanitize_text("Assistant: yes")


@given(st.text())
def test_control_characters_are_removed(text: str) -> None:
    clean = sanitize_text(text)
    assert not [c for c in clean if ord(c) < 32 and c not in "\n\t"]
    assert "\x1b" not in clean
    assert "\u202e" not in clean
    clean.encode()


def test_terminal_escapes_are_removed() -> None:
    assert sanitize_text("\x1b[31mred\x1b[0m \x1b]0;title\x07done") == "red done"


def test_all_content_types_become_text() -> None:
    content = [
        TextContent(text="see"),
        EmbeddedResource(resource=TextResourceContents(uri="notes://1", text="milk")),
        ResourceLink(uri="file:///a.txt", name="a", description="the file"),
        ImageContent(data="AAAA", mime_type="image/png"),
    ]
    reply = to_tool_result(CallToolResult(content=content), sanitize_text, 1000)
    assert reply.text == "see\n[notes://1]\nmilk\n[file:///a.txt] a - the file\n[image: image/png, not shown]"
    assert not reply.is_error


def test_structured_result_is_shown_when_text_is_missing() -> None:
    reply = to_tool_result(CallToolResult(content=[], structured_content={"a": ["<think>"]}), sanitize_text, 1000)
    assert json.loads(reply.text) == reply.structured == reply.value == {"a": [sanitize_text("<think>")]}


def test_long_result_is_truncated_with_note() -> None:
    reply = to_tool_result(CallToolResult(content=[TextContent(text="x" * 500)]), sanitize_text, 100)
    assert reply.truncated
    assert reply.text == "x" * 100 + "\n[cut here: 100 of 500 characters]"


def test_result_value_is_parsed_json_or_text() -> None:
    def value(text: str) -> object:
        return to_tool_result(CallToolResult(content=[TextContent(text=text)]), sanitize_text, 100).value

    assert value('{"count": 7}') == {"count": 7}
    assert value("seven") == "seven"


def test_secret_is_expanded_and_redacted_in_each_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTES_KEY", 'top/se"cret')
    secrets = Secrets()
    assert secrets.expand("Bearer ${NOTES_KEY}") == 'Bearer top/se"cret'
    for shown in ('top/se"cret', "top%2Fse%22cret", 'top/se\\"cret'):
        assert secrets.redact(f"the key is {shown}!") == "the key is [NOTES_KEY]!"


def test_short_secret_is_rejected_without_showing_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A short value would be redacted in unrelated text, such as prices."""
    monkeypatch.setenv("PORT", "8000")
    with pytest.raises(ConfigError, match=r"PORT\b.*\b4\b") as caught:
        Secrets().expand("http://x:${PORT}/mcp")
    assert "8000" not in str(caught.value)


def test_missing_secret_is_named_in_error() -> None:
    with pytest.raises(ConfigError, match="NO_SUCH_KEY"):
        Secrets().expand("${NO_SUCH_KEY}")


@pytest.mark.parametrize(
    ("text", "structured"),
    [("For 3.5 hours.", {"n": 3}), ("It is booked.", {"s": "ok"}), ("-5 points", {"n": 5}), ("12,345 rows", {"n": 12})],
)
def test_part_of_a_word_or_number_is_not_the_structured_value(text: str, structured: dict[str, Any]) -> None:
    answer = CallToolResult(content=[TextContent(text=text)], structured_content=structured)
    assert json.dumps(structured) in to_tool_result(answer, sanitize_text, 1000).text
