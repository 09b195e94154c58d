"""Test `ChatModel` against a local endpoint: requests, retries, cost, cache, and secrecy of the key."""

import asyncio
import email.utils
import gzip
import json
import logging
import re
import time
from contextlib import AbstractAsyncContextManager
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.endpoint import KEY, Answer, Endpoint, make_completion, serve_answers
from understudy.clients import endpoint as endpoint_module
from understudy.clients.chat import POOL_SIZE, ChatModel, EndpointConfig, ModelUsage
from understudy.clients.completions import ChatCompletion, read_cache_entry, write_cache_entry
from understudy.clients.cost import CostTracker
from understudy.core.errors import ConfigError, Fault, LimitReachedError, RolloutError
from understudy.core.messages import (
    Message,
    ToolCall,
    ToolSpec,
    assign_call_ids,
    message_to_openai,
    strip_endpoint_data,
)
from understudy.core.settings import dump_toml
from understudy.runs.config import TrainConfig, parse_config

HELLO = [Message(role="system", content="Be kind."), Message(role="user", content="Hello.")]
SPEC = ToolSpec(name="find", description="Find it.", parameters={"type": "object", "properties": {}})


@pytest.fixture(autouse=True)
def set_api_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", KEY)


def make_chat_model(url: str, **settings: Any) -> ChatModel:
    quick = {"model": "m", "base_url": url, "backoff": 0.01, "timeout": 60.0, "max_retries": 2, **settings}
    return ChatModel(EndpointConfig(**quick), "user")


def send(chat: ChatModel, seed: int = 0, **more: Any) -> ChatCompletion:
    return asyncio.run(chat.generate(HELLO, seed=seed, **more))


def test_default_request_body_and_headers() -> None:
    with serve_answers([make_completion("Hi.")]) as endpoint:
        reply = send(make_chat_model(endpoint.url), seed=7)
        assert reply == ChatCompletion(
            message=Message(role="assistant", content="Hi."),
            finish_reason="stop",
            prompt_tokens=100,
            completion_tokens=10,
        )
        assert endpoint.requests == [
            {
                "model": "m",
                "messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello."}],
                "max_tokens": 1024,
                "seed": 7,
            }
        ]
        assert "authorization" not in {name.lower() for name in endpoint.headers[0]}


def test_configured_parameters_are_sent() -> None:
    with serve_answers([make_completion("Hi.")]) as endpoint:
        settings = {"temperature": 0.5, "max_tokens": 0, "send_seed": False, "extra_body": {"effort": "low"}}
        send(make_chat_model(endpoint.url, api_key_var="MY_KEY", **settings), tools=[SPEC])
        body = endpoint.requests[0]
        assert body.keys() == {"model", "messages", "temperature", "effort", "tools"}
        assert (body["temperature"], body["effort"]) == (0.5, "low")
        assert body["tools"] == [{"type": "function", "function": SPEC.model_dump(exclude={"aliases"})}]
        assert endpoint.headers[0]["Authorization"] == f"Bearer {KEY}"


def test_tool_calls_convert_in_both_directions() -> None:
    wire = [
        {"id": "a", "type": "function", "function": {"name": "find", "arguments": '{"x": 1}'}},
        {"id": "b", "type": "function", "function": {"name": "find", "arguments": "{broken"}},
    ]
    with serve_answers([make_completion(None, "tool_calls", tool_calls=wire), make_completion("Done.")]) as endpoint:  # type: ignore[arg-type]
        chat = make_chat_model(endpoint.url)
        first = send(chat, tools=[SPEC]).message
        assert first.tool_calls[0] == ToolCall(name="find", arguments={"x": 1}, id="a")
        assert "not JSON" in first.tool_calls[1].parse_error
        answer = Message(role="tool", content="found", tool_call_id="a")
        asyncio.run(chat.generate([*HELLO, first, answer], [SPEC]))
        assert endpoint.requests[1]["messages"][2]["tool_calls"][0] == wire[0]
        assert endpoint.requests[1]["messages"][3] == {"role": "tool", "content": "found", "tool_call_id": "a"}


def test_tool_names_are_sanitized_and_restored() -> None:
    """OpenAI's API rejects dots, so `notes.add` of an MCP server is sent as `notes_add`."""
    spec = SPEC.replace(name="notes.add")
    wire = [{"id": "a", "type": "function", "function": {"name": "notes_add", "arguments": "{}"}}]
    with serve_answers(
        [make_completion(None, "tool_calls", tool_calls=wire), make_completion("Done."), make_completion("Done.")]
    ) as endpoint:  # type: ignore[arg-type]
        chat = make_chat_model(endpoint.url)
        first = send(chat, tools=[spec]).message
        assert first.tool_calls[0].name == "notes.add"
        wrong = first.replace(tool_calls=(*first.tool_calls, ToolCall(name="no.such tool", id="b")))
        asyncio.run(chat.generate([*HELLO, wrong], [spec]))
        asyncio.run(make_chat_model(endpoint.url, sanitize_tool_names=False).generate([*HELLO, first], [spec]))
        sent = [[call["function"]["name"] for call in r["messages"][2]["tool_calls"]] for r in endpoint.requests[1:]]
        assert sent == [["notes_add", "no_such_tool"], ["notes.add"]]
        assert [r["tools"][0]["function"]["name"] for r in endpoint.requests] == ["notes_add", "notes_add", "notes.add"]


def test_extra_content_of_a_call_is_sent_back_and_not_shared() -> None:
    """Gemini 3 refuses a conversation without its thought signatures."""
    signature = {"google": {"thought_signature": "AbC"}}
    wire = [
        {
            "id": "a",
            "type": "function",
            "function": {"name": "notes_add", "arguments": "{}"},
            "extra_content": signature,
        },
        {"id": "b", "type": "function", "function": {"name": "notes_add", "arguments": "{}"}, "extra_content": 7},
    ]
    spec = SPEC.replace(name="notes.add")
    with serve_answers([make_completion(None, "tool_calls", tool_calls=wire), make_completion("Done.")]) as endpoint:  # type: ignore[arg-type]
        chat = make_chat_model(endpoint.url)
        first = Message.model_validate_json(send(chat, tools=[spec]).message.model_dump_json())
        asyncio.run(chat.generate([*HELLO, first], [spec]))
    sent = endpoint.requests[1]["messages"][2]["tool_calls"]
    assert [call.get("extra_content") for call in sent] == [signature, None]
    plain = ToolCall(name="notes.add", id="a")
    assert plain.model_dump_json() == '{"name":"notes.add","arguments":{},"id":"a","parse_error":""}'
    assert strip_endpoint_data(first).tool_calls[0] == plain
    assert "AbC" not in json.dumps(message_to_openai(first))


def test_reasoning_content_is_sent_back_and_not_shared() -> None:
    """DeepSeek refuses a turn with calls whose replies lack their thoughts."""
    wire = [{"id": "a", "type": "function", "function": {"name": "find", "arguments": "{}"}}]
    in_text = 'On it. <tool_call>{"name": "find", "arguments": {}}</tool_call>'
    answers = [
        make_completion(None, "tool_calls", tool_calls=wire, reasoning_content="SECRET"),  # type: ignore[arg-type]
        make_completion(in_text, reasoning_content="SECRET"),
        make_completion("Done.", reasoning_content=None),
        make_completion("Done."),
        make_completion("Done."),
    ]
    with serve_answers(answers) as endpoint:
        config = EndpointConfig(model="m", base_url=endpoint.url)
        chat, talk = ChatModel(config, "agent"), list(HELLO)
        for number in range(3):
            reply = asyncio.run(chat.generate(talk, [SPEC])).message
            reply = Message.model_validate_json(assign_call_ids(reply, number).model_dump_json())
            results = [Message(role="tool", content="found", tool_call_id=call.id) for call in reply.tool_calls]
            talk += [reply, *results]
        asyncio.run(chat.generate(talk, [SPEC]))
        asyncio.run(ChatModel(config.replace(tool_format="hermes"), "agent").generate(talk, [SPEC]))
    sent = [m for m in endpoint.requests[3]["messages"] if m["role"] == "assistant"]
    assert [len(m.get("tool_calls", ())) for m in sent] == [1, 1, 0]
    assert [m.get("reasoning_content") for m in sent] == ["SECRET", "SECRET", None]
    assert "SECRET" not in json.dumps(endpoint.requests[4])
    assert talk[-1].model_dump_json() == ('{"role":"assistant","content":"Done.","tool_calls":[],"tool_call_id":""}')
    shared = [*map(strip_endpoint_data, talk)], [*map(message_to_openai, talk)]
    assert "SECRET" not in str(shared)


def test_refusal_is_returned_as_a_reply() -> None:
    with serve_answers([make_completion(None, refusal="I will not.")]) as endpoint:  # type: ignore[arg-type]
        reply = send(make_chat_model(endpoint.url))
        assert (reply.refusal, reply.message.content) == ("I will not.", "")


FAILURES = {
    "rate limit": Answer({"error": {"message": "slow down"}}, 429),
    "server error": Answer("oops", 500),
    "overloaded": Answer("", 503),
    "not JSON": Answer("<html>proxy</html>"),
    "half of it": Answer('{"choices": [{"mess'),
    "no choice": Answer({"choices": []}),
    "no choices": Answer({"object": "error", "message": "no"}),
    "no message": Answer({"choices": [{"index": 0}]}),
    "a list": Answer("[]"),
    "a deep list": Answer("[" * 100_000),
    "null": Answer("null"),
    "message is text": Answer({"choices": [{"message": "hi"}]}),
    "content is a list": Answer({"choices": [{"message": {"content": [1]}}]}),
    "call without a function": Answer({"choices": [{"message": {"content": "", "tool_calls": [{"id": "x"}]}}]}),
    "not UTF-8": Answer(b'{"choices": [{"message": {"content": "\xff\xfe"}}]}'),
    "half a character": Answer('{"choices": [{"message": {"content": "\\ud800"}}]}'),
    "broken connection": Answer("x" * 1000, cut=True),
    "an unusual encoding": Answer("x", headers={"Content-Type": "application/json; charset=zlib"}),
    "negative usage": make_completion("Hi.", tokens=(-100, 10)),
    "negative completion usage": make_completion("Hi.", tokens=(100, -10)),
    "absurd usage": make_completion("Hi.", tokens=(10**12, 10)),
    "usage is text": Answer('{"choices": [{"message": {"content": "a"}}], "usage": {"prompt_tokens": "many"}}'),
    "usage is a fraction": make_completion("Hi.", tokens=(0.5, 10)),  # type: ignore[arg-type]
    "usage is infinite": Answer('{"choices": [{"message": {"content": "a"}}], "usage": {"prompt_tokens": 1e999}}'),
    "too large": Answer("x" * 300_000),
    "bad encoding": Answer("plain", headers={"Content-Encoding": "gzip"}),
    "silence": Answer("", delay=60.0),
}


@pytest.fixture(autouse=True)
def limit_bodies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint_module, "MAX_BODY_BYTES", 200_000)


@pytest.mark.parametrize("name", FAILURES)
def test_transient_failure_is_retried(name: str) -> None:
    with serve_answers([FAILURES[name], FAILURES[name], make_completion("Hi.")]) as endpoint:
        chat = make_chat_model(endpoint.url, timeout=1.0 if name == "silence" else 60.0)
        assert send(chat).message.content == "Hi."
        assert len(endpoint.requests) == 3
        assert chat.usage == ModelUsage(requests=1, prompt_tokens=100, completion_tokens=10)


@pytest.mark.parametrize("name", FAILURES)
def test_repeated_failure_raises_a_fault_of_the_role(name: str) -> None:
    with serve_answers([FAILURES[name]] * 3) as endpoint:
        chat = make_chat_model(endpoint.url, timeout=0.3 if name == "silence" else 60.0)
        with pytest.raises(RolloutError, match=r"chat model 'm' at http://127.*attempts: 3") as caught:
            send(chat)
        assert caught.value.fault == "user"
        assert len(endpoint.requests) == 3
        assert chat.usage == ModelUsage()


@pytest.mark.parametrize(
    "arguments", ['{"a": 1, "a": 2}', f'{{"a": {"9" * 5000}}}', r'{"a": "\ud83d"}', '{"a":' * 2000]
)
def test_unparsable_arguments_are_a_paid_reply_without_retry(arguments: str) -> None:
    call = {"id": "x", "function": {"name": "f", "arguments": arguments}}
    with serve_answers([make_completion("", tool_calls=[call])]) as endpoint:
        chat = make_chat_model(endpoint.url)
        (made,) = send(chat).message.tool_calls
        assert made.parse_error
        assert (len(endpoint.requests), chat.usage.requests) == (1, 1)


def test_lost_connection_raises_rollout_error() -> None:
    with serve_answers([make_completion("Hi.")]) as endpoint:
        chat = make_chat_model(endpoint.url)
        send(chat)
    with pytest.raises(RolloutError, match=r"ConnectError.*\b3\b"):
        send(chat)


def test_retry_waits_grow() -> None:
    with serve_answers([Answer("", 500)] * 5) as endpoint:
        with pytest.raises(RolloutError):
            send(make_chat_model(endpoint.url, backoff=0.05, max_retries=4))
        waits = [b - a for a, b in zip(endpoint.times, endpoint.times[1:], strict=False)]
        assert all(wait > 0.5 * 0.05 * 2**i for i, wait in enumerate(waits))


@pytest.mark.parametrize("form", ["seconds", "date"])
def test_retry_after_header_is_honored(form: str) -> None:
    def answer(_: object) -> Answer:
        if len(endpoint.requests) > 1:
            return make_completion("Hi.")
        date = email.utils.formatdate(time.time() + 2, usegmt=True)  # whole seconds: one to two from now
        return Answer("", 429, {"Retry-After": "1" if form == "seconds" else date})

    with serve_answers(answer) as endpoint:
        send(make_chat_model(endpoint.url))
        assert 0.9 < endpoint.times[1] - endpoint.times[0] < 60.0


def test_waits_grow_beyond_a_short_retry_after() -> None:
    """An endpoint that always asks for no wait must not use up all attempts at once."""
    with serve_answers([Answer("", 429, {"Retry-After": "0"})] * 4) as endpoint:
        with pytest.raises(RolloutError):
            send(make_chat_model(endpoint.url, backoff=0.05, max_retries=3))
        waits = [b - a for a, b in zip(endpoint.times, endpoint.times[1:], strict=False)]
    assert all(wait > 0.5 * 0.05 * 2**i for i, wait in enumerate(waits))


ABSURD_WAITS = [
    "Fri, 31 Dec 9999 23:59:59 GMT",
    "Fri, 31 Dec 9999 23:59:59 -2359",
    "Mon, 01 Jan 0001 00:00:00 -0000",
    "Mon, 01 Jan 0001 00:00:00 +2359",
    "Fri, 31 Dec 99999999999999999999 23:59:59 GMT",
    "Fri, 99 Dec 2025 99:99:99 GMT",
    "Thu, 01 Jan 1970 00:00:00 GMT",
    "9" * 400,
    "1e308",
    "-5",
    "NaN",
    "soon",
    ",",
    "",
]


@pytest.mark.parametrize("header", ABSURD_WAITS)
def test_absurd_retry_after_is_ignored(header: str) -> None:
    """The wait is then that of `backoff`, which is 0.01 s here."""
    with serve_answers([Answer("", 429, {"Retry-After": header}), make_completion("Hi.")]) as endpoint:
        assert send(make_chat_model(endpoint.url)).message.content == "Hi."
        assert endpoint.times[1] - endpoint.times[0] < 60.0


@given(
    st.text(st.characters(codec="latin-1")) | st.from_regex(r"\w\w\w, \d+ Dec \d+ \d+:\d+:\d+ [+-]\d+", fullmatch=True)
)
def test_any_retry_after_header_gives_a_bounded_wait(header: str) -> None:
    wait = endpoint_module.parse_retry_after(header)
    assert wait is None or 0.0 <= wait <= 366 * 86400


def test_large_response_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compressed body of 50 KB unfolds to 50 MB."""
    monkeypatch.setattr(endpoint_module, "MAX_BODY_BYTES", 1 << 20)
    bomb = Answer(gzip.compress(b" " * 50_000_000), headers={"Content-Encoding": "gzip"})
    with serve_answers([bomb]) as endpoint, pytest.raises(RolloutError, match=r"\b1,048,576\b") as caught:
        send(make_chat_model(endpoint.url, max_retries=0))
    assert caught.value.fault == "user"


def test_long_retry_after_fails_at_once() -> None:
    with serve_answers([Answer("quota", 429, {"Retry-After": "7200"})]) as endpoint:
        with pytest.raises(RolloutError, match=r"\b429\b.*quota.*\b1\b"):
            send(make_chat_model(endpoint.url))
        assert len(endpoint.requests) == 1


@pytest.mark.parametrize("status", [400, 402, 403, 413, 422, 301])
def test_permanent_failure_is_not_retried(status: int) -> None:
    with serve_answers([make_completion("Hi."), Answer({"error": {"message": "too long"}}, status)]) as endpoint:
        chat = make_chat_model(endpoint.url)
        send(chat)
        with pytest.raises(RolloutError, match=rf"\b{status}\b.*too long"):
            send(chat)
        assert len(endpoint.requests) == 2


@pytest.mark.parametrize(("status", "said"), [(401, r"\b401\b"), (404, r"\b404\b")])
def test_wrong_key_or_url_raises_config_error(status: int, said: str) -> None:
    with serve_answers([Answer(f"bad key {KEY}", status)]) as endpoint, pytest.raises(ConfigError, match=said):
        send(make_chat_model(endpoint.url, api_key_var="MY_KEY"))


@pytest.mark.parametrize("status", [401, 404])
def test_passing_401_or_404_is_retried_before_it_ends_the_run(status: int) -> None:
    passing = Answer("no such model", status)
    with serve_answers([make_completion("Hi."), passing, passing, make_completion("Hi."), *[passing] * 3]) as endpoint:
        chat = make_chat_model(endpoint.url)
        send(chat)
        assert send(chat).message.content == "Hi."
        with pytest.raises(ConfigError, match=rf"\b{status}\b.*endpoints\.default\b.*\b3\b"):
            send(chat)
        assert len(endpoint.requests) == 7


EMPTY_REPLIES = {
    "filtered": make_completion("I ca", "content_filter"),
    "filtered without a text": make_completion(None, "content_filter"),  # type: ignore[arg-type]
    "null": make_completion(None),  # type: ignore[arg-type]
    "no content": Answer({"choices": [{"message": {"role": "assistant"}, "finish_reason": "stop"}]}),
    "failed": make_completion("I ca", "error"),
    "aborted": make_completion("", "abort"),
    "out of capacity": make_completion("I ca", "insufficient_system_resource"),
}


@pytest.mark.parametrize("fault", ["agent", "user", "grader"])
@pytest.mark.parametrize("name", EMPTY_REPLIES)
def test_filtered_or_missing_reply_is_a_paid_fault_of_the_endpoint(name: str, fault: Fault) -> None:
    empty = EMPTY_REPLIES[name]
    with serve_answers([empty, make_completion("Hi."), *[empty] * 3]) as endpoint:
        config = EndpointConfig(model="m", base_url=endpoint.url, backoff=0.01, max_retries=2)
        chat = ChatModel(config, fault)
        assert send(chat).message.content == "Hi."
        assert chat.usage.requests == 2
        with pytest.raises(RolloutError) as caught:
            send(chat)
        assert (caught.value.fault, chat.usage.requests) == (fault, 5)


THOUGHT = {"role": "assistant", "content": None, "reasoning_content": "Hm."}


@pytest.mark.parametrize(
    "answer",
    [
        make_completion(None, "length"),  # type: ignore[arg-type]
        Answer({"choices": [{"message": THOUGHT, "finish_reason": "stop"}]}),
        make_completion(""),
    ],
)
def test_empty_reply_of_the_model_itself_is_no_failure(answer: Answer) -> None:
    with serve_answers([answer]) as endpoint:
        assert send(make_chat_model(endpoint.url)).message.content == ""


def test_filtered_reply_in_the_cache_is_requested_again(tmp_path: Path) -> None:
    with serve_answers([make_completion("a"), make_completion("b")]) as endpoint:
        send(make_chat_model(endpoint.url, cache_dir=str(tmp_path)))
        (entry,) = tmp_path.rglob("*.json")
        write_cache_entry(entry, read_cache_entry(entry).replace(finish_reason="content_filter"))  # type: ignore[union-attr]
        assert send(make_chat_model(endpoint.url, cache_dir=str(tmp_path))).message.content == "b"


def test_error_hides_secrets_of_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", KEY)
    monkeypatch.setenv("OTHER_TOKEN", "open-sesame")
    said = f"no {KEY}, open-sesame, https://me:word@host/?api_key=abcdefgh, sk-{'a1B2' * 6}"
    with serve_answers([make_completion("Hi."), Answer({"error": {"message": said}}, 400)]) as endpoint:
        chat = make_chat_model(endpoint.url, api_key_var="MY_KEY")
        send(chat)
        with pytest.raises(RolloutError, match="OTHER_TOKEN") as error:
            send(chat)
    assert not any(secret in str(error.value) for secret in (KEY, "sesame", "word@", "abcdefgh", "sk-a1"))


def test_malformed_call_that_the_endpoint_refuses_is_repeatable() -> None:
    """Groq answers 400 if the model wrote a malformed call; another sample may be valid."""
    said = {"message": "Failed to call a function.", "code": "tool_use_failed", "failed_generation": "<function=x"}
    with serve_answers(lambda _: Answer({"error": said}, 400)) as endpoint, pytest.raises(RolloutError) as error:
        send(make_chat_model(endpoint.url))
    assert error.value.is_repeatable


def test_max_concurrency_limits_simultaneous_requests() -> None:
    def answer(_: object) -> Answer:
        answer = make_completion("Hi.")
        answer.delay = 1.0 if len(endpoint.requests) <= 3 else 0.0  # seconds for the first three to meet
        return answer

    async def send_twenty(chat: ChatModel) -> None:
        await asyncio.gather(*(chat.generate(HELLO, seed=i) for i in range(20)))

    with serve_answers(answer) as endpoint:
        asyncio.run(send_twenty(make_chat_model(endpoint.url, max_concurrency=3)))
        assert len(endpoint.requests) == 20
        assert endpoint.most_at_once == 3


def test_chat_model_works_in_several_event_loops() -> None:
    with serve_answers(lambda _: make_completion("Hi.")) as endpoint:
        chat = make_chat_model(endpoint.url, max_concurrency=1)
        for seed in range(3):
            send(chat, seed)
        assert chat.usage.requests == 3


def test_usage_and_cost_are_summed() -> None:
    with serve_answers(
        [
            make_completion("a", tokens=(1000, 50)),
            make_completion("b", tokens=(3, 7)),
            Answer({**_reply_without_usage()}),
        ]
    ) as endpoint:
        chat = make_chat_model(endpoint.url, prompt_price=Decimal("0.15"), completion_price=Decimal("0.60"))
        for seed in range(3):
            send(chat, seed)
        cost = (Decimal("0.15") * 1003 + Decimal("0.60") * 57) / 1_000_000
        assert chat.usage == ModelUsage(requests=3, prompt_tokens=1003, completion_tokens=57, cost=cost)
        assert re.match(r"3\b.*\b0\b.*\b0\b.*\b1,003\b.*\b57\b.*\b0\.0002$", str(chat.usage))


def test_cost_limit_is_checked_before_each_attempt() -> None:
    tracker = CostTracker(Decimal(2))
    prices = {"prompt_price": 10_000, "max_retries": 5, "backoff": 0.01}
    with serve_answers(lambda _: make_completion("", "content_filter")) as endpoint:
        config = EndpointConfig(model="m", base_url=endpoint.url, **prices)
        with pytest.raises(LimitReachedError):
            send(ChatModel(config, "user", tracker.budget_for("users")))
    assert (len(endpoint.requests), tracker.total_cost) == (2, 2)


@pytest.mark.parametrize(
    ("reported", "counted"),
    [
        ({"completion_tokens": 9, "total_tokens": 324}, 292),
        ({"total_tokens": 324}, 292),
        ({"completion_tokens": 9, "total_tokens": 41}, 9),
        ({"completion_tokens": 9, "total_tokens": 0}, 9),
        ({"completion_tokens": 9, "total_tokens": "many"}, 9),
    ],
)
def test_thoughts_outside_completion_tokens_are_counted(reported: dict[str, Any], counted: int) -> None:
    body = {"choices": [{"message": {"content": "Hi."}}], "usage": {"prompt_tokens": 32, **reported}}
    unusable = {**body, "choices": [{"message": {"content": 7}}]}
    with serve_answers([Answer(body), Answer(unusable), Answer(body)]) as endpoint:
        chat = make_chat_model(endpoint.url)
        assert send(chat).completion_tokens == counted
        send(chat)
    assert (chat.usage.requests, chat.usage.completion_tokens) == (3, 3 * counted)


@pytest.mark.parametrize(("price", "cap"), [(1, 1), (1, 0), (0, 1)])
def test_cost_limit_requires_usage_in_replies(price: int, cap: int) -> None:
    tracker = CostTracker(Decimal(cap))
    with serve_answers(lambda _: Answer(_reply_without_usage())) as endpoint:
        chat = ChatModel(
            EndpointConfig(model="m", base_url=endpoint.url, prompt_price=Decimal(price)),
            "user",
            tracker.budget_for("users"),
        )
        if price and cap:
            with pytest.raises(ConfigError, match=r"endpoints\.default\.prompt_price"):
                send(chat)
        else:
            assert send(chat).message.content == "c"
    assert len(endpoint.requests) == tracker.usage_by_role["users"].requests == 1


def test_content_in_parts_is_joined_without_thoughts() -> None:
    parts = [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, {"type": "text", "text": "Hi."}]
    body = {"choices": [{"message": {"role": "assistant", "content": parts}, "finish_reason": "stop"}]}
    with serve_answers([Answer(body)]) as endpoint:
        assert send(make_chat_model(endpoint.url)).message.content == "Hi."


def test_unusable_completion_is_paid() -> None:
    body = {"choices": [{"message": {"content": 7}}], "usage": {"prompt_tokens": 100, "completion_tokens": 10}}
    with serve_answers([Answer(body), make_completion("Hi.", tokens=(1, 2))]) as endpoint:
        chat = make_chat_model(endpoint.url)
        assert send(chat).message.content == "Hi."
    assert (chat.usage.requests, chat.usage.prompt_tokens, chat.usage.completion_tokens) == (2, 101, 12)


def test_error_body_with_status_200_is_reported() -> None:
    failure = pytest.raises(RolloutError, match=r"KeyError.*no credits left")
    with serve_answers(lambda _: Answer({"error": {"message": "no credits left"}})) as endpoint, failure:
        send(make_chat_model(endpoint.url, max_retries=0))


def _reply_without_usage() -> dict[str, Any]:
    return {"choices": [{"message": {"role": "assistant", "content": "c"}}]}


def test_cached_reply_is_equal_and_free(tmp_path: Path) -> None:
    texts = iter("abc")
    with serve_answers(lambda _: make_completion(next(texts))) as endpoint:
        settings = {"cache_dir": str(tmp_path / "cache"), "prompt_price": 1}
        first = [send(make_chat_model(endpoint.url, **settings), seed) for seed in (1, 2)]
        again = make_chat_model(endpoint.url, **settings)
        assert [send(again, seed) for seed in (1, 2)] == first
        assert again.usage == ModelUsage(cache_hits=2)
        assert len(endpoint.requests) == 2


@pytest.mark.parametrize(
    "other",
    [
        {"model": "n"},
        {"temperature": 0.1},
        {"max_tokens": 9},
        {"extra_body": {"top_p": 0.5}},
    ],
    ids=str,
)
def test_changed_settings_miss_the_cache(tmp_path: Path, other: dict[str, Any]) -> None:
    with serve_answers(lambda _: make_completion("Hi.")) as endpoint:
        send(make_chat_model(endpoint.url, cache_dir=str(tmp_path)))
        send(make_chat_model(endpoint.url, cache_dir=str(tmp_path), **other))
        assert len(endpoint.requests) == 2


def test_cache_distinguishes_seeds_that_are_not_sent(tmp_path: Path) -> None:
    with serve_answers(lambda _: make_completion("Hi.")) as endpoint:
        chat = make_chat_model(endpoint.url, cache_dir=str(tmp_path), send_seed=False)
        for seed in (1, 2, 1):
            send(chat, seed)
        assert (len(endpoint.requests), chat.usage.cache_hits) == (2, 1)


def test_other_endpoint_or_conversation_misses_the_cache(tmp_path: Path) -> None:
    with serve_answers(lambda _: make_completion("one")) as one, serve_answers(lambda _: make_completion("two")) as two:
        assert send(make_chat_model(one.url, cache_dir=str(tmp_path))).message.content == "one"
        assert send(make_chat_model(two.url, cache_dir=str(tmp_path))).message.content == "two"
        send(make_chat_model(one.url, cache_dir=str(tmp_path)), tools=[SPEC])
        asyncio.run(make_chat_model(one.url, cache_dir=str(tmp_path)).generate(HELLO[1:]))
        assert len(one.requests) == 3


@pytest.mark.parametrize("damage", ["truncate", "flip", "empty", "binary", "other"])
def test_damaged_cache_entry_is_rewritten(tmp_path: Path, damage: str) -> None:
    with serve_answers(lambda _: make_completion("The answer.")) as endpoint:
        whole = send(make_chat_model(endpoint.url, cache_dir=str(tmp_path)))
        (entry,) = [path for path in tmp_path.rglob("*") if path.is_file()]
        content = entry.read_bytes()
        damaged = {
            "truncate": content[:-5],
            "flip": content.replace(b"The answer", b"The Answer"),
            "empty": b"",
            "binary": b"\xff\xfe\x00",
            "other": b'{"message": {"role": "assistant"}}',
        }
        entry.write_bytes(damaged[damage])
        assert send(make_chat_model(endpoint.url, cache_dir=str(tmp_path))) == whole
        assert len(endpoint.requests) == 2
        assert entry.read_bytes() == content


def test_unwritable_cache_raises_config_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with serve_answers([make_completion("Hi.")]) as endpoint, pytest.raises(ConfigError, match="cache"):
        send(make_chat_model(endpoint.url, cache_dir=str(tmp_path / "file")))


def test_api_key_never_appears_in_output(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    failures = [Answer(f"You sent the key {KEY}!", status) for status in (400, 500, 429, 403)]
    texts: list[object] = []
    for failure in failures:
        with serve_answers([failure] * 3) as endpoint:
            chat = make_chat_model(endpoint.url, api_key_var="MY_KEY", cache_dir=str(tmp_path))
            with pytest.raises((RolloutError, ConfigError), match="status") as caught:
                send(chat)
            assert endpoint.headers[0]["Authorization"] == f"Bearer {KEY}"
            texts += [caught.value, caught.value.__cause__, chat, chat.config, chat.usage]
    with serve_answers([make_completion("Hi.")]) as endpoint:
        chat = make_chat_model(endpoint.url, api_key_var="MY_KEY", cache_dir=str(tmp_path))
        texts += [send(chat), dump_toml(TrainConfig(endpoints={"default": chat.config}))]
    texts += [path.read_text() for path in tmp_path.rglob("*.json")]
    texts += [caplog.text, *capfd.readouterr()]
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 1
    assert not [text for text in texts if KEY in f"{text}{text!r}"]


@pytest.mark.parametrize("value", [KEY, "sk 1", "a-b", "1A", f"{KEY}\n"])
def test_key_given_as_api_key_var_is_rejected_and_hidden(value: str) -> None:
    with pytest.raises(ConfigError, match="api_key_var") as caught:
        parse_config("", [f"endpoints.default.api_key_var={value}"])
    assert value.strip() not in str(caught.value)


@pytest.mark.parametrize("value", ["", "   ", "k\u00e9y", "a\nb"])
def test_missing_or_invalid_key_raises_config_error(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("MY_KEY", value)
    with pytest.raises(ConfigError, match="MY_KEY"):
        make_chat_model("http://localhost/v1", api_key_var="MY_KEY")


@pytest.mark.parametrize(
    "url",
    [
        "localhost:8000",
        "ftp://x/v1",
        f"https://me:{KEY}@host/v1",
        f"https://host/v1?key={KEY}",
        "http://",
        "https://ho st",
        "",
        "http://host:x/v1",
    ],
)
def test_invalid_or_secret_url_is_rejected_and_hidden(url: str) -> None:
    with pytest.raises(ConfigError, match="base_url") as caught:
        EndpointConfig(base_url=url)
    assert KEY not in str(caught.value)


@pytest.mark.parametrize("url", ["http://127.0.0.1:8000/v1", "https://api.host-1.com/v1/", "http://[::1]:80/a/b.c~d"])
def test_valid_base_url_is_accepted(url: str) -> None:
    assert EndpointConfig(base_url=url).base_url == url.rstrip("/")


def test_missing_model_name_raises_config_error() -> None:
    with pytest.raises(ConfigError, match=r"^endpoints\.fast\.model\b.* user\b"):
        ChatModel(EndpointConfig(), "user", name="fast")
    with pytest.raises(ConfigError, match=r"^endpoints\.default\.model\b"):
        ChatModel(EndpointConfig(), "agent")


WORD = st.text("a\u00e9\"'{}=,#\n\\ ", max_size=5)


@settings(max_examples=50, deadline=None)
@given(
    st.builds(
        EndpointConfig,
        prompt_price=st.decimals(0, 1000, allow_nan=False, places=4),
        temperature=st.none() | st.floats(0, 2),
        extra_body=st.dictionaries(WORD, WORD | st.integers(0, 9) | st.booleans()),
    )
)
def test_endpoint_config_round_trips_through_toml(chat: EndpointConfig) -> None:
    config = TrainConfig(endpoints={"fast": chat})
    assert parse_config(dump_toml(config)) == config


def test_overrides_set_endpoint_fields() -> None:
    config = parse_config(
        "", ["user.kind=react", "endpoints.default.model=m", 'endpoints.default.extra_body={effort = "low", n = 1}']
    )
    assert (config.user.kind, config.endpoints["default"].model) == ("react", "m")
    assert config.endpoints["default"].extra_body == {"effort": "low", "n": 1}
    assert json.loads(config.model_dump_json())["endpoints"]["default"]["prompt_price"] == "0"


def test_constructor_sends_no_request() -> None:
    with serve_answers(lambda _: make_completion("Hi.")) as endpoint:
        make_chat_model(endpoint.url)
        assert isinstance(endpoint, Endpoint)
        assert endpoint.requests == []


def test_concurrent_requests_are_spread_over_pools(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request searches its pool's connections, so that one large pool would be slow."""
    used_clients: list[httpx2.AsyncClient] = []

    class RecordingClient(httpx2.AsyncClient):
        def stream(self, *arguments: Any, **named: Any) -> AbstractAsyncContextManager[httpx2.Response]:
            used_clients.append(self)
            return super().stream(*arguments, **named)

    monkeypatch.setattr(httpx2, "AsyncClient", RecordingClient)

    async def send_all(model: ChatModel) -> list[ChatCompletion]:
        asks = (model.generate([Message(role="user", content=str(number))]) for number in range(12))
        return list(await asyncio.gather(*asks))

    with serve_answers(lambda request: make_completion("Yes.")) as endpoint:
        config = EndpointConfig(base_url=endpoint.url, model="m", max_concurrency=2 * POOL_SIZE + 1, backoff=0.05)
        replies = asyncio.run(send_all(ChatModel(config, "user")))
    assert [reply.message.content for reply in replies] == ["Yes."] * 12
    assert len(set(map(id, used_clients))) == 3
    assert all(pool.is_closed for pool in used_clients)
