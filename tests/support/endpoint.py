"""A chat completions endpoint on loopback with scripted answers and all failures of real endpoints."""

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from understudy.envs.users.consent import gives_consent

KEY = "sk-proj-7dJ2kQ9vX1zL4mW8"
"""The API key, which must never appear in any output."""


@dataclass
class Answer:
    """One response."""

    body: str | bytes | Mapping[str, Any]
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    delay: float = 0.0
    cut: bool = False
    """Whether the connection breaks in the middle of the body."""


def make_completion(text: str, finish: str = "stop", tokens: tuple[int, int] = (100, 10), **message: Any) -> Answer:
    """Return a completion as endpoints send it, with fields that a client does not know."""
    choice = {"index": 0, "finish_reason": finish, "logprobs": None}
    said = {"role": "assistant", "content": text, "annotations": [], **message}
    usage = {"prompt_tokens": tokens[0], "completion_tokens": tokens[1], "total_tokens": sum(tokens)}
    return Answer({"id": "x", "object": "chat.completion", "choices": [{**choice, "message": said}], "usage": usage})


def lamp_agent(request: Mapping[str, Any]) -> Answer:
    """Answer as an agent of `toy` that finds the lamp of the request, asks for consent, switches it on and reports
    it.
    """
    messages = request["messages"]
    last = messages[-1]
    wanted = [m["content"] for m in messages if m["role"] == "user" and "switch on lamp" in m["content"]][-1]
    name = wanted.split("switch on lamp ")[1].rstrip(".")
    if last["role"] == "tool":
        return make_completion(f"Lamp {name} is on.")
    if gives_consent(last["content"]):
        arguments = json.dumps({"lamp_id": name, "on": True})
        call = {"id": "call_x", "type": "function", "function": {"name": "switch_lamp", "arguments": arguments}}
        return make_completion(None, "tool_calls", tool_calls=[call])  # type: ignore[arg-type]
    return make_completion(f"I will switch on lamp {name}. Do you want me to proceed?")


@dataclass
class Endpoint:
    """The answers to give, and the requests received."""

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
        with self.lock:  # before the response, after which a client may continue at once
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
def serve_answers(answer: Callable[[Mapping[str, Any]], Answer] | Sequence[Answer]) -> Iterator[Endpoint]:
    """Yield an endpoint that answers with a function of the request, or with these answers in order."""
    rest = iter(answer) if not callable(answer) else None
    endpoint = Endpoint(answer if callable(answer) else lambda _: next(rest))  # type: ignore[arg-type]

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            endpoint.serve(self)

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True  # after a client's timeout a thread still sleeps

        def handle_error(self, request: object, client_address: object) -> None:
            """Ignore errors, because clients that disconnect are part of the tests."""

    with Server(("127.0.0.1", 0), Handler) as server:
        endpoint.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield endpoint
        finally:
            server.shutdown()
            thread.join()
