"""The server, driven over a real socket by OpenAI's own client: replies, streams, calls, refusals, limits, its end."""

import asyncio
import contextlib
import functools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from serving import CONTEXT, scripted, served, serving, small
from understudy.engines.base import Sampling
from understudy.errors import ConfigError, RolloutError
from understudy.formats.parse import render
from understudy.messages import Message, ToolCall, ToolSpec
from understudy.serve.choice import Model
from understudy.serve.memory import Memory
from understudy.serve.options import ServeConfig
from understudy.serve.server import serve
from understudy.weights import find_weights

pytest.importorskip("torch")

HELLO = [{"role": "user", "content": "Hello, who are you?"}]
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {"a": {}}}}}
    for name in ("f", "g")
]
KEY = "sk-proj-7dJ2kQ9vX1zL4mW8"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small(tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    return served(folder, concurrency=4)


@pytest.fixture(scope="module")
def url(model: Model) -> Iterator[str]:
    with serving(model, concurrency=4, max_body=60_000) as url:
        yield url


@functools.cache
def http() -> httpx2.Client:
    """Requests that no client of OpenAI would send."""
    return httpx2.Client(verify=False, timeout=60, headers={"Connection": "close"})


def client(url: str, key: str = "none") -> openai.OpenAI:
    plain = httpx2.Client(verify=False, timeout=60)  # to read the certificates takes longer than a request
    return openai.OpenAI(base_url=url, api_key=key, max_retries=0, http_client=plain)


def ask(url: str, **more: Any) -> Any:
    with client(url) as api:
        return api.chat.completions.create(**{"model": "tiny", "messages": HELLO, "max_tokens": 16, "seed": 7, **more})


def streamed(url: str, **more: Any) -> list[Any]:
    with client(url) as api:
        body = {"model": "tiny", "messages": HELLO, "max_tokens": 16, "seed": 7, **more}
        return list(api.chat.completions.create(**body, stream=True, stream_options={"include_usage": True}))


def joined(chunks: list[Any], index: int = 0) -> tuple[str, list[Any], str, list[Any]]:
    """What a stream comes to: text, calls, why it ended, log-probabilities."""
    choices = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
    text = "".join(choice.delta.content or "" for choice in choices)
    calls = [call for choice in choices for call in choice.delta.tool_calls or ()]
    finish = [choice.finish_reason for choice in choices if choice.finish_reason]
    logprobs = [token for choice in choices if choice.logprobs for token in choice.logprobs.content]
    assert len(finish) == 1
    return text, calls, finish[0], logprobs


def talk(*texts: str) -> list[Message]:
    return [Message(role=("user", "assistant")[i % 2], content=text) for i, text in enumerate(texts)]  # type: ignore[arg-type]


# ---- replies ----


def test_models_and_health(url: str) -> None:
    with client(url) as api:
        assert [entry.id for entry in api.models.list()] == ["tiny"]
        assert api.models.retrieve("tiny").owned_by == "understudy"
        with pytest.raises(openai.NotFoundError, match="'other' does not exist"):
            api.models.retrieve("other")
    assert http().get(url.removesuffix("/v1") + "/health").json() == {"status": "ok"}


def test_a_reply_is_what_the_engine_samples(url: str, model: Model) -> None:
    found = ask(url, temperature=0.7, logprobs=True, max_completion_tokens=16)
    prompt = model.format.encode(talk(HELLO[0]["content"]), (), ())
    sampling = Sampling(max_tokens=16, temperature=0.7)
    sampled = asyncio.run(model.sampler.sample(prompt, sampling, 7, model.format.stop_tokens))
    choice = found.choices[0]
    assert [token.logprob for token in choice.logprobs.content] == pytest.approx(sampled.logprobs, abs=1e-4)
    assert choice.message.content == model.format.parse(sampled.tokens).message.content
    assert (choice.finish_reason, choice.message.role) == ("length", "assistant")
    usage = found.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (len(prompt), 16, len(prompt) + 16)


def test_seeds_decide(url: str) -> None:
    def said(**more: Any) -> str:
        return str(ask(url, **more).choices[0].message.content)

    assert said(seed=1) == said(seed=1) != said(seed=2)
    assert said(seed=1, temperature=0) == said(seed=2, temperature=0)
    assert said(seed=None) != said(seed=None)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("tools", [(), TOOLS])
def test_a_stream_put_together_is_the_reply(url: str, seed: int, tools: Any) -> None:
    how = {"seed": seed, "max_tokens": 40, "logprobs": True, **({"tools": tools} if tools else {})}
    whole, chunks = ask(url, **how), streamed(url, **how)
    text, calls, finish, logprobs = joined(chunks)
    choice = whole.choices[0]
    assert (text, calls, finish) == (
        choice.message.content or "",
        choice.message.tool_calls or [],
        choice.finish_reason,
    )
    assert [t.token for t in logprobs] == [t.token for t in choice.logprobs.content]
    assert (chunks[-1].choices, chunks[-1].usage) == ([], whole.usage)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert len({chunk.id for chunk in chunks}) == 1


def test_several_replies_side_by_side(url: str) -> None:
    whole, chunks = ask(url, n=3, max_tokens=9), streamed(url, n=3, max_tokens=9)
    said = [choice.message.content for choice in whole.choices]
    assert [choice.index for choice in whole.choices] == [0, 1, 2]
    assert len(set(said)) == 3
    assert [joined(chunks, i)[0] for i in range(3)] == said
    assert said[1] == ask(url, seed=8, max_tokens=9).choices[0].message.content
    assert whole.usage.completion_tokens == chunks[-1].usage.completion_tokens == 27


def test_text_comes_while_it_is_sampled(folder: Path) -> None:
    model, _ = scripted(folder, lambda _: "One two three.", pause=0.02)
    with serving(model) as url, client(url) as api:
        times = []
        for chunk in api.chat.completions.create(model="tiny", messages=HELLO, stream=True):  # type: ignore[call-overload]
            if chunk.choices[0].delta.content:
                times.append(time.monotonic())
    assert len(times) > 5
    assert times[-1] - times[0] > 0.1


def test_what_is_told_at_the_end_comes_through(folder: Path) -> None:
    model, _ = scripted(folder, lambda _: "One two three.", tells=False)
    with serving(model) as url:
        text, _, finish, logprobs = joined(streamed(url, logprobs=True))
        whole = ask(url, max_tokens=7)
    assert (text, finish, len(logprobs)) == ("One two three.", "stop", 15)
    assert (whole.choices[0].message.content, whole.choices[0].finish_reason) == ("One two", "length")
    assert whole.usage.completion_tokens == 7


def test_a_sampler_that_fails_is_told_as_that(folder: Path) -> None:
    def fail(_: str) -> str:
        raise RolloutError("no reply in 3 attempts", "engine")

    model, _ = scripted(folder, fail)
    with serving(model, concurrency=1) as url:
        for _ in range(2):
            with pytest.raises(openai.InternalServerError, match="no reply in 3 attempts") as failed:
                ask(url)
            assert failed.value.status_code == 503
        with pytest.raises(openai.APIError, match="no reply in 3 attempts"):
            streamed(url)


# ---- calls ----


CALLS = (ToolCall(name="f", arguments={"a": '€ "x"'}), ToolCall(name="g", arguments={}))


@pytest.mark.parametrize("stream", [False, True])
def test_parallel_calls_and_their_results(folder: Path, stream: bool) -> None:
    def reply(prompt: str) -> str:
        return "Done: both." if "<tool_response>" in prompt else render("Let me see.", CALLS, "hermes")

    model, script = scripted(folder, reply)
    with serving(model) as url:
        how: dict[str, Any] = {"tools": TOOLS, "max_tokens": None}
        if stream:
            text, calls, finish, _ = joined(streamed(url, **how))
            said: dict[str, Any] = {"role": "assistant", "content": text, "tool_calls": [c.model_dump() for c in calls]}
        else:
            choice = ask(url, **how).choices[0]
            text, calls, finish = choice.message.content, choice.message.tool_calls, choice.finish_reason
            said = choice.message
        assert (text, finish) == ("Let me see.", "tool_calls")
        assert [(c.function.name, json.loads(c.function.arguments)) for c in calls] == [
            ("f", CALLS[0].arguments),
            ("g", {}),
        ]
        assert len({call.id for call in calls}) == 2
        if stream:
            for call in said["tool_calls"]:
                del call["index"]
        results = [{"role": "tool", "tool_call_id": call.id, "content": f"result of {call.id}"} for call in calls]
        last = ask(url, messages=[*HELLO, said, *results], tools=TOOLS, max_tokens=None)
        assert last.choices[0].message.content == "Done: both."
    first, second = script.prompts
    assert second[: len(first)] == first
    shown = model.vocabulary.decode(second)
    places = [shown.index(f"result of {call.id}") for call in calls]
    assert places == sorted(places)


def test_fewer_calls_where_that_is_asked_for(folder: Path) -> None:
    model, _ = scripted(folder, lambda _: render("", CALLS, "hermes"))
    with serving(model) as url:
        one = ask(url, tools=TOOLS, max_tokens=None, parallel_tool_calls=False).choices[0]
        assert [call.function.name for call in one.message.tool_calls] == ["f"]
        for how in ({}, {"tools": TOOLS, "tool_choice": "none"}):
            none = ask(url, max_tokens=None, **how).choices[0]
            assert (none.message.tool_calls, none.finish_reason) == (None, "stop")
            assert none.message.content == render("", CALLS, "hermes")


def test_a_call_that_cannot_be_read_is_told_as_that(folder: Path) -> None:
    model, script = scripted(folder, lambda _: '<tool_call>{"name": "f", "arguments": {"a": oops}}</tool_call>')
    with serving(model) as url:
        message = ask(url, tools=TOOLS, max_tokens=None).choices[0].message
        (call,) = message.tool_calls
        assert call.function.name == "f"
        assert call.malformed == call.function.arguments
        with pytest.raises(json.JSONDecodeError):
            json.loads(call.function.arguments)
        result = {"role": "tool", "tool_call_id": call.id, "content": "error: not JSON"}
        ask(url, messages=[*HELLO, message, result], tools=TOOLS, max_tokens=None)
        assert script.prompts[1][: len(script.prompts[0])] == script.prompts[0]
        assert "oops" in model.vocabulary.decode(script.prompts[1])
        ask(url, messages=[HELLO[0], HELLO[0], message, result], tools=TOOLS, max_tokens=None)
        assert '{"name": "f", "arguments": {}}' in model.vocabulary.decode(script.prompts[2])


def test_a_conversation_keeps_its_tokens(url: str, model: Model) -> None:
    """The random model samples bytes that are no text: encoded anew they would be other tokens."""
    first = ask(url, max_tokens=30, seed=3)
    message = first.choices[0].message
    again = [*HELLO, message, {"role": "user", "content": "And then?"}]
    second = ask(url, messages=again)
    before = first.usage.total_tokens
    following = len(model.format.encode(talk("And then?"), (), [0] * before))
    assert second.usage.prompt_tokens == before + following
    changed = [*HELLO, {"role": "assistant", "content": message.content + "."}, again[-1]]
    prompt = talk(*(m["content"] for m in changed))
    assert ask(url, messages=changed).usage.prompt_tokens == len(model.format.encode(prompt, (), ()))


def test_the_next_turn_computes_what_is_new_and_no_more(
    url: str, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = ask(url, max_tokens=30, seed=11)
    network, computed = model.sampler._model, list[int]()  # type: ignore[attr-defined]
    hidden = network.hidden
    monkeypatch.setattr(
        network, "hidden", lambda tokens, *rest: computed.append(tokens.shape[1]) or hidden(tokens, *rest)
    )
    again = [*HELLO, first.choices[0].message, {"role": "user", "content": "And then?"}]
    second = ask(url, messages=again, max_tokens=1)
    assert second.usage.prompt_tokens > first.usage.total_tokens
    assert computed == [second.usage.prompt_tokens - (first.usage.total_tokens - 1)]  # the last token was not fed yet


def test_conversations_are_known_by_all_that_is_in_them() -> None:
    memory, tool = Memory(), ToolSpec(name="f", description="", parameters={})
    memory.keep(talk("a", "b"), (), [1, 2])
    memory.keep(talk("a", "b", "c", "d"), (), [1, 2, 3, 4])
    assert memory.recall(talk("a", "b", "c", "d", "e"), ()) == ([1, 2, 3, 4], 4)
    assert memory.recall(talk("a", "b", "c", "other", "e"), ()) == ([1, 2], 2)
    assert memory.recall(talk("a", "b", "c"), (tool,)) == memory.recall(talk("other", "b", "c"), ()) == ([], 0)
    called = Message(role="assistant", tool_calls=(ToolCall(name="f", id="x"),))
    memory.keep([*talk("a"), called], (tool,), [5])
    assert memory.recall([*talk("a"), called], (tool,)) == ([5], 2)
    assert memory.recall([*talk("a"), called.replace(tool_calls=(ToolCall(name="f", id="y"),))], (tool,)) == ([], 0)


def test_what_was_longest_not_asked_for_is_forgotten() -> None:
    memory = Memory(most=6)
    for name, tokens in (("a", [1, 2]), ("b", [3, 4]), ("a", [1, 9]), ("c", [5, 6])):
        memory.keep(talk(name, "reply"), (), tokens)
    assert memory.recall(talk("b", "reply"), ()) == ([3, 4], 2)
    memory.keep(talk("d", "reply"), (), [7, 8])
    assert [memory.recall(talk(name, "reply"), ())[0] for name in "abcd"] == [[], [3, 4], [5, 6], [7, 8]]
    memory.keep(talk("e", "reply"), (), [0] * 7)
    assert [memory.recall(talk(name, "reply"), ())[0] for name in "bcde"] == [[], [], [], []]


@pytest.mark.parametrize("tells", [True, False])
def test_stop_strings_end_the_sampling(folder: Path, tells: bool) -> None:
    model, script = scripted(folder, lambda _: "One, two, three, four.", 0.001, tells)
    with serving(model) as url:
        whole = ask(url, stop=[" three", "four"], max_tokens=None)
        text, _, finish, _ = joined(streamed(url, stop=" three", max_tokens=None))
        assert (whole.choices[0].message.content, whole.choices[0].finish_reason) == ("One, two,", "stop")
        assert (text, finish) == ("One, two,", "stop")
        assert whole.usage.completion_tokens == len("One, two, three")
    assert script.cancelled == (2 if tells else 0)


# ---- what is refused ----


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
    ({"top_p": 0.5}, "top_p is not offered; leave it out, or give 1", "top_p"),
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


# ---- who may ask, and how much ----


def test_a_key_where_one_is_asked_for(folder: Path) -> None:
    model, _ = scripted(folder, lambda _: "Hi.")
    with serving(model, KEY) as url:
        for key in ("wrong", KEY[:-1], KEY + "x"):
            with pytest.raises(openai.AuthenticationError, match="not the right one"), client(url, key) as api:
                api.models.list()
        with client(url, KEY) as api:
            assert api.chat.completions.create(model="tiny", messages=HELLO).choices  # type: ignore[call-overload]
        nobody = http().get(f"{url}/models")
        assert (nobody.status_code, nobody.headers["WWW-Authenticate"]) == (401, "Bearer")
        assert KEY not in nobody.text
        assert http().get(url.removesuffix("/v1") + "/health").status_code == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:9", 200),
        ("localhost", 200),
        ("[::1]:80", 200),
        ("evil.example", 400),
        ("127.0.0.1.evil.example:80", 400),
    ],
)
def test_only_loopback_is_a_name_of_a_loopback_server(url: str, host: str, status: int) -> None:
    response = http().get(f"{url}/models", headers={"Host": host})
    assert response.status_code == status
    assert "access-control-allow-origin" not in response.headers


def test_more_than_can_be_done_at_once_is_put_off(folder: Path) -> None:
    model, _ = scripted(folder, lambda _: "x" * 200, pause=0.01)
    with serving(model, concurrency=2) as url, client(url) as api:
        stream = api.chat.completions.create(model="tiny", messages=HELLO, stream=True, n=2)  # type: ignore[call-overload]
        next(stream)
        with pytest.raises(openai.RateLimitError, match="2 of 2 replies at once") as refused:
            ask(url)
        assert refused.value.response.headers["Retry-After"] == "1"
        stream.close()
        assert _soon(lambda: ask(url, max_tokens=2).choices)


def _soon(done: Any) -> bool:
    """Whether something can be done within a few seconds."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        try:
            if done():
                return True
        except openai.RateLimitError:
            pass
        time.sleep(0.02)
    return False


@pytest.mark.parametrize("stream", [False, True])
def test_who_goes_away_frees_the_place(folder: Path, stream: bool) -> None:
    model, script = scripted(folder, lambda _: "x" * 1000, pause=0.02)
    with serving(model, concurrency=1) as url:
        body = {"model": "tiny", "messages": HELLO, "stream": stream}
        if stream:
            with http().stream("POST", f"{url}/chat/completions", json=body) as response:
                next(response.iter_lines())
        else:
            with pytest.raises(httpx2.TimeoutException):
                http().post(f"{url}/chat/completions", json=body, timeout=0.3)
        assert _soon(lambda: script.cancelled == 1)
        assert _soon(lambda: ask(url, max_tokens=1).choices)


def test_the_sampler_frees_the_slot_of_who_goes_away(folder: Path) -> None:
    model = served(folder, concurrency=1)

    async def leave() -> None:
        seen = asyncio.Event()
        told = lambda tokens, logprobs: seen.set()  # noqa: E731
        sampling = Sampling(max_tokens=1000, temperature=1.0)
        task = asyncio.ensure_future(model.sampler.sample([1, 2, 3], sampling, 0, (), told))
        await seen.wait()
        task.cancel()
        done = await asyncio.wait_for(model.sampler.sample([4, 5], Sampling(max_tokens=2), 0), 30)
        assert len(done.tokens) == 2

    asyncio.run(leave())


def test_what_is_told_while_sampling_is_what_was_sampled(folder: Path) -> None:
    model = served(folder, concurrency=4)

    async def sample(seed: int) -> None:
        tokens: list[int] = []
        logprobs: list[float] = []
        told = lambda t, l: (tokens.extend(t), logprobs.extend(l))  # noqa: E731, E741
        done = await model.sampler.sample([1, 2, 3, 1, 2], Sampling(max_tokens=60, temperature=0.3), seed, (65,), told)  # type: ignore[arg-type]
        assert (tokens, logprobs) == (done.tokens, done.logprobs)

    async def both() -> None:
        await asyncio.gather(*map(sample, range(4)))

    asyncio.run(both())


def test_replies_under_way_end_when_the_server_does(folder: Path) -> None:
    model, _ = scripted(folder, lambda _: "x" * 40, pause=0.02)
    pieces: list[str] = []
    with contextlib.ExitStack() as stack:
        with serving(model) as url:
            api = stack.enter_context(client(url))
            stream = api.chat.completions.create(model="tiny", messages=HELLO, stream=True)  # type: ignore[call-overload]
            next(stream)
            follow = threading.Thread(target=lambda: pieces.extend(c.choices[0].delta.content or "" for c in stream))
            follow.start()
        follow.join()
    assert "".join(pieces) == "x" * 40


# ---- the command ----


@pytest.fixture
def unserved(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server on which Ctrl-C is pressed as soon as it runs."""

    class Interrupted:
        def run(self, sockets: Any) -> None:
            raise KeyboardInterrupt

    monkeypatch.setattr("understudy.serve.server.server", lambda _: Interrupted())


def said_by(folder: Path, **options: Any) -> list[str]:
    said: list[str] = []
    weights = find_weights(str(folder), ["engine.dtype=float32"]).replace(name="tiny", warnings=("damaged",))
    serve(weights, ServeConfig(**{"port": 0, **options}), said.append)
    return said


@pytest.mark.usefixtures("unserved")
def test_what_is_said_at_the_start(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, last = said_by(folder)
    assert first == "damaged"
    assert re.fullmatch(r"tiny is served at http://127\.0\.0\.1:\d+/v1; Ctrl-C ends it", last)
    open_to_all = said_by(folder, host="0.0.0.0")
    assert open_to_all[1] == "whoever can reach 0.0.0.0 can use this server: set a key by --key-variable"
    monkeypatch.setenv("MY_KEY", KEY)
    assert len(said_by(folder, host="0.0.0.0", key_variable="MY_KEY")) == 2


@pytest.mark.usefixtures("unserved")
def test_where_it_cannot_listen_it_says_so(folder: Path) -> None:
    text = r"cannot listen on 127\.0\.0\.1 port \d+: .*; choose --host or --port"
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(ConfigError, match=text):
        said_by(folder, port=taken.getsockname()[1])
    with pytest.raises(ConfigError, match="cannot listen on no such host port 0"):
        said_by(folder, host="no such host")
    with pytest.raises(ConfigError, match="NOT_THERE, which key_variable names, is not set"):
        said_by(folder, key_variable="NOT_THERE")


@pytest.mark.parametrize(
    ("host", "local"), [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("box", False)]
)
def test_which_hosts_are_this_machine_alone(host: str, local: bool) -> None:
    assert ServeConfig(host=host).local == local


def start(*arguments: str) -> "subprocess.Popen[str]":
    signals = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    code = f"{signals}; from understudy.cli import main; main()"
    return subprocess.Popen([sys.executable, "-c", code, *arguments], stderr=subprocess.PIPE, text=True, env=os.environ)


def test_the_command_serves_until_ctrl_c(folder: Path) -> None:
    process = start("serve", str(folder), "engine.dtype=float32", "--port", "0", "--name", "tiny")
    assert process.stderr
    line = process.stderr.readline()
    assert line.startswith("tiny is served at http://127.0.0.1:")
    assert ask(line.split()[4].rstrip(";")).choices
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 0
    assert process.stderr.read() == ""
    process.stderr.close()
