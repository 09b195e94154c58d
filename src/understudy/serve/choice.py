"""The model that is served, and one reply of it."""

import asyncio
import hashlib
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from understudy.engines.base import Streaming
from understudy.errors import ConfigError
from understudy.formats import ChatFormat, Vocabulary
from understudy.messages import Message, ToolCall
from understudy.serve.memory import Memory
from understudy.serve.reading import Ending, Reading
from understudy.serve.wire import Refusal, Request


@dataclass(frozen=True, slots=True)
class Model:
    """What is served, under which name."""

    name: str
    sampler: Streaming
    format: ChatFormat
    vocabulary: Vocabulary
    sampled: str = ""
    """Who samples its replies, and why."""
    memory: Memory = field(default_factory=Memory)


@dataclass(frozen=True, slots=True)
class Part:
    """Something new of a reply: text that is certain, tokens with their log-probabilities, and at last its ending."""

    index: int
    text: str
    tokens: Sequence[int]
    logprobs: Sequence[float]
    ending: Ending | None = None


def prompt_of(model: Model, request: Request) -> list[int]:
    """The conversation's tokens, up to where the reply begins. Raises `Refusal` for one that does not fit the model."""
    messages, tools = request.conversation, request.shown
    before, known = model.memory.recall(messages, tools)
    try:
        prompt = [*before, *model.format.encode([_written(m) for m in messages[known:]], tools, before)]
    except ConfigError as e:
        raise Refusal(f"messages: the model's chat template does not take them: {e}", "messages") from e
    longest = request.longest or 1
    try:
        model.sampler.refuse(request.sampling(longest))
    except ConfigError as e:
        raise Refusal(f"this model cannot be sampled so: {e}", code="invalid_value") from e
    if len(prompt) + longest > model.sampler.context:
        raise Refusal(
            f"the model's context is {model.sampler.context} tokens, and this takes {len(prompt) + longest}: "
            f"{len(prompt)} in the messages and tools, {longest} for the reply",
            "messages",
            "context_length_exceeded",
        )
    return prompt


def _written(message: Message) -> Message:
    """A call that could not be read, as it goes back to every endpoint: its name, and no arguments."""
    if not any(call.malformed for call in message.tool_calls):
        return message
    calls = (ToolCall(name=c.name or "unknown", id=c.id) if c.malformed else c for c in message.tool_calls)
    return message.replace(tool_calls=tuple(calls))


async def choose(
    model: Model, request: Request, prompt: Sequence[int], index: int, seed: int, put: Callable[[Part], None]
) -> None:
    """Sample one reply, put its parts as they come, and remember it. A stop string ends the sampling."""
    reading = Reading(model.format, model.vocabulary, request.shown, request.stop, request.parallel_tool_calls)

    def told(tokens: Sequence[int], logprobs: Sequence[float]) -> None:
        text, count = "", 0
        while count < len(tokens) and not reading.stopped:
            text += reading.feed(tokens[count])
            count += 1
        if count:
            put(Part(index, text, tokens[:count], logprobs[:count]))
        if reading.stopped:
            sampling.cancel()

    longest = request.longest or model.sampler.context - len(prompt)
    sampled = model.sampler.sample(prompt, request.sampling(longest), seed, model.format.stop_tokens, told)
    sampling = asyncio.ensure_future(sampled)
    try:
        await asyncio.wait([sampling])
    finally:
        sampling.cancel()
    cut = False
    if not reading.stopped:
        completion, known = sampling.result(), len(reading.tokens)
        told(completion.tokens[known:], completion.logprobs[known:])
        cut = completion.finish == "length" and not reading.stopped
    ending = _named(reading.end(cut), [*prompt, *reading.tokens])
    if ending.entire:
        model.memory.keep([*request.conversation, ending.message], request.shown, [*prompt, *reading.tokens])
    put(Part(index, ending.rest, (), (), ending))


def _named(ending: Ending, tokens: Sequence[int]) -> Ending:
    """The calls with ids. They follow from all that was read and written, so that no two replies share one."""
    digest = hashlib.sha256(array("I", tokens).tobytes()).hexdigest()[:20]
    calls = tuple(call.replace(id=f"call_{digest}{i:04}") for i, call in enumerate(ending.message.tool_calls))
    return replace(ending, message=ending.message.replace(tool_calls=calls))
