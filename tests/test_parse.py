"""Replies as models write them: all calls in order, thoughts and other speakers left out, and nothing invented."""

import json
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from understudy.errors import ConfigError
from understudy.formats import hermes
from understudy.formats import parse as parse_module
from understudy.formats.base import settled
from understudy.formats.parse import DIALECTS, Reading, parse, parsed, render
from understudy.formats.repair import Budget
from understudy.formats.scan import Scan
from understudy.messages import ToolCall, ToolSpec


def spec(name: str, aliases: dict[str, str] | None = None, **kinds: str) -> ToolSpec:
    properties = {key: {"type": kind} for key, kind in kinds.items()}
    return ToolSpec(
        name=name, description="", parameters={"type": "object", "properties": properties}, aliases=aliases or {}
    )


TOOLS = (spec("get_order", id="string"), spec("run", {"python_code": "code"}, code="string"), spec("stop"))
CALL = '{"name": "get_order", "arguments": {"id": "W1"}}'
FIRST, SECOND = ("get_order", {"id": "W1"}), ("stop", {})
WIRE = '{"tool_calls": [{"function": {"name": "get_order", "arguments": "{\\"id\\": \\"W1\\"}"}}]}'


def made(reading: Reading) -> list[tuple[str, dict[str, Any]]]:
    return [(call.name, call.arguments) for call in reading.calls if not call.malformed]


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
def test_every_dialect_is_read_without_a_repair(format: str, text: str) -> None:
    for tools in (TOOLS, ()):
        reading = parse(text, format, tools)
        assert made(reading) == [FIRST, SECOND]
        assert (reading.status, dict(reading.repairs), reading.text) == ("calls", {}, "")
        assert made(parse(text, "", tools)) == [FIRST, SECOND]


@pytest.mark.parametrize(
    ("text", "repairs"),
    [
        (CALL, {"dialect"}),
        (f"Sure.\n```json\n{WIRE}\n```\nDone.", {"dialect", "fence", "argument_text"}),
        ('```python\nget_order(id="W1")\n```', {"dialect", "fence"}),
        ('```tool_code\nx = get_order("W1")\n```', {"dialect", "fence", "positional"}),
        (
            '<function_calls><invoke name="get_order"><parameter name="id">W1</parameter></invoke></function_calls>',
            {"dialect"},
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
    reading = parse(text, "hermes", TOOLS)
    assert made(reading) == [FIRST]
    assert set(reading.repairs) == repairs
    assert reading.status == ("repaired" if repairs else "calls")


def test_all_calls_are_found_in_order_with_what_is_said_between() -> None:
    reading = parse(f"One. {CALL}{CALL}, {WIRE}\n\nTwo. {CALL}\nThree.", "json")
    assert made(reading) == [FIRST] * 4
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
def test_text_and_data_are_no_calls(text: str) -> None:
    reading = parse(text, "", ())
    assert (reading.calls, reading.text) == ((), text.strip())
    assert reading.status == ("text" if text else "empty")
    assert parse(text, "hermes", TOOLS).text == text.strip()


def test_an_empty_list_of_calls_is_no_call() -> None:
    reading = parse('Hello.\n{"content": "Bye.", "tool_calls": []}')
    assert (reading.status, reading.text) == ("text", "Hello.\nBye.")
    assert parse('{"tool_calls": []}').status == "empty"
    both = parse('<tool_call>{"tool_calls": [], "arguments": {"a": "x"}}</tool_call>', "hermes")
    assert (made(both), dict(both.faults)) == ([], {"shape": 1})
    assert made(parse('{"tool_calls": [], "name": "f", "arguments": {"a": 1}}')) == [("f", {"a": 1})]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"<think>{CALL}</think>", ""),
        (f"<think>{CALL}</think>b", "b"),
        (f"a<think>{CALL}", "a"),
        (f"{CALL} so I call.</think>b", "b"),
        (f"<thinking>a</thinking>b<reasoning>{CALL}</reasoning>c", "b\nc"),
        (f"[THINK]{CALL}[/THINK]b", "b"),
        (f"<|channel|>analysis<|message|>{CALL}<|end|><|start|>assistant<|channel|>final<|message|>b<|return|>", "b"),
    ],
)
def test_calls_in_thoughts_are_no_calls(text: str, said: str) -> None:
    reading = parse(text)
    assert (reading.calls, reading.text) == ((), said)


@pytest.mark.parametrize("before", ["<think>a</think>", "a</think>", f"<think>a</think>{CALL}</think>"])
def test_a_call_before_the_end_of_no_thought_goes_back_to_the_model(before: str) -> None:
    reading = parse(f"{before}{CALL}</think>b")
    assert (made(reading), reading.text, dict(reading.faults)) == ([], "b", {"tags": 1})
    assert "the call stands before a </think> that ends no thought" in reading.reason
    assert parse(f"{before}a</think>b").calls == (() if CALL not in before else reading.calls)


@pytest.mark.parametrize(
    "marker",
    [
        "\nUser: yes",
        "\n**Human**: yes",
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
def test_what_is_played_for_others_is_cut(marker: str) -> None:
    reading = parse(f"Hello. {CALL}{marker} {CALL}")
    assert (made(reading), reading.text, reading.other_side) == ([FIRST], "Hello.", True)
    quoted = parse(json.dumps({"name": "f", "arguments": {"text": marker}}, ensure_ascii=False))
    assert (quoted.other_side, quoted.calls[0].arguments) == (False, {"text": marker})


_QWEN, _INVOKE = "<parameter=a>", '<parameter name="a">'


@pytest.mark.parametrize(
    ("text", "name", "kind", "reason"),
    [
        ('{"name": "f", "arguments": {"a": b}}', "f", "json", "'b' is not a value"),
        ('{"name": "f", "arguments": {"a": "b", "c": "d', "f", "truncated", "'d' is not closed"),
        ('{"name": "f", "arguments": {"a": 12', "f", "truncated", "ends before it is complete"),
        ('{"name": "f", "arguments": {', "f", "truncated", "ends before it is complete"),
        ('{"name": "f", "arguments": {"a": "say "hi" now"}}', "f", "quotes", "needs a backslash"),
        ('{"name": "f", "arguments": {"a": 1, "a": 2}}', "f", "duplicate", "'a' is there twice"),
        ('{"name": "f", "arguments": {"a": 1]}, "b": 2}', "f", "brackets", ""),
        ('{"name": "f", "arguments": [1]}', "f", "shape", "not a JSON object"),
        ('{"name": "f", "arguments": "{} and more"}', "f", "junk", "follows them"),
        ('{"tool_calls": [{"function": {"name": "f"}}]}', "f", "shape", "no 'arguments'"),
        ('{"tool_calls": [{"function": {"name": "f', "", "truncated", "'f' is not closed"),
        ('{"name": "f", "arguments": {"a": NaN}}', "f", "json", "'NaN' is not a value"),
        ('{"name": "f", "arguments": {"a": 1e999}}', "f", "json", "too large"),
        (r'{"name": "f", "arguments": {"a": "\ud800"}}', "f", "json", "half a character"),
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
        (f"<function=f>{_QWEN}1</parameter>{_QWEN}2</parameter></function>", "f", "duplicate", "'a' is there twice"),
        (f"<function=f>{_QWEN}1</parameter>{_QWEN}true</parameter></function>", "f", "duplicate", "twice"),
        (f'<invoke name="f">{_INVOKE}1</parameter>{_INVOKE}2</parameter></invoke>', "f", "duplicate", "twice"),
        (rf'<invoke name="f">{_INVOKE}["\ud800"]</parameter></invoke>', "f", "json", "half a character"),
        (f'<invoke name="f">{_INVOKE}{"[" * 33}{"]" * 33}</parameter></invoke>', "f", "json", "nested more than 32"),
        ('[TOOL_CALLS]f "a"', "", "json", "neither a list nor a name"),
    ],
)
def test_what_cannot_be_read_for_certain_is_malformed(text: str, name: str, kind: str, reason: str) -> None:
    reading = parse(text, "", TOOLS)
    broken = [call for call in reading.calls if call.malformed]
    assert reading.status == "malformed"
    assert (broken[0].name, broken[0].arguments) == (name, {})
    assert kind in reading.faults
    assert reason in reading.reason
    assert made(reading) == []


def test_one_broken_call_leaves_its_neighbours_whole() -> None:
    reading = parse(f'<tool_call>{{"name": "f", "arguments": {{x}}}}</tool_call><tool_call>{CALL}</tool_call>{CALL}')
    assert [bool(call.malformed) for call in reading.calls] == [True, False, False]
    assert made(reading) == [FIRST, FIRST]


def test_tools_give_names_types_and_other_names_of_arguments() -> None:
    reading = parse('{"name": "run", "arguments": {"python_code": "1"}}', "json", TOOLS)
    assert (made(reading), dict(reading.repairs)) == ([("run", {"code": "1"})], {"alias": 1})
    both = parse('{"name": "run", "arguments": {"python_code": "1", "code": "2"}}', "json", TOOLS)
    assert made(both) == [("run", {"python_code": "1", "code": "2"})]
    typed = "<function=f><parameter=a>1</parameter><parameter=b>1</parameter><parameter=c>True</parameter></function>"
    assert made(parse(typed, "", [spec("f", a="string", b="integer", c="boolean")]))[0][1] == {
        "a": "1",
        "b": 1,
        "c": True,
    }
    unknown = parse('{"name": "get_ordr", "arguments": {}}', "", TOOLS)
    assert (unknown.status, unknown.faults) == ("calls", {})
    assert "did you mean 'get_order'" in unknown.reason


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
def test_values_without_quotes_have_the_type_that_their_schema_takes(schema: Any, text: str, value: Any) -> None:
    definitions = {"Size": {"enum": ["12", "13"]}, "Loop": {"anyOf": [{"$ref": "#/$defs/Loop"}, {"type": "string"}]}}
    parameters = {"type": "object", "properties": {"a": schema}, "$defs": definitions}
    tools = [ToolSpec(name="f", description="", parameters=parameters)]
    coder = f"<tool_call>\n<function=f>\n<parameter=a>\n{text}\n</parameter>\n</function>\n</tool_call>"
    glm = f"<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>{text}</arg_value>\n</tool_call>"
    for format, reply in (("qwen3_coder", coder), ("glm", glm)):
        ((_, arguments),) = made(parse(reply, format, tools))
        assert arguments == {"a": value}
        assert type(arguments["a"]) is type(value)


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean 'hermes'"):
        parse("", "herms")
    with pytest.raises(ConfigError, match="did you mean 'hermes'"):
        render("", (), "herms")
    with pytest.raises(ValueError, match="cannot be written: x"):
        render("", [ToolCall(name="f", malformed="x")], "json")


# Rendering and parsing are inverses


wild = st.text(max_size=8) | st.sampled_from(
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
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | wild,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(wild, inner, max_size=3),
    max_leaves=6,
)
names = st.from_regex(r"[a-z][a-z_]{0,8}", fullmatch=True).filter(lambda n: n not in ("not", "is", "in", "or", "if"))
HARD = {"and", "as", "assert", "async", "await", "break", "class", "def", "del", "elif", "else", "except", "for"} | {
    *("from", "global", "import", "lambda", "nonlocal", "pass", "raise", "return", "try", "while", "with", "yield")
}


def calls_of(keys: st.SearchStrategy[str]) -> st.SearchStrategy[list[ToolCall]]:
    arguments = st.dictionaries(keys, values, max_size=3)
    return st.lists(st.builds(ToolCall, name=names.filter(lambda n: n not in HARD), arguments=arguments), max_size=3)


many = settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])
JSON = sorted({*DIALECTS} - {"pythonic", "qwen3_coder", "glm"})


@many
@given(format=st.sampled_from(JSON), content=st.sampled_from(["", "Hello.", "a\n\nb é"]), made=calls_of(wild))
def test_parse_inverts_render(format: str, content: str, made: list[ToolCall]) -> None:
    reading = parse(render(content, made, format), format)
    assert (list(reading.calls), reading.text, reading.other_side) == (made, content, False)
    assert dict(reading.repairs) == (
        {"prose": 1} if made and content and format in ("json", "llama3", "openai") else {}
    )


@many
@given(
    text=st.lists(
        st.sampled_from([*'<>{}[]:,"\\ \n', "<tool_call>", "</tool_call>", '"name": "f"', '"arguments": {']) | wild
    )
)
def test_calls_that_are_read_directly_are_read_as_with_care(text: list[str]) -> None:
    """The short way to read a Hermes call has to come to what the long one does."""
    body = "".join(text)
    for reply in (body, f'<tool_call>{{"name": "f", "arguments": {{"a": {body}}}}}</tool_call>{body}'):
        with pytest.MonkeyPatch.context() as patch:
            directly = parse(reply, "hermes")
            patch.setattr("understudy.formats.dialects.hermes._exact", lambda scan, at: 0)
            assert parse(reply, "hermes") == directly


@many
@given(made=calls_of(names.filter(lambda n: n not in HARD)))
def test_parse_inverts_render_of_python(made: list[ToolCall]) -> None:
    reading = parse(render("Hello.", made, "pythonic"), "pythonic")
    assert (list(reading.calls), reading.text, dict(reading.repairs)) == (made, "Hello.", {})


@many
@given(format=st.sampled_from(["qwen3_coder", "glm"]), made=calls_of(names))
def test_parse_inverts_render_where_values_have_no_quotes(format: str, made: list[ToolCall]) -> None:
    kinds = {str: "string", bool: "boolean", int: "integer", float: "number", dict: "object", list: "array"}
    tools = [
        spec(f"{call.name}{i}", **{k: kinds.get(type(v), "null") for k, v in call.arguments.items()})
        for i, call in enumerate(made)
    ]
    made = [call.replace(name=tool.name) for call, tool in zip(made, tools, strict=True)]
    text = render("Hello.", made, format)
    if text.count("</parameter>") == sum(len(call.arguments) for call in made) and "</tool_call>" not in "".join(
        str(call.arguments) for call in made
    ):
        reading = parse(text, format, tools)
        assert (list(reading.calls), reading.text, dict(reading.repairs)) == (made, "Hello.", {})


# Any text at all


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
)
texts = st.lists(st.sampled_from(PIECES) | st.text(max_size=4), max_size=14).map("".join)


def check(text: str, format: str = "", tools: Sequence[ToolSpec] = ()) -> Reading:
    """What holds for every text: it is read, to something that can be written down, the same each time."""
    reading = parse(text, format, tools)
    assert all(not call.malformed or not call.arguments for call in reading.calls)
    assert sum(bool(call.malformed) for call in reading.calls) == sum(reading.faults.values())
    json.dumps([call.arguments for call in reading.calls], allow_nan=False)
    assert reading == parse(text, format, tools)
    assert all("\n" not in call.malformed for call in reading.calls)
    for call in reading.calls:
        call.model_dump_json()
    reading.text.encode()
    return reading


@settings(many, max_examples=400)
@given(text=texts, format=st.sampled_from(["", *DIALECTS]), shown=st.booleans())
def test_any_text_is_read(text: str, format: str, shown: bool) -> None:
    tools = [spec("f", a="string")] if shown else []
    reading = check(text, format, tools)
    assert len(settled(parsed(text, format, tools), cut=True).tool_calls) == len(reading.calls)


@settings(many, max_examples=300)
@given(text=texts)
def test_strings_of_arguments_stand_in_the_reply(text: str) -> None:
    """No argument is invented: each string without an escape is a part of what the model wrote."""
    for call in parse(text).calls:
        for value in call.arguments.values():
            if isinstance(value, str) and "\\" not in text:
                assert value in text.replace("\ud800", "\ufffd")


@pytest.mark.parametrize("format", sorted(DIALECTS))
def test_a_reply_that_was_cut_calls_nothing_that_the_whole_does_not(format: str) -> None:
    """Nor a call without arguments that were to come, wherever it is cut."""
    both = {"a": 'say "b" }]', "c": [12.5, {"d": None}]}
    calls = [ToolCall(name="f", arguments=both), ToolCall(name="g"), ToolCall(name="h", arguments=both)]
    whole = render("", calls, format)
    for cut in range(len(whole)):
        message = settled(parsed(whole[:cut], format), cut=True)
        assert [call for call in message.tool_calls if not call.malformed] in (calls[:n] for n in range(4)), whole[:cut]


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
def test_a_call_that_is_cut_off_is_malformed(format: str, text: str) -> None:
    (call,) = settled(parsed(text, format), cut=True).tool_calls
    assert call.malformed


def test_a_call_whose_end_alone_is_missing_is_run() -> None:
    for text in ("<function=f><parameter=a>1</parameter>", "<function=f><parameter=a>1</parameter> So."):
        message = settled(parsed(text, "qwen3_coder"), cut=False)
        assert message.tool_calls == (ToolCall(name="f", arguments={"a": 1}),)
    whole = parsed('<function=f>{"a": 1}', "qwen3_coder")
    assert (settled(whole, cut=True), dict(whole.repairs)) == (whole.message, {"tags": 1})


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
)


@pytest.mark.parametrize("junk", LONG)
def test_what_reading_costs_is_bounded(junk: str) -> None:
    """Steps, not seconds: no reply has more calls, or begins more, than the budget pays for."""
    start = time.perf_counter()
    reading = parse(junk * 30_000)
    assert len(reading.calls) <= Budget().left // 10 + 1
    assert time.perf_counter() - start < 10  # quadratic time would be minutes


def test_a_reply_of_nothing_but_calls_is_read_as_far_as_the_budget_goes() -> None:
    few, most = parse(CALL * 1000, "json"), parse(CALL * 50_000, "json")
    assert len(few.calls) == 1000
    assert few.faults == {}
    assert (most.status, dict(most.faults)) == ("malformed", {"length": 1})
    assert Scan("").budget.left == Budget().left


def test_what_strict_hermes_reads_whole_is_read_the_same() -> None:
    rng = Random(3)
    parts = [
        f"<tool_call>{CALL}</tool_call>",
        "<tool_call>\n",
        "\n</tool_call>",
        CALL,
        "hi",
        "<think>",
        "</think>",
        "\n",
        "{",
        '"',
    ]
    whole = 0
    for text in ("".join(rng.choices(parts, k=rng.randrange(1, 7))) for _ in range(3000)):
        strict = hermes.read(text)
        if any(call.malformed for call in strict.calls) or "{" in strict.content or "</think>" in strict.content:
            continue
        reading = parse(text, "hermes")
        whole += bool(strict.calls)
        assert (reading.calls, reading.text, reading.status == "repaired") == (strict.calls, strict.content, False)
    assert whole > 100


def test_every_repair_is_documented() -> None:
    sources = [path.read_text(encoding="utf-8") for path in Path(parse_module.__file__).parent.rglob("*.py")]
    counted = {kind for source in sources for kind in re.findall(r'(?:repairs\[|_close_all\()"(\w+)"', source)}
    page = (Path(__file__).parent.parent / "docs" / "formats.md").read_text(encoding="utf-8")
    documented = re.findall(
        r"^\| `(\w+)` \|", page.partition("## Repairs")[2].partition("## Statuses")[0], re.MULTILINE
    )
    assert counted | {"newlines", "truncated"} == set(documented)
    for dialect in DIALECTS:
        assert f"| `{dialect}`" in page


# The command


def command(*arguments: str, given: str) -> subprocess.CompletedProcess[str]:
    code = "import sys; from understudy.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, "parse", *arguments], input=given, capture_output=True, text=True, check=False
    )


def test_the_command_reads_a_reply_from_standard_input() -> None:
    done = command(given=f"Hello.\n{WIRE[:-1]}")
    assert json.loads(done.stdout) == {
        "calls": [{"name": "get_order", "arguments": {"id": "W1"}}],
        "text": "Hello.",
        "status": "repaired",
        "repairs": {"brackets": 1},
        "other_side": False,
        "reason": "",
    }


def test_the_command_reads_lines_and_tools(tmp_path: Any) -> None:
    file = tmp_path / "tools.json"
    file.write_text(json.dumps([{"type": "function", "function": {"name": "f"}}, {"name": "g", "parameters": {}}]))
    given = "\n".join(json.dumps(text) for text in ("hi", {"text": CALL, "id": 1})) + "\n\n"
    done = command("--jsonl", "--tools", str(file), "--format", "hermes", given=given)
    first, second = map(json.loads, done.stdout.splitlines())
    assert (first["status"], first["text"]) == ("text", "hi")
    assert (second["status"], second["repairs"]) == ("repaired", {"dialect": 1})
    assert second["reason"] == "unknown tool 'get_order'; allowed: f, g"


@pytest.mark.parametrize(
    ("arguments", "given", "said"),
    [
        (["--format", "x"], "", "unknown format 'x'"),
        (["--tools", "nowhere.json"], "", "nowhere.json is not a JSON list of tools"),
        (["--jsonl"], '"a"\n{', "line 2 is not JSON"),
        (["--jsonl"], "[1]", "line 1 is neither a string nor an object with a text"),
    ],
)
def test_mistakes_are_one_line(arguments: list[str], given: str, said: str) -> None:
    done = command(*arguments, given=given)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
