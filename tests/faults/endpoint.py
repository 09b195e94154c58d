"""A server on this machine that fails by a plan. It has chat completions for users and judges, and vLLM's routes."""

import contextlib
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

from tests.faults.injection import HANG, FaultInjector
from tests.faults.vllm_server import (
    REPLY_PATH,
    VLLM,
    WEIGHTS_LOST,
    ImitatedVllm,
    VllmProxy,
    VllmRoutes,
    damage_reply,
)
from understudy.envs.users.draft import STOP_TOKEN

SLOW_SECONDS, DOWN_SECONDS = 0.05, 0.3
"""How long a slow request takes, and how long a server is down that is started again."""
USER_ENDPOINT, JUDGE_ENDPOINT = "user endpoint", "judge endpoint"
CHAT_PATH = "/v1/chat/completions"
HALF_BODY = "half a body"
"""The fault of a connection that ends in the middle of an answer."""
DEATH = "death"
"""The fault of a server that ends and, if the fault passes, is started again."""
_BODIES: Mapping[str, bytes] = {
    "half JSON": b'{"choices": [{"mess',
    "empty body": b"",
    "invalid UTF-8": b'{"choices": "\xff\xfe"}',
    "NaN": b'{"choices": [{"message": {"role": "assistant", "content": NaN}}]}',
    "error page": b"<html><body>Bad gateway</body></html>",
    "no choices": b'{"choices": []}',
}


class FaultyEndpoint:
    """The endpoint of one case. It serves while it is used as a context manager."""

    def __init__(self, folder: Path, port: int = 0, vllm_url: str = "") -> None:
        """Use this port, or a free one if it is 0. Requests to vLLM go to the server at `vllm_url`, or are answered by
        an imitation if it is empty.
        """
        self._folder = folder
        self._vllm: VllmRoutes = VllmProxy(vllm_url) if vllm_url else ImitatedVllm()
        self._server: ThreadingHTTPServer | None = None
        self.port = port
        self._going_down = threading.Lock()

    @property
    def address(self) -> str:
        """The address of the server, without a path."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        """The base URL of the chat completions."""
        return f"{self.address}/v1"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def start(self) -> None:
        """Listen, if the endpoint does not listen. Later starts use the port of the first."""
        if self._server:
            return
        self._server = _Server(("127.0.0.1", self.port), _handler_of(self))
        self.port = int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def stop(self) -> None:
        """Stop listening, so that connections are refused."""
        server, self._server = self._server, None
        if server:
            server.shutdown()
            server.server_close()

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        """Answer a request, or fail by the plan."""
        body = handler.rfile.read(int(handler.headers.get("Content-Length", 0)))
        is_chat, injector = handler.path == CHAT_PATH, FaultInjector(self._folder)
        fault = ""
        if is_chat:
            model, digest = json.loads(body)["model"], hashlib.sha256(body).hexdigest()
            fault = injector.find_fault(model, "server" if (model, "refused") in injector.plan.faults else digest)
        elif handler.path == REPLY_PATH:  # an episode that is played again has other seeds, and so no equal requests
            fault = injector.find_fault(VLLM, "reply")
        if fault in (DEATH, WEIGHTS_LOST):
            self._vllm.lose_weights()
        if fault in ("refused", DEATH):
            self._go_down(passing=injector.plan.mode == "passing")
        if fault in ("refused", "reset", DEATH):
            return _reset(handler)
        if fault == HANG:
            return _wait_for_disconnect(handler)
        if fault == "slow":
            time.sleep(SLOW_SECONDS)
        status, content = (
            (200, json.dumps(_complete(json.loads(body))).encode())
            if is_chat
            else self._vllm.answer(handler.command, handler.path, body)
        )
        handler.send_response(int(fault) if fault.isdecimal() else status)
        content = _BODIES[fault] if fault in _BODIES else damage_reply(fault, content)
        handler.send_header("Content-Type", "text/html" if fault == "error page" else "application/json")
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        if fault == HALF_BODY:
            handler.close_connection = True
            content = content[: len(content) // 2]
        handler.wfile.write(content)
        return None

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

        def do_GET(self) -> None:
            endpoint.answer(self)

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


def _wait_for_disconnect(handler: BaseHTTPRequestHandler) -> None:
    """Answer nothing until the client has left."""
    handler.close_connection = True
    with contextlib.suppress(ConnectionError):
        while handler.connection.recv(1 << 16):
            pass


def _complete(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return a completion. A judge gives the mark 7. A user says yes to a question, and leaves after another text."""
    said = request["messages"][-1]["content"]
    text = "7" if request["model"] == JUDGE_ENDPOINT else "Yes, please." if "?" in said else STOP_TOKEN
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
    return {"choices": [choice], "usage": {"prompt_tokens": 10, "completion_tokens": 2}}
