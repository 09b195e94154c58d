"""The served model, and the generation of one reply."""

import asyncio
import hashlib
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from understudy.core.errors import ConfigError
from understudy.core.messages import Message, ToolCall
from understudy.engines.interface import ConstrainedSampler, StreamingSampler, TokenConstraint
from understudy.formats import ChatFormat, FormatTokenizer
from understudy.serve.constraints import build_constraint
from understudy.serve.conversation_cache import ConversationCache
from understudy.serve.requests import ApiError, ChatCompletionRequest
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


async def build_prompt(model: ServedModel, request: ChatCompletionRequest) -> list[int]:
    """Return the tokens of the conversation up to the start of the reply.

    Raise ApiError if the chat template rejects the messages, the model cannot be sampled as requested, or the prompt
    and the reply exceed the context.
    """
    _build_constraint(model, request)  # what cannot be constrained is refused before a stream begins
    messages, tools = request.conversation, request.callable_tools
    prefix, num_known = model.cache.find_prefix(messages, tools)
    new_messages = [_to_wire_calls(message) for message in messages[num_known:]]
    try:
        # A long conversation takes seconds to tokenize, in which other replies are sampled.
        prompt = [*prefix, *await asyncio.to_thread(model.format.encode, new_messages, tools, prefix)]
    except ConfigError as e:
        raise ApiError(f"messages: the model's chat template rejects them: {e}", "messages") from e
    reply_tokens = request.max_reply_tokens or 1
    try:
        model.sampler.validate_sampling(request.sampling(reply_tokens))
    except ConfigError as e:
        raise ApiError(f"the model does not support these sampling parameters: {e}", code="invalid_value") from e
    if len(prompt) + reply_tokens > model.sampler.context_length:
        raise ApiError(
            f"the model's context length is {model.sampler.context_length} tokens, but the request needs "
            f"{len(prompt) + reply_tokens}: {len(prompt)} for messages and tools, {reply_tokens} for the reply",
            "messages",
            "context_length_exceeded",
        )
    return prompt


def _to_wire_calls(message: Message) -> Message:
    """Return the message with each malformed call reduced to its name, as requests to every endpoint contain it."""
    if not any(call.parse_error for call in message.tool_calls):
        return message
    calls = (ToolCall(name=c.name or "unknown", id=c.id) if c.parse_error else c for c in message.tool_calls)
    return message.replace(tool_calls=tuple(calls))


async def generate_reply(
    model: ServedModel,
    request: ChatCompletionRequest,
    prompt: Sequence[int],
    index: int,
    seed: int,
    on_chunk: Callable[[ReplyChunk], None],
) -> None:
    """Sample one reply, pass its chunks to `on_chunk`, and store its tokens in the cache.

    A stop string ends the sampling. Raise ApiError if the reply cannot be constrained as requested.
    """
    constraint = _build_constraint(model, request)
    parser = StreamingParser(
        model.format, model.vocabulary, request.callable_tools, request.stop, request.parallel_tool_calls
    )

    def on_tokens(tokens: Sequence[int], logprobs: Sequence[float]) -> None:
        text = ""
        count = 0
        while count < len(tokens) and not parser.stopped:
            text += parser.feed(tokens[count])
            count += 1
        if count:
            on_chunk(ReplyChunk(index, text, tokens[:count], logprobs[:count]))
        if parser.stopped:
            sampling.cancel()

    reply_tokens = request.max_reply_tokens or model.sampler.context_length - len(prompt)
    params = request.sampling(reply_tokens)
    stops = model.format.stop_token_ids
    if constraint and isinstance(model.sampler, ConstrainedSampler):
        reply = model.sampler.sample_constrained(prompt, params, seed, constraint, stops, on_tokens)
    else:
        reply = model.sampler.sample(prompt, params, seed, stops, on_tokens)
    sampling = asyncio.ensure_future(reply)
    try:
        await asyncio.wait([sampling])
    finally:
        sampling.cancel()
    truncated = False
    if not parser.stopped:
        completion = sampling.result()
        num_received = len(parser.tokens)
        on_tokens(completion.tokens[num_received:], completion.logprobs[num_received:])
        truncated = completion.finish_reason == "length" and not parser.stopped
    reply_end = _with_call_ids(parser.finish(truncated), [*prompt, *parser.tokens])
    if reply_end.is_complete:
        model.cache.add([*request.conversation, reply_end.message], request.callable_tools, [*prompt, *parser.tokens])
    on_chunk(ReplyChunk(index, reply_end.remaining_text, (), (), reply_end))


def _build_constraint(model: ServedModel, request: ChatCompletionRequest) -> TokenConstraint | None:
    return build_constraint(model.format, model.vocabulary, model.tokenizer_file, model.sampler, request)


def _with_call_ids(reply_end: ReplyEnd, tokens: Sequence[int]) -> ReplyEnd:
    """Return the reply with call ids. They are a digest of prompt and reply, so that no two replies share one."""
    digest = hashlib.sha256(array("I", tokens).tobytes()).hexdigest()[:20]
    calls = tuple(call.replace(id=f"call_{digest}{i:04}") for i, call in enumerate(reply_end.message.tool_calls))
    return replace(reply_end, message=reply_end.message.replace(tool_calls=calls))
