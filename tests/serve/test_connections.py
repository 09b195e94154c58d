"""Test that connections with half-sent requests are closed, by real sockets."""

import asyncio
import socket
import time
from collections.abc import Iterator

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from support.listening import serve_app
from support.viewing import make_run, serve_viewer
from understudy.serve import protocol
from understudy.viewer.library import RunLibrary


@pytest.fixture(autouse=True)
def short_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "HEAD_SECONDS", 0.4)
    monkeypatch.setattr(protocol, "BODY_SECONDS", 0.4)


async def echo(request: Request) -> Response:
    body = await request.body()
    await asyncio.sleep(1.0)  # longer than the limits, which end when the request has arrived
    return Response(body)


@pytest.fixture
def port() -> Iterator[int]:
    with serve_app(lambda _: Starlette(routes=[Route("/", echo, methods=["GET", "POST"])])) as address:
        yield int(address.rpartition(":")[2])


def is_closed(connection: socket.socket, seconds: float = 60.0) -> bool:
    """Return whether the server closes the connection within a time. What it sends before is ignored."""
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        connection.settimeout(left)
        try:
            if not connection.recv(65536):
                return True
        except TimeoutError:
            return False
        except ConnectionError:
            return True
    return False


HALF = [
    b"",
    b"G",
    b"GET / HTTP/1.1\r\nHost: localhost\r\nX-A: ",
    b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nabc",
    b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
]


@pytest.mark.parametrize("sent", HALF)
def test_half_sent_request_is_closed(port: int, sent: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(sent)
        assert is_closed(connection)


@pytest.mark.parametrize("sent", HALF[2:4])
def test_bytes_now_and_then_do_not_extend_the_limit(port: int, sent: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(sent)
        begin = time.monotonic()
        while not is_closed(connection, 0.1):
            assert time.monotonic() - begin < 60
            try:
                connection.sendall(b"a")
            except ConnectionError:
                break


def test_half_of_a_second_request_is_closed(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")
        connection.sendall(b"GET / HT")
        assert is_closed(connection)


def test_slow_answer_is_not_closed(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        for _ in range(2):
            connection.sendall(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\nabc")
            answer = b""
            while not answer.endswith(b"abc"):
                answer += connection.recv(65536)
            assert answer.startswith(b"HTTP/1.1 200")


def test_viewer_closes_half_a_note_and_goes_on(
    tmp_path_factory: pytest.TempPathFactory, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path_factory.mktemp("runs")
    make_run(folder / "one", steps=0)
    with serve_viewer(RunLibrary([folder])) as address:
        port = int(address.rpartition(":")[2])
        head = b"POST /api/annotations/one HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(head + b"Content-Length: 50\r\n\r\n{")
            assert is_closed(connection)
        with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
            connection.sendall(head + b"Content-Length: 2\r\n\r\n{}")
            assert connection.recv(65536).startswith(b"HTTP/1.1 200")
    assert "Traceback" not in capfd.readouterr().err
