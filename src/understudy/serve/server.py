"""The server: its routes and its socket."""

import asyncio
import contextlib
import errno
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, Literal

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from understudy.core.errors import ConfigError
from understudy.serve.access import AccessMiddleware, error_response, json_response
from understudy.serve.completions import ChatCompletionsApp, validate_model_name
from understudy.serve.generation import ServedModel
from understudy.serve.options import ServeConfig
from understudy.serve.protocol import TimeLimitedProtocol
from understudy.serve.requests import ApiError

SHUTDOWN_SECONDS = 5
"""Seconds that replies in progress get to finish after Ctrl-C."""
KEEP_ALIVE_SECONDS = 75
"""Seconds after which an idle connection is closed. After few, a client that was busy finds it closed as it writes."""


def make_serve_app(model: ServedModel, config: ServeConfig, key: str = "") -> ASGIApp:
    """Return the server as an ASGI application. With a `key`, clients must send it."""
    model_entry = {"id": model.name, "object": "model", "created": 0, "owned_by": "understudy"}

    async def models(_: Request) -> Response:
        return json_response({"object": "list", "data": [model_entry]})

    async def model_by_name(request: Request) -> Response:
        validate_model_name(model, request.path_params["name"])
        return json_response(model_entry)

    async def health(_: Request) -> Response:
        return json_response({"status": "ok"})

    routes = [
        Route("/health", health),
        Route("/v1/models", models),
        Route("/v1/models/{name:path}", model_by_name),
        Route("/v1/chat/completions", ChatCompletionsApp(model, config), methods=["POST"]),
    ]
    handlers: dict[Any, Callable[..., Awaitable[Response]]] = {HTTPException: not_found, ApiError: api_error}
    return AccessMiddleware(Starlette(routes=routes, exception_handlers=handlers), config, key)


def run_server(app: ASGIApp, listener: socket.socket, on_ready: Callable[[], None]) -> None:
    """Serve an application until Ctrl-C. Call `on_ready` once Ctrl-C and SIGTERM shut the server down in order."""
    server = make_server(app)
    # By itself, uvicorn captures signals only after it has made its event loop. It raises them again at the end.
    with contextlib.suppress(KeyboardInterrupt), server.capture_signals():
        on_ready()
        server.run(sockets=[listener])


def make_server(
    app: ASGIApp,
    kind: type[uvicorn.Server] = uvicorn.Server,
    lifespan: Literal["on", "off"] = "off",
    ws: Literal["none", "websockets-sansio"] = "none",
) -> uvicorn.Server:
    """Return the uvicorn server of an application, not yet running."""
    return kind(
        uvicorn.Config(
            app,
            http=TimeLimitedProtocol,
            ws=ws,
            lifespan=lifespan,
            log_level="warning",
            server_header=False,
            timeout_graceful_shutdown=SHUTDOWN_SECONDS,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
        )
    )


@contextlib.asynccontextmanager
async def serve_in_loop(app: ASGIApp, lifespan: Literal["on", "off"] = "off") -> AsyncIterator[str]:
    """Serve an application on a free port of this machine, in the running event loop. Yield the base URL.

    With `lifespan` "on", the application is told when the server starts and ends.
    """
    listener = open_socket(ServeConfig(port=0))
    server = make_server(app, _ServerInLoop, lifespan)
    task = asyncio.ensure_future(server.serve([listener]))
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await task


class _ServerInLoop(uvicorn.Server):
    """A server that leaves signals to the program around it."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def open_socket(config: ServeConfig) -> socket.socket:
    """Return a socket that listens at the configured address. Raise ConfigError if that fails."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    try:
        return socket.create_server((config.host, config.port), family=family)
    except (OSError, TypeError, UnicodeError) as e:  # the latter for a name that is none
        if isinstance(e, OSError) and e.errno == errno.EADDRINUSE:
            text = f"port {config.port} of {config.host} is in use; give another --port, or --port 0 for a free one"
            raise ConfigError(text) from e
        address = f"{config.host} port {config.port}"
        raise ConfigError(
            f"cannot listen on {address}: {getattr(e, 'strerror', None) or e}; give another address or --port"
        ) from e


async def api_error(_: Request, refusal: ApiError) -> Response:
    """Return the response of a refusal."""
    return error_response(refusal)


async def not_found(request: Request, error: HTTPException) -> Response:
    """Return the response to a request of an unknown path, which names those of the application."""
    paths = ", ".join(route.path for route in request.app.routes if "{" not in route.path)
    text = f"{request.method} {request.url.path}: {error.detail.lower()}; use {paths}"
    return error_response(ApiError(text, code="not_found", status=error.status_code))
