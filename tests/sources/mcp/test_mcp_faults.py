"""Faults of real MCP servers, over stdio and over HTTP: each is one clear line, and the server's."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil
import pytest

from support.machine import process_ends
from support.mcp_kit import UNRULY, call_on_new_server, call_result, run_async, running_servers, unruly_config
from understudy.sources.mcp import session, transport
from understudy.sources.mcp.catalog import ToolCatalog
from understudy.sources.mcp.config import MCPServerConfig
from understudy.sources.mcp.pool import SessionPools
from understudy.sources.mcp.toolkit import MCPToolkit

pytestmark = pytest.mark.slow
HOSTILE = UNRULY.with_name("hostile.py")


def http_config(*, sdk: bool = False, **settings: object) -> MCPServerConfig:
    """Return the config of an unruly server over HTTP, whose answers are events of a stream."""
    place = {"url": "http://127.0.0.1:{port}/mcp", "protocol": "legacy"}
    return unruly_config("http {port}", sdk=sdk, **{**place, **settings})


@pytest.mark.parametrize("protocol", ["legacy", "auto"])
def test_large_result_over_http_is_truncated_as_over_stdio(protocol: str) -> None:
    async def both() -> tuple[str, str]:
        over_http = await call_on_new_server(http_config(sdk=True, protocol=protocol), "babble", megabytes=3)
        return over_http, await call_on_new_server(unruly_config(), "babble", megabytes=3)

    over_http, over_stdio = run_async(both())
    assert over_http == over_stdio
    assert over_http.endswith(f"[cut here: 16000 of {3 << 20} characters]")


@pytest.mark.parametrize(
    "config",
    [http_config(), http_config(protocol="auto"), http_config(isolation="shared"), unruly_config()],
    ids=["events", "json", "shared", "stdio"],
)
def test_result_beyond_the_largest_message_is_the_servers_fault(
    config: MCPServerConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (session, transport):
        monkeypatch.setattr(module, "MAX_MESSAGE_BYTES", 1 << 20)
    said = run_async(call_on_new_server(config, "babble", megabytes=3))
    assert said.startswith("mcp's fault: ")
    assert ("unruly" if config.command and not config.url else "babble") in said
    assert str(1 << 20) in said


@pytest.mark.parametrize("protocol", ["legacy", "auto"])
@pytest.mark.parametrize("isolation", ["episode", "shared"])
def test_http_server_that_dies_is_one_line_of_the_mcp_fault(
    protocol: str, isolation: str, caplog: pytest.LogCaptureFixture
) -> None:
    config = http_config(protocol=protocol, isolation=isolation)

    async def episode() -> tuple[str, str, str]:
        async with MCPToolkit({"u": config}) as kit:
            died, later = await call_result(kit, "die"), await call_result(kit, "count")
        return died, later, await call_on_new_server(config, "add", amount=1)

    died, later, on_new_server = run_async(episode())
    for said in (died, later):
        assert said.startswith("mcp's fault: ")
        assert "list" not in said.split("; its log")[0]
        assert "\n" not in said
    assert "died during die" in died
    assert on_new_server == "the count is 1"
    assert not [record for record in caplog.records if record.name == "asyncio"]
    assert not running_servers()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_http_server_ends_with_the_process_that_started_it(number: signal.Signals, tmp_path: Path) -> None:
    script = f"""
import asyncio, sys
sys.path[:0] = {[path for path in sys.path if path]!r}
from support.mcp_kit import unruly_config
from understudy.sources.mcp.toolkit import MCPToolkit
async def main():
    async with MCPToolkit({{"u": unruly_config("http {{port}}", url="http://127.0.0.1:{{port}}/mcp")}}):
        print("open", flush=True)
        await asyncio.sleep(60)
asyncio.run(main())
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, env=os.environ) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"open\n"
        servers = [p for p in psutil.Process(parent.pid).children(recursive=True) if str(UNRULY) in p.cmdline()]
        assert servers
        parent.send_signal(number)
        parent.wait(60)
    assert all(process_ends(server.pid) for server in servers)


def call_hostile(kind: str, call_timeout: float) -> str:
    """Return the result of a call on a new server of `mcp_servers/hostile.py`."""
    command = [sys.executable, str(HOSTILE), kind]
    settings = {"command": command, "warm_sessions": 0, "max_start_attempts": 1, "protocol": "legacy"}
    config = MCPServerConfig.model_validate({**settings, "call_timeout": call_timeout, "start_timeout": 60})
    return run_async(call_on_new_server(config, "say", text="red"))


@pytest.mark.parametrize(
    ("kind", "named"),
    [
        ("control", r"sa\x1by"),
        ("newline", r"\n"),
        ("empty", "name"),
        ("long_name", "'ssss"),
        ("many", "10000 tools"),
        ("huge_description", "10,000,062"),
        ("schema_null", "tools.0.inputSchema"),
        ("schema_text", "tools.0.inputSchema"),
        ("schema_wrong", "tools.0.inputSchema.properties"),
        ("schema_array", "tools.0.inputSchema.type"),
        ("tool_text", "tools.0"),
        ("pages", "100 pages"),
        ("result_null", "did not answer say"),
        ("result_text", "did not answer say"),
        ("content_text", "content: "),
        ("content_wrong", "content.0"),
        ("content_unknown", "content.0"),
        ("structured_text", "structuredContent: "),
        ("is_error_text", "isError: "),
        ("half", "did not answer say"),
        ("bytes", "did not answer say"),
        ("deep", "did not answer say"),
        ("nothing", "did not answer say"),
        ("flood", "too many messages"),
        ("endless", "sent a line of more than 33554432 bytes"),
    ],
)
def test_hostile_server_is_one_line_of_the_mcp_fault(kind: str, named: str, caplog: pytest.LogCaptureFixture) -> None:
    said = call_hostile(kind, call_timeout=1.5 if named.startswith("did not answer") else 60)
    assert said.startswith("mcp's fault: ")
    assert "'unruly'" in said
    assert named in said
    assert "\n" not in said
    assert len(said) < 500
    assert not [record for record in caplog.records if record.name == "asyncio"]


def test_list_of_tools_may_end_with_an_empty_cursor() -> None:
    assert call_hostile("empty_cursor", call_timeout=60) == "done"


def test_server_on_this_machine_is_reached_without_the_proxy_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert run_async(call_on_new_server(http_config(), "add", amount=1)) == "the count is 1"


def test_server_that_lists_its_words_in_another_order_has_not_changed_its_tools() -> None:
    command = (sys.executable, str(HOSTILE), "shuffled")
    config = MCPServerConfig(command=command, protocol="legacy", warm_sessions=0)

    async def episodes() -> list[str]:
        said = []
        async with MCPToolkit({"u": config}) as kit:
            catalog = ToolCatalog({"u": kit.specs()}, {"u": config})
        for _ in range(3):
            async with MCPToolkit({"u": config}, catalog=catalog) as kit:
                said.append(await call_result(kit, "say", text="red"))
        return said

    assert run_async(episodes()) == ["done"] * 3


@pytest.fixture
def bad_answers() -> Iterator[tuple[str, dict[str, tuple[int, str, bytes]]]]:
    """Yield the address of an HTTP server, and the status, type and body with which it answers calls of tools."""
    answers: dict[str, tuple[int, str, bytes]] = {}

    class Answers(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            self._answer(405, "text/plain", b"")

        do_DELETE = do_GET

        def do_POST(self) -> None:
            message = json.loads(self.rfile.read(int(self.headers["content-length"])))
            version = message.get("params", {}).get("protocolVersion")
            info = {"name": "bad", "version": "1"}
            results = {
                "initialize": {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info},
                "tools/list": {"tools": [{"name": "say", "inputSchema": {"type": "object"}}]},
            }
            if message["method"] in results:
                reply = {"jsonrpc": "2.0", "id": message["id"], "result": results[message["method"]]}
                self._answer(200, "application/json", json.dumps(reply).encode())
            elif "id" in message:
                self._answer(*answers["call"])
            else:
                self._answer(202, "text/plain", b"")

        def _answer(self, status: int, kind: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/mcp", answers
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("status", "kind", "body", "named"),
    [
        (500, "text/html", b"<h1>no</h1>", "error response"),
        (401, "application/json", b"{}", "error response"),
        (404, "text/html", b"", "Not Found"),
        (200, "text/html", b"<h1>hi</h1>", "text/html"),
        (200, "application/json", b'{"jsonrpc":', "JSON"),
        (200, "application/json", b"", "JSON"),
        (200, "text/event-stream", b'data: {"json\n\n', "SSE"),
        (200, "text/event-stream", b"", "SSE stream ended"),
        (202, "text/plain", b"", "202"),
    ],
)
@pytest.mark.parametrize("isolation", ["shared", "episode"])
def test_bad_answer_over_http_is_the_servers_fault(
    bad_answers: tuple[str, dict[str, tuple[int, str, bytes]]],
    isolation: str,
    status: int,
    kind: str,
    body: bytes,
    named: str,
) -> None:
    url, answers = bad_answers
    answers["call"] = status, kind, body
    place = {"url": url, "isolation": isolation, "state_per_session": isolation == "episode", "protocol": "legacy"}
    config = MCPServerConfig.model_validate({**place, "max_start_attempts": 1})
    said = run_async(call_on_new_server(config, "say"))
    assert said.startswith("mcp's fault: ")
    assert named in said
    assert "\n" not in said


@pytest.mark.parametrize("isolation", ["shared", "episode"])
def test_no_session_is_open_or_starting_after_the_pools_are_closed(
    bad_answers: tuple[str, dict[str, tuple[int, str, bytes]]], isolation: str
) -> None:
    url, _ = bad_answers
    place = {"url": url, "isolation": isolation, "state_per_session": isolation == "episode", "protocol": "legacy"}
    servers = {"s": MCPServerConfig.model_validate({**place, "warm_sessions": 3})}

    async def tasks_left() -> set[asyncio.Task[Any] | None]:
        pools = SessionPools(servers)
        async with MCPToolkit(servers, pools=pools):
            pass
        assert len(asyncio.all_tasks()) > 2  # the session, and those that are started ahead
        await pools.close()
        return asyncio.all_tasks() - {asyncio.current_task()}

    assert asyncio.run(tasks_left()) == set()


def test_error_that_a_server_returns_over_http_is_shown_to_the_agent(
    bad_answers: tuple[str, dict[str, tuple[int, str, bytes]]],
) -> None:
    url, answers = bad_answers
    error = {"jsonrpc": "2.0", "id": 2, "error": {"code": -32602, "message": "text is missing"}}
    answers["call"] = 400, "application/json", json.dumps(error).encode()
    config = MCPServerConfig(url=url, isolation="shared", protocol="legacy")
    assert run_async(call_on_new_server(config, "say")) == "refused: text is missing"


@pytest.mark.parametrize(
    ("status", "named"),
    [(401, "headers"), (403, "headers"), (404, "streamable HTTP"), (405, "SSE is not supported")],
)
def test_http_server_that_refuses_the_handshake_is_named_with_its_address(status: int, named: str) -> None:
    class Refuses(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(status)
            self.send_header("content-length", "0")
            self.end_headers()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Refuses)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/mcp"
    try:
        said = run_async(call_on_new_server(MCPServerConfig(url=url, isolation="shared", max_start_attempts=1), "say"))
    finally:
        server.shutdown()
        server.server_close()
    assert "did not start" in said
    assert url in said
    assert str(status) in said
    assert named in said
    assert "\n" not in said


def test_process_that_exits_at_once_shows_its_command_and_its_log() -> None:
    command = (sys.executable, "-c", "import sys; sys.exit('no licence')")
    said = run_async(call_on_new_server(MCPServerConfig(command=command, max_start_attempts=1), "say"))
    assert "did not start" in said
    assert sys.executable in said
    assert "no licence" in said


@pytest.mark.parametrize("message", ["Connection closed", "Session terminated"])
def test_error_of_a_live_server_that_reads_like_a_lost_connection_is_shown_to_the_agent(message: str) -> None:
    command = (sys.executable, str(UNRULY.with_name("raw_schemas.py")), '{"inputSchema": {"type": "object"}}', message)
    config = MCPServerConfig(command=command, max_start_attempts=1)
    assert run_async(call_on_new_server(config, "say")) == f"refused: {message}"
