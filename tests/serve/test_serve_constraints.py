"""Test forced calls and JSON replies: with a random model, whose free replies are noise."""

import asyncio
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from support.chat_templates import CODER
from support.serving import (
    HELLO,
    load_tiny_served_model,
    make_short_context_model,
    request_completion,
    serve_on_loopback,
    stream_chunks,
)
from understudy.algorithms.batch import collate
from understudy.core.errors import RolloutError
from understudy.core.messages import Message, ToolSpec
from understudy.core.tasks import Score
from understudy.core.trajectory import Trajectory
from understudy.engines.interface import SamplingParams
from understudy.serve.constraints import build_constraint
from understudy.serve.generation import ServedModel
from understudy.serve.requests import parse_request

ARGUMENTS = {
    "type": "object",
    "properties": {"n": {"enum": [1, 2]}, "word": {"enum": ["é", "two"]}},
    "required": ["n", "word"],
    "additionalProperties": False,
}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": ARGUMENTS}} for name in ("f", "g")]
SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": ARGUMENTS}}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedModel]:
    served = load_tiny_served_model(make_short_context_model(tmp_path_factory.mktemp("model")))
    yield served
    served.sampler.close()


@pytest.fixture(scope="module")
def url(model: ServedModel) -> Iterator[str]:
    with serve_on_loopback(model) as address:
        yield address


def is_valid(arguments: Any) -> bool:
    return arguments.keys() == {"n", "word"} and arguments["n"] in (1, 2) and arguments["word"] in ("é", "two")


@pytest.mark.parametrize(("choice", "names"), [("required", {"f", "g"}), ({"name": "g"}, {"g"})])
@pytest.mark.parametrize("temperature", [0, 1])
def test_forced_call_is_valid(url: str, choice: Any, names: set[str], temperature: float) -> None:
    tool_choice = choice if isinstance(choice, str) else {"type": "function", "function": choice}
    how = {"tools": TOOLS, "tool_choice": tool_choice, "temperature": temperature, "n": 2, "seed": 3}
    for choice_made in request_completion(url, max_tokens=200, **how).choices:
        (call,) = choice_made.message.tool_calls
        assert call.function.name in names
        assert is_valid(json.loads(call.function.arguments))
        assert (choice_made.finish_reason, choice_made.message.content) == ("tool_calls", None)


def test_reply_matches_the_schema_also_if_streamed(url: str) -> None:
    for how in ({}, {"top_p": 0.9}, {"tools": TOOLS, "tool_choice": "none"}):
        reply = request_completion(url, max_tokens=200, response_format=SCHEMA, **how).choices[0]
        assert is_valid(json.loads(reply.message.content))
        assert reply.finish_reason == "stop"
    chunks = stream_chunks(url, max_tokens=200, response_format=SCHEMA)
    deltas = [choice.delta.content or "" for chunk in chunks for choice in chunk.choices]
    assert is_valid(json.loads("".join(deltas)))


def test_with_tools_the_reply_is_json_or_a_call(url: str) -> None:
    how = {"tools": TOOLS, "response_format": SCHEMA, "temperature": 2, "n": 16, "seed": 1}
    choices = request_completion(url, max_tokens=200, **how).choices
    assert {choice.finish_reason for choice in choices} == {"stop", "tool_calls"}
    for choice in choices:
        calls = choice.message.tool_calls or []
        assert is_valid(json.loads(calls[0].function.arguments if calls else choice.message.content))


@pytest.mark.parametrize("tools", [{}, {"tools": TOOLS}])
@pytest.mark.parametrize(
    "answer",
    [
        {"text": "use <think> tags </think> here"},
        {"text": "Action: search\nUser: <tool_call> is a tag"},
        {"name": "Lamp", "arguments": {"watts": 40}},
        {"tool_name": "search", "tool_input": "blue lamp"},
    ],
)
def test_nothing_is_parsed_in_json(url: str, tools: dict[str, Any], answer: dict[str, Any]) -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"const": answer}}}
    how = {"max_tokens": 300, "seed": 1, "n": 8, "temperature": 2, "response_format": schema, **tools}
    replies = [choice.message for choice in request_completion(url, **how).choices]
    texts = [reply.content for reply in replies if not reply.tool_calls]
    assert texts
    streamed = defaultdict[int, str](str)
    for choice in (choice for chunk in stream_chunks(url, **how) for choice in chunk.choices):
        streamed[choice.index] += choice.delta.content or ""
    assert sorted(filter(None, streamed.values())) == sorted(texts)
    assert [json.loads(text) for text in texts] == [answer] * len(texts)


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "h"}}}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": "required", "response_format": SCHEMA}, "response_format"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"$ref": "#/nowhere"}}}},
            "response_format",
        ),
    ],
)
def test_constraint_that_cannot_be_met_is_refused(url: str, more: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        request_completion(url, extra_body=more)
    assert refused.value.param == param
    assert "\n" not in refused.value.message


def test_format_without_json_arguments_is_refused(tmp_path: Path) -> None:
    folder = make_short_context_model(tmp_path)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": CODER}))
    with serve_on_loopback(load_tiny_served_model(folder)) as address:
        with pytest.raises(openai.BadRequestError) as refused:
            request_completion(address, tools=TOOLS, tool_choice="required")
        assert refused.value.param == "tool_choice"
        reply = request_completion(address, max_tokens=200, response_format=SCHEMA).choices[0]
        assert is_valid(json.loads(reply.message.content))


@pytest.mark.parametrize("keep", [False, True])
def test_constrained_tokens_are_exact_and_leave_other_replies_alone(model: ServedModel, keep: bool) -> None:
    """Log-probabilities are the trainer's, and a free reply in the same batch is the one that it is alone."""
    body = {"model": "tiny", "messages": HELLO, "tools": TOOLS, "tool_choice": "required"}
    request = parse_request(body)
    engine: Any = model.sampler
    tools = [ToolSpec(name=t.name, description="", parameters=t.parameters) for t in request.callable_tools]
    prompt = model.format.encode([Message(role="user", content="Hello")], tools, ())
    sampling = SamplingParams(max_response_tokens=200, keep_sampling_mask=keep)
    stops = model.format.stop_token_ids

    async def sample() -> tuple[Any, Any, Any]:
        alone = await engine.sample(prompt, sampling, 5, stops)
        constraint = build_constraint(model.format, model.vocabulary, model.tokenizer_file, engine, request)
        forced = engine.sample_constrained(prompt, sampling, 7, constraint, stops)
        return alone, *await asyncio.gather(engine.sample(prompt, sampling, 5, stops), forced)

    alone, together, forced = asyncio.run(sample())
    assert alone.tokens == together.tokens
    assert forced.finish_reason == "stop"
    parsed = model.format.parse(forced.tokens, tools)
    assert model.format.encode_reply(parsed.message)[-1] == forced.tokens[-1]
    assert len(parsed.message.tool_calls) == 1
    episode = Trajectory(task_id="t", score=Score(reward=1.0))
    episode.tokens += [*prompt, *forced.tokens]
    episode.mask += [False] * len(prompt) + [True] * len(forced.tokens)
    episode.logprobs += [0.0] * len(prompt) + forced.logprobs
    episode.sampling_masks += forced.sampling_masks
    assert bool(forced.sampling_masks) == keep
    batch = asyncio.run(engine.compute_logprobs(collate([episode], group_ids=[0])))
    assert batch.logprobs[0, len(prompt) :].tolist() == pytest.approx(forced.logprobs, abs=1e-3)


def test_grammar_that_llguidance_gives_up_is_an_error_of_its_reply(model: ServedModel) -> None:
    """A token that the grammar forbids makes llguidance's matcher fail."""
    body = {"model": "tiny", "messages": HELLO, "response_format": SCHEMA}
    request = parse_request(body)
    constraint = build_constraint(model.format, model.vocabulary, model.tokenizer_file, model.sampler, request)
    assert constraint is not None
    assert constraint.allowed_tokens()[ord("x")] == 0
    with pytest.raises(RolloutError, match="llguidance") as failed:
        constraint.accept(ord("x"))
    assert failed.value.fault == "engine"
