"""A chat completions endpoint on loopback that answers by script, and fails in every way that endpoints do."""

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY = "sk-proj-7dJ2kQ9vX1zL4mW8"
"""What must never be seen anywhere."""


@dataclass
class Answer:
    """One response."""

    body: str | bytes | Mapping[str, Any]
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    delay: float = 0.0
    cut: bool = False
    """Whether the connection breaks in the middle of the body."""


def says(text: str, finish: str = "stop", tokens: tuple[int, int] = (100, 10), **message: Any) -> Answer:
    """A completion as endpoints send it, with fields that a client does not know."""
    choice = {"index": 0, "finish_reason": finish, "logprobs": None}
    said = {"role": "assistant", "content": text, "annotations": [], **message}
    usage = {"prompt_tokens": tokens[0], "completion_tokens": tokens[1], "total_tokens": sum(tokens)}
    return Answer({"id": "x", "object": "chat.completion", "choices": [{**choice, "message": said}], "usage": usage})


@dataclass
class Endpoint:
    """What is answered, and what was asked."""

    answer: Callable[[Mapping[str, Any]], Answer]
    url: str = ""
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[Mapping[str, str]] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    at_once: int = 0
    most_at_once: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def serve(self, handler: BaseHTTPRequestHandler) -> None:
        """Answer one request."""
        body = json.loads(handler.rfile.read(int(handler.headers["Content-Length"])))
        with self.lock:
            self.requests.append(body)
            self.headers.append(dict(handler.headers))
            self.times.append(time.monotonic())
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
            answer = self.answer(body)
        time.sleep(answer.delay)
        with self.lock:  # before the response: a client may go on the moment it has that
            self.at_once -= 1
        send(handler, answer)


def send(handler: BaseHTTPRequestHandler, answer: Answer) -> None:
    text = answer.body if isinstance(answer.body, str | bytes) else json.dumps(answer.body)
    content = text if isinstance(text, bytes) else text.encode()
    handler.send_response(answer.status)
    for name, value in {"Content-Length": str(len(content)), **answer.headers}.items():
        handler.send_header(name, value)
    handler.end_headers()
    handler.wfile.write(content[: len(content) // 2] if answer.cut else content)
    handler.close_connection |= answer.cut


@contextmanager
def serving(answer: Callable[[Mapping[str, Any]], Answer] | Sequence[Answer]) -> Iterator[Endpoint]:
    """An endpoint that answers by a function of the request, or with these answers one after the other."""
    rest = iter(answer) if not callable(answer) else None
    endpoint = Endpoint(answer if callable(answer) else lambda _: next(rest))  # type: ignore[arg-type]

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            endpoint.serve(self)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True  # a client that gave up leaves one behind that still sleeps

        def handle_error(self, request: object, client_address: object) -> None:
            """Clients that hang up are part of the test."""

    with Server(("127.0.0.1", 0), Handler) as server:
        endpoint.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield endpoint
        finally:
            server.shutdown()
            thread.join()
