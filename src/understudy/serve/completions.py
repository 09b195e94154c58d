"""The endpoint `/v1/chat/completions`. If a client disconnects, sampling of its replies stops."""

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager

from starlette.requests import ClientDisconnect
from starlette.requests import Request as Received
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from understudy.core.errors import ConfigError, RolloutError
from understudy.serve.access import error_response, json_response
from understudy.serve.generation import ReplyChunk, ServedModel, build_prompt, generate_reply
from understudy.serve.options import ServeConfig
from understudy.serve.request_log import RequestLog
from understudy.serve.requests import ApiError, ChatCompletionRequest, parse_request, read_object
from understudy.serve.responses import ResponseBuilder, sse_event

_SEEDS = 2**63
"""Seeds of samplers are below this: one sampler drops a seed's sign, another allows 64 bits at most."""


class ChatCompletionsApp:
    """The endpoint as an ASGI application."""

    def __init__(self, model: ServedModel, config: ServeConfig) -> None:
        self._model = model
        self._config = config
        self._log = RequestLog(config.log) if config.log else None
        self._in_flight = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        try:
            body = await read_body(Received(scope, receive), self._config.max_body_bytes)
            request = parse_request(read_object(body))
            validate_model_name(self._model, request.model)
            request.validate_lengths(self._config.max_message_chars)
            with self._reserve(request.n):
                prompt, _ = await build_prompt(self._model, request, request.sampling(request.max_reply_tokens or 1))
                if request.stream:
                    async with aclosing(self._events(request, prompt)) as events:
                        headers = {"Cache-Control": "no-cache"}
                        answer = StreamingResponse(events, headers=headers, media_type="text/event-stream")
                        await answer(scope, receive, send)
                else:
                    response = await self._response(request, prompt, receive)
                    await response(scope, receive, send)
        except ApiError as refusal:
            await error_response(refusal)(scope, receive, send)
        except ClientDisconnect:
            return

    @contextmanager
    def _reserve(self, count: int) -> Iterator[None]:
        """Reserve `count` replies of the concurrency limit until the block ends.

        Raise ApiError if the limit is exceeded.
        """
        limit = self._config.concurrency
        if count > limit:
            raise ApiError(f"n: at most {limit} replies can be generated at once, not {count}", "n", "invalid_value")
        if self._in_flight + count > limit:
            text = f"{self._in_flight} of {limit} concurrent replies are in progress, and n is {count}; retry later"
            raise ApiError(text, code="rate_limit_exceeded", status=429)
        self._in_flight += count
        try:
            yield
        finally:
            self._in_flight -= count

    async def _response(self, request: ChatCompletionRequest, prompt: list[int], receive: Receive) -> Response:
        """Return the response with all replies. Raise ClientDisconnect if the client disconnects first."""
        builder = ResponseBuilder(self._model.name, self._model.vocabulary, len(prompt))
        chunks: list[ReplyChunk] = []
        sampling = asyncio.ensure_future(self._sample(request, prompt, chunks.append))
        disconnect = asyncio.ensure_future(_wait_for_disconnect(receive))
        try:
            await asyncio.wait([sampling, disconnect], return_when=asyncio.FIRST_COMPLETED)
            if not sampling.done():
                raise ClientDisconnect
            sampling.result()
        finally:
            sampling.cancel()
            disconnect.cancel()
        return json_response(builder.response(chunks, request.logprobs))

    async def _events(self, request: ChatCompletionRequest, prompt: list[int]) -> AsyncGenerator[bytes, None]:
        """Yield the replies as server-sent events while they are sampled. Events of several replies are interleaved."""
        builder = ResponseBuilder(self._model.name, self._model.vocabulary, len(prompt))
        queue = asyncio.Queue[ReplyChunk | None]()
        sampling = asyncio.ensure_future(self._sample(request, prompt, queue.put_nowait))
        sampling.add_done_callback(lambda _: queue.put_nowait(None))
        try:
            for index in range(request.n):
                yield sse_event(builder.first_chunk(index))
            while chunk := await queue.get():
                for event in builder.chunks(chunk, request.logprobs):
                    yield sse_event(event)
            sampling.result()
            if request.stream_options and request.stream_options.include_usage:
                yield sse_event(builder.usage_chunk())
            yield sse_event("[DONE]")
        except ApiError as error:
            yield sse_event(error.body)
        finally:
            sampling.cancel()

    async def _sample(
        self, request: ChatCompletionRequest, prompt: list[int], put: Callable[[ReplyChunk], None]
    ) -> None:
        """Sample all replies concurrently, each with its own seed, and log them. `put` receives their chunks."""
        chunks: list[ReplyChunk] = []

        def on_chunk(chunk: ReplyChunk) -> None:
            chunks.append(chunk)
            put(chunk)

        seed = random.SystemRandom().getrandbits(62) if request.seed is None else request.seed
        sampling = request.sampling(request.max_reply_tokens or self._model.sampler.context_length - len(prompt))
        replies = [
            asyncio.ensure_future(
                generate_reply(self._model, request, prompt, sampling, index, (seed + index) % _SEEDS, on_chunk)
            )
            for index in range(request.n)
        ]
        try:
            await asyncio.gather(*replies)
        except (ConfigError, RolloutError) as e:  # out of memory, or the sampler has stopped
            raise ApiError(str(e), code="overloaded", status=503) from e
        finally:
            for reply in replies:
                reply.cancel()
        if self._log:
            self._log.add(request, prompt, chunks)


async def read_body(received: Received, limit: int) -> bytes:
    """Return the body of a request. Raise ApiError if it is not declared as JSON, or longer than `limit` bytes."""
    content_type = received.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/json":  # browsers send other types across origins without a preflight request
        raise ApiError("the content type must be application/json", code="unsupported_media_type", status=415)
    body = bytearray()
    async for part in received.stream():
        body += part
        if len(body) > limit:
            raise ApiError(f"the body is longer than {limit} bytes", code="request_too_large", status=413)
    return bytes(body)


def validate_model_name(model: ServedModel, name: str) -> None:
    """Raise ApiError unless `name` is the served model."""
    if name != model.name:
        text = f"the model {name!r} does not exist; this server serves {model.name!r}"
        raise ApiError(text, "model", "model_not_found", status=404)


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
