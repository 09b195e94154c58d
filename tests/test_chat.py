"""ChatModel against an endpoint on loopback that fails in every way."""

import asyncio
import email.utils
import json
import logging
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from endpoint import KEY, Answer, Endpoint, says, serving
from understudy.chat import POOL, ChatConfig, ChatModel, Usage
from understudy.config import TrainConfig
from understudy.errors import ConfigError, RolloutError
from understudy.messages import Message, ToolCall, ToolSpec
from understudy.purse import Purse
from understudy.replies import Reply
from understudy.settings import dump, parse

HELLO = [Message(role="system", content="Be kind."), Message(role="user", content="Hello.")]
SPEC = ToolSpec(name="find", description="Find it.", parameters={"type": "object", "properties": {}})


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", KEY)


def model(url: str, **settings: Any) -> ChatModel:
    quick = {"model": "m", "base_url": url, "backoff": 0.01, "timeout": 5.0, "retries": 2, **settings}
    return ChatModel(ChatConfig(**quick), "user")


def ask(chat: ChatModel, seed: int = 0, **more: Any) -> Reply:
    return asyncio.run(chat.reply(HELLO, seed=seed, **more))


# ---- what goes over the wire


def test_a_request_holds_what_the_config_says_and_no_more() -> None:
    with serving([says("Hi.")]) as endpoint:
        reply = ask(model(endpoint.url), seed=7)
        assert reply == Reply(
            message=Message(role="assistant", content="Hi."), finish="stop", prompt_tokens=100, completion_tokens=10
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


def test_every_parameter_is_sent() -> None:
    with serving([says("Hi.")]) as endpoint:
        settings = {"temperature": 0.5, "max_tokens": 0, "send_seed": False, "parameters": {"effort": "low"}}
        ask(model(endpoint.url, key_variable="MY_KEY", **settings), tools=[SPEC])
        body = endpoint.requests[0]
        assert body.keys() == {"model", "messages", "temperature", "effort", "tools"}
        assert (body["temperature"], body["effort"]) == (0.5, "low")
        assert body["tools"] == [{"type": "function", "function": SPEC.model_dump(exclude={"aliases"})}]
        assert endpoint.headers[0]["Authorization"] == f"Bearer {KEY}"


def test_tool_calls_go_both_ways() -> None:
    wire = [
        {"id": "a", "type": "function", "function": {"name": "find", "arguments": '{"x": 1}'}},
        {"id": "b", "type": "function", "function": {"name": "find", "arguments": "{broken"}},
    ]
    with serving([says(None, "tool_calls", tool_calls=wire), says("Done.")]) as endpoint:  # type: ignore[arg-type]
        chat = model(endpoint.url)
        first = ask(chat, tools=[SPEC]).message
        assert first.tool_calls[0] == ToolCall(name="find", arguments={"x": 1}, id="a")
        assert "not JSON" in first.tool_calls[1].malformed
        answer = Message(role="tool", content="found", tool_call_id="a")
        asyncio.run(chat.reply([*HELLO, first, answer], [SPEC]))
        assert endpoint.requests[1]["messages"][2]["tool_calls"][0] == wire[0]
        assert endpoint.requests[1]["messages"][3] == {"role": "tool", "content": "found", "tool_call_id": "a"}


def test_names_that_an_endpoint_refuses_go_there_and_back() -> None:
    """OpenAI's takes no dots: `notes.add` of an MCP server travels as `notes_add`."""
    spec = SPEC.replace(name="notes.add")
    wire = [{"id": "a", "type": "function", "function": {"name": "notes_add", "arguments": "{}"}}]
    with serving([says(None, "tool_calls", tool_calls=wire), says("Done."), says("Done.")]) as endpoint:  # type: ignore[arg-type]
        chat = model(endpoint.url)
        first = ask(chat, tools=[spec]).message
        assert first.tool_calls[0].name == "notes.add"
        wrong = first.replace(tool_calls=(*first.tool_calls, ToolCall(name="no.such tool", id="b")))
        asyncio.run(chat.reply([*HELLO, wrong], [spec]))
        asyncio.run(model(endpoint.url, portable_names=False).reply([*HELLO, first], [spec]))
        sent = [[call["function"]["name"] for call in r["messages"][2]["tool_calls"]] for r in endpoint.requests[1:]]
        assert sent == [["notes_add", "no_such_tool"], ["notes.add"]]
        assert [r["tools"][0]["function"]["name"] for r in endpoint.requests] == ["notes_add", "notes_add", "notes.add"]


def test_a_refusal_is_a_reply() -> None:
    with serving([says(None, refusal="I will not.")]) as endpoint:  # type: ignore[arg-type]
        reply = ask(model(endpoint.url))
        assert (reply.refusal, reply.message.content) == ("I will not.", "")


# ---- failures that pass

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
    "bad encoding": Answer("plain", headers={"Content-Encoding": "gzip"}),
    "silence": Answer("", delay=0.6),
}


@pytest.mark.parametrize("name", FAILURES)
def test_what_may_pass_is_tried_again(name: str) -> None:
    with serving([FAILURES[name], FAILURES[name], says("Hi.")]) as endpoint:
        chat = model(endpoint.url, timeout=0.3)
        assert ask(chat).message.content == "Hi."
        assert len(endpoint.requests) == 3
        assert chat.usage == Usage(requests=1, prompt_tokens=100, completion_tokens=10)


@pytest.mark.parametrize("name", FAILURES)
def test_what_does_not_pass_is_the_fault_of_who_asked(name: str) -> None:
    with serving([FAILURES[name]] * 3) as endpoint:
        chat = model(endpoint.url, timeout=0.3)
        with pytest.raises(RolloutError, match=r"chat model 'm' at http://127.*attempts: 3") as caught:
            ask(chat)
        assert caught.value.fault == "user"
        assert len(endpoint.requests) == 3
        assert chat.usage == Usage()


@pytest.mark.parametrize(
    "arguments", ['{"a": 1, "a": 2}', f'{{"a": {"9" * 5000}}}', r'{"a": "\ud83d"}', '{"a":' * 2000]
)
def test_arguments_that_cannot_be_read_are_an_answer_that_is_paid_for_once(arguments: str) -> None:
    call = {"id": "x", "function": {"name": "f", "arguments": arguments}}
    with serving([says("", tool_calls=[call])]) as endpoint:
        chat = model(endpoint.url)
        (made,) = ask(chat).message.tool_calls
        assert made.malformed
        assert (len(endpoint.requests), chat.usage.requests) == (1, 1)


def test_nobody_there_any_more() -> None:
    with serving([says("Hi.")]) as endpoint:
        chat = model(endpoint.url)
        ask(chat)
    with pytest.raises(RolloutError, match=r"no connection \(ConnectError\) \(attempts: 3\)"):
        ask(chat)


def test_waits_grow() -> None:
    with serving([Answer("", 500)] * 5) as endpoint:
        with pytest.raises(RolloutError):
            ask(model(endpoint.url, backoff=0.05, retries=4))
        waits = [b - a for a, b in zip(endpoint.times, endpoint.times[1:], strict=False)]
        assert all(wait > 0.5 * 0.05 * 2**i for i, wait in enumerate(waits))
        assert waits[3] > waits[0]


@pytest.mark.parametrize("form", ["seconds", "date"])
def test_retry_after_is_honoured(form: str) -> None:
    date = email.utils.formatdate(time.time() + 2, usegmt=True)  # whole seconds: one to two from now
    with serving([Answer("", 429, {"Retry-After": "1" if form == "seconds" else date}), says("Hi.")]) as endpoint:
        ask(model(endpoint.url))
        assert 0.9 < endpoint.times[1] - endpoint.times[0] < 4.0


def test_an_endpoint_that_wants_hours_has_failed() -> None:
    with serving([Answer("quota", 429, {"Retry-After": "7200"})]) as endpoint:
        with pytest.raises(RolloutError, match=r"status 429: quota \(attempts: 1\)"):
            ask(model(endpoint.url))
        assert len(endpoint.requests) == 1


# ---- failures that do not


@pytest.mark.parametrize("status", [400, 402, 403, 413, 422, 301])
def test_what_does_not_pass_is_not_tried_again(status: int) -> None:
    with serving([says("Hi."), Answer({"error": {"message": "too long"}}, status)]) as endpoint:
        chat = model(endpoint.url)
        ask(chat)
        with pytest.raises(RolloutError, match=rf"status {status}: .*too long"):
            ask(chat)
        assert len(endpoint.requests) == 2


@pytest.mark.parametrize(("status", "said"), [(401, "does not accept the key"), (404, "no such path or model")])
def test_what_every_episode_would_fail_at_ends_the_run(status: int, said: str) -> None:
    with serving([Answer(f"bad key {KEY}", status)]) as endpoint, pytest.raises(ConfigError, match=said):
        ask(model(endpoint.url, key_variable="MY_KEY"))


# ---- limit, totals, cache


def test_the_limit_on_requests_at_once_holds() -> None:
    def answer(_: object) -> Answer:
        answer = says("Hi.")
        answer.delay = 0.05
        return answer

    async def many(chat: ChatModel) -> None:
        await asyncio.gather(*(chat.reply(HELLO, seed=i) for i in range(20)))

    with serving(answer) as endpoint:
        asyncio.run(many(model(endpoint.url, concurrency=3)))
        assert len(endpoint.requests) == 20
        assert endpoint.most_at_once == 3


def test_one_model_in_several_event_loops() -> None:
    with serving(lambda _: says("Hi.")) as endpoint:
        chat = model(endpoint.url, concurrency=1)
        for seed in range(3):
            ask(chat, seed)
        assert chat.usage.requests == 3


def test_totals_and_cost() -> None:
    with serving([says("a", tokens=(1000, 50)), says("b", tokens=(3, 7)), Answer({**_without_usage()})]) as endpoint:
        chat = model(endpoint.url, prompt_price=Decimal("0.15"), completion_price=Decimal("0.60"))
        for seed in range(3):
            ask(chat, seed)
        cost = (Decimal("0.15") * 1003 + Decimal("0.60") * 57) / 1_000_000
        assert chat.usage == Usage(requests=3, prompt_tokens=1003, completion_tokens=57, cost=cost)
        assert str(chat.usage) == (
            "3 requests, 0 from the cache, 0 replies of no use, 1,003 prompt and 57 completion tokens, cost 0.0002"
        )


@pytest.mark.parametrize(("price", "cap"), [(1, 1), (1, 0), (0, 1)])
def test_a_cap_is_refused_where_nobody_says_what_a_reply_used(price: int, cap: int) -> None:
    purse = Purse(Decimal(cap))
    with serving(lambda _: Answer(_without_usage())) as endpoint:
        chat = ChatModel(
            ChatConfig(model="m", base_url=endpoint.url, prompt_price=Decimal(price)), "user", purse.of("users")
        )
        if price and cap:
            with pytest.raises(ConfigError, match=r"how many tokens it used, .* \(user\.chat\.prompt_price"):
                ask(chat)
        else:
            assert ask(chat).message.content == "c"
    assert len(endpoint.requests) == purse.spent["users"].requests == 1


def test_an_error_that_is_sent_as_a_success_is_told() -> None:
    failure = pytest.raises(RolloutError, match=r"no completion \(KeyError\): .*no credits left")
    with serving(lambda _: Answer({"error": {"message": "no credits left"}})) as endpoint, failure:
        ask(model(endpoint.url, retries=0))


def _without_usage() -> dict[str, Any]:
    return {"choices": [{"message": {"role": "assistant", "content": "c"}}]}


def test_the_same_again_is_free_and_the_same(tmp_path: Path) -> None:
    texts = iter("abc")
    with serving(lambda _: says(next(texts))) as endpoint:
        settings = {"cache": str(tmp_path / "cache"), "prompt_price": 1}
        first = [ask(model(endpoint.url, **settings), seed) for seed in (1, 2)]
        again = model(endpoint.url, **settings)
        assert [ask(again, seed) for seed in (1, 2)] == first
        assert again.usage == Usage(cached=2)
        assert len(endpoint.requests) == 2


@pytest.mark.parametrize(
    "other",
    [
        {"model": "n"},
        {"temperature": 0.1},
        {"max_tokens": 9},
        {"parameters": {"top_p": 0.5}},
    ],
    ids=str,
)
def test_another_request_is_not_the_same(tmp_path: Path, other: dict[str, Any]) -> None:
    with serving(lambda _: says("Hi.")) as endpoint:
        ask(model(endpoint.url, cache=str(tmp_path)))
        ask(model(endpoint.url, cache=str(tmp_path), **other))
        assert len(endpoint.requests) == 2


def test_trials_differ_though_no_seed_is_sent(tmp_path: Path) -> None:
    with serving(lambda _: says("Hi.")) as endpoint:
        chat = model(endpoint.url, cache=str(tmp_path), send_seed=False)
        for seed in (1, 2, 1):
            ask(chat, seed)
        assert (len(endpoint.requests), chat.usage.cached) == (2, 1)


def test_another_endpoint_or_conversation_is_not_the_same(tmp_path: Path) -> None:
    with serving(lambda _: says("one")) as one, serving(lambda _: says("two")) as two:
        assert ask(model(one.url, cache=str(tmp_path))).message.content == "one"
        assert ask(model(two.url, cache=str(tmp_path))).message.content == "two"
        ask(model(one.url, cache=str(tmp_path)), tools=[SPEC])
        asyncio.run(model(one.url, cache=str(tmp_path)).reply(HELLO[1:]))
        assert len(one.requests) == 3


@pytest.mark.parametrize("damage", ["truncate", "flip", "empty", "binary", "other"])
def test_damaged_entries_are_written_anew(tmp_path: Path, damage: str) -> None:
    with serving(lambda _: says("The answer.")) as endpoint:
        whole = ask(model(endpoint.url, cache=str(tmp_path)))
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
        assert ask(model(endpoint.url, cache=str(tmp_path))) == whole
        assert len(endpoint.requests) == 2
        assert entry.read_bytes() == content


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with serving([says("Hi.")]) as endpoint, pytest.raises(ConfigError, match="cannot write to the cache"):
        ask(model(endpoint.url, cache=str(tmp_path / "file")))


# ---- the key


def test_the_key_is_seen_nowhere(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    failures = [Answer(f"You sent the key {KEY}!", status) for status in (400, 500, 429, 403)]
    texts: list[object] = []
    for failure in failures:
        with serving([failure] * 3) as endpoint:
            chat = model(endpoint.url, key_variable="MY_KEY", cache=str(tmp_path))
            with pytest.raises((RolloutError, ConfigError), match="status") as caught:
                ask(chat)
            assert endpoint.headers[0]["Authorization"] == f"Bearer {KEY}"
            texts += [caught.value, caught.value.__cause__, chat, chat.config, chat.usage]
    with serving([says("Hi.")]) as endpoint:
        chat = model(endpoint.url, key_variable="MY_KEY", cache=str(tmp_path))
        texts += [ask(chat), dump(TrainConfig(chat=chat.config))]
    texts += [path.read_text() for path in tmp_path.rglob("*.json")]
    texts += [caplog.text, *capfd.readouterr()]
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 1
    assert not [text for text in texts if KEY in f"{text}{text!r}"]


@pytest.mark.parametrize("value", [KEY, "sk 1", "a-b", "1A", f"{KEY}\n"])
def test_a_key_in_the_place_of_its_name_is_refused_unseen(value: str) -> None:
    with pytest.raises(ConfigError, match="has to name an environment variable") as caught:
        parse(TrainConfig, "", [f"user.chat.key_variable={value}"])
    assert value.strip() not in str(caught.value)


@pytest.mark.parametrize("value", ["", "   ", "k\u00e9y", "a\nb"])
def test_no_key_where_one_is_named(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("MY_KEY", value)
    with pytest.raises(ConfigError, match=r"MY_KEY.*(not set|holds no key)"):
        model("http://localhost/v1", key_variable="MY_KEY")


# ---- the config


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
def test_a_url_that_is_none_or_holds_a_secret_is_refused_unseen(url: str) -> None:
    with pytest.raises(ConfigError, match="base_url has to be like") as caught:
        ChatConfig(base_url=url)
    assert KEY not in str(caught.value)


@pytest.mark.parametrize("url", ["http://127.0.0.1:8000/v1", "https://api.host-1.com/v1/", "http://[::1]:80/a/b.c~d"])
def test_urls(url: str) -> None:
    assert ChatConfig(base_url=url).base_url == url.rstrip("/")


def test_a_model_has_a_name() -> None:
    with pytest.raises(ConfigError, match=r"user\.chat\.model is empty"):
        ChatModel(ChatConfig(), "user")
    with pytest.raises(ConfigError, match=r"^chat\.model is empty"):
        ChatModel(ChatConfig(), "agent")


WORD = st.text("a\u00e9\"'{}=,#\n\\ ", max_size=5)


@settings(max_examples=50, deadline=None)
@given(
    st.builds(
        ChatConfig,
        prompt_price=st.decimals(0, 1000, allow_nan=False, places=4),
        temperature=st.none() | st.floats(0, 2),
        parameters=st.dictionaries(WORD, WORD | st.integers(0, 9) | st.booleans()),
    )
)
def test_configs_are_written_and_read_back(chat: ChatConfig) -> None:
    config = TrainConfig(chat=chat)
    assert parse(TrainConfig, dump(config)) == config


def test_overrides_reach_the_endpoint() -> None:
    config = parse(TrainConfig, "", ["user.kind=react", "user.chat.model=m", 'chat.parameters={effort = "low", n = 1}'])
    assert (config.user.kind, config.user.chat.model) == ("react", "m")
    assert config.chat.parameters == {"effort": "low", "n": 1}
    assert json.loads(config.model_dump_json())["user"]["chat"]["prompt_price"] == "0"


def test_a_request_is_not_made_before_it_is_asked_for() -> None:
    with serving(lambda _: says("Hi.")) as endpoint:
        model(endpoint.url)
        assert isinstance(endpoint, Endpoint)
        assert endpoint.requests == []


def test_many_requests_at_once_share_several_pools(monkeypatch: pytest.MonkeyPatch) -> None:
    """One pool of so many connections would be looked through at each request."""
    made: list[httpx2.AsyncClient] = []

    class Pool(httpx2.AsyncClient):
        async def post(self, *arguments: Any, **named: Any) -> httpx2.Response:
            made.append(self)
            return await super().post(*arguments, **named)

    monkeypatch.setattr(httpx2, "AsyncClient", Pool)

    async def all_of_them(model: ChatModel) -> list[Reply]:
        asks = (model.reply([Message(role="user", content=str(number))]) for number in range(12))
        return list(await asyncio.gather(*asks))

    with serving(lambda request: says("Yes.")) as endpoint:
        config = ChatConfig(base_url=endpoint.url, model="m", concurrency=2 * POOL + 1, backoff=0.05)
        replies = asyncio.run(all_of_them(ChatModel(config, "user")))
    assert [reply.message.content for reply in replies] == ["Yes."] * 12
    assert len(set(map(id, made))) == 3
    assert all(pool.is_closed for pool in made)
