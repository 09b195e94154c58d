"""A chat-completions endpoint on this machine that fails by a plan: it plays users and judges."""

import hashlib
import json
import socket
import struct
import threading
import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from understudy.envs.users.draft import STOP_TOKEN
from understudy.train.chaos.injection import FaultInjector

HANG_SECONDS, SLOW_SECONDS, DOWN_SECONDS = 3.0, 0.05, 0.3
"""How long a request hangs, how long a slow one takes, and how long a server is down that is started again."""
USER_ENDPOINT, JUDGE_ENDPOINT = "user endpoint", "judge endpoint"
_BODIES: Mapping[str, bytes] = {
    "half JSON": b'{"choices": [{"mess',
    "empty body": b"",
    "invalid UTF-8": b'{"choices": "\xff\xfe"}',
    "NaN": b'{"choices": [{"message": {"role": "assistant", "content": NaN}}]}',
    "error page": b"<html><body>Bad gateway</body></html>",
    "no choices": b'{"choices": []}',
}


class FaultyEndpoint:
    """The endpoint of one cell. It serves while it is used as a context manager."""

    def __init__(self, folder: Path, port: int = 0) -> None:
        """Use this port, or a free one if it is 0."""
        self._folder = folder
        self._server: ThreadingHTTPServer | None = None
        self._port = port
        self._going_down = threading.Lock()

    @property
    def url(self) -> str:
        """The base URL."""
        return f"http://127.0.0.1:{self._port}/v1"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def start(self) -> None:
        """Listen, if the endpoint does not listen. Later starts use the port of the first."""
        if self._server:
            return
        self._server = _Server(("127.0.0.1", self._port), _handler_of(self))
        self._port = int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def stop(self) -> None:
        """Stop listening, so that connections are refused."""
        server, self._server = self._server, None
        if server:
            server.shutdown()
            server.server_close()

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        """Answer a request, or fail by the plan."""
        body = handler.rfile.read(int(handler.headers["Content-Length"]))
        injector, request = FaultInjector(self._folder), json.loads(body)
        key = "server" if injector.plan.fault == "refused" else hashlib.sha256(body).hexdigest()
        fault = injector.find_fault(request["model"], key)
        if fault == "refused":
            self._go_down(passing=injector.plan.mode == "passing")
        if fault in ("refused", "reset"):
            return _reset(handler)
        if fault in ("hang", "slow"):
            time.sleep(HANG_SECONDS if fault == "hang" else SLOW_SECONDS)
        status = int(fault) if fault.isdecimal() else 200
        content = _BODIES.get(fault, json.dumps(_complete(request)).encode())
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content)

    def _go_down(self, *, passing: bool) -> None:
        if self._going_down.acquire(blocking=False):
            threading.Thread(target=self._restart if passing else self.stop, daemon=True).start()

    def _restart(self) -> None:
        self.stop()
        time.sleep(DOWN_SECONDS)
        self.start()
        self._going_down.release()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that have left."""


def _handler_of(endpoint: FaultyEndpoint) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            endpoint.answer(self)

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing."""

    return Handler


def _reset(handler: BaseHTTPRequestHandler) -> None:
    """Reset the connection."""
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    handler.close_connection = True
    handler.connection.close()


def _complete(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return a completion. A judge gives the mark 7. A user says yes to a question, and leaves after another text."""
    said = request["messages"][-1]["content"]
    text = "7" if request["model"] == JUDGE_ENDPOINT else "Yes, please." if "?" in said else STOP_TOKEN
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
    return {"choices": [choice], "usage": {"prompt_tokens": 10, "completion_tokens": 2}}
