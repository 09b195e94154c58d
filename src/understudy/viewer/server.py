"""The page over HTTP, until Ctrl-C. It listens on loopback only, and answers only who names this machine."""

import contextlib
import socket
from collections.abc import Callable, Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from understudy.errors import ConfigError, RolloutError, TaskError
from understudy.serve.gate import Gate
from understudy.serve.options import ServeConfig
from understudy.serve.server import listen, server
from understudy.viewer import site
from understudy.viewer.answers import ANSWERS, Answer, as_json
from understudy.viewer.library import Library

_NO_ANSWER = (ConfigError, TaskError, RolloutError)
"""What may be wrong with what is looked at, or with the domains and models that are asked about it."""
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


def serve(library: Library, ports: Sequence[int], on_ready: Callable[[str], None]) -> None:
    """Serve the page until Ctrl-C, at the first of the ports that is free; `on_ready` is told its address."""
    *wished, last = (ServeConfig(port=port) for port in ports)
    with _listen(wished, last) as listener:
        port = listener.getsockname()[1]
        on_ready(f"http://{last.host}:{port}/")
        with contextlib.suppress(KeyboardInterrupt):  # which comes when all is closed
            server(app(library, last)).run(sockets=[listener])


def _listen(wished: Sequence[ServeConfig], last: ServeConfig) -> socket.socket:
    for config in wished:
        with contextlib.suppress(ConfigError):  # it is taken
            return listen(config)
    return listen(last)


def app(library: Library, config: ServeConfig) -> ASGIApp:
    """The server as an ASGI application."""
    routes = [
        Route("/", _page),
        Route("/static/{path:path}", _file),
        *(Route(path, _answering(library, answer)) for path, answer in ANSWERS.items()),
    ]
    handlers: dict[Any, Callable[[Request, Any], Response]] = dict.fromkeys(_NO_ANSWER, _not_there)
    return Gate(Starlette(routes=routes, exception_handlers=handlers), config, "")


def _page(_: Request) -> Response:
    text, policy = site.page()
    return Response(text, headers={**_HEADERS, "Content-Security-Policy": policy}, media_type="text/html")


def _file(request: Request) -> Response:
    path = request.path_params["path"]
    if path not in site.static():
        return Response(status_code=404)
    return Response(site.static()[path], headers=_HEADERS, media_type=site.media_type(path))


def _answering(library: Library, answer: Answer) -> Callable[[Request], Response]:
    """An endpoint that is no coroutine, so that it runs in a thread and a slow one holds up no other."""

    def endpoint(request: Request) -> Response:
        values = {**request.query_params, **{name: str(value) for name, value in request.path_params.items()}}
        return Response(as_json(answer(library, values)), headers=_HEADERS, media_type="application/json")

    return endpoint


def _not_there(_: Request, error: Exception) -> Response:
    return Response(as_json({"error": str(error)}), 404, _HEADERS, "application/json")
