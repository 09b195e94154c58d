"""Faults of real MCP servers, over stdio and over HTTP: each is one clear line, and the server's."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from support.mcp_kit import UNRULY, call_on_new_server, call_result, run_async, running_servers, unruly_config
from understudy.envs.mcp import session, transport
from understudy.envs.mcp.config import MCPServerConfig
from understudy.envs.mcp.toolkit import MCPToolkit

pytestmark = pytest.mark.slow


def http_config(**settings: object) -> MCPServerConfig:
    """Return the config of an unruly server over HTTP, whose answers are events of a stream."""
    return unruly_config("http {port}", **{"url": "http://127.0.0.1:{port}/mcp", "protocol": "legacy", **settings})


@pytest.mark.parametrize("protocol", ["legacy", "auto"])
def test_large_result_over_http_is_truncated_as_over_stdio(protocol: str) -> None:
    async def both() -> tuple[str, str]:
        over_http = await call_on_new_server(http_config(protocol=protocol), "babble", megabytes=3)
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
    assert "babble" in said
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
from understudy.envs.mcp.toolkit import MCPToolkit
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
        parent.wait(10)
    until = time.monotonic() + 10
    while any(server.is_running() and server.status() != psutil.STATUS_ZOMBIE for server in servers):
        assert time.monotonic() < until
        time.sleep(0.05)
