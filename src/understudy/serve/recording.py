"""The recording of one episode of a program: its requests are parsed, limited and answered, and each reply is appended.

Replies are sampled as the run samples, whatever a program asks for: sampling parameters of a request are dropped and
counted. Constraints (`tool_choice`, `response_format`) are dropped too, or the tokens that they allow are recorded as
sampling masks. Only the length of a reply and stop strings are the program's.
"""

import asyncio
import hashlib
import itertools
import math
from array import array
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from pydantic import Field, ValidationError
from starlette.responses import Response

from understudy.core.errors import ConfigError, RolloutError
from understudy.core.messages import Message, ToolCall, ToolSpec, index_tools
from understudy.core.records import Record
from understudy.core.sampling_masks import SamplingMask
from understudy.core.tasks import Score
from understudy.core.trajectory import Branch, StopReason, Trajectory
from understudy.engines.interface import SamplingParams
from understudy.formats.chat_format import ParsedMessage, mark_truncated_call, reply_events
from understudy.serve.conversation_cache import ConversationCache
from understudy.serve.generation import (
    ReplyChunk,
    ServedModel,
    build_prompt,
    generate_reply,
    to_wire_calls,
    with_call_ids,
)
from understudy.serve.options import ServeConfig
from understudy.serve.requests import ApiError, ChatCompletionRequest, parse_request

_OVERRIDDEN = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "seed",
    "reasoning_effort",
    "verbosity",
)
"""Sampling parameters of a request, which are those of the run."""
_WITHOUT_EFFECT = ("store", "service_tier", "prompt_cache_retention", "prediction")
OVERRIDDEN, UNCONSTRAINED, CONSTRAINED = "program/overridden", "program/unconstrained", "program/constrained"
"""Events: requests whose sampling parameters were dropped, whose constraints were, and whose constraints applied.
`program/overridden/seed` counts one of the parameters. `program/chat` and `program/responses` count the requests of
each API."""


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """Limits of a session. A request beyond one is refused, and ends the episode with its stop reason."""

    max_replies: int
    max_tokens: int
    """Maximum number of tokens of all sequences. A session that reaches it gets no further reply."""
    max_invalid_replies: int = 0
    """Number of replies in a row with calls that cannot be parsed, after which there is no further one. 0: no limit."""


@dataclass(frozen=True, slots=True)
class SampledReply:
    """A sampled reply with calls: its text, and the calls that the program has not made yet."""

    text: str
    calls: list[ToolCall]


@dataclass(frozen=True, slots=True)
class SampledReplies:
    """The replies to one request."""

    prompt_tokens: int
    chunks: Sequence[ReplyChunk]


class PostedResult(Record):
    """The result of an episode that a program posts."""

    reward: Annotated[float, Field(ge=0.0, le=1.0, strict=True)]
    parts: dict[str, Annotated[float, Field(ge=0.0, le=1.0, strict=True)]] = {}
    """Values that are reported beside the reward."""


def _is_described(call: ToolCall, tools: Sequence[ToolSpec]) -> bool:
    """Return whether a call is of one of the tools, with all arguments that it requires and no others than it has."""
    schema = next((tool.parameters for tool in tools if tool.name == call.name), None)
    if schema is None:
        return False
    required, own = schema.get("required") or (), schema.get("properties") or {}
    has_others = not schema.get("additionalProperties") and not call.arguments.keys() <= own.keys()
    return {*required} <= call.arguments.keys() and not has_others


@dataclass(slots=True)
class _Answer:
    """The response to a request, and whether its client still waits."""

    task: asyncio.Task[Response]
    is_disconnected: Callable[[], Awaitable[bool]]
    is_delivered: bool = False


async def _find_lost(answers: Sequence[_Answer]) -> _Answer | None:
    """Return the answer that a retry asks for again: one that nobody has received, or else the last."""
    for answer in answers:
        if not answer.is_delivered and await answer.is_disconnected():
            return answer
    waited_for = [answer for answer in answers if not answer.is_delivered]
    return next(reversed(waited_for or answers), None)


@dataclass(slots=True)
class _Span:
    """When a sequence was open, in ticks of the session."""

    sequence: Trajectory | Branch
    asked: int
    """When its first request arrived."""
    first_reply: int
    last_reply: int


def _content(span: _Span) -> tuple[Sequence[int], Sequence[str]]:
    return span.sequence.tokens, [message.model_dump_json() for message in span.sequence.messages]


class Session:
    """One episode of a program. Each sampled reply is appended to `episode`.

    A reply's seed is a hash of the episode's seed, its prompt, and how often the same prompt was sampled before. So the
    order in which parallel requests arrive changes no reply.
    """

    def __init__(
        self,
        model: ServedModel | None,
        sampling: SamplingParams,
        episode: Trajectory,
        limits: SessionLimits,
        constrains: bool = False,
    ) -> None:
        self.episode = episode
        self.stop_reason: StopReason | None = None
        """The limit that a request has exceeded, or DONE if the program failed on a wrong reply."""
        self.failure: RolloutError | ConfigError | None = None
        """The failure of the model that ended the session."""
        self.conversations: dict[str, list[dict[str, Any]]] = {}
        """The messages up to each response of the Responses API, by its id."""
        self.num_requests = 0
        self.has_wrong_reply = False
        """Whether a reply since the last request is cut off, or has a malformed call or one that no tool of its request
        describes."""
        self.final_text = ""
        """The text of the last reply without calls."""
        self.posted: Score | None = None
        """The result that the program has posted."""
        self._open_replies: list[SampledReply] = []
        self._cache = ConversationCache()  # a program never gets another one's tokens
        self._served = model and replace(model, cache=self._cache)
        self._sampling, self._limits, self._constrains = sampling, limits, constrains
        self._num_replies = self._num_invalid_replies = 0
        self._prompts = Counter[bytes]()
        self._answers: dict[bytes, list[_Answer]] = {}
        self._running = set[asyncio.Task[Response]]()
        self._clock = itertools.count(1)
        self._long_prompt_at = 0
        """When the last prompt was refused as too long, if that alone has set the stop reason; else 0."""
        self._asked: dict[int, int] = {}
        """When each request arrived that is being answered, by its `id`."""
        self._spans: dict[int, _Span] = {}
        """When each sequence was open, by its `id`."""

    async def respond(
        self,
        body: bytes,
        is_retry: bool,
        answer: Callable[[], Awaitable[Response]],
        is_disconnected: Callable[[], Awaitable[bool]],
    ) -> Response:
        """Return the response to a request. A retry gets the recorded response, or waits for it.

        Sampling goes on if the client disconnects, because it will retry. Of several equal requests, a retry gets the
        response of one whose client has disconnected.
        """
        answers = self._answers.setdefault(hashlib.sha256(body).digest(), [])
        found = await _find_lost(answers) if is_retry else None
        if found:
            found.is_disconnected = is_disconnected
        else:
            self.num_requests += 1
            found = _Answer(asyncio.ensure_future(answer()), is_disconnected)
            answers.append(found)
            self._running.add(found.task)
            found.task.add_done_callback(self._running.discard)
        response = await asyncio.shield(found.task)
        found.is_delivered = not await is_disconnected()
        return response

    async def sample(self, body: Mapping[str, Any]) -> tuple[ChatCompletionRequest, SampledReplies]:
        """Return the parsed request of a chat-completions body, and its replies. Raise ApiError if it is refused."""
        self.has_wrong_reply = False
        request = self._parse(body)
        self._reserve(request.n)
        self._asked[id(request)] = next(self._clock)
        try:
            return request, await self._sample(request)
        finally:
            del self._asked[id(request)]

    async def _sample(self, request: ChatCompletionRequest) -> SampledReplies:
        prompt, num_known = await self._build_prompt(request)
        longest = min(self._sampling.max_response_tokens, self._model.sampler.context_length - len(prompt))
        sampling = self._sampling.replace(max_response_tokens=min(longest, request.max_reply_tokens or longest))
        chunks: list[ReplyChunk] = []
        replies = (self._sample_reply(request, prompt, sampling, index) for index in range(request.n))
        for chunks_of_reply in await asyncio.gather(*replies):
            self._record(request, prompt, num_known, chunks_of_reply)
            chunks += chunks_of_reply
        return SampledReplies(len(prompt), chunks)

    def take_call(self, call: ToolCall, tools: Sequence[ToolSpec]) -> SampledReply | None:
        """Return the sampled reply that made a call of one of `tools`. Return None if the call is the program's own.

        It is the latest reply with an equal call, or else with a call of the same tool, whose arguments the program
        has changed.
        """
        specs = index_tools(tools)

        def made(each: ToolCall) -> ToolCall:
            spec = specs.get(each.name)
            return ToolCall(name=spec.name, arguments=spec.resolve_aliases(each.arguments)) if spec else each

        for key in (ToolCall(name=call.name, arguments=call.arguments), None):
            for reply in reversed(self._open_replies):
                for place, each in enumerate(map(made, reply.calls)):
                    if each == key or (key is None and each.name == call.name):
                        del reply.calls[place]
                        return reply
        return None

    def post_result(self, body: Mapping[str, Any]) -> None:
        """Take the result of the episode from the program. Raise ApiError if it is wrong, or the second one."""
        try:
            result = PostedResult.model_validate(body)
        except ValidationError as e:
            (first, *_) = e.errors(include_url=False)
            where = ".".join(map(str, first["loc"]))
            text = f'{where}: {first["msg"]}; post JSON such as {{"reward": 0.5}}, a number from 0 to 1'
            raise ApiError(text, where, "invalid_value") from e
        if self.posted:
            raise ApiError("this episode has a result already; post only one", code="already_posted", status=409)
        self.posted = Score(reward=result.reward, parts=result.parts)

    @property
    def _model(self) -> ServedModel:
        assert self._served is not None
        return self._served

    async def close(self) -> None:
        """Stop the replies that are being sampled."""
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def count(self, event: str, count: int = 1) -> None:
        """Count an event of the episode."""
        self.episode.event_counts[event] = self.episode.event_counts.get(event, 0) + count

    def _parse(self, body: Mapping[str, Any]) -> ChatCompletionRequest:
        dropped = [key for key in _OVERRIDDEN if body.get(key) is not None]
        for event in [OVERRIDDEN, *(f"{OVERRIDDEN}/{key}" for key in dropped)] if dropped else []:
            self.count(event)
        wire = {key: body[key] for key in body.keys() - {*_OVERRIDDEN, *_WITHOUT_EFFECT}}
        choice = wire.get("tool_choice")
        if not self._constrains and isinstance(choice, dict) and choice.get("type") == "allowed_tools":
            wire["tool_choice"] = "required"  # counted and dropped below, as every other choice
        request = parse_request(wire)
        request.validate_lengths(ServeConfig().max_message_chars)
        if request.is_constrained:
            key = "tool_choice" if request.response_schema is None else "response_format"
            kind = CONSTRAINED if self._constrains else UNCONSTRAINED
            for event in (kind, f"{kind}/{key}"):
                self.count(event)
        if request.is_constrained and not self._constrains:
            free = ChatCompletionRequest.model_fields
            request = request.replace(tool_choice="auto", response_format=free["response_format"].default)
        return request

    def _reserve(self, count: int) -> None:
        """Raise ApiError if `count` more replies exceed a limit."""
        if self.failure:
            raise ApiError(str(self.failure), code="overloaded", status=503)
        if self.episode.num_tokens >= self._limits.max_tokens:
            raise self._refuse_long(f"{self.episode.num_tokens} tokens; limits.max_episode_tokens")
        if self._num_replies + count > self._limits.max_replies:
            self.stop_reason = self.stop_reason or StopReason.MAX_TURNS
            text = f"the episode has {self._num_replies} replies; limits.max_turns = {self._limits.max_replies}"
            raise ApiError(text, code="episode_limit_reached")
        if self.stop_reason is StopReason.INVALID_REPLIES:
            text = f"the episode has {self._num_invalid_replies} replies in a row with calls that cannot be parsed"
            limit = f"limits.max_invalid_replies = {self._limits.max_invalid_replies}"
            raise ApiError(f"{text}; {limit}", code="episode_limit_reached")
        self._num_replies += count

    async def _build_prompt(self, request: ChatCompletionRequest) -> tuple[list[int], int]:
        try:
            prompt, num_known = await build_prompt(self._model, request, self._sampling.replace(max_response_tokens=1))
        except ApiError as refusal:
            if refusal.code == "context_length_exceeded":
                self.note_long_prompt()
            raise
        if len(prompt) >= self._limits.max_tokens:
            self.note_long_prompt()
            raise self._refuse_long(f"{len(prompt)} tokens in one prompt; limits.max_episode_tokens")
        return prompt, num_known

    def note_long_prompt(self) -> None:
        """Note that a prompt was too long. The program may go on with a shorter one."""
        if self.stop_reason is None or self._long_prompt_at:
            self.stop_reason, self._long_prompt_at = StopReason.MAX_TOKENS, next(self._clock)

    def _refuse_long(self, problem: str) -> ApiError:
        self.stop_reason = self.stop_reason or StopReason.MAX_TOKENS
        text = f"the episode has {problem} = {self._limits.max_tokens}"
        return ApiError(text, "messages", "context_length_exceeded")

    async def _sample_reply(
        self, request: ChatCompletionRequest, prompt: Sequence[int], sampling: SamplingParams, index: int
    ) -> list[ReplyChunk]:
        """Return the chunks of one reply."""
        own: list[ReplyChunk] = []
        seed = self._seed(array("I", prompt).tobytes())
        try:
            version = await generate_reply(
                self._model,
                request,
                prompt,
                sampling,
                index,
                seed,
                own.append,
                raw_malformed=True,
            )
            logprobs = [logprob for chunk in own for logprob in chunk.logprobs]
            if not all(map(math.isfinite, logprobs)):
                raise RolloutError("the sampler gave a log-probability that is not a finite number", "engine")
        except (ConfigError, RolloutError) as e:
            self.failure = self.failure or (e if isinstance(e, RolloutError) else RolloutError(str(e), "engine"))
            raise ApiError(str(e), code="overloaded", status=503) from e
        if version is not None:
            self.episode.weights_version = version
        return own

    def _record(
        self,
        request: ChatCompletionRequest,
        prompt: Sequence[int],
        num_known: int,
        chunks: Sequence[ReplyChunk],
    ) -> None:
        """Append a reply to the episode."""
        tokens = [token for chunk in chunks for token in chunk.tokens]
        logprobs = [logprob for chunk in chunks for logprob in chunk.logprobs]
        masks = [mask for chunk in chunks for mask in chunk.sampling_masks]
        last = chunks[-1]
        assert last.reply_end is not None
        parsed = self._model.format.parse(tokens, request.callable_tools)
        if last.reply_end.is_json:
            parsed = ParsedMessage(last.reply_end.message, "text")
        truncated = last.reply_end.finish_reason == "length"
        cut = not truncated and tokens[-1] not in self._model.format.stop_token_ids
        for event, count in reply_events(parsed, truncated):
            self.count(event, count)
        if cut:
            self.count("stop_string")
        reply = with_call_ids(mark_truncated_call(parsed, truncated or cut), [*prompt, *tokens])
        self._note_reply(request, reply, last.reply_end.message, truncated)
        self._append(request, prompt, num_known, reply, tokens, logprobs, masks)

    def _append(
        self,
        request: ChatCompletionRequest,
        prompt: Sequence[int],
        num_known: int,
        reply: Message,
        tokens: Sequence[int] = (),
        logprobs: Sequence[float] = (),
        masks: Sequence[SamplingMask] = (),
    ) -> None:
        """Append a reply to its sequence."""
        messages, tools = [to_wire_calls(message) for message in request.conversation], request.callable_tools
        sequence = self.episode.add_call(messages, tools, prompt, num_known, reply, tokens, logprobs, masks)
        now = next(self._clock)
        span = self._spans.setdefault(id(sequence), _Span(sequence, self._asked[id(request)], now, now))
        span.last_reply = now

    def sort_sequences(self) -> None:
        """Sort sequences that were open at the same time by their content, because they arrive in any order.

        The episode's own sequence stays the first, unless others started before its first reply.
        """
        own = self._spans.pop(id(self.episode), None)
        if own is None:
            return
        spans = list(self._spans.values())
        first = min((own, *(span for span in spans if span.asked < own.first_reply)), key=_content)
        if first is not own:
            own.sequence.swap(first.sequence)
            first.asked, first.last_reply = own.asked, own.last_reply
        groups, end = list[list[_Span]](), -1
        for span in sorted(spans, key=lambda span: span.asked):
            if span.asked > end:
                groups.append([])
            groups[-1].append(span)
            end = max(end, span.last_reply)
        ordered = (span.sequence for group in groups for span in sorted(group, key=_content))
        self.episode.branches[:] = [sequence for sequence in ordered if isinstance(sequence, Branch)]

    def _note_reply(self, request: ChatCompletionRequest, reply: Message, sent: Message, truncated: bool) -> None:
        """Note a reply, and how the program gets it. Malformed calls are text in what it gets."""
        if self._long_prompt_at and self._asked[id(request)] > self._long_prompt_at:
            self.stop_reason, self._long_prompt_at = None, 0
        is_invalid = any(call.parse_error for call in reply.tool_calls)
        are_described = all(_is_described(call, request.callable_tools) for call in sent.tool_calls)
        self.has_wrong_reply |= is_invalid or truncated or not are_described
        self._num_invalid_replies = self._num_invalid_replies + 1 if is_invalid else 0
        if 0 < self._limits.max_invalid_replies <= self._num_invalid_replies:
            self.stop_reason = self.stop_reason or StopReason.INVALID_REPLIES
        if sent.tool_calls:
            self._open_replies.append(SampledReply(sent.content, list(sent.tool_calls)))
        else:
            self.final_text = sent.content

    def _seed(self, prompt: bytes) -> int:
        digest = hashlib.sha256(prompt).digest()
        self._prompts[digest] += 1
        seed = hashlib.sha256(digest + f"{self.episode.seed}/{self._prompts[digest]}".encode()).digest()
        return int.from_bytes(seed[:7])
