"""Test the requests that the server rejects, and fuzz request bodies."""

import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import openai
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.serving import (
    CONTEXT,
    HELLO,
    TOOLS,
    http_client,
    load_tiny_served_model,
    make_short_context_model,
    request_completion,
    serve_on_loopback,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_short_context_model(tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    model = load_tiny_served_model(folder, concurrency=4)
    with serve_on_loopback(model, concurrency=4, max_body_bytes=60_000, max_message_chars=20_000) as url:
        yield url


ARGUMENTS = "messages[1].tool_calls[0].function.arguments"


def with_arguments(arguments: str) -> list[dict[str, Any]]:
    """Return a conversation whose call has these arguments."""
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    result = {"role": "tool", "content": "1", "tool_call_id": "c1"}
    return [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "", "tool_calls": [call]}, result]


INVALID_PARAMETERS: list[tuple[dict[str, Any], str, str | None]] = [
    ({"temperature": 2.5}, "temperature: .*2", "temperature"),
    ({"temperature": "1"}, "temperature: ", "temperature"),
    ({"temperature": 1e-300}, "temperature: .*greedy", "temperature"),
    ({"repetition_penalty": 1e-300}, "repetition_penalty: .*0.01", "repetition_penalty"),
    ({"repetition_penalty": 1e300}, "repetition_penalty: .*2", "repetition_penalty"),
    ({"top_p": 5e-324}, "top_p: ", "top_p"),
    ({"top_k": 10**30}, "top_k: ", "top_k"),
    ({"max_tokens": 0}, "max_tokens: .*1", "max_tokens"),
    ({"max_tokens": 2**31}, "max_tokens: .*2147483647", "max_tokens"),
    ({"max_tokens": 2**31 - 1}, rf"\b{CONTEXT}\b", "messages"),
    ({"max_tokens": 10**30}, "max_tokens: ", "max_tokens"),
    ({"max_tokens": 5.0}, "max_tokens: ", "max_tokens"),
    ({"max_tokens": "5"}, "max_tokens: ", "max_tokens"),
    ({"max_tokens": True}, "max_tokens: ", "max_tokens"),
    ({"max_completion_tokens": 2**63}, "max_completion_tokens: .*2147483647", "max_completion_tokens"),
    ({"top_k": -2}, "top_k: .*-1", "top_k"),
    ({"top_k": 2**31}, "top_k: ", "top_k"),
    ({"top_k": 1.5}, "top_k: ", "top_k"),
    ({"n": 0}, "n: .*1", "n"),
    ({"n": 2**31}, "n: .*128", "n"),
    ({"n": "2"}, "n: ", "n"),
    ({"seed": 2**63}, "seed: ", "seed"),
    ({"seed": -(2**63) - 1}, "seed: ", "seed"),
    ({"seed": 1.5}, "seed: ", "seed"),
    ({"temperature": -1}, "temperature: .*0", "temperature"),
    ({"messages": with_arguments('{"a": ' + "[" * 10_000 + "]" * 10_000 + "}")}, "nested more than", ARGUMENTS),
    ({"messages": with_arguments('{"a": ' + "[" * 40 + "]" * 40 + "}")}, "nested more than", ARGUMENTS),
    ({"messages": with_arguments('{"a": 1')}, "not JSON", ARGUMENTS),
    ({"messages": with_arguments("[1]")}, "not a JSON object", ARGUMENTS),
    ({"messages": with_arguments('{"a": 1, "a": 2}')}, "'a' is given twice", ARGUMENTS),
    ({"max_tokens": 5, "max_completion_tokens": 6}, "max_completion_tokens", "max_tokens"),
    ({"max_tokens": CONTEXT}, rf"\b{CONTEXT}\b", "messages"),
    ({"messages": []}, "messages: ", "messages"),
    ({"messages": [{"role": "user"}]}, r"messages\[0\]\.content", "messages[0].content"),
    ({"messages": [{"role": "queen", "content": "x"}]}, r"messages\[0\]", "messages[0]"),
    ({"messages": [*HELLO, {"role": "assistant", "content": "x"}]}, "messages", "messages"),
    ({"messages": [{"role": "tool", "content": "x", "tool_call_id": "a"}]}, "'a'", None),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        r"messages\[0\]\.content\[0\]\.type: .*'text'",
        "messages[0].content[0].type",
    ),
    ({"messages": [{"role": "user", "content": "x" * 20_001}]}, r"20,001 .*20,000", "messages[0]"),
    ({"messages": with_arguments(json.dumps({"a": "x" * 20_000}))}, "20,009 .*20,000", "messages[1]"),
    ({"messages": [{"role": "user", "content": "x" * 4000}]}, rf"\b{CONTEXT}\b", "messages"),
    ({"tool_choice": "required"}, "tool_choice", "tool_choice"),
    ({"tool_choice": "always", "tools": TOOLS}, "tool_choice", "tool_choice"),
    ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice", "tool_choice"),
    ({"tools": [TOOLS[0], TOOLS[0]]}, "tools", "tools"),
    ({"tools": [{"type": "function", "function": {"name": "f", "strict": 3}}]}, "strict", None),
    (
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {"enum": []}}}}}]},
        r"tools\[0\]\.function\.parameters\.properties\.a\.enum: ",
        "tools[0].function.parameters.properties.a.enum",
    ),
    ({"n": 5}, r"\bn: .*\b4\b.*\b5\b", "n"),
    ({"top_logprobs": 3}, "top_logprobs", "top_logprobs"),
    ({"response_format": {"type": "xml"}}, "response_format", "response_format"),
    ({"top_p": 1.5}, "top_p: .*1", "top_p"),
    ({"min_p": 1}, "min_p: .*1", "min_p"),
    ({"best_of": 2}, "best_of", "best_of"),
    ({"stop": ["a"] * 5}, "stop: .*4", "stop"),
    ({"stream_options": {"include_usage": True}}, "stream=true", "stream_options"),
]


@pytest.mark.parametrize(("more", "error_pattern", "param"), INVALID_PARAMETERS, ids=lambda value: str(value)[:40])
def test_invalid_parameter_is_rejected_with_its_name(
    url: str, more: dict[str, Any], error_pattern: str, param: str | None
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        request_completion(url, extra_body=more)
    assert re.search(error_pattern, refused.value.message)
    assert refused.value.type == "invalid_request_error"
    if param:
        assert refused.value.param == param


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"tool_choice": "required", "tools": TOOLS}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}, "tools": TOOLS}, "tool_choice"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
    ],
)
def test_constrained_reply_needs_llguidance(
    url: str, more: dict[str, Any], param: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as refused:
            request_completion(url, extra_body={**more, "stream": stream})
        assert refused.value.param == param
        assert re.search(r"llguidance.*\[guided\]", refused.value.message)
        assert "\n" not in refused.value.message


def test_messages_as_clients_keep_them_are_accepted(url: str) -> None:
    """OpenAI's stream helper adds `index` and `parsed_arguments`, and others send thoughts back."""
    function = {"name": "f", "arguments": "{}", "parsed_arguments": {}}
    call = {"id": "c1", "type": "function", "index": 0, "function": function}
    reply = {"role": "assistant", "content": "", "tool_calls": [call], "parsed": None, "reasoning_content": "hm"}
    result = {"role": "tool", "content": "1", "tool_call_id": "c1"}
    assert request_completion(url, messages=[{"role": "user", "content": "Hi."}, reply, result]).choices


def test_marks_of_prompt_caches_are_ignored(url: str) -> None:
    mark = {"cache_control": {"type": "ephemeral"}}
    messages = [{"role": "user", "content": [{"type": "text", "text": "Hi.", **mark}], **mark}]
    tools = [{**TOOLS[0], **mark, "function": {**TOOLS[0]["function"], **mark}}]
    marked = request_completion(url, messages=messages, tools=tools, temperature=0)
    plain = request_completion(url, messages=[{"role": "user", "content": "Hi."}], tools=TOOLS[:1], temperature=0)
    assert marked.choices[0].message == plain.choices[0].message
    assert marked.usage.prompt_tokens == plain.usage.prompt_tokens


def test_neutral_parameters_are_accepted(url: str) -> None:
    more = {
        "top_p": 1.0,
        "frequency_penalty": 0,
        "response_format": {"type": "text"},
        "user": "me",
        "metadata": {"a": "b"},
    }
    assert request_completion(url, extra_body={**more, "presence_penalty": None}).choices


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (b"{", "application/json", 400),
        (b"[]", "application/json", 400),
        (b'{"model": NaN}', "application/json", 400),
        (b"\xff\xfe", "application/json", 400),
        (b'{"a": ' + b"[" * 30_000 + b"]" * 29_000 + b"}", "application/json", 400),
        (b'{"model": "\\ud800", "messages": [{"role": "user", "content": "x"}]}', "application/json", 404),
        (b'{"model": "tiny", "seed": ' + b"9" * 5000 + b"}", "application/json", 400),
        (b" " * 70_000, "application/json", 413),
        (b"{}", "text/plain", 415),
    ],
    ids=lambda value: str(value)[:20],
)
def test_invalid_body_is_rejected(url: str, body: bytes, kind: str, status: int) -> None:
    response = http_client().post(f"{url}/chat/completions", content=body, headers={"Content-Type": kind})
    assert response.status_code == status
    assert response.json()["error"]["message"]


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/chat/completions", 405), ("POST", "/nothing", 404)])
def test_unknown_path_or_method_is_rejected(url: str, method: str, path: str, status: int) -> None:
    response = http_client().request(method, url + path)
    assert response.status_code == status
    assert "/v1/models" in response.json()["error"]["message"]


JSON: Any = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "role",
                    "content",
                    "type",
                    "text",
                    "function",
                    "name",
                    "parameters",
                    "properties",
                    "enum",
                    "items",
                    "anyOf",
                    "$ref",
                    "$defs",
                    "required",
                    "id",
                    "tool_calls",
                    "arguments",
                    "tool_call_id",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=10,
)
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "user", "assistant", "tool", "developer"]), "content": st.text(max_size=9)},
    optional={"tool_calls": JSON, "tool_call_id": JSON, "name": JSON, "refusal": JSON},
)
FUNCTION = st.fixed_dictionaries(
    {"name": st.sampled_from(["f", "g", "a b"])}, optional={"description": JSON, "parameters": JSON, "strict": JSON}
)
BODY = st.fixed_dictionaries(
    {
        "model": st.just("tiny") | JSON,
        "messages": st.lists(MESSAGE | JSON, max_size=4) | JSON,
        "max_tokens": st.integers(-1, 3),
    },
    optional={
        "tools": st.lists(
            st.fixed_dictionaries({"type": st.just("function"), "function": FUNCTION}) | JSON, max_size=2
        ),
        **dict.fromkeys(("tool_choice", "stop", "seed", "n", "temperature", "logprobs", "stream", "foo"), JSON),
    },
)


@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=BODY)
def test_fuzzed_body_gives_a_reply_or_an_error(url: str, body: Mapping[str, Any]) -> None:
    content = json.dumps(body)
    headers = {"Content-Type": "application/json"}
    response = http_client().post(f"{url}/chat/completions", content=content, headers=headers, timeout=60)
    assert response.status_code in (200, 400, 404), response.text
    if response.status_code != 200:
        assert response.json()["error"]["message"]
