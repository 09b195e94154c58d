"""Test parsing replies: calls in every tool format, repairs, malformed calls, and bounded cost."""

import json
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.paths import ROOT
from understudy.core.errors import ConfigError
from understudy.core.messages import ToolCall, ToolSpec
from understudy.formats.chat_format import mark_truncated_call
from understudy.formats.parsing import parse as parse_module
from understudy.formats.parsing.parse import (
    TOOL_FORMATS,
    ParsedReply,
    parse_message,
    parse_reply,
    parse_text,
    render_reply,
)
from understudy.formats.parsing.repair import ParseBudget
from understudy.formats.parsing.scan import ReplyScan


def make_spec(name: str, aliases: dict[str, str] | None = None, **kinds: str) -> ToolSpec:
    properties = {key: {"type": kind} for key, kind in kinds.items()}
    return ToolSpec(
        name=name, description="", parameters={"type": "object", "properties": properties}, aliases=aliases or {}
    )


TOOLS = (
    make_spec("get_order", id="string"),
    make_spec("run", {"python_code": "code"}, code="string"),
    make_spec("stop"),
)
CALL = '{"name": "get_order", "arguments": {"id": "W1"}}'
FIRST, SECOND = ("get_order", {"id": "W1"}), ("stop", {})
WIRE = '{"tool_calls": [{"function": {"name": "get_order", "arguments": "{\\"id\\": \\"W1\\"}"}}]}'


def valid_calls(reading: ParsedReply) -> list[tuple[str, dict[str, Any]]]:
    return [(call.name, call.arguments) for call in reading.calls if not call.parse_error]


@pytest.mark.parametrize(
    ("format", "text"),
    [
        ("hermes", f"<tool_call>\n{CALL}\n</tool_call>\n" + '<tool_call>{"name": "stop", "arguments": {}}</tool_call>'),
        ("llama3", '{"name": "get_order", "parameters": {"id": "W1"}}; {"name": "stop", "parameters": {}}'),
        ("llama3", '<|python_tag|>{"name": "get_order", "parameters": {"id": "W1"}}; {"name":"stop","parameters":{}}'),
        ("mistral", f'[TOOL_CALLS] [{CALL}, {{"name": "stop", "arguments": {{}}, "id": "abc123def"}}]'),
        ("mistral", '[TOOL_CALLS]get_order[ARGS]{"id": "W1"}[TOOL_CALLS]stop[CALL_ID]abc123def[ARGS]{}'),
        ("mistral", '[TOOL_CALLS]get_order{"id": "W1"}stop{}'),
        ("pythonic", '[get_order(id="W1"), stop()]'),
        (
            "qwen3_coder",
            "<tool_call>\n<function=get_order>\n<parameter=id>\nW1\n</parameter>\n</function>\n</tool_call>\n"
            "<tool_call>\n<function=stop>\n</function>\n</tool_call>",
        ),
        ("qwen3_coder", '<function=get_order>{"id": "W1"}</function><function=stop>{}</function>'),
        (
            "deepseek",
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_order\n```json\n"
            '{"id": "W1"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>stop\n```json\n{}\n```'
            "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        ),
        (
            "deepseek",
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_order:0<|tool_call_argument_begin|>"
            '{"id": "W1"}<|tool_call_end|>'
            "<|tool_call_begin|>functions.stop:1<|tool_call_argument_begin|>{}<|tool_call_end|>"
            "<|tool_calls_section_end|>",
        ),
        (
            "harmony",
            "<|channel|>analysis<|message|>I look it up.<|end|><|start|>assistant<|channel|>commentary to=functions."
            'get_order <|constrain|>json<|message|>{"id": "W1"}<|call|><|start|>assistant to=functions.stop'
            "<|channel|>commentary json<|message|>{}<|call|>",
        ),
        (
            "harmony",
            ' to=functions.get_order<|channel|>commentary json<|message|>{"id": "W1"}<|call|>'
            "<|start|>assistant to=functions.stop<|channel|>commentary json<|message|>{}<|call|>",
        ),
        (
            "glm",
            "<tool_call>get_order\n<arg_key>id</arg_key>\n<arg_value>W1</arg_value>\n</tool_call>"
            "\n<tool_call>stop\n</tool_call>",
        ),
        ("pythonic", "<|tool_call_start|>[get_order(id='W1'), stop()]<|tool_call_end|>"),
        (
            "llama3",
            '<|python_start|><|python_end|>{"name": "get_order", "parameters": {"id": "W1"}}'
            '{"name": "stop", "parameters": {}}',
        ),
        ("json", CALL + '\n{"name": "stop", "arguments": {}}'),
        ("json", f'[{CALL}, {{"name": "stop", "arguments": {{}}}}]'),
        ("openai", WIRE[:-2] + ', {"id": "1", "type": "function", "function": {"name": "stop", "arguments": "{}"}}]}'),
        ("react", 'Action: get_order\nAction Input: {"id": "W1"}\nAction: stop\nAction Input: {}'),
        (
            "react",
            'Action:\n{"name": "get_order", "arguments": {"id": "W1"}}\nAction: {"name": "stop", "arguments": {}}',
        ),
        (
            "xml",
            '<tool>\n{"name": "get_order", "args": {"id": "W1"}}\n</tool><tool>{"name": "stop", "args": {}}</tool>',
        ),
        (
            "xml",
            '<tool>get_order</tool><tool_input>{"id": "W1"}</tool_input><tool>stop</tool><tool_input>{}</tool_input>',
        ),
    ],
)
def test_every_tool_format_parses_without_repairs(format: str, text: str) -> None:
    for tools in (TOOLS, ()):
        reading = parse_reply(text, format, tools)
        assert valid_calls(reading) == [FIRST, SECOND]
        assert (reading.status, dict(reading.repairs), reading.text) == ("tool_calls", {}, "")
        assert valid_calls(parse_reply(text, "", tools)) == [FIRST, SECOND]


@pytest.mark.parametrize(
    ("text", "repairs"),
    [
        (CALL, {"tool_format"}),
        (f"Sure.\n```json\n{WIRE}\n```\nDone.", {"tool_format", "fence", "argument_text"}),
        ('```python\nget_order(id="W1")\n```', {"tool_format", "fence"}),
        ('```tool_code\nx = get_order("W1")\n```', {"tool_format", "fence", "positional"}),
        (
            '<function_calls><invoke name="get_order"><parameter name="id">W1</parameter></invoke></function_calls>',
            {"tool_format"},
        ),
        (f"<tool_call>{CALL[:-1]}</tool_call>", {"brackets"}),
        (f"<tool_call>{CALL}}}}}</tool_call>", {"junk"}),
        (f"<tool_call>{CALL}", {"tags"}),
        (f"<tool_call>```json\n{CALL}\n```</tool_call>", set()),
        (f"<tool_call>[{CALL}]</tool_call>", set()),
        ('<tool_call>{"name": "get_order", "parameters": {"id": "W1"}}</tool_call>', {"keys"}),
        ('<tool_call>{"name": "get_order", "arguments": "{\\"id\\": \\"W1\\"}"}</tool_call>', {"argument_text"}),
        ('<tool_call>{"name": "functions.get_order", "arguments": {"id": "W1"}}</tool_call>', set()),
    ],
)
def test_repairs_are_counted_by_kind(text: str, repairs: set[str]) -> None:
    reading = parse_reply(text, "hermes", TOOLS)
    assert valid_calls(reading) == [FIRST]
    assert set(reading.repairs) == repairs
    assert reading.status == ("repaired" if repairs else "tool_calls")


def test_calls_and_text_between_them_are_parsed_in_order() -> None:
    reading = parse_reply(f"One. {CALL}{CALL}, {WIRE}\n\nTwo. {CALL}\nThree.", "json")
    assert valid_calls(reading) == [FIRST] * 4
    assert reading.text == "One.\nTwo.\nThree."
    assert set(reading.repairs) == {"glued", "argument_text", "prose"}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Your order W1 is on its way.",
        'Here is your order: {"id": "W1", "items": [{"name": "lamp", "price": 3}]}',
        '{"name": "Ann Lee", "zip": "12345"}',
        '{"name": "lamp", "input": "220V"}',
        '{"name": "get", "description": "Gets.", "parameters": {"type": "object"}}',
        "I use get_order(id) and `get_order` for this. [link](http://x.y) [see(this)]",
        "if (a) { b(); } else { c: 1 }",
        '```python\nprint("hello")\n```',
        "```json\n[1, 2]\n```",
        "Action: none is needed.",
        "The class is <function>, a < b, and <tool> is not.".replace("<tool> ", ""),
        "{" * 50,
        '"quoted" {"a": "b',
    ],
)
def test_text_and_data_are_not_parsed_as_calls(text: str) -> None:
    reading = parse_reply(text, "", ())
    assert (reading.calls, reading.text) == ((), text.strip())
    assert reading.status == ("text" if text else "empty")
    assert parse_reply(text, "hermes", TOOLS).text == text.strip()


def test_empty_tool_calls_list_is_no_call() -> None:
    reading = parse_reply('Hello.\n{"content": "Bye.", "tool_calls": []}')
    assert (reading.status, reading.text) == ("text", "Hello.\nBye.")
    assert parse_reply('{"tool_calls": []}').status == "empty"
    both = parse_reply('<tool_call>{"tool_calls": [], "arguments": {"a": "x"}}</tool_call>', "hermes")
    assert (valid_calls(both), dict(both.parse_errors)) == ([], {"shape": 1})
    assert valid_calls(parse_reply('{"tool_calls": [], "name": "f", "arguments": {"a": 1}}')) == [("f", {"a": 1})]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"<think>{CALL}</think>", ""),
        (f"<think>{CALL}</think>b", "b"),
        (f"a\n <think>{CALL}", "a"),
        (f"{CALL} so I call.</think>b", "b"),
        (f"<thinking>a</thinking>b<reasoning>{CALL}</reasoning>c", "b\nc"),
        (f"[THINK]{CALL}[/THINK]b", "b"),
        (f"<|channel|>analysis<|message|>{CALL}<|end|><|start|>assistant<|channel|>final<|message|>b<|return|>", "b"),
    ],
)
def test_calls_in_thinking_are_ignored(text: str, expected: str) -> None:
    reading = parse_reply(text)
    assert (reading.calls, reading.text) == ((), expected)


@pytest.mark.parametrize("text", ["Run the <analysis> step.\n", "a<think>", "Here's my thought process: look first.\n"])
def test_calls_after_what_may_open_a_thought_are_malformed(text: str) -> None:
    reading = parse_reply(f"{text}{CALL}{CALL}")
    assert (valid_calls(reading), reading.text, dict(reading.parse_errors)) == ([], text.strip(), {"tags": 2})
    assert "nothing closes" in reading.error


@pytest.mark.parametrize("tag", ["<think>", "</think>", "<analysis>", "[THINK]"])
def test_quoted_markers_of_thoughts_are_text(tag: str) -> None:
    reading = parse_reply(f"I use `{tag}`.\n{CALL}")
    assert (valid_calls(reading), reading.text) == ([FIRST], f"I use `{tag}`.")


@pytest.mark.parametrize(
    "text", ["Ticket:\n* User: Bob\n* System: macOS", "**User:** Bob (id 3)", "I use this.\nTool: f", "System: macOS"]
)
def test_lists_with_names_of_roles_are_text(text: str) -> None:
    reading = parse_reply(f"{text}\n{CALL}")
    assert (valid_calls(reading), reading.text, reading.hallucinated_turn) == ([FIRST], text, False)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (CALL, CALL),
        (f"<think>a</think>\nIt is {CALL}.", f"It is {CALL}."),
        ("User: hi\nAssistant: hi", "User: hi\nAssistant: hi"),
        ("a<|im_end|>\n<|im_start|>user\nb", "a"),
        ("```json\n[]\n```", "```json\n[]\n```"),
    ],
)
def test_text_without_tools_keeps_what_looks_like_a_call(text: str, expected: str) -> None:
    reading = parse_text(text)
    assert (reading.calls, reading.text, reading.repairs) == ((), expected, {})


@pytest.mark.parametrize("before", ["<think>a</think>", "a</think>", f"<think>a</think>{CALL}</think>"])
def test_call_before_an_unopened_think_end_is_malformed(before: str) -> None:
    reading = parse_reply(f"{before}{CALL}</think>b")
    assert (valid_calls(reading), reading.text, dict(reading.parse_errors)) == ([], "b", {"tags": 1})
    assert "the call stands before a </think> without an opening tag" in reading.error
    assert parse_reply(f"{before}a</think>b").calls == (() if CALL not in before else reading.calls)


@pytest.mark.parametrize(
    "marker",
    [
        "\nUser: yes",
        "\nHuman: yes",
        "\nObservation: 3",
        "\nTool response: 3",
        "\n##user\nyes",
        "<tool_response>",
        "<|im_start|>user\n",
        "<|im_end|>\nuser",
        "<|start_header_id|>user<|end_header_id|>",
        "[INST]",
        "<｜User｜>",
        "</s>x",
    ],
)
def test_hallucinated_turns_are_cut(marker: str) -> None:
    reading = parse_reply(f"Hello. {CALL}{marker} {CALL}")
    assert (valid_calls(reading), reading.text, reading.hallucinated_turn) == ([FIRST], "Hello.", True)
    quoted = parse_reply(json.dumps({"name": "f", "arguments": {"text": marker}}, ensure_ascii=False))
    assert (quoted.hallucinated_turn, quoted.calls[0].arguments) == (False, {"text": marker})


_QWEN, _INVOKE = "<parameter=a>", '<parameter name="a">'


@pytest.mark.parametrize(
    ("text", "name", "kind", "reason"),
    [
        ('{"name": "f", "arguments": {"a": b}}', "f", "json", "'b' is not a value"),
        ('{"name": "f", "arguments": {"a": "b", "c": "d', "f", "truncated", "'d' is not closed"),
        ('{"name": "f", "arguments": {"a": 12', "f", "truncated", "ends before it is complete"),
        ('{"name": "f", "arguments": {', "f", "truncated", "ends before it is complete"),
        ('{"name": "f", "arguments": {"a": "say "hi" now"}}', "f", "quotes", "needs a backslash"),
        ('{"name": "f", "arguments": {"a": 1, "a": 2}}', "f", "duplicate", "'a' is given twice"),
        ('{"name": "f", "arguments": {"a": 1]}, "b": 2}', "f", "brackets", ""),
        ('{"name": "f", "arguments": [1]}', "f", "shape", "not a JSON object"),
        ('{"name": "f", "arguments": "{} and more"}', "f", "junk", "follows them"),
        ('{"tool_calls": [{"function": {"name": "f"}}]}', "f", "shape", "no 'arguments'"),
        ('{"tool_calls": [{"function": {"name": "f', "", "truncated", "'f' is not closed"),
        ('{"name": "f", "arguments": {"a": NaN}}', "f", "json", "'NaN' is not a value"),
        ('{"name": "f", "arguments": {"a": 1e999}}', "f", "json", "too large"),
        (r'{"name": "f", "arguments": {"a": "\ud800"}}', "f", "json", "lone surrogate"),
        (f'{{"name": "f", "arguments": {{"a": {"[" * 50}', "f", "depth", "nested more than 32 deep"),
        ("[f(a=g()), f(b=__import__('os'))]", "f", "python", "not a literal"),
        ("[f(a=1, **{'b': 1}), f(a=b), f()()]", "f", "python", "unpacks one"),
        ("[f(a=1, )(]", "f", "python", "not Python"),
        ("[f(a=1e999)]", "f", "python", "too large"),
        (f"[f(a=-0x{'f' * 4000})]", "f", "python", "too large"),
        (f"[f(a={'-' * 400}1)]", "f", "python", "nested more than 32 deep"),
        (f"[f(a={'1+' * 400}1)]", "f", "python", "nested more than 32 deep"),
        (f"[{'a.' * 1500}f(x=1)]", f"{'a.' * 1500}f", "python", "nested more than 32 deep"),
        (f"[f(a={'[' * 40}{']' * 40})]", "f", "python", "nested more than 32 deep"),
        ('{"name": "stop"}', "stop", "shape", "no 'arguments'"),
        ('{"name": "get_order", "order": "W1"}', "get_order", "shape", "no 'arguments'"),
        ("<tool_call>f</tool_call>", "", "json", "'f' is not an object"),
        ('{"name": "\\udfff", "arguments": {x', "\ufffd", "json", "not a key"),
        ("x</tool_call>", "", "tags", "never opened"),
        ("Action: stop now", "stop", "shape", "no 'Action Input:'"),
        ("<function=f><parameter=a>b", "f", "truncated", "not closed"),
        (f"<function=f>{_QWEN}1</parameter>{_QWEN}2</parameter></function>", "f", "duplicate", "'a' is given twice"),
        (f"<function=f>{_QWEN}1</parameter>{_QWEN}true</parameter></function>", "f", "duplicate", "twice"),
        (f'<invoke name="f">{_INVOKE}1</parameter>{_INVOKE}2</parameter></invoke>', "f", "duplicate", "twice"),
        (rf'<invoke name="f">{_INVOKE}["\ud800"]</parameter></invoke>', "f", "json", "lone surrogate"),
        (f'<invoke name="f">{_INVOKE}{"[" * 33}{"]" * 33}</parameter></invoke>', "f", "json", "nested more than 32"),
        ('[TOOL_CALLS]f "a"', "", "json", "neither a list nor a name"),
    ],
)
def test_ambiguous_call_is_malformed(text: str, name: str, kind: str, reason: str) -> None:
    reading = parse_reply(text, "", TOOLS)
    broken = [call for call in reading.calls if call.parse_error]
    assert reading.status == "malformed"
    assert (broken[0].name, broken[0].arguments) == (name, {})
    assert kind in reading.parse_errors
    assert reason in reading.error
    assert valid_calls(reading) == []


def test_malformed_call_does_not_affect_others() -> None:
    reading = parse_reply(
        f'<tool_call>{{"name": "f", "arguments": {{x}}}}</tool_call><tool_call>{CALL}</tool_call>{CALL}'
    )
    assert [bool(call.parse_error) for call in reading.calls] == [True, False, False]
    assert valid_calls(reading) == [FIRST, FIRST]


def test_tool_specs_resolve_argument_aliases_and_types() -> None:
    reading = parse_reply('{"name": "run", "arguments": {"python_code": "1"}}', "json", TOOLS)
    assert (valid_calls(reading), dict(reading.repairs)) == ([("run", {"code": "1"})], {"alias": 1})
    both = parse_reply('{"name": "run", "arguments": {"python_code": "1", "code": "2"}}', "json", TOOLS)
    assert valid_calls(both) == [("run", {"python_code": "1", "code": "2"})]
    typed = "<function=f><parameter=a>1</parameter><parameter=b>1</parameter><parameter=c>True</parameter></function>"
    assert valid_calls(parse_reply(typed, "", [make_spec("f", a="string", b="integer", c="boolean")]))[0][1] == {
        "a": "1",
        "b": 1,
        "c": True,
    }
    unknown = parse_reply('{"name": "get_ordr", "arguments": {}}', "", TOOLS)
    assert (unknown.status, unknown.parse_errors) == ("tool_calls", {})
    assert "did you mean 'get_order'" in unknown.error


MAYBE = {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        *(
            (schema, text, text)
            for schema in (MAYBE, {"type": ["string", "null"]})
            for text in ("94110", "true", "[1]")
        ),
        (MAYBE, "null", None),
        (MAYBE, "None", None),
        (MAYBE, '"x"', '"x"'),
        ({"$ref": "#/$defs/Size"}, "12", "12"),
        ({"anyOf": [{"$ref": "#/$defs/Size"}, {"type": "null"}]}, "12", "12"),
        ({"$ref": "#/$defs/Loop"}, "12", "12"),
        ({"$ref": "#/$defs/None"}, "12", 12),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, "12", 12),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, "1.5", "1.5"),
        ({"type": ["number", "string"]}, "12", 12),
        ({"type": ["number", "string"]}, "true", "true"),
        ({"enum": [1, 2]}, "1", 1),
        ({"const": "1"}, "1", "1"),
        ({"type": "array"}, "[1]", [1]),
        ({}, "12", 12),
        (True, "12", 12),
        ({"type": [{}], "anyOf": "string", "$ref": 1}, "12", 12),
    ],
)
def test_unquoted_values_are_converted_by_their_schema(schema: Any, text: str, value: Any) -> None:
    definitions = {"Size": {"enum": ["12", "13"]}, "Loop": {"anyOf": [{"$ref": "#/$defs/Loop"}, {"type": "string"}]}}
    parameters = {"type": "object", "properties": {"a": schema}, "$defs": definitions}
    tools = [ToolSpec(name="f", description="", parameters=parameters)]
    coder = f"<tool_call>\n<function=f>\n<parameter=a>\n{text}\n</parameter>\n</function>\n</tool_call>"
    glm = f"<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>{text}</arg_value>\n</tool_call>"
    for format, reply in (("qwen3_coder", coder), ("glm", glm)):
        ((_, arguments),) = valid_calls(parse_reply(reply, format, tools))
        assert arguments == {"a": value}
        assert type(arguments["a"]) is type(value)


def test_unknown_tool_format_raises() -> None:
    with pytest.raises(ConfigError, match="'hermes'"):
        parse_reply("", "herms")
    with pytest.raises(ConfigError, match="'hermes'"):
        render_reply("", (), "herms")
    with pytest.raises(ValueError, match=r": x$"):
        render_reply("", [ToolCall(name="f", parse_error="x")], "json")


awkward_texts = st.text(max_size=8) | st.sampled_from(
    [
        "\n",
        '"',
        "\\",
        '\\"',
        "'",
        "}",
        "]}",
        "{",
        "<",
        "</tool_call>",
        "<think>",
        "User:",
        "\nUser: hi",
        "```",
        "é",
        "👩‍👧",
    ]
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | awkward_texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(awkward_texts, inner, max_size=3),
    max_leaves=6,
)
names = st.from_regex(r"[a-z][a-z_]{0,8}", fullmatch=True).filter(lambda n: n not in ("not", "is", "in", "or", "if"))
HARD = {"and", "as", "assert", "async", "await", "break", "class", "def", "del", "elif", "else", "except", "for"} | {
    *("from", "global", "import", "lambda", "nonlocal", "pass", "raise", "return", "try", "while", "with", "yield")
}


def tool_call_lists(keys: st.SearchStrategy[str]) -> st.SearchStrategy[list[ToolCall]]:
    arguments = st.dictionaries(keys, values, max_size=3)
    return st.lists(st.builds(ToolCall, name=names.filter(lambda n: n not in HARD), arguments=arguments), max_size=3)


many_examples = settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])
UNQUOTED = ("qwen3_coder", "glm", "dsml", "gemma", "minimax")
JSON = sorted({*TOOL_FORMATS} - {"pythonic", *UNQUOTED})


@pytest.mark.slow
@many_examples
@given(
    format=st.sampled_from(JSON),
    content=st.sampled_from(["", "Hello.", "a\n\nb é"]),
    made=tool_call_lists(awkward_texts),
)
def test_parse_inverts_render(format: str, content: str, made: list[ToolCall]) -> None:
    reading = parse_reply(render_reply(content, made, format), format)
    assert (list(reading.calls), reading.text, reading.hallucinated_turn) == (made, content, False)
    assert dict(reading.repairs) == (
        {"prose": 1} if made and content and format in ("json", "llama3", "openai") else {}
    )


@many_examples
@given(
    text=st.lists(
        st.sampled_from([*'<>{}[]:,"\\ \n', "<tool_call>", "</tool_call>", '"name": "f"', '"arguments": {'])
        | awkward_texts
    )
)
def test_hermes_fast_path_equals_the_slow_path(text: list[str]) -> None:
    """The fast path for exact Hermes calls must give the result of the full parser."""
    body = "".join(text)
    for reply in (body, f'<tool_call>{{"name": "f", "arguments": {{"a": {body}}}}}</tool_call>{body}'):
        with pytest.MonkeyPatch.context() as patch:
            directly = parse_reply(reply, "hermes")
            patch.setattr("understudy.formats.tool_parsers.hermes._exact", lambda scan, at: 0)
            assert parse_reply(reply, "hermes") == directly


@many_examples
@given(made=tool_call_lists(names.filter(lambda n: n not in HARD)))
def test_parse_inverts_render_for_pythonic_calls(made: list[ToolCall]) -> None:
    reading = parse_reply(render_reply("Hello.", made, "pythonic"), "pythonic")
    assert (list(reading.calls), reading.text, dict(reading.repairs)) == (made, "Hello.", {})


@many_examples
@given(format=st.sampled_from(["qwen3_coder", "glm"]), made=tool_call_lists(names))
def test_parse_inverts_render_for_unquoted_values(format: str, made: list[ToolCall]) -> None:
    kinds = {str: "string", bool: "boolean", int: "integer", float: "number", dict: "object", list: "array"}
    tools = [
        make_spec(f"{call.name}{i}", **{k: kinds.get(type(v), "null") for k, v in call.arguments.items()})
        for i, call in enumerate(made)
    ]
    made = [call.replace(name=tool.name) for call, tool in zip(made, tools, strict=True)]
    text = render_reply("Hello.", made, format)
    if text.count("</parameter>") == sum(len(call.arguments) for call in made) and "</tool_call>" not in "".join(
        str(call.arguments) for call in made
    ):
        reading = parse_reply(text, format, tools)
        assert (list(reading.calls), reading.text, dict(reading.repairs)) == (made, "Hello.", {})


PIECES = (
    *(
        '{"name": "f", "arguments": {',
        '"a": ',
        '"b"',
        "1",
        "}",
        "]",
        "{",
        "[",
        ",",
        '"',
        "\\",
        "'",
        ":",
        "\n",
        " ",
        "x",
    ),
    *(
        "<tool_call>",
        "</tool_call>",
        "<think>",
        "</think>",
        "```json\n",
        "```",
        "[TOOL_CALLS]",
        "f[ARGS]",
        "<function=f>",
    ),
    *(
        "<parameter=a>",
        "</parameter>",
        "</function>",
        "<|python_tag|>",
        "[f(a=",
        "f.call(",
        f"[{'a.' * 1500}f(a=",
        f"[f(a={'-' * 400}",
        f"[f(a={'1+' * 400}",
        f"[f(a=0x{'f' * 4000}",
        ")",
        "<tool>",
        "<tool_input>",
    ),
    *(
        '<invoke name="f">',
        '<parameter name="a">',
        "</invoke>",
        '"\\ud800"',
        "<|channel|>",
        "commentary to=functions.f",
        "<|message|>",
        "<｜tool▁call▁begin｜>",
        "f",
    ),
    *(
        "\nAction: f",
        "\nAction Input: ",
        '"tool_calls": [',
        '{"function": ',
        "\nUser: ",
        '"tool_calls": [], ',
        '"arguments": "{',
        '\\"',
        "-",
        "1e999",
    ),
    *("True", "null", "NaN", "\ud800", "\\u", "é", "\x00"),
    *("<|tool_call>call:f{", '<|"|>', "<tool_call|>", "]<]minimax[>[", '<invoke name="f">', "<a>", "</a>", "<escape>"),
    *(
        "<｜DSML｜",
        "<tool_calls>",
        "</tool_calls>",
        "<|tools_prefix|>",
        "[f(a='",
        "07",
        "<|tool_call_start|>",
        "functools",
    ),
    *("<|tool_call_end|>", "<tool_sep>", "<arg_key>a</arg_key>", "<![CDATA[", "]]>", "◁think▷", "<seed:think>"),
)
texts = st.lists(st.sampled_from(PIECES) | st.text(max_size=4), max_size=14).map("".join)


def parse_and_check(text: str, format: str = "", tools: Sequence[ToolSpec] = ()) -> ParsedReply:
    """Parse a text and assert that the result is consistent, serializable and deterministic."""
    reading = parse_reply(text, format, tools)
    assert all(not call.parse_error or not call.arguments for call in reading.calls)
    assert sum(bool(call.parse_error) for call in reading.calls) == sum(reading.parse_errors.values())
    json.dumps([call.arguments for call in reading.calls], allow_nan=False)
    assert reading == parse_reply(text, format, tools)
    assert all("\n" not in call.parse_error for call in reading.calls)
    for call in reading.calls:
        call.model_dump_json()
    reading.text.encode()
    return reading


@settings(many_examples, max_examples=400)
@given(text=texts, format=st.sampled_from(["", *TOOL_FORMATS]), shown=st.booleans())
def test_arbitrary_text_is_parsed(text: str, format: str, shown: bool) -> None:
    tools = [make_spec("f", a="string")] if shown else []
    reading = parse_and_check(text, format, tools)
    assert len(mark_truncated_call(parse_message(text, format, tools), truncated=True).tool_calls) == len(reading.calls)


@settings(many_examples, max_examples=300)
@given(text=texts)
def test_string_arguments_are_substrings_of_the_reply(text: str) -> None:
    """The parser invents no argument: each string without an escape is part of the text."""
    for call in parse_reply(text).calls:
        for value in call.arguments.values():
            if isinstance(value, str) and "\\" not in text:
                assert value in text.replace("\ud800", "\ufffd")


@pytest.mark.parametrize("format", sorted(TOOL_FORMATS))
def test_truncated_reply_has_only_calls_of_the_whole_reply(format: str) -> None:
    """No call is run without arguments that were still to come, at any cut."""
    both = {"a": 'say "b" }]', "c": [12.5, {"d": None}]}
    calls = [ToolCall(name="f", arguments=both), ToolCall(name="g"), ToolCall(name="h", arguments=both)]
    whole = render_reply("", calls, format)
    for cut in range(len(whole)):
        message = mark_truncated_call(parse_message(whole[:cut], format), truncated=True)
        assert [call for call in message.tool_calls if not call.parse_error] in (calls[:n] for n in range(4)), whole[
            :cut
        ]


@pytest.mark.parametrize(
    ("format", "text"),
    [
        ("hermes", '<tool_call>{"tool_calls": [], "arguments": {"a": "x"'),
        ("hermes", '<tool_call>{"tool_calls": [], "arguments": {"a": "x}}'),
        ("xml", '<tool>{"tool_calls": [], "args": {"a": "x"'),
        ("qwen3_coder", "<tool_call>\n<function=f>"),
        ("qwen3_coder", "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n<param"),
        ("glm", "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n<arg_key>b</arg_key>\n<arg_val"),
        ("glm", "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n<arg_key>b"),
    ],
)
def test_truncated_call_is_malformed(format: str, text: str) -> None:
    (call,) = mark_truncated_call(parse_message(text, format), truncated=True).tool_calls
    assert call.parse_error


def test_call_without_its_closing_tag_is_valid() -> None:
    for text in ("<function=f><parameter=a>1</parameter>", "<function=f><parameter=a>1</parameter> So."):
        message = mark_truncated_call(parse_message(text, "qwen3_coder"), truncated=False)
        assert message.tool_calls == (ToolCall(name="f", arguments={"a": 1}),)
    whole = parse_message('<function=f>{"a": 1}', "qwen3_coder")
    assert (mark_truncated_call(whole, truncated=True), dict(whole.repairs)) == (whole.message, {"tags": 1})


LONG = (
    "{",
    '{"a":',
    '{"a":"',
    "[1,",
    "<",
    "<tool_call>{",
    "<think></think>",
    "\n[f(a=1",
    "<function=f>",
    "```json\n{",
    "\n",
    '<｜DSML｜invoke name="f"><｜DSML｜parameter name="a">',
    '<function name="f"><param name="a"><![CDATA[',
    '<invoke name="f">x',
    '<|tool_call>call:f{a:<|"|>',
    "<|tool_call>call:f{a:[",
    ']<]minimax[>[<invoke name="f">]<]minimax[>[<a>',
    '<|tools_prefix|>[{"f":{',
    "<function_calls>f(",
    "<tool_calls>x",
    "<|tool_call_start|>[f(a='",
    "[f(a='x' y)]",
    "<|tool_call_begin|>f:0",
    "<a><b>{",
    "<seed:think></seed:think>",
)


@pytest.mark.parametrize("junk", LONG)
def test_parsing_cost_is_bounded(junk: str) -> None:
    """The parse budget bounds the number of calls and of attempts in a reply."""
    start = time.process_time()
    reading = parse_reply(junk * 30_000)
    assert len(reading.calls) <= ParseBudget().left // 10 + 1
    assert time.process_time() - start < 10  # quadratic time would be minutes


def test_parse_budget_limits_the_number_of_calls() -> None:
    few, most = parse_reply(CALL * 1000, "json"), parse_reply(CALL * 50_000, "json")
    assert len(few.calls) == 1000
    assert few.parse_errors == {}
    assert (most.status, dict(most.parse_errors)) == ("malformed", {"length": 1})
    assert ReplyScan("").budget.left == ParseBudget().left


def test_every_repair_is_documented() -> None:
    sources = [path.read_text(encoding="utf-8") for path in Path(parse_module.__file__).parents[1].rglob("*.py")]
    counted = {kind for source in sources for kind in re.findall(r'(?:repairs\[|_close_all\()"(\w+)"', source)}
    page = (ROOT / "docs" / "formats.md").read_text(encoding="utf-8")
    documented = re.findall(
        r"^\| `(\w+)` \|", page.partition("## Repairs")[2].partition("## Statuses")[0], re.MULTILINE
    )
    assert counted | {"newlines", "truncated"} == set(documented)
    for tool_format in TOOL_FORMATS:
        assert f"| `{tool_format}`" in page


def run_parse_command(*arguments: str, given: str) -> subprocess.CompletedProcess[str]:
    code = "import sys; from understudy.cli.main import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, "parse", *arguments], input=given, capture_output=True, text=True, check=False
    )


def test_parse_command_reads_standard_input() -> None:
    done = run_parse_command(given=f"Hello.\n{WIRE[:-1]}")
    assert json.loads(done.stdout) == {
        "tool_calls": [{"name": "get_order", "arguments": {"id": "W1"}, "parse_error": ""}],
        "text": "Hello.",
        "status": "repaired",
        "repairs": {"brackets": 1},
        "hallucinated_turn": False,
        "error": "",
    }


def test_parse_command_prints_one_shape_for_every_call() -> None:
    broken = '{"name": "f", "arguments": {"a": b}}'
    done = run_parse_command("--jsonl", given=f"{json.dumps(CALL)}\n{json.dumps(broken)}\n{json.dumps('</tool_call>')}")
    (good,), (bad,), (nameless,) = (json.loads(line)["tool_calls"] for line in done.stdout.splitlines())
    assert good == {"name": "get_order", "arguments": {"id": "W1"}, "parse_error": ""}
    assert (bad["name"], bad["arguments"], nameless["name"], nameless["arguments"]) == ("f", {}, "", {})
    assert bad.keys() == nameless.keys() == good.keys()
    assert "'b' is not a value" in bad["parse_error"]
    assert "never opened" in nameless["parse_error"]


def test_parse_command_reads_jsonl_and_tools(tmp_path: Any) -> None:
    file = tmp_path / "tools.json"
    file.write_text(json.dumps([{"type": "function", "function": {"name": "f"}}, {"name": "g", "parameters": {}}]))
    given = "\n".join(json.dumps(text) for text in ("hi", {"text": CALL, "id": 1})) + "\n\n"
    done = run_parse_command("--jsonl", "--tools", str(file), "--tool-parser", "hermes", given=given)
    first, second = map(json.loads, done.stdout.splitlines())
    assert (first["status"], first["text"]) == ("text", "hi")
    assert (second["status"], second["repairs"]) == ("repaired", {"tool_format": 1})
    assert second["error"] == "unknown tool 'get_order'; allowed: f, g"


@pytest.mark.parametrize(
    ("arguments", "given", "expected"),
    [
        (["--tool-parser", "x"], "", "unknown tool format 'x'"),
        (["--tools", "nowhere.json"], "", "nowhere.json cannot be read"),
        (["--jsonl"], '"a"\n{', "line 2 is not JSON"),
        (["--jsonl"], "[1]", "line 1 is neither a JSON string nor an object"),
    ],
)
def test_parse_command_errors_are_one_line(arguments: list[str], given: str, expected: str) -> None:
    done = run_parse_command(*arguments, given=given)
    assert done.returncode == 2
    assert expected in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("tag", ["</function>", "</tool_call>", "<function=f>", "<tool_call>"])
def test_tag_in_a_parameter_shortens_no_argument(tag: str) -> None:
    value = f"<parameter=content>\nx = '{tag}'\ny = 2\n</parameter>"
    text = f"<tool_call>\n<function=write>\n{value}\n</function>\n</tool_call>"
    (made,) = parse_reply(text, "qwen3_coder").calls
    assert made.parse_error or made.arguments == {"content": f"x = '{tag}'\ny = 2"}


def test_strike_through_ends_no_reply() -> None:
    text = "The lamp was <s>$20</s>, now it is $10."
    assert (parse_reply(text).text, parse_reply(text).hallucinated_turn) == (text, False)
    assert parse_reply("The lamp is $10.</s>User: ok").text == "The lamp is $10."
    begun = parse_reply("<s>The lamp is $10.</s>User: ok")
    assert ("User" in begun.text, begun.hallucinated_turn) == (False, True)
