"""Test of the tool-call parser against vLLM's parsers on the same replies."""

import json
import os
import subprocess
from random import Random
from typing import Any

import pytest

from support import vllm_server
from support.paths import TESTS
from understudy.core.messages import ToolCall, ToolSpec, tool_to_openai
from understudy.formats.parsing.parse import parse_reply, render_reply

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(bool(vllm_server.unsupported_reason()), reason=vllm_server.unsupported_reason()),
]

PARAMETER_TYPES = {
    "text": "string",
    "count": "integer",
    "share": "number",
    "yes": "boolean",
    "list": "array",
    "more": "object",
}
TOOLS = [
    ToolSpec(
        name=name,
        description="Does it.",
        parameters={"type": "object", "properties": {key: {"type": kind} for key, kind in PARAMETER_TYPES.items()}},
    )
    for name in ("get_order", "cancel", "search_2")
]
TEXTS = ("", "I look that up.", "Zwei\nZeilen — und 日本語.")
REPLIES_PER_FORMAT = 60
STRICT_FORMATS = ("hermes", "llama3", "pythonic")
"""Tool formats whose vLLM parser accepts only complete calls."""
TOOL_FORMATS = ("hermes", "llama3", "mistral", "pythonic", "qwen3_coder", "deepseek", "glm")
STRINGS = (
    "",
    "W1",
    "é 日本 👩‍👧",
    'a "quoted" word',
    "back\\slash",
    "two\nlines",
    "{not: json}",
    "[1, 2",
    "it's",
    "a, b; c",
)


def random_value(random: Random, kind: str) -> Any:
    match kind:
        case "string":
            return random.choice(STRINGS)
        case "integer":
            return random.choice((0, -7, 12345678901234567890))
        case "number":
            return random.choice((0.5, -1e-9, 3))
        case "boolean":
            return random.random() < 0.5
        case "array":
            return [random_value(random, random.choice(("string", "integer", "boolean", "object"))) for _ in range(2)]
    return {random.choice(("k", "ключ")): random.choice((None, 1, "v", [1.5, {"deep": ["x"]}]))}


def random_call(random: Random) -> ToolCall:
    keys = random.sample(sorted(PARAMETER_TYPES), random.randrange(4))
    arguments = {key: random_value(random, PARAMETER_TYPES[key]) for key in keys}
    return ToolCall(name=random.choice(TOOLS).name, arguments=arguments)


def random_replies() -> list[tuple[str, list[ToolCall], str]]:
    """Return triples of tool format, calls, and the reply with these calls."""
    random = Random(0)
    made = []
    for tool_format in TOOL_FORMATS:
        for _ in range(REPLIES_PER_FORMAT):
            calls = [random_call(random) for _ in range(random.randrange(1, 4))]
            said = "" if tool_format in ("llama3", "pythonic") else random.choice(TEXTS)
            made.append((tool_format, calls, render_reply(said, calls, tool_format)))
    return made


def parse_with_vllm(requests: list[dict[str, Any]]) -> list[Any]:
    """Return the output of vLLM's parsers for the requests."""
    script = TESTS / "support" / "vllm_parsers.py"
    offline = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    done = subprocess.run(
        [
            str(vllm_server.install()),
            "-P",
            str(script),
        ],  # -P: the script's folder holds modules that must not be importable
        input="".join(f"{json.dumps(request)}\n" for request in requests),
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **offline},
    )
    found = [line.removeprefix("answer ") for line in done.stdout.splitlines() if line.startswith("answer ")]
    assert len(found) == len(requests), done.stderr[-3000:]
    return [json.loads(line) for line in found]


def test_tool_calls_are_parsed_as_by_vllm() -> None:
    """Complete replies must be parsed by both parsers; of truncated replies, vLLM may parse some."""
    random, tools = Random(1), [tool_to_openai(tool) for tool in TOOLS]
    whole = random_replies()
    cut = [
        (tool_format, text[: -random.randrange(1, 9)])
        for tool_format, _, text in whole
        if tool_format in STRICT_FORMATS
    ]
    texts = [*((tool_format, text) for tool_format, _, text in whole), *cut]
    theirs = parse_with_vllm([{"parser": tool_format, "text": text, "tools": tools} for tool_format, text in texts])
    parsed_replies = [parse_reply(text, tool_format, TOOLS) for tool_format, text in texts]
    for (tool_format, text), parsed, found in zip(texts, parsed_replies, theirs, strict=True):
        ours = [[made.name, made.arguments] for made in parsed.calls]
        assert found in (None, ours), (tool_format, text)
    for (tool_format, calls, text), parsed, found in zip(whole, parsed_replies, theirs, strict=False):
        assert list(parsed.calls) == calls, (tool_format, text)
        assert found, f"vLLM's parser of {tool_format} does not read {text!r}"
