"""Our parser beside vLLM's own, on the same replies: wherever theirs reads calls, ours reads the same ones."""

import json
import os
import subprocess
from pathlib import Path
from random import Random
from typing import Any

import pytest

import vllm_server
from understudy.formats.parse import parse, render
from understudy.messages import ToolCall, ToolSpec, spec_to_wire

pytestmark = [pytest.mark.vllm, pytest.mark.skipif(bool(vllm_server.unsupported()), reason=vllm_server.unsupported())]

KINDS = {"text": "string", "count": "integer", "share": "number", "yes": "boolean", "list": "array", "more": "object"}
TOOLS = [
    ToolSpec(
        name=name,
        description="Does it.",
        parameters={"type": "object", "properties": {key: {"type": kind} for key, kind in KINDS.items()}},
    )
    for name in ("get_order", "cancel", "search_2")
]
SAID = ("", "I look that up.", "Zwei\nZeilen — und 日本語.")
EACH = 60
CUT = ("hermes", "llama3", "pythonic")
"""Parsers that read a call whole or not at all; the others make something of a part."""
DIALECTS = ("hermes", "llama3", "mistral", "pythonic", "qwen3_coder", "deepseek", "glm")
WORDS = (
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


def value(random: Random, kind: str) -> Any:
    match kind:
        case "string":
            return random.choice(WORDS)
        case "integer":
            return random.choice((0, -7, 12345678901234567890))
        case "number":
            return random.choice((0.5, -1e-9, 3))
        case "boolean":
            return random.random() < 0.5
        case "array":
            return [value(random, random.choice(("string", "integer", "boolean", "object"))) for _ in range(2)]
    return {random.choice(("k", "ключ")): random.choice((None, 1, "v", [1.5, {"deep": ["x"]}]))}


def call(random: Random) -> ToolCall:
    keys = random.sample(sorted(KINDS), random.randrange(4))
    arguments = {key: value(random, KINDS[key]) for key in keys}
    return ToolCall(name=random.choice(TOOLS).name, arguments=arguments)


def replies() -> list[tuple[str, list[ToolCall], str]]:
    """Dialect, calls, and the reply that makes them."""
    random = Random(0)
    made = []
    for dialect in DIALECTS:
        for _ in range(EACH):
            calls = [call(random) for _ in range(random.randrange(1, 4))]
            said = "" if dialect in ("llama3", "pythonic") else random.choice(SAID)
            made.append((dialect, calls, render(said, calls, dialect)))
    return made


def answers(requests: list[dict[str, Any]]) -> list[Any]:
    """What vLLM's parsers make of the requests."""
    script = Path(__file__).with_name("vllm_parsers.py")
    offline = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    done = subprocess.run(
        [str(vllm_server.install()), str(script)],
        input="".join(f"{json.dumps(request)}\n" for request in requests),
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **offline},
    )
    found = [line.removeprefix("answer ") for line in done.stdout.splitlines() if line.startswith("answer ")]
    assert len(found) == len(requests), done.stderr[-3000:]
    return [json.loads(line) for line in found]


def test_what_vllm_reads_is_read_the_same() -> None:
    """Whole replies, which each parser reads, and replies that are cut, which some do."""
    random, tools = Random(1), [spec_to_wire(tool) for tool in TOOLS]
    whole = replies()
    cut = [(dialect, text[: -random.randrange(1, 9)]) for dialect, _, text in whole if dialect in CUT]
    texts = [*((dialect, text) for dialect, _, text in whole), *cut]
    theirs = answers([{"parser": dialect, "text": text, "tools": tools} for dialect, text in texts])
    readings = [parse(text, dialect, TOOLS) for dialect, text in texts]
    for (dialect, text), reading, found in zip(texts, readings, theirs, strict=True):
        ours = [[made.name, made.arguments] for made in reading.calls]
        assert found in (None, ours), (dialect, text)
    for (dialect, calls, text), reading, found in zip(whole, readings, theirs, strict=False):
        assert list(reading.calls) == calls, (dialect, text)
        assert found, f"vLLM's parser of {dialect} does not read {text!r}"
