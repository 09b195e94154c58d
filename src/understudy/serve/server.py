"""The server: its routes, and the socket that it listens on until Ctrl-C."""

import contextlib
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from understudy.chat import read_key
from understudy.errors import ConfigError
from understudy.formats import Vocabulary
from understudy.models import find_model
from understudy.players import open_model
from understudy.serve.choice import Model
from understudy.serve.completions import Completions, refuse_unknown
from understudy.serve.gate import Gate, error_response, json_response
from understudy.serve.options import ServeConfig
from understudy.serve.wire import Refusal
from understudy.weights import Weights

PATIENCE = 5
"""Seconds that replies under way have to end after Ctrl-C."""


def serve(weights: Weights, config: ServeConfig, say: Callable[[str], None]) -> None:
    """Serve a model until Ctrl-C; `say` is told where, and what of that is unsafe."""
    key, listener = read_key(config.key_variable), listen(config)
    with listener:
        model = open_served(weights, config)
        for line in (*weights.warnings, model.sampled):
            say(line)
        if not (config.local or key):
            say(f"whoever can reach {config.host} can use this server: set a key by --key-variable")
        host = f"[{config.host}]" if ":" in config.host else config.host
        say(f"{weights.name} is served at http://{host}:{listener.getsockname()[1]}/v1; Ctrl-C ends it")
        with (
            contextlib.closing(model.sampler),
            contextlib.suppress(KeyboardInterrupt),
        ):  # which comes when all is closed
            server(app(model, config, key)).run(sockets=[listener])


def open_served(weights: Weights, config: ServeConfig) -> Model:
    """Load the weights, with room in the sampler's cache for as many replies as are made at once.

    Nothing limits the conversations but the model: vLLM is asked for all of its context.
    """
    engine = weights.config.engine.replace(sequences=config.concurrency)
    sampler, format = open_model(weights.config, weights.checkpoint, engine)
    vocabulary = Vocabulary.load(find_model(weights.config.model) / "tokenizer.json")
    return Model(weights.name, sampler, format, vocabulary, str(sampler.choice))


def app(model: Model, config: ServeConfig, key: str = "") -> ASGIApp:
    """The server as an ASGI application; with a `key`, only for those who have it."""
    shown = {"id": model.name, "object": "model", "created": 0, "owned_by": "understudy"}

    async def models(_: Request) -> Response:
        return json_response({"object": "list", "data": [shown]})

    async def one(request: Request) -> Response:
        refuse_unknown(model, request.path_params["name"])
        return json_response(shown)

    async def health(_: Request) -> Response:
        return json_response({"status": "ok"})

    routes = [
        Route("/health", health),
        Route("/v1/models", models),
        Route("/v1/models/{name:path}", one),
        Route("/v1/chat/completions", Completions(model, config), methods=["POST"]),
    ]
    handlers: dict[Any, Callable[..., Awaitable[Response]]] = {HTTPException: _unrouted, Refusal: _refused}
    return Gate(Starlette(routes=routes, exception_handlers=handlers), config, key)


def server(served: ASGIApp) -> uvicorn.Server:
    """The server of an application; it is not running yet."""
    return uvicorn.Server(
        uvicorn.Config(
            served,
            http="h11",
            ws="none",
            lifespan="off",
            log_level="warning",
            server_header=False,
            timeout_graceful_shutdown=PATIENCE,
        )
    )


def listen(config: ServeConfig) -> socket.socket:
    """The socket that the server is to listen on."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    try:
        return socket.create_server((config.host, config.port), family=family)
    except OSError as e:
        where = f"{config.host} port {config.port}"
        raise ConfigError(f"cannot listen on {where}: {e.strerror or e}; choose --host or --port") from e


async def _refused(_: Request, refusal: Refusal) -> Response:
    return error_response(refusal)


async def _unrouted(request: Request, error: HTTPException) -> Response:
    text = f"{request.method} {request.url.path}: {error.detail.lower()}; there are /v1/chat/completions (POST),"
    return error_response(Refusal(f"{text} /v1/models and /health", code="not_found", status=error.status_code))
