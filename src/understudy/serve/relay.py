"""Sessions with a model behind an API. Its episodes have messages and no tokens, so they are not trained on."""

import asyncio
import json
from typing import Literal

from understudy.clients.chat import ChatModel
from understudy.clients.completions import ChatCompletion
from understudy.core.errors import ConfigError, RolloutError
from understudy.core.messages import Message, assign_call_ids, message_to_openai
from understudy.core.trajectory import Trajectory
from understudy.engines.interface import SamplingParams
from understudy.formats.chat_format import ParsedMessage, reply_events, reply_status
from understudy.serve.generation import ReplyChunk
from understudy.serve.recording import OVERRIDDEN, SampledReplies, Session, SessionLimits
from understudy.serve.requests import ApiError, ChatCompletionRequest
from understudy.serve.streaming_parser import ReplyEnd

_SEEDS = 2**31
"""Endpoints allow seeds below this."""


class RelaySession(Session):
    """One episode of a program, with the replies of an endpoint, whose settings apply. Stop strings cut the text."""

    def __init__(self, model: ChatModel, episode: Trajectory, limits: SessionLimits) -> None:
        super().__init__(None, SamplingParams(), episode, limits)
        self._endpoint = model

    async def _sample(self, request: ChatCompletionRequest) -> SampledReplies:
        if request.logprobs:
            raise ApiError("logprobs: the model behind an API gives none", "logprobs", "unsupported_value")
        if request.max_reply_tokens is not None:
            self.count(f"{OVERRIDDEN}/max_tokens")
        wire = json.dumps([message_to_openai(message) for message in request.conversation]).encode()
        seeds = [self._seed(wire) % _SEEDS for _ in range(request.n)]
        replies = await asyncio.gather(*(self._request_reply(request, seed) for seed in seeds))
        tools, conversation = request.callable_tools, request.conversation
        chunks = []
        for index, reply in enumerate(replies):
            sent = self._record_reply(request, reply, f"{self._num_replies}_{index}")
            self._cache.add([*conversation, sent], tools, ())
            reason: Literal["stop", "length", "tool_calls"] = "tool_calls" if sent.tool_calls else "stop"
            end = ReplyEnd(sent, "", "length" if reply.finish_reason == "length" else reason, True)
            chunks.append(ReplyChunk(index, sent.content, (0,) * reply.completion_tokens, (), end))
        return SampledReplies(max(reply.prompt_tokens for reply in replies), chunks)

    async def _request_reply(self, request: ChatCompletionRequest, seed: int) -> ChatCompletion:
        conversation, tools = request.conversation, request.callable_tools
        _, num_known = self._cache.find_prefix(conversation, tools)
        if known := self.episode.find_sequence(conversation, (), num_known):  # with what only the endpoint understands
            conversation = [*known.messages, *conversation[num_known:]]
        try:
            return await self._endpoint.generate(conversation, tools, seed)
        except (ConfigError, RolloutError) as e:
            if isinstance(e, RolloutError) and e.context_full and self.episode.num_turns:
                self.note_long_prompt()
                raise ApiError(str(e), "messages", "context_length_exceeded") from e
            self.failure = self.failure or e
            raise ApiError("the endpoint failed; the episode has ended", code="overloaded", status=503) from e

    def _record_reply(self, request: ChatCompletionRequest, reply: ChatCompletion, number: str) -> Message:
        """Append a reply to the episode, and return it as the program gets it."""
        raw = Message(role="assistant", content=reply.refusal) if reply.refusal else reply.message
        parsed = ParsedMessage(
            raw, reply_status(raw, reply.repairs), reply.hallucinated_turn, reply.repairs, reply.parse_errors
        )
        truncated = reply.finish_reason == "length"
        for event, count in reply_events(parsed, truncated):
            self.count(event, count)
        stops = [place for stop in request.stop if (place := raw.content.find(stop)) >= 0]
        text = raw.content[: min(stops)] if stops else raw.content
        sent = assign_call_ids(raw.replace(content=text), number)
        self._note_reply(request, raw, sent, truncated)
        _, num_known = self._cache.find_prefix(request.conversation, request.callable_tools)
        self._append(request, (), num_known, sent)
        return sent
