"""The server, driven over a real socket by OpenAI's own client: replies, streams, calls, and what is remembered."""

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from serving import HELLO, TOOLS, ask, client, http, joined, scripted, served, serving, small, streamed
from understudy.engines.base import Sampling
from understudy.errors import RolloutError
from understudy.formats.parse import render
from understudy.messages import Message, ToolCall, ToolSpec
from understudy.serve.choice import Model
from understudy.serve.memory import Memory

pytest.importorskip("torch")


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


def test_what_the_sampler_cannot_do_is_the_requests_mistake(folder: Path) -> None:
    model, script = scripted(folder, lambda _: "Hi.")
    with serving(model) as url:
        for stream in (False, True):
            with pytest.raises(
                openai.BadRequestError, match=r"sampled so: sampling\.temperature = 0\.5: allowed: 1 and 0"
            ):
                ask(url, temperature=0.5, stream=stream)
        assert not script.prompts
        assert ask(url, temperature=1).choices[0].message.content == "Hi."


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


def test_seeds_below_nothing_and_at_the_end_are_seeds(url: str) -> None:
    for seed in (-1, 2**63 - 1):
        said = [choice.message.content for choice in ask(url, n=3, max_tokens=9, seed=seed).choices]
        assert len(set(said)) == 3
        assert said[1:] == [ask(url, max_tokens=9, seed=other).choices[0].message.content for other in (0, 1)]


def test_a_name_in_a_message_changes_nothing(url: str) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    plain = [
        {"role": "system", "content": "Be kind."},
        *HELLO,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "done"},
    ]
    named = [{**message, "name": "f"} for message in plain]
    asked = [ask(url, messages=messages, tools=TOOLS, max_tokens=9) for messages in (plain, named)]
    assert asked[0].usage == asked[1].usage
    assert asked[0].choices[0].message.content == asked[1].choices[0].message.content


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


def test_filters_are_applied_and_log_probabilities_are_of_the_whole_softmax(url: str) -> None:
    greedy = ask(url, temperature=0, max_tokens=12, logprobs=True).choices[0]
    narrow = ask(url, max_tokens=12, logprobs=True, seed=5, extra_body={"top_k": 1}).choices[0]
    assert narrow.message.content == greedy.message.content
    assert [t.logprob for t in narrow.logprobs.content] == pytest.approx([t.logprob for t in greedy.logprobs.content])
    nucleus = [ask(url, max_tokens=12, seed=5, top_p=p).choices[0].message.content for p in (1e-6, 0.3, 1.0)]
    assert nucleus[0] == greedy.message.content
    assert len(set(nucleus)) == 3
