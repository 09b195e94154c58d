"""Sessions: the endpoint of the programs that play episodes. One session records one episode (`recording`).

A program sends the key of its session as its API key, to `/v1/chat/completions` or `/v1/responses`, and any model name.
"""

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from understudy.clients.chat import ChatModel
from understudy.core.trajectory import Trajectory
from understudy.engines.interface import SamplingParams
from understudy.formats import FormatTokenizer
from understudy.serve.access import AccessMiddleware, json_response
from understudy.serve.completions import read_body
from understudy.serve.generation import ServedModel
from understudy.serve.options import ServeConfig
from understudy.serve.recording import Session, SessionLimits
from understudy.serve.relay import RelaySession
from understudy.serve.requests import ApiError, read_object
from understudy.serve.responses import ResponseBuilder, sse_event
from understudy.serve.responses_api import ResponsesRequest, response_events, to_response
from understudy.serve.server import api_error, not_found

RESULT_PATH = "/result"
"""Path of the address to which a program posts the reward of its episode."""


class SessionServer:
    """The sessions of the episodes that are being played, by their keys, and their endpoint."""

    def __init__(self, model: ServedModel | ChatModel, sampling: SamplingParams, constrains: bool = False) -> None:
        """Give replies of `model`. With `constrains`, a sampled reply follows the constraints of its request."""
        self._model, self._sampling, self._constrains = model, sampling, constrains
        self._name = model.name if isinstance(model, ServedModel) else model.config.model
        self._vocabulary = model.vocabulary if isinstance(model, ServedModel) else None
        self._sessions: dict[str, Session] = {}

    @asynccontextmanager
    async def open_session(self, episode: Trajectory, limits: SessionLimits) -> AsyncIterator[tuple[str, Session]]:
        """Yield the key and the session of an episode. At the end, its key is refused and its sampling stops."""
        key = f"sk-{secrets.token_urlsafe(24)}"
        if isinstance(self._model, ServedModel):
            session = Session(self._model, self._sampling, episode, limits, self._constrains)
        else:
            session = RelaySession(self._model, episode, limits)
        self._sessions[key] = session
        try:
            yield key, session
        finally:
            del self._sessions[key]
            await session.close()

    def app(self) -> ASGIApp:
        """Return the endpoint as an ASGI application, which only this machine may use."""
        routes = [
            Route("/v1/models", self._models),
            Route("/v1/models/{name:path}", self._model_by_name),
            Route("/v1/chat/completions", self._answer(_complete), methods=["POST"]),
            Route("/v1/responses", self._answer(_respond), methods=["POST"]),
            Route(RESULT_PATH, self._take_result, methods=["POST"]),
        ]
        handlers: dict[Any, Callable[..., Awaitable[Response]]] = {HTTPException: not_found, ApiError: api_error}
        return AccessMiddleware(Starlette(routes=routes, exception_handlers=handlers), ServeConfig(), "")

    def find_session(self, request: Request) -> Session:
        """Return the session whose key a request has. Raise ApiError if there is none."""
        key = request.headers.get("authorization", "").removeprefix("Bearer ")
        if key not in self._sessions:
            text = "no running episode has this API key; send the value of OPENAI_API_KEY"
            raise ApiError(text, code="invalid_api_key", status=401)
        return self._sessions[key]

    async def _take_result(self, request: Request) -> Response:
        session = self._sessions.get(request.query_params.get("episode", "")) or self.find_session(request)
        try:
            session.post_result(read_object(await read_body(request, ServeConfig().max_body_bytes)))
        except ClientDisconnect:
            return Response(status_code=400)  # nobody receives it
        return json_response({"status": "ok"})

    async def _models(self, request: Request) -> Response:
        self.find_session(request)
        return json_response({"object": "list", "data": [_model_entry(self._name)]})

    async def _model_by_name(self, request: Request) -> Response:
        self.find_session(request)
        return json_response(_model_entry(request.path_params["name"]))

    def _answer(self, endpoint: "_Endpoint") -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            session = self.find_session(request)
            make = partial(endpoint, self._vocabulary, session)
            try:
                body = await read_body(request, ServeConfig().max_body_bytes)
            except ClientDisconnect:
                return Response(status_code=400)  # nobody receives it
            retries = request.headers.get("x-stainless-retry-count", "0")
            is_retry = retries.isdecimal() and int(retries) > 0
            return await session.respond(
                request.url.path.encode() + body,
                is_retry,
                lambda: make(read_object(body)),
                request.is_disconnected,
            )

        return answer


_Endpoint = Callable[[FormatTokenizer | None, Session, dict[str, Any]], Awaitable[Response]]


async def _complete(vocabulary: FormatTokenizer | None, session: Session, body: dict[str, Any]) -> Response:
    """Answer a request of the chat completions API."""
    session.count("program/chat")
    request, sampled = await session.sample(body)
    builder = ResponseBuilder(request.model, vocabulary, sampled.prompt_tokens)
    if not request.stream:
        return json_response(builder.response(sampled.chunks, request.logprobs))
    events = [builder.first_chunk(index) for index in range(request.n)]
    for chunk in sampled.chunks:
        events += builder.chunks(chunk, request.logprobs)
    if request.stream_options and request.stream_options.include_usage:
        events.append(builder.usage_chunk())
    return _stream([*map(sse_event, events), sse_event("[DONE]")])


async def _respond(_: FormatTokenizer | None, session: Session, body: dict[str, Any]) -> Response:
    """Answer a request of the Responses API.

    A reply that reaches the run's length limit is sent as complete: clients raise an exception for `incomplete`, which
    they expect only if they set a limit.
    """
    session.count("program/responses")
    request = ResponsesRequest.parse(body, session.conversations)
    sampled = (await session.sample(request.chat_body))[1]
    (message,) = (chunk.reply_end.message for chunk in sampled.chunks if chunk.reply_end)
    at_limit = any(chunk.reply_end and chunk.reply_end.finish_reason == "length" for chunk in sampled.chunks)
    truncated = at_limit and body.get("max_output_tokens") is not None
    num_sampled = sum(len(chunk.tokens) for chunk in sampled.chunks)
    response = to_response(request, message, truncated, sampled.prompt_tokens, num_sampled)
    session.conversations[response["id"]] = request.conversation_with(message)
    if not request.stream:
        return json_response(response)
    return _stream([f"event: {event['type']}\n".encode() + sse_event(event) for event in response_events(response)])


def _stream(events: Sequence[bytes]) -> Response:
    return Response(b"".join(events), media_type="text/event-stream", headers={"Cache-Control": "no-cache"})


def _model_entry(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "understudy"}
