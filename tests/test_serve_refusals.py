"""What the server refuses, and that no body of a request breaks it."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import openai
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from serving import CONTEXT, HELLO, TOOLS, ask, http, served, serving, small

pytest.importorskip("torch")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small(tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    with serving(served(folder, concurrency=4), concurrency=4, max_body=60_000) as url:
        yield url


REFUSED: list[tuple[dict[str, Any], str, str | None]] = [
    ({"temperature": 2.5}, "temperature: Input should be less than or equal to 2", "temperature"),
    ({"temperature": "1"}, "temperature: Input should be a valid number", "temperature"),
    ({"max_tokens": 0}, "max_tokens: Input should be greater than or equal to 1", "max_tokens"),
    ({"max_tokens": 5, "max_completion_tokens": 6}, "not both", "max_tokens"),
    ({"max_tokens": CONTEXT}, f"context is {CONTEXT} tokens, and this takes", "messages"),
    ({"messages": []}, "messages: List should have at least 1 item", "messages"),
    ({"messages": [{"role": "user"}]}, "missing required parameter: messages[0].content", "messages[0].content"),
    ({"messages": [{"role": "queen", "content": "x"}]}, "messages[0]", "messages[0]"),
    ({"messages": [*HELLO, {"role": "assistant", "content": "x"}]}, "nothing to reply to", "messages"),
    ({"messages": [{"role": "tool", "content": "x", "tool_call_id": "a"}]}, "'a' is the id of no call", None),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        "messages[0].content[0].type: Input should be 'text'",
        "messages[0].content[0].type",
    ),
    ({"messages": [{"role": "user", "content": "x" * 4000}]}, f"context is {CONTEXT} tokens", "messages"),
    ({"tool_choice": "required", "tools": TOOLS}, "no call can be forced", "tool_choice"),
    ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "no call can be forced", "tool_choice"),
    ({"tools": [TOOLS[0], TOOLS[0]]}, "two tools have the same name", "tools"),
    ({"tools": [{"type": "function", "function": {"name": "f", "strict": True}}]}, "strict", None),
    (
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {"enum": []}}}}}]},
        "tools[0].function.parameters.properties.a.enum: List should have at least 1",
        "tools[0].function.parameters.properties.a.enum",
    ),
    ({"n": 5}, "n: at most 4 replies can be made at once, not 5", "n"),
    ({"top_logprobs": 3}, "top_logprobs is not offered", "top_logprobs"),
    ({"response_format": {"type": "json_object"}}, "response_format is not offered", "response_format"),
    ({"top_p": 1.5}, "top_p: Input should be less than or equal to 1", "top_p"),
    ({"min_p": 1}, "min_p: Input should be less than 1", "min_p"),
    ({"best_of": 2}, "unrecognized request argument: best_of", "best_of"),
    ({"stop": ["a"] * 5}, "stop: List should have at most 4", "stop"),
    ({"stream_options": {"include_usage": True}}, "only with stream=true", "stream_options"),
]


@pytest.mark.parametrize(("more", "said", "param"), REFUSED, ids=lambda value: str(value)[:40])
def test_what_is_refused_says_why(url: str, more: dict[str, Any], said: str, param: str | None) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        ask(url, extra_body=more)
    assert said in refused.value.message
    assert refused.value.type == "invalid_request_error"
    if param:
        assert refused.value.param == param


def test_neutral_and_effectless_parameters_are_taken(url: str) -> None:
    more = {
        "top_p": 1.0,
        "frequency_penalty": 0,
        "response_format": {"type": "text"},
        "user": "me",
        "metadata": {"a": "b"},
    }
    assert ask(url, extra_body={**more, "presence_penalty": None}).choices


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
def test_bodies_that_are_no_request(url: str, body: bytes, kind: str, status: int) -> None:
    response = http().post(f"{url}/chat/completions", content=body, headers={"Content-Type": kind})
    assert response.status_code == status
    assert response.json()["error"]["message"]


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/chat/completions", 405), ("POST", "/nothing", 404)])
def test_other_paths(url: str, method: str, path: str, status: int) -> None:
    response = http().request(method, url + path)
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


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=BODY)
def test_no_body_breaks_the_server(url: str, body: Mapping[str, Any]) -> None:
    content = json.dumps(body)
    headers = {"Content-Type": "application/json"}
    response = http().post(f"{url}/chat/completions", content=content, headers=headers, timeout=60)
    assert response.status_code in (200, 400, 404), response.text
    if response.status_code != 200:
        assert response.json()["error"]["message"]
