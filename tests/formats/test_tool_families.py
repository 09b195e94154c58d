"""Test the syntaxes of model families: each is parsed, or its call is malformed; none is passed on as text.

The syntaxes are those of the modules in `understudy.formats.tool_parsers`, which name their sources.
"""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.tool_families import DSML, FAMILIES, FIRST, NS, SECOND
from understudy.core.messages import ToolCall, ToolSpec
from understudy.formats.chat_format import mark_truncated_call
from understudy.formats.parsing.parse import ParsedReply, parse_message, parse_reply, render_reply

PROPERTIES = {
    "city": {"type": "string"},
    "days": {"type": "integer"},
    "more": {"type": "object"},
    "tags": {"type": "array", "items": {"type": "string"}},
}
TOOLS = [
    ToolSpec(name=name, description="", parameters={"type": "object", "properties": PROPERTIES})
    for name in ("weather", "stop", "notes.add")
]


def valid_calls(reading: ParsedReply) -> list[tuple[str, dict[str, Any]]]:
    return [(call.name, call.arguments) for call in reading.calls if not call.parse_error]


def test_cdata_is_text_in_a_parameter_of_dsml() -> None:
    text = "<![CDATA[a < b]]>"
    parameter = f'<{DSML}parameter name="text" string="true">{text}</{DSML}parameter>'
    reply = f'<{DSML}invoke name="note">{parameter}</{DSML}invoke>'
    (call,) = parse_reply(reply).calls
    assert call.arguments == {"text": text}


@pytest.mark.parametrize("family", FAMILIES)
def test_calls_of_the_family_are_parsed(family: str) -> None:
    reading = parse_reply(f"Sure. {FAMILIES[family]}\nDone.", "", TOOLS)
    assert valid_calls(reading) == [FIRST, SECOND]
    assert (reading.text, reading.parse_errors, reading.hallucinated_turn) == ("Sure.\nDone.", {}, False)
    assert set(reading.repairs) <= {"keys"}


@pytest.mark.parametrize("family", FAMILIES)
def test_no_cut_of_the_family_runs_an_incomplete_call(family: str) -> None:
    """At any cut, complete calls run, and no part of a call's arguments becomes the text of the reply."""
    whole = FAMILIES[family]
    for cut in range(1, len(whole)):
        parsed = parse_message(whole[:cut], "", TOOLS)
        message = mark_truncated_call(parsed, truncated=True)
        made = [(call.name, call.arguments) for call in message.tool_calls if not call.parse_error]
        assert made in ([], [FIRST], [FIRST, SECOND]), whole[:cut]
        if whole[:cut].count("Zürich"):
            assert message.tool_calls, whole[:cut]
        assert "rich" not in message.content, whole[:cut]


THOUGHTS = (
    ("<seed:think>", "</seed:think>"),
    ("<mm:think>", "</mm:think>"),
    ("<think:opensource>", "</think:opensource>"),
    ("<THINK>", "</THINK>"),
    ("<thoughts>", "</thoughts>"),
    ("[THINK]", "[/THINK]"),
    ("◁think▷", "◁/think▷"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|inner_prefix|>", "<|inner_suffix|>"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
    ("<|channel>thought\n", "<channel|>"),
    ("<|think|>", "<|end|>"),
    ("\nHere is my thought process:", "Here is my response:"),
    ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>"),
)


@pytest.mark.sweep
@pytest.mark.parametrize(("begin", "end"), THOUGHTS)
@pytest.mark.parametrize("family", ["Gemma 4", "DeepSeek V3.2", "MiniMax M3", "Hunyuan A13B"])
def test_no_call_in_a_thought_is_run(begin: str, end: str, family: str) -> None:
    call = FAMILIES[family]
    closed = parse_reply(f"{begin}I could {call}{end}So.", "", TOOLS)
    assert (closed.calls, closed.text) == ((), "So.")
    unclosed = parse_reply(f"{begin}{call}", "", TOOLS)
    assert valid_calls(unclosed) == []
    assert unclosed.text in ("", begin.strip())
    after = parse_reply(f"{begin}Now I call.{end}{call}", "", TOOLS)
    assert (valid_calls(after), after.text) == ([FIRST, SECOND], "")


@pytest.mark.parametrize("end", [end for _, end in THOUGHTS if "<|end|>" not in end and not end.startswith("Here is")])
def test_call_before_the_end_of_a_thought_that_the_prompt_opened_is_not_run(end: str) -> None:
    assert parse_reply(f"{FAMILIES['Apertus']}{end}So.", "", TOOLS).calls == ()


MALFORMED = {
    "DeepSeek V3.2": (
        f"<{DSML}invoke name=weather>x</{DSML}invoke>",
        f'<{DSML}invoke name="weather"><{DSML}parameter name="city" string="true">x</{DSML}invoke>',
        f'<{DSML}invoke name="weather"><{DSML}parameter name="days" string="false">x</{DSML}parameter></{DSML}invoke>',
        f"<{DSML}tool_calls>weather</{DSML}tool_calls>",
    ),
    "MiniMax M3": (
        f'{NS}<invoke name="weather">{NS}<city>x</city>{NS}</invoke>',
        f'{NS}<invoke name="weather">{NS}<city>x{NS}</days>{NS}</invoke>',
        f"{NS}<tool_call>weather{NS}</tool_call>",
    ),
    "Gemma 4": (
        "<|tool_call>call:weather{city:x}<tool_call|>",
        '<|tool_call>call:weather{city:<|"|>x,days:1}<tool_call|>',
        "<|tool_call>call:weather{days:1 days:2}<tool_call|>",
        "<|tool_call>weather<tool_call|>",
        "<start_function_call>call:weather{city}<end_function_call>",
    ),
    "OLMo 3": ("<function_calls>\nweather(city=x)\n</function_calls>", "<function_calls>x</function_calls>"),
    "Apertus": (
        '<|tools_prefix|>[{"weather": 1}]<|tools_suffix|>',
        '<|tools_prefix|>[{"weather": {"city": x}}]<|tools_suffix|>',
        "<|tools_prefix|>weather<|tools_suffix|>",
    ),
    "MiniCPM5": ('<function name="weather"><param name="city">x</function>', '<function name="weather">x</function>'),
    "Hunyuan V3": ("<tool_call>weather<tool_sep>x</tool_call>", "<tool_calls>x</tool_calls>"),
    "Kimi K2": (
        "<|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>x<|tool_call_end|>",
        "<|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>{x}<|tool_call_end|>",
    ),
}


@pytest.mark.parametrize(("family", "text"), [(family, text) for family in MALFORMED for text in MALFORMED[family]])
def test_call_that_cannot_be_read_is_malformed_and_not_text(family: str, text: str) -> None:
    reading = parse_reply(f"{text} Done.", "", TOOLS)
    assert (reading.status, valid_calls(reading)) == ("malformed", [])
    assert reading.text in ("", "Done.")


names = st.from_regex(r"[a-z][a-z_]{0,8}", fullmatch=True)
plain_texts = st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="<>[]｜|\r"), max_size=9)
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | plain_texts
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3), max_leaves=6
)
KINDS = {str: "string", bool: "boolean", int: "integer", float: "number", dict: "object", list: "array"}


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(
    tool_format=st.sampled_from(["dsml", "gemma", "apertus", "glm", "pythonic"]),
    arguments=st.dictionaries(names, values, max_size=3),
)
def test_parse_inverts_render_of_the_formats(tool_format: str, arguments: dict[str, Any]) -> None:
    properties = {key: {"type": KINDS.get(type(value), "null")} for key, value in arguments.items()}
    tools = [ToolSpec(name="f", description="", parameters={"type": "object", "properties": properties})]
    calls = (ToolCall(name="f", arguments=arguments), ToolCall(name="f"))
    reading = parse_reply(render_reply("Hello.", calls, tool_format), tool_format, tools)
    assert (reading.calls, reading.text, reading.repairs) == (calls, "Hello.", {})


def test_quoted_text_of_gemma_stays_text_where_text_is_allowed() -> None:
    properties = {"code": {"anyOf": [{"type": "integer"}, {"type": "string"}]}, "note": {}, "days": {"type": "integer"}}
    tools = [ToolSpec(name="f", description="", parameters={"type": "object", "properties": properties})]
    calls = (ToolCall(name="f", arguments={"code": "5", "note": "None"}),)
    assert parse_reply(render_reply("", calls, "gemma"), "gemma", tools).calls == calls
    typed = ToolCall(name="f", arguments={"days": "3"})
    (read,) = parse_reply(render_reply("", (typed,), "gemma"), "gemma", tools).calls
    assert read.arguments == {"days": 3}


def test_parse_inverts_render_of_minimax() -> None:
    arguments = {"city": "a\n b", "days": 3, "tags": ["x", "1"], "more": {"x": {"y": [1, None]}, "z": True}}
    calls = (
        ToolCall(name="weather", arguments=arguments),
        ToolCall(name="weather", arguments={"tags": [], "more": {}}),
    )
    reading = parse_reply(render_reply("Hello.", calls, "minimax"), "minimax", TOOLS)
    assert (reading.calls, reading.text, reading.repairs) == (calls, "Hello.", {})


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ('{"server": "notes", "tool": "add", "params": {"city": "x"}}', ("notes.add", {"city": "x"})),
        ('{"server": "other", "tool": "stop", "params": {}}', ("stop", {})),
        ('{"tool": "weather", "params": {"city": "x"}}', ("weather", {"city": "x"})),
        ('{"name": "weather", "params": {"city": "x"}}', ("weather", {"city": "x"})),
        ('<tool><weather>{"city": "x"}</weather></tool>', ("weather", {"city": "x"})),
        ('<notes>\n<add>{"city": "x"}</add>\n</notes>', ("notes.add", {"city": "x"})),
        ('<weather_server><weather>{"city": "x"}</weather></weather_server>', ("weather", {"city": "x"})),
    ],
)
def test_calls_that_name_a_server_or_params_are_parsed(text: str, call: tuple[str, dict[str, Any]]) -> None:
    reading = parse_reply(f"I look. {text}", "", TOOLS)
    assert (valid_calls(reading), reading.text, reading.parse_errors) == ([call], "I look.", {})


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "lamp", "params": {"color": "red"}}',
        '{"name": "lamp", "tool": "hammer", "price": 3}',
        '<div><code>{"a": 1}</code></div>',
        'Write `<tool><weather>{"city": "x"}</weather></tool>` for the weather.',
        'The model writes `{"tool": "weather", "params": {"city": "x"}}` and waits.',
        "The tag `<tool_calls>` begins a list.",
    ],
)
def test_other_data_and_quoted_calls_stay_text(text: str) -> None:
    reading = parse_reply(text, "", TOOLS)
    assert (reading.calls, reading.text) == ((), text)


def test_shapes_without_a_known_tool_are_calls_only_if_they_are_unambiguous() -> None:
    calls = '{"tool": "f", "params": {"a": 1}}', '{"server": "s", "tool": "f", "params": {"a": 1}}'
    for text in (*calls, '<tool><f>{"a": 1}</f></tool>', '{"name": "f", "params": {"a": 1}}'):
        assert valid_calls(parse_reply(text)) == [("f", {"a": 1})]
    assert parse_reply('<s><f>{"a": 1}</f></s>').calls == ()


BLOCK = "<|tool_call_start|>{}<|tool_call_end|>"


@pytest.mark.parametrize(
    ("text", "arguments", "repairs"),
    [
        ("[weather(city='a\nb')]", {"city": "a\nb"}, {"newlines"}),
        ("[weather(city='Genoa', days=07)]", {"city": "Genoa", "days": 7}, {"numbers"}),
        ("[weather(city='sed -n '1,9p' f.py')]", {"city": "sed -n '1,9p' f.py"}, {"quotes"}),
        ("[weather(city='it's', days=1)]", {"city": "it's", "days": 1}, {"quotes"}),
        ("[weather(city='print('a')')]", {"city": "print('a')"}, {"quotes"}),
        (
            "[weather(city='it's\na', tags=['b', 'c\\n'])]",
            {"city": "it's\na", "tags": ["b", "c\n"]},
            {"quotes", "newlines"},
        ),
        ("[weather(from='x', class={'in': 1})]", {"from": "x", "class": {"in": 1}}, set()),
        ('[weather(city="""a\nb""", days=01)]', {"city": "a\nb", "days": 1}, {"numbers"}),
    ],
)
def test_python_calls_that_python_rejects_are_repaired(text: str, arguments: dict[str, Any], repairs: set[str]) -> None:
    for reply in (text, BLOCK.format(text), f"Sure.\n{BLOCK.format(text)}"):
        reading = parse_reply(reply, "pythonic", TOOLS)
        assert (valid_calls(reading), set(reading.repairs)) == ([("weather", arguments)], repairs)


@pytest.mark.parametrize(
    "text",
    [
        "[weather(city='a' 'b', days=07)]",
        "[weather(city='it's)]",
        "[weather(city='a', city='b', days=07)]",
        "[weather(city=x, days=07)]",
        "[weather(city=eval('1'), days=07)]",
        "[weather(city='a\nb]",
        "[weather(city='a\\N{x}\nb')]",
        f"[weather(days=07, tags={'[' * 40}{']' * 40})]",
    ],
)
def test_ambiguous_python_calls_stay_malformed(text: str) -> None:
    reading = parse_reply(f"{BLOCK.format(text)} Done.", "pythonic", TOOLS)
    assert (valid_calls(reading), reading.parse_errors) == ([], {"python": 1})


def test_call_echoed_after_its_end_tag_runs_once() -> None:
    call, hermes = "[stop()]", '<tool_call>{"name": "stop", "arguments": {}}</tool_call>'
    for echo in (f"{call}<|tool_call_end|>", f"\n{call}\n<|tool_call_end|>{call}<|tool_call_end|>", call):
        reading = parse_reply(f"{BLOCK.format(call)}{echo} Done.", "pythonic", TOOLS)
        assert (valid_calls(reading), reading.text) == ([SECOND], "Done.")
        assert reading.repairs["echo"] == echo.count(call)
    assert valid_calls(parse_reply(f"{hermes}\n{hermes.removeprefix('<tool_call>')}", "hermes", TOOLS)) == [SECOND]
    assert valid_calls(parse_reply(f"{hermes}\n{hermes}", "hermes", TOOLS)) == [SECOND, SECOND]
    assert valid_calls(parse_reply(BLOCK.format(call) * 2, "pythonic", TOOLS)) == [SECOND, SECOND]


def test_repeated_mistral_marker_leaves_no_malformed_call() -> None:
    reading = parse_reply('[TOOL_CALLS] [TOOL_CALLS] [{"name": "stop", "arguments": {}}]', "mistral", TOOLS)
    assert (valid_calls(reading), reading.parse_errors, reading.text) == ([SECOND], {}, "")


@pytest.mark.parametrize("text", ["{'key': 'it\\'s', 'n': None}", '{"key": "it\'s", "n": null}'])
def test_object_parameter_of_qwen3_coder_may_be_a_python_literal(text: str) -> None:
    reply = f"<function=weather><parameter=more>\n{text}\n</parameter><parameter=city>{text}</parameter></function>"
    reading = parse_reply(reply, "qwen3_coder", TOOLS)
    assert valid_calls(reading) == [("weather", {"more": {"key": "it's", "n": None}, "city": text})]
    assert reading.repairs == ({"python": 1} if text.startswith("{'") else {})
    unsafe = parse_reply("<function=weather><parameter=more>{'a': f()}</parameter></function>", "qwen3_coder", TOOLS)
    assert valid_calls(unsafe) == [("weather", {"more": "{'a': f()}"})]


@pytest.mark.parametrize("tag", ["tool_calls", "minimax:tool_call", "seed:tool_call", "TOOLCALL", "function_calls"])
def test_tags_around_calls_are_not_text(tag: str) -> None:
    call = '{"name": "stop", "arguments": {}}'
    reading = parse_reply(f"Sure. <{tag}>\n{call}\n</{tag}> Done.", "json", TOOLS)
    assert (valid_calls(reading), reading.text) == ([SECOND], "Sure.\nDone.")
    assert parse_reply(f"<{tag}>[]</{tag}>Hi.", "json", TOOLS).text == "Hi."
    assert parse_reply("<|answer_prefix|>Hi.<|answer_suffix|>", "apertus", TOOLS).text == "Hi."


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("qwen3_coder", text) for text in ("<parameter>1</parameter></x>", "<parameter=x>1</parameter>")),
        *(("qwen3_coder", text) for text in ("use <function=foo> here", "See <tool_call> docs.")),
        *(("glm", text) for text in ("x</arg_value>y", "</arg_value>\n<arg_key>k</arg_key>")),
    ],
)
def test_value_with_a_tag_of_its_format_gives_a_malformed_call(name: str, value: str) -> None:
    """The end of such a value is unknown, so no part of it may become an argument, a call or text."""
    calls = tuple(ToolCall(name="weather", arguments={"city": city, "days": 3}) for city in (value, "Bern"))
    reading = parse_reply(render_reply("", calls, name), name, TOOLS)
    assert [(call.name, call.arguments, bool(call.parse_error)) for call in reading.calls] == [
        ("weather", {}, True),
        ("weather", {"city": "Bern", "days": 3}, False),
    ]
    assert reading.text == ""


@pytest.mark.parametrize(
    "text",
    [
        "See [numpy.sum(axis=0)](https://numpy.org) for it.",
        'Available: [{"name": "weather", "description": "The weather."}]',
        '{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}',
    ],
)
def test_links_and_descriptions_of_tools_are_text(text: str) -> None:
    reading = parse_reply(text, "", TOOLS)
    assert (reading.calls, reading.text) == ((), text)
