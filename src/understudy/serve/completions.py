"""`/v1/chat/completions`: the way of a request to its answer. Who goes away gives back what was computed for them."""

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager

from starlette.requests import ClientDisconnect
from starlette.requests import Request as Received
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from understudy.errors import ConfigError, RolloutError
from understudy.serve.choice import Model, Part, choose, prompt_of
from understudy.serve.gate import error_response, json_response
from understudy.serve.options import ServeConfig
from understudy.serve.replies import Reply, event
from understudy.serve.wire import Refusal, Request, read

_SEEDS = 2**63
"""Samplers get seeds from 0 to below this: one takes a seed's sign away, another has no more than 64 bits."""


class Completions:
    """The endpoint, as an ASGI application."""

    def __init__(self, model: Model, config: ServeConfig) -> None:
        self._model, self._config, self._under_way = model, config, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        try:
            request = read(await self._body(Received(scope, receive)))
            refuse_unknown(self._model, request.model)
            with self._places(request.n):
                prompt = prompt_of(self._model, request)
                if request.stream:
                    async with aclosing(self._events(request, prompt)) as events:
                        headers = {"Cache-Control": "no-cache"}
                        answer = StreamingResponse(events, headers=headers, media_type="text/event-stream")
                        await answer(scope, receive, send)
                else:
                    await (await self._whole(request, prompt, receive))(scope, receive, send)
        except Refusal as refusal:
            await error_response(refusal)(scope, receive, send)
        except ClientDisconnect:
            return

    async def _body(self, received: Received) -> bytes:
        kind = received.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":  # other types can be sent by a page of any origin without asking first
            raise Refusal("the content type has to be application/json", code="unsupported_media_type", status=415)
        body, most = bytearray(), self._config.max_body
        async for part in received.stream():
            body += part
            if len(body) > most:
                raise Refusal(f"the body is longer than {most} bytes", code="request_too_large", status=413)
        return bytes(body)

    @contextmanager
    def _places(self, count: int) -> Iterator[None]:
        """Places for `count` replies, given back when the request is answered or given up."""
        most = self._config.concurrency
        if count > most:
            raise Refusal(f"n: at most {most} replies can be made at once, not {count}", "n", "invalid_value")
        if self._under_way + count > most:
            text = f"{self._under_way} of {most} replies at once are being made, and this asks for {count}; try again"
            raise Refusal(text, code="rate_limit_exceeded", status=429)
        self._under_way += count
        try:
            yield
        finally:
            self._under_way -= count

    async def _whole(self, request: Request, prompt: list[int], receive: Receive) -> Response:
        """The replies when all are there, unless the client goes away first."""
        reply, parts = Reply(self._model, len(prompt)), list[Part]()
        work = asyncio.ensure_future(self._sample(request, prompt, parts.append))
        gone = asyncio.ensure_future(_until_gone(receive))
        try:
            await asyncio.wait([work, gone], return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                raise ClientDisconnect
            work.result()
        finally:
            work.cancel()
            gone.cancel()
        return json_response(reply.whole(parts, request.logprobs))

    async def _events(self, request: Request, prompt: list[int]) -> AsyncGenerator[bytes, None]:
        """The replies as they come, side by side."""
        reply, queue = Reply(self._model, len(prompt)), asyncio.Queue[Part | None]()
        work = asyncio.ensure_future(self._sample(request, prompt, queue.put_nowait))
        work.add_done_callback(lambda _: queue.put_nowait(None))
        try:
            for index in range(request.n):
                yield event(reply.opening(index))
            while part := await queue.get():
                for piece in reply.pieces(part, request.logprobs):
                    yield event(piece)
            work.result()
            if request.stream_options and request.stream_options.include_usage:
                yield event(reply.total())
            yield event("[DONE]")
        except Refusal as refusal:
            yield event(refusal.body)
        finally:
            work.cancel()

    async def _sample(self, request: Request, prompt: list[int], put: Callable[[Part], None]) -> None:
        """All replies to a request side by side, each with a seed of its own."""
        seed = random.SystemRandom().getrandbits(62) if request.seed is None else request.seed
        replies = [
            asyncio.ensure_future(choose(self._model, request, prompt, index, (seed + index) % _SEEDS, put))
            for index in range(request.n)
        ]
        try:
            await asyncio.gather(*replies)
        except (ConfigError, RolloutError) as e:  # out of memory, or the sampler is gone
            raise Refusal(str(e), code="overloaded", status=503) from e
        finally:
            for reply in replies:
                reply.cancel()


def refuse_unknown(model: Model, name: str) -> None:
    """A `Refusal` of every model but the one that is served."""
    if name != model.name:
        text = f"the model {name!r} does not exist; this server has {model.name!r}"
        raise Refusal(text, "model", "model_not_found", status=404)


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
