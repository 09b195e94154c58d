"""Test the server over a socket with OpenAI's client: replies, streams, tool calls, and the conversation cache."""

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from support.serving import (
    HELLO,
    TOOLS,
    http_client,
    join_chunks,
    load_tiny_served_model,
    make_scripted_model,
    make_short_context_model,
    openai_client,
    request_completion,
    serve_on_loopback,
    stream_chunks,
)
from understudy.core.errors import RolloutError
from understudy.core.messages import Message, ToolCall, ToolSpec
from understudy.engines.interface import SamplingParams
from understudy.formats.parsing.parse import render_reply
from understudy.serve.conversation_cache import ConversationCache
from understudy.serve.generation import ServedModel


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_short_context_model(tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="module")
def model(folder: Path) -> ServedModel:
    return load_tiny_served_model(folder, concurrency=4)


@pytest.fixture(scope="module")
def url(model: ServedModel) -> Iterator[str]:
    with serve_on_loopback(model, concurrency=4, max_body_bytes=60_000) as url:
        yield url


def make_messages(*texts: str) -> list[Message]:
    return [Message(role=("user", "assistant")[i % 2], content=text) for i, text in enumerate(texts)]  # type: ignore[arg-type]


def test_models_and_health_endpoints(url: str) -> None:
    with openai_client(url) as api:
        assert [entry.id for entry in api.models.list()] == ["tiny"]
        assert api.models.retrieve("tiny").owned_by == "understudy"
        with pytest.raises(openai.NotFoundError, match="'other'"):
            api.models.retrieve("other")
    assert http_client().get(url.removesuffix("/v1") + "/health").json() == {"status": "ok"}


def test_unsupported_sampling_is_a_bad_request(folder: Path) -> None:
    model, script = make_scripted_model(folder, lambda _: "Hi.")
    with serve_on_loopback(model) as url:
        for stream in (False, True):
            with pytest.raises(openai.BadRequestError, match=r"sampling\.temperature = 0\.5: .*\b1 and 0\b"):
                request_completion(url, temperature=0.5, stream=stream)
        assert not script.prompts
        assert request_completion(url, temperature=1).choices[0].message.content == "Hi."


def test_reply_equals_the_engines_sample(url: str, model: ServedModel) -> None:
    found = request_completion(url, temperature=0.7, logprobs=True, max_completion_tokens=16)
    prompt = model.format.encode(make_messages(HELLO[0]["content"]), (), ())
    sampling = SamplingParams(max_response_tokens=16, temperature=0.7)
    sampled = asyncio.run(model.sampler.sample(prompt, sampling, 7, model.format.stop_token_ids))
    choice = found.choices[0]
    assert [token.logprob for token in choice.logprobs.content] == pytest.approx(sampled.logprobs, abs=1e-4)
    assert choice.message.content == model.format.parse(sampled.tokens).message.content
    assert (choice.finish_reason, choice.message.role) == ("length", "assistant")
    usage = found.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (len(prompt), 16, len(prompt) + 16)


def test_seed_determines_the_reply(url: str) -> None:
    def reply_text(**more: Any) -> str:
        return str(request_completion(url, **more).choices[0].message.content)

    assert reply_text(seed=1) == reply_text(seed=1) != reply_text(seed=2)
    assert reply_text(seed=1, temperature=0) == reply_text(seed=2, temperature=0)
    assert reply_text(seed=None) != reply_text(seed=None)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("tools", [(), TOOLS])
def test_streamed_chunks_concatenate_to_the_reply(url: str, seed: int, tools: Any) -> None:
    how = {"seed": seed, "max_tokens": 40, "logprobs": True, **({"tools": tools} if tools else {})}
    whole, chunks = request_completion(url, **how), stream_chunks(url, **how)
    text, calls, finish, logprobs = join_chunks(chunks)
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


def test_negative_and_maximal_seeds_are_valid(url: str) -> None:
    for seed in (-1, 2**63 - 1):
        said = [choice.message.content for choice in request_completion(url, n=3, max_tokens=9, seed=seed).choices]
        assert len(set(said)) == 3
        assert said[1:] == [
            request_completion(url, max_tokens=9, seed=other).choices[0].message.content for other in (0, 1)
        ]


def test_message_names_are_ignored(url: str) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    plain = [
        {"role": "system", "content": "Be kind."},
        *HELLO,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "done"},
    ]
    named = [{**message, "name": "f"} for message in plain]
    asked = [request_completion(url, messages=messages, tools=TOOLS, max_tokens=9) for messages in (plain, named)]
    assert asked[0].usage == asked[1].usage
    assert asked[0].choices[0].message.content == asked[1].choices[0].message.content


def test_n_returns_different_replies(url: str) -> None:
    whole, chunks = request_completion(url, n=3, max_tokens=9), stream_chunks(url, n=3, max_tokens=9)
    said = [choice.message.content for choice in whole.choices]
    assert [choice.index for choice in whole.choices] == [0, 1, 2]
    assert len(set(said)) == 3
    assert [join_chunks(chunks, i)[0] for i in range(3)] == said
    assert said[1] == request_completion(url, seed=8, max_tokens=9).choices[0].message.content
    assert whole.usage.completion_tokens == chunks[-1].usage.completion_tokens == 27


def test_stream_sends_text_while_sampling(folder: Path) -> None:
    model, script = make_scripted_model(folder, lambda _: "One two three.")
    script.last_token_may_follow = read = threading.Event()
    texts = []
    with serve_on_loopback(model) as url, openai_client(url) as api:
        for chunk in api.chat.completions.create(model="tiny", messages=HELLO, stream=True):  # type: ignore[call-overload]
            if chunk.choices[0].delta.content:
                texts.append(chunk.choices[0].delta.content)
                read.set()
    assert len(texts) > 5
    assert script.was_read_before_the_last_token


def test_stream_works_with_a_sampler_that_does_not_stream(folder: Path) -> None:
    model, _ = make_scripted_model(folder, lambda _: "One two three.", streams=False)
    with serve_on_loopback(model) as url:
        text, _, finish, logprobs = join_chunks(stream_chunks(url, logprobs=True))
        whole = request_completion(url, max_tokens=7)
    assert (text, finish, len(logprobs)) == ("One two three.", "stop", 15)
    assert (whole.choices[0].message.content, whole.choices[0].finish_reason) == ("One two", "length")
    assert whole.usage.completion_tokens == 7


def test_failing_sampler_gives_status_503(folder: Path) -> None:
    def fail(_: str) -> str:
        raise RolloutError("no reply in 3 attempts", "engine")

    model, _ = make_scripted_model(folder, fail)
    with serve_on_loopback(model, concurrency=1) as url:
        for _ in range(2):
            with pytest.raises(openai.InternalServerError, match=r"\b3\b") as failed:
                request_completion(url)
            assert failed.value.status_code == 503
        with pytest.raises(openai.APIError, match=r"\b3\b"):
            stream_chunks(url)


CALLS = (ToolCall(name="f", arguments={"a": '€ "x"'}), ToolCall(name="g", arguments={}))


@pytest.mark.parametrize("stream", [False, True])
def test_parallel_calls_and_results_round_trip(folder: Path, stream: bool) -> None:
    def reply(prompt: str) -> str:
        return "Done: both." if "<tool_response>" in prompt else render_reply("Let me see.", CALLS, "hermes")

    model, script = make_scripted_model(folder, reply)
    with serve_on_loopback(model) as url:
        how: dict[str, Any] = {"tools": TOOLS, "max_tokens": None}
        if stream:
            text, calls, finish, _ = join_chunks(stream_chunks(url, **how))
            said: dict[str, Any] = {"role": "assistant", "content": text, "tool_calls": [c.model_dump() for c in calls]}
        else:
            choice = request_completion(url, **how).choices[0]
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
        last = request_completion(url, messages=[*HELLO, said, *results], tools=TOOLS, max_tokens=None)
        assert last.choices[0].message.content == "Done: both."
    first, second = script.prompts
    assert second[: len(first)] == first
    shown = model.vocabulary.decode(second)
    places = [shown.index(f"result of {call.id}") for call in calls]
    assert places == sorted(places)


def test_parallel_tool_calls_false_and_tool_choice_none(folder: Path) -> None:
    model, _ = make_scripted_model(folder, lambda _: render_reply("", CALLS, "hermes"))
    with serve_on_loopback(model) as url:
        one = request_completion(url, tools=TOOLS, max_tokens=None, parallel_tool_calls=False).choices[0]
        assert [call.function.name for call in one.message.tool_calls] == ["f"]
        for how in ({}, {"tools": TOOLS, "tool_choice": "none"}):
            none = request_completion(url, max_tokens=None, **how).choices[0]
            assert (none.message.tool_calls, none.finish_reason) == (None, "stop")
            assert none.message.content == render_reply("", CALLS, "hermes")


def test_malformed_call_is_marked_and_can_be_sent_back(folder: Path) -> None:
    model, script = make_scripted_model(
        folder, lambda _: '<tool_call>{"name": "f", "arguments": {"a": oops}}</tool_call>'
    )
    with serve_on_loopback(model) as url:
        message = request_completion(url, tools=TOOLS, max_tokens=None).choices[0].message
        (call,) = message.tool_calls
        assert call.function.name == "f"
        assert call.malformed == call.function.arguments
        with pytest.raises(json.JSONDecodeError):
            json.loads(call.function.arguments)
        result = {"role": "tool", "tool_call_id": call.id, "content": "error: not JSON"}
        request_completion(url, messages=[*HELLO, message, result], tools=TOOLS, max_tokens=None)
        assert script.prompts[1][: len(script.prompts[0])] == script.prompts[0]
        assert "oops" in model.vocabulary.decode(script.prompts[1])
        request_completion(url, messages=[HELLO[0], HELLO[0], message, result], tools=TOOLS, max_tokens=None)
        assert '{"name": "f", "arguments": {}}' in model.vocabulary.decode(script.prompts[2])


def test_next_turn_reuses_the_sampled_tokens(url: str, model: ServedModel) -> None:
    """The random model samples invalid UTF-8, so that encoding its text again would give other tokens."""
    first = request_completion(url, max_tokens=30, seed=3)
    message = first.choices[0].message
    again = [*HELLO, message, {"role": "user", "content": "And then?"}]
    second = request_completion(url, messages=again)
    before = first.usage.total_tokens
    following = len(model.format.encode(make_messages("And then?"), (), [0] * before))
    assert second.usage.prompt_tokens == before + following
    changed = [*HELLO, {"role": "assistant", "content": message.content + "."}, again[-1]]
    prompt = make_messages(*(m["content"] for m in changed))
    assert request_completion(url, messages=changed).usage.prompt_tokens == len(model.format.encode(prompt, (), ()))


def test_next_turn_computes_only_new_tokens(url: str, model: ServedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    first = request_completion(url, max_tokens=30, seed=11)
    network, computed = model.sampler._model, list[int]()  # type: ignore[attr-defined]
    hidden_states = network.hidden_states
    monkeypatch.setattr(
        network, "hidden_states", lambda tokens, *rest: computed.append(tokens.shape[1]) or hidden_states(tokens, *rest)
    )
    again = [*HELLO, first.choices[0].message, {"role": "user", "content": "And then?"}]
    second = request_completion(url, messages=again, max_tokens=1)
    assert second.usage.prompt_tokens > first.usage.total_tokens
    assert computed == [
        second.usage.prompt_tokens - (first.usage.total_tokens - 1)
    ]  # the last token is not in the cache yet


def test_conversation_cache_key_includes_messages_tools_and_ids() -> None:
    cache, tool = ConversationCache(), ToolSpec(name="f", description="", parameters={})
    cache.add(make_messages("a", "b"), (), [1, 2])
    cache.add(make_messages("a", "b", "c", "d"), (), [1, 2, 3, 4])
    assert cache.find_prefix(make_messages("a", "b", "c", "d", "e"), ()) == ([1, 2, 3, 4], 4)
    assert cache.find_prefix(make_messages("a", "b", "c", "other", "e"), ()) == ([1, 2], 2)
    assert (
        cache.find_prefix(make_messages("a", "b", "c"), (tool,))
        == cache.find_prefix(make_messages("other", "b", "c"), ())
        == ([], 0)
    )
    called = Message(role="assistant", tool_calls=(ToolCall(name="f", id="x"),))
    cache.add([*make_messages("a"), called], (tool,), [5])
    assert cache.find_prefix([*make_messages("a"), called], (tool,)) == ([5], 2)
    assert cache.find_prefix(
        [*make_messages("a"), called.replace(tool_calls=(ToolCall(name="f", id="y"),))], (tool,)
    ) == (
        [],
        0,
    )


def test_conversation_cache_evicts_the_least_recently_used() -> None:
    cache = ConversationCache(max_tokens=6)
    for name, tokens in (("a", [1, 2]), ("b", [3, 4]), ("a", [1, 9]), ("c", [5, 6])):
        cache.add(make_messages(name, "reply"), (), tokens)
    assert cache.find_prefix(make_messages("b", "reply"), ()) == ([3, 4], 2)
    cache.add(make_messages("d", "reply"), (), [7, 8])
    assert [cache.find_prefix(make_messages(name, "reply"), ())[0] for name in "abcd"] == [[], [3, 4], [5, 6], [7, 8]]
    cache.add(make_messages("e", "reply"), (), [0] * 7)
    assert [cache.find_prefix(make_messages(name, "reply"), ())[0] for name in "bcde"] == [[], [], [], []]


@pytest.mark.parametrize("tells", [True, False])
def test_stop_strings_end_sampling(folder: Path, tells: bool) -> None:
    model, script = make_scripted_model(folder, lambda _: "One, two, three, four.", 0.001, tells)
    with serve_on_loopback(model) as url:
        whole = request_completion(url, stop=[" three", "four"], max_tokens=None)
        text, _, finish, _ = join_chunks(stream_chunks(url, stop=" three", max_tokens=None))
        assert (whole.choices[0].message.content, whole.choices[0].finish_reason) == ("One, two,", "stop")
        assert (text, finish) == ("One, two,", "stop")
        assert whole.usage.completion_tokens == len("One, two, three")
    assert script.cancelled == (2 if tells else 0)


def test_top_k_and_top_p_apply_and_logprobs_are_unfiltered(url: str) -> None:
    greedy = request_completion(url, temperature=0, max_tokens=12, logprobs=True).choices[0]
    narrow = request_completion(url, max_tokens=12, logprobs=True, seed=5, extra_body={"top_k": 1}).choices[0]
    assert narrow.message.content == greedy.message.content
    assert [t.logprob for t in narrow.logprobs.content] == pytest.approx([t.logprob for t in greedy.logprobs.content])
    nucleus = [
        request_completion(url, max_tokens=12, seed=5, top_p=p).choices[0].message.content for p in (1e-6, 0.3, 1.0)
    ]
    assert nucleus[0] == greedy.message.content
    assert len(set(nucleus)) == 3
