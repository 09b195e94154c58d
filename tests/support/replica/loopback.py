"""The replicas of all services as one real HTTP server on loopback."""

import contextlib
import json
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from support.replica.answers import KEY, Answer, Request, Service, fmp, polygon, slack, tavily
from support.replica.channels import Workspace

_REFUSALS: Mapping[str, Answer] = {
    "polygon": (401, {"status": "ERROR", "request_id": "replica", "error": "Unknown API Key"}),
    "fmp": (401, {"Error Message": "Invalid API KEY. Please retry or visit our documentation."}),
    "tavily": (401, {"detail": {"error": "Unauthorized: missing or invalid API key."}}),
    "slack": (200, {"ok": False, "error": "invalid_auth"}),
}


@dataclass
class Replicas:
    """The server: its services, and the requests received."""

    services: dict[str, Service]
    url: str = ""
    asked: list[Request] = field(default_factory=list)
    instead: Callable[[BaseHTTPRequestHandler], bool] = lambda _: False
    """Overrides a service's answer if it returns one, as when a service is out of order."""

    def address(self, service: str) -> str:
        """Return the URL of a service."""
        return f"{self.url}/{service}"

    def environment(self) -> dict[str, str]:
        """Return the environment variables that direct the servers here, with accepted keys and without rate limits."""
        found = {f"{name.upper()}_BASE_URL": self.address(name) for name in self.services}
        keys = {f"{name.upper()}_API_KEY": KEY for name in self.services if name != "slack"}
        calm = {f"{name.upper()}_PER_MINUTE": "100000" for name in self.services}
        return {**found, **keys, **calm, "SLACK_BOT_TOKEN": KEY}

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        """Answer one request."""
        address = urlsplit(handler.path)
        service, _, path = address.path.removeprefix("/").partition("/")
        length = int(handler.headers.get("Content-Length") or 0)
        body = json.loads(handler.rfile.read(length)) if length else {}
        self.asked.append(Request(f"/{path}", dict(parse_qsl(address.query)), body))
        if not self.instead(handler):
            known = _key(service, dict(handler.headers)) == KEY
            send(handler, *(self.services[service](self.asked[-1]) if known else _REFUSALS[service]))


def send(handler: BaseHTTPRequestHandler, status: int, content: Any, headers: Mapping[str, str] = {}) -> None:
    """Send JSON, or bytes unchanged."""
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    handler.send_response(status)
    for name, value in {"Content-Type": "application/json", "Content-Length": str(len(body)), **headers}.items():
        handler.send_header(name, value)
    handler.end_headers()
    handler.wfile.write(body)


@contextlib.contextmanager
def serve_replicas() -> Iterator[Replicas]:
    """Yield the server of all four services."""
    made = Replicas({"polygon": polygon, "fmp": fmp, "tavily": tavily, "slack": slack(Workspace())})

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            made.answer(self)

        def do_POST(self) -> None:
            made.answer(self)

        def log_message(self, *_: Any) -> None:
            """Log nothing."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            """Print the error, except of a client that has ended, as a server that a test stops."""
            if not isinstance(sys.exception(), ConnectionError):
                super().handle_error(request, client_address)  # type: ignore[arg-type]

    with Server(("127.0.0.1", 0), Handler) as server:
        made.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield made
        finally:
            server.shutdown()
            thread.join()


@contextlib.contextmanager
def variables() -> Iterator[dict[str, str]]:
    """Yield the environment variables that direct a server to all four services, for `understudy mcp serve --web`."""
    with serve_replicas() as running:
        yield running.environment()


def _key(service: str, headers: Mapping[str, str]) -> str:
    if service == "fmp":
        return headers.get("apikey", "")
    return headers.get("Authorization", "").removeprefix("Bearer ")
