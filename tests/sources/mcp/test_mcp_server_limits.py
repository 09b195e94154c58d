"""Tests of the limits of a server's HTTP sessions."""

import asyncio
import itertools
import socket
from typing import Any

import httpx2
import pytest
import uvicorn
from mcp import Client, MCPError

from understudy.core.messages import ToolCall, ToolSpec
from understudy.sources.mcp.server import ServedSession, ServerDefinition, build_http_app

ACCEPT = {"accept": "application/json, text/event-stream"}
CLIENT = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
INITIALIZE = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": CLIENT}


class NoTools:
    def specs(self) -> list[ToolSpec]:
        return []

    async def call(self, call: ToolCall) -> str:
        raise NotImplementedError


def test_http_sessions_are_limited_for_a_client_and_in_all_and_idle_ones_make_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in (("MAX_CLIENT_SESSIONS", 2), ("MAX_SESSIONS", 3), ("SPARE_SECONDS", 60)):
        monkeypatch.setattr(f"understudy.sources.mcp.server.{name}", value)
    ended: list[int] = []
    made = itertools.count()

    def opened(parameters: Any) -> ServedSession:
        number = next(made)

        async def close() -> None:
            ended.append(number)

        return ServedSession(NoTools(), close=close)

    async def talk() -> None:
        listening = socket.create_server(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/mcp"
        server = uvicorn.Server(uvicorn.Config(build_http_app(ServerDefinition("x", opened)), log_level="critical"))
        serving = asyncio.create_task(server.serve([listening]))
        clients = [Client(url, mode="legacy") for _ in range(4)]
        first, second, third, other = clients
        async with first, second:
            for client in (first, second):
                await client.list_tools()
            with pytest.raises(BaseExceptionGroup) as refused:
                async with third:
                    pass
            assert refused.group_contains(MCPError, match="at most 2 sessions of one client")
            elsewhere = httpx2.AsyncHTTPTransport(local_address="127.0.0.2")
            async with httpx2.AsyncClient(transport=elsewhere, timeout=60) as far:
                assert (await far.post(url, json=INITIALIZE, headers=ACCEPT)).status_code == 200
                reply = await far.post(url, json=INITIALIZE, headers=ACCEPT)
                assert (reply.status_code, reply.json()["error"]["message"]) == (503, "at most 3 sessions may be open")
            assert not ended
        async with other:  # the first two have ended themselves
            await other.list_tools()
        assert sorted(ended) == [0, 1, 2]
        async with httpx2.AsyncClient(timeout=60) as crashed:  # who never ends a session
            names = [(await crashed.post(url, json=INITIALIZE, headers=ACCEPT)).headers["mcp-session-id"] for _ in "ab"]
            assert (await crashed.post(url, json=INITIALIZE, headers=ACCEPT)).status_code == 503
            monkeypatch.setattr("understudy.sources.mcp.server.SPARE_SECONDS", 0.0)
            assert (await crashed.post(url, json=INITIALIZE, headers=ACCEPT)).status_code == 200
            gone = {"mcp-session-id": names[0], **ACCEPT}
            assert (await crashed.post(url, json=INITIALIZE, headers=gone)).status_code == 404
        server.should_exit = True
        await serving

    asyncio.run(talk())
