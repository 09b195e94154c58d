"""Test the harmony parser against openai-harmony: the same calls and texts from the same replies."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support import families
from support.software import harmony_packages
from understudy.formats.parsing.parse import parse_reply

pytestmark = pytest.mark.families

PIECES = {
    "thought and call": (
        "<|channel|>analysis<|message|>Look up {it}.<|end|><|start|>assistant<|channel|>commentary to=functions.f "
        '<|constrain|>json<|message|>{"a": "é 👩‍👧", "b": [1, null]}<|call|>'
    ),
    "recipient in the role": ' to=functions.f<|channel|>commentary json<|message|>{"a": 1}<|call|>',
    "preamble and call": (
        "<|channel|>commentary<|message|>I look it up.<|end|><|start|>assistant<|channel|>commentary "
        'to=functions.get_order <|constrain|>json<|message|>{"id": "W1"}<|call|>'
    ),
    "final": "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>It is 3.<|return|>",
    "two analyses": (
        "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>analysis<|message|>b<|end|>"
        "<|start|>assistant<|channel|>final<|message|>c\n\nd<|return|>"
    ),
    "call in an analysis": (
        '<|channel|>analysis<|message|>{"name": "f", "arguments": {"a": 1}}<|end|><|start|>assistant'
        "<|channel|>final<|message|>No call.<|return|>"
    ),
    "nested arguments": (
        "<|channel|>commentary to=functions.g <|constrain|>json<|message|>"
        '{"x": {"y": [{"z": "a\\"b\\\\c"}]}, "t": "<tool_call>"}<|call|>'
    ),
}


@pytest.fixture(scope="module")
def encoding(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The library's encoding, with the ranks of its tokens from a wheel."""
    packages = families.install() / "wheels" / "files"
    ranks = packages / "litellm/litellm_core_utils/tokenizers/fb374d419588a4632f3f557e76b4b70aebbca790"
    folder: Path = tmp_path_factory.mktemp("ranks")
    (folder / "o200k_base.tiktoken").write_bytes(ranks.read_bytes())
    library = harmony_packages()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TIKTOKEN_ENCODINGS_BASE", str(folder))
        patch.syspath_prepend(str(library))
        harmony = pytest.importorskip("openai_harmony")
        yield harmony.load_harmony_encoding(harmony.HarmonyEncodingName.HARMONY_GPT_OSS)
    for name in [name for name in sys.modules if name.partition(".")[0] == "openai_harmony"]:
        del sys.modules[name]


def read_by_library(encoding: Any, text: str) -> tuple[list[tuple[str, Any]], str]:
    """Return the calls and the visible text that the library reads."""
    calls, texts = [], []
    tokens = encoding.encode(text, allowed_special="all")
    from openai_harmony import Role

    for message in encoding.parse_messages_from_completion_tokens(tokens, Role.ASSISTANT):
        content = "".join(part.text for part in message.content)
        if message.recipient:
            calls.append((message.recipient.removeprefix("functions."), json.loads(content)))
        elif message.channel != "analysis":
            texts.append(content)
    return calls, "\n".join(texts)


@pytest.mark.parametrize("case", PIECES)
def test_calls_and_texts_equal_those_of_the_library(encoding: Any, case: str) -> None:
    parsed = parse_reply(PIECES[case], "harmony")
    ours = [(call.name, call.arguments) for call in parsed.calls if not call.parse_error]
    assert (ours, parsed.text) == read_by_library(encoding, PIECES[case])
    assert (parsed.parse_errors, parsed.repairs) == ({}, {})


def test_replies_that_the_library_renders_are_parsed(encoding: Any) -> None:
    from openai_harmony import Message, Role

    def assistant(text: str, channel: str, recipient: str = "") -> Message:
        made = Message.from_role_and_content(Role.ASSISTANT, text).with_channel(channel)
        return made.with_recipient(recipient).with_content_type("<|constrain|>json") if recipient else made

    replies = [assistant("hm", "analysis"), assistant('{"a": 1}', "commentary", "functions.f"), assistant("3", "final")]
    for reply, expected in zip(replies, ([], [("f", {"a": 1})], []), strict=True):
        text = encoding.decode(encoding.render(reply)).removeprefix("<|start|>assistant")
        parsed = parse_reply(text, "harmony")
        assert [(call.name, call.arguments) for call in parsed.calls] == expected
        assert parsed.text == ("3" if reply.channel == "final" else "")
