"""The served model, and the generation of one reply."""

import asyncio
import hashlib
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from understudy.core.errors import ConfigError
from understudy.core.messages import Message, ToolCall
from understudy.core.sampling_masks import SamplingMask
from understudy.engines.interface import ConstrainedSampler, SamplingParams, StreamingSampler
from understudy.formats import ChatFormat, FormatTokenizer
from understudy.serve.constraints import GrammarConstraint, build_constraint
from understudy.serve.conversation_cache import ConversationCache
from understudy.serve.requests import ApiError, ChatCompletionRequest, parse_request
from understudy.serve.streaming_parser import ReplyEnd, StreamingParser


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model that is served, its sampler, format and conversation cache."""

    name: str
    sampler: StreamingSampler
    format: ChatFormat
    vocabulary: FormatTokenizer
    sampler_note: str = ""
    """Which sampler is used, and why."""
    tokenizer_file: Path | None = None
    """The file of the tokenizer, which constrained replies need."""
    cache: ConversationCache = field(default_factory=ConversationCache)

    def sampler_for(self, request: ChatCompletionRequest) -> StreamingSampler:
        """Return the sampler of the reply to a request."""
        return self.sampler


@dataclass(frozen=True, slots=True)
class ReplyChunk:
    """New output of a reply: final text, and tokens with their log-probabilities.

    The last chunk has the reply's end.
    """

    index: int
    text: str
    tokens: Sequence[int]
    logprobs: Sequence[float]
    reply_end: ReplyEnd | None = None
    sampling_masks: Sequence[SamplingMask] = ()


def validate_constrainable(model: ServedModel) -> None:
    """Raise ConfigError if no reply of the model can be constrained."""
    probe = {"model": model.name, "messages": [{"role": "user", "content": ""}]}
    try:
        _build_constraint(model, parse_request({**probe, "response_format": {"type": "json_object"}}))
    except ApiError as e:
        raise ConfigError(f"agent.constraints = 'mask': {e}") from e


async def build_prompt(
    model: ServedModel, request: ChatCompletionRequest, sampling: SamplingParams
) -> tuple[list[int], int]:
    """Return the tokens of the conversation up to the start of the reply, and how many messages the cache knew.

    Raise ApiError if the chat template rejects the messages, the model cannot be sampled so, or the prompt and
    `sampling.max_response_tokens` exceed the context.
    """
    _build_constraint(model, request)  # what cannot be constrained is refused before a stream begins
    messages, tools = request.conversation, request.callable_tools
    prefix, num_known = model.cache.find_prefix(messages, tools)
    new_messages = [to_wire_calls(message) for message in messages[num_known:]]
    try:
        # A long conversation takes seconds to tokenize, in which other replies are sampled.
        prompt = [*prefix, *await asyncio.to_thread(model.format.encode, new_messages, tools, prefix)]
    except ConfigError as e:
        raise ApiError(f"messages: the model's chat template rejects them: {e}", "messages") from e
    reply_tokens = sampling.max_response_tokens
    try:
        model.sampler.validate_sampling(sampling)
    except ConfigError as e:
        raise ApiError(f"the model does not support these sampling parameters: {e}", code="invalid_value") from e
    if len(prompt) + reply_tokens > model.sampler.context_length:
        raise ApiError(
            f"the model's context length is {model.sampler.context_length} tokens, but the request needs "
            f"{len(prompt) + reply_tokens}: {len(prompt)} for messages and tools, {reply_tokens} for the reply",
            "messages",
            "context_length_exceeded",
        )
    return prompt, num_known


def to_wire_calls(message: Message) -> Message:
    """Return the message with each malformed call reduced to its name, as requests to every endpoint contain it."""
    if not any(call.parse_error for call in message.tool_calls):
        return message
    calls = (ToolCall(name=c.name or "unknown", id=c.id) if c.parse_error else c for c in message.tool_calls)
    return message.replace(tool_calls=tuple(calls))


async def generate_reply(
    model: ServedModel,
    request: ChatCompletionRequest,
    prompt: Sequence[int],
    sampling: SamplingParams,
    index: int,
    seed: int,
    on_chunk: Callable[[ReplyChunk], None],
    raw_malformed: bool = False,
) -> int | None:
    """Sample one reply, pass its chunks to `on_chunk`, and store its tokens in the cache.

    `raw_malformed` is that of the StreamingParser. Return the version of the weights. It is None if a stop string of
    the request ended the sampling. Raise ApiError if the reply cannot be constrained as requested.
    """
    constraint = _build_constraint(model, request)
    parser = StreamingParser(
        model.format,
        model.vocabulary,
        request.callable_tools,
        request.stop,
        request.parallel_tool_calls,
        raw_malformed,
        constraint.json_form if constraint else None,
    )

    def on_tokens(tokens: Sequence[int], logprobs: Sequence[float], masks: Sequence[SamplingMask]) -> None:
        text = ""
        count = 0
        while count < len(tokens) and not parser.stopped:
            text += parser.feed(tokens[count])
            count += 1
        if count:
            on_chunk(ReplyChunk(index, text, tokens[:count], logprobs[:count], sampling_masks=masks[:count]))
        if parser.stopped:
            running.cancel()

    stops = model.format.stop_token_ids
    sampler = model.sampler_for(request)
    if constraint and isinstance(sampler, ConstrainedSampler):
        reply = sampler.sample_constrained(prompt, sampling, seed, constraint, stops, on_tokens)
    else:
        reply = sampler.sample(prompt, sampling, seed, stops, on_tokens)
    running = asyncio.ensure_future(reply)
    try:
        await asyncio.wait([running])
    finally:
        running.cancel()
    truncated, version = False, None
    if not parser.stopped:
        completion = running.result()
        version = completion.weights_version
        num_received = len(parser.tokens)
        rest = completion.tokens[num_received:], completion.logprobs[num_received:]
        on_tokens(*rest, completion.sampling_masks[num_received:])
        truncated = completion.finish_reason == "length" and not parser.stopped
    reply_end = parser.finish(truncated)
    tokens = [*prompt, *parser.tokens]
    reply_end = replace(reply_end, message=with_call_ids(reply_end.message, tokens))
    if reply_end.is_complete:
        model.cache.add([*request.conversation, reply_end.message], request.callable_tools, tokens)
    on_chunk(ReplyChunk(index, reply_end.remaining_text, (), (), reply_end))
    return version


def _build_constraint(model: ServedModel, request: ChatCompletionRequest) -> GrammarConstraint | None:
    return build_constraint(model.format, model.vocabulary, model.tokenizer_file, model.sampler, request)


def with_call_ids(reply: Message, tokens: Sequence[int]) -> Message:
    """Return the reply with call ids. They are a digest of `tokens`, prompt and reply, so that no two replies share
    one.
    """
    digest = hashlib.sha256(array("I", tokens).tobytes()).hexdigest()[:20]
    calls = tuple(call.replace(id=f"call_{digest}{i:04}") for i, call in enumerate(reply.tool_calls))
    return reply.replace(tool_calls=calls)
