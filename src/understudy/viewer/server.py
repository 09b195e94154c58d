"""The HTTP server of the page. It listens on loopback only and rejects requests for other host names."""

import contextlib
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from understudy.core.errors import ConfigError, RolloutError, TaskError
from understudy.serve.access import AccessMiddleware
from understudy.serve.options import ServeConfig
from understudy.serve.server import open_socket, run_server
from understudy.viewer import site
from understudy.viewer.api import ANNOTATION_PATHS, ROUTES, Handler, encode_json
from understudy.viewer.episodes.episode_api import annotate_handler, parse_annotation
from understudy.viewer.library import RunLibrary
from understudy.viewer.query import QueryError

MAX_BODY_BYTES = 64 << 10
"""Largest size of a request with a note, in bytes."""
_NO_ANSWER = (ConfigError, TaskError, RolloutError)
"""Errors that the server answers with status 404 and the error's text."""
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


def serve_viewer(library: RunLibrary, ports: Sequence[int], on_ready: Callable[[str], None]) -> None:
    """Serve the page until Ctrl-C on the first free port of `ports`.

    `on_ready` is called with the page's address. Raise ConfigError if no port is free.
    """
    *wished, last = (ServeConfig(port=port) for port in ports)
    with _listen(wished, last) as listener:
        port = listener.getsockname()[1]
        run_server(make_viewer_app(library, last), listener, lambda: on_ready(f"http://{last.host}:{port}/"))


def _listen(wished: Sequence[ServeConfig], last: ServeConfig) -> socket.socket:
    for config in wished:
        with contextlib.suppress(ConfigError):  # the port is in use
            return open_socket(config)
    return open_socket(last)


def make_viewer_app(library: RunLibrary, config: ServeConfig) -> ASGIApp:
    """Return the server as an ASGI application."""
    routes = [
        Route("/", _page),
        Route("/static/{path:path}", _file),
        *(Route(path, _answering(library, answer)) for path, answer in ROUTES.items()),
        *(Route(path, _annotating(library), methods=["POST"]) for path in ANNOTATION_PATHS),
    ]
    handlers: dict[Any, Callable[[Request, Any], Response]] = dict.fromkeys(_NO_ANSWER, _not_there)
    handlers[QueryError] = _bad_request
    return AccessMiddleware(Starlette(routes=routes, exception_handlers=handlers), config, "")


def _page(_: Request) -> Response:
    text, policy = site.render_page()
    return Response(text, headers={**_HEADERS, "Content-Security-Policy": policy}, media_type="text/html")


def _file(request: Request) -> Response:
    path = request.path_params["path"]
    if path not in site.static_files():
        return Response(status_code=404)
    return Response(site.static_files()[path], headers=_HEADERS, media_type=site.media_type(path))


def _answering(library: RunLibrary, answer: Handler) -> Callable[[Request], Response]:
    """Return an endpoint for a handler. It is not a coroutine, so it runs in a thread and a slow request blocks no
    other.
    """

    def endpoint(request: Request) -> Response:
        values = {**request.query_params, **_path_values(request)}
        return Response(encode_json(answer(library, values)), headers=_HEADERS, media_type="application/json")

    return endpoint


def _annotating(library: RunLibrary) -> Callable[[Request], Awaitable[Response]]:
    """Return the endpoint that stores a note. It is the only one that writes.

    A page of another origin cannot use it: its browser sends `Sec-Fetch-Site` or `Origin`, and needs a permission that
    this server never gives to send JSON.
    """

    async def endpoint(request: Request) -> Response:
        own = f"{request.url.scheme}://{request.headers.get('host', '')}"
        if request.headers.get("origin", own) != own:
            return _error_response("notes are only accepted from the viewer's own page", 403)
        if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            return _error_response("the body must be JSON, with the header Content-Type: application/json", 415)
        body = b""
        try:
            async for chunk in request.stream():
                body += chunk
                if len(body) > MAX_BODY_BYTES:
                    return _error_response(f"a note has at most {MAX_BODY_BYTES} bytes", 413)
        except ClientDisconnect:
            return Response(status_code=400)  # nobody reads it
        try:
            annotation = parse_annotation(body)
        except ValidationError as e:
            first = e.errors(include_url=False, include_input=False)[0]
            return _error_response(f"{'.'.join(map(str, first['loc'])) or 'the body'}: {first['msg']}", 400)
        answer = await run_in_threadpool(annotate_handler, library, _path_values(request), annotation)
        return Response(encode_json(answer), headers=_HEADERS, media_type="application/json")

    return endpoint


def _path_values(request: Request) -> dict[str, str]:
    return {name: str(value) for name, value in request.path_params.items()}


def _error_response(text: str, status: int) -> Response:
    return Response(encode_json({"error": text}), status, _HEADERS, "application/json")


def _bad_request(_: Request, error: Exception) -> Response:
    return _error_response(str(error), 400)


def _not_there(_: Request, error: Exception) -> Response:
    return _error_response(str(error), 404)
