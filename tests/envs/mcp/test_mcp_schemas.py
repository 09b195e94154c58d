"""Tests of schemas whose validation does not end: they are faults of the server that has them."""

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import support
from support.mcp_kit import call_result, run_async
from understudy.envs.mcp.config import MCPServerConfig
from understudy.envs.mcp.toolkit import MCPToolkit

SERVER = Path(support.__file__).parent / "mcp_servers" / "raw_schemas.py"
PATTERN = {"type": "object", "properties": {"text": {"type": "string", "pattern": "^(a+)+$"}}}
CIRCLE = {"type": "object", "properties": {"text": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"$ref": "#/$defs/a"}}}
TREE = {"type": "object", "properties": {"text": {"type": "string"}, "next": {"$ref": "#"}}}


async def call_say(schema: dict[str, Any], text: str) -> tuple[str, float]:
    """Return the result of a call, and the longest time for which the event loop was blocked, in seconds."""
    config = MCPServerConfig(command=(sys.executable, str(SERVER), json.dumps(schema)), warm_sessions=0)
    longest, last = 0.0, time.perf_counter()

    async def watch() -> None:
        nonlocal longest, last
        while True:
            await asyncio.sleep(0.01)
            longest, last = max(longest, time.perf_counter() - last), time.perf_counter()

    async with MCPToolkit({"raw": config}) as kit:
        last = time.perf_counter()
        watching = asyncio.ensure_future(watch())
        result = await call_result(kit, "say", text=text)
        watching.cancel()
    return result, longest


@pytest.mark.parametrize("schema", [PATTERN, TREE])
def test_schema_with_patterns_and_references_is_used(schema: dict[str, Any]) -> None:
    assert run_async(call_say(schema, "aaa"))[0] == "said"


def test_arguments_that_break_a_pattern_are_an_error_of_the_model() -> None:
    assert run_async(call_say(PATTERN, "b"))[0].startswith("invalid_arguments")


def test_schema_that_refers_to_itself_is_a_fault_of_the_server() -> None:
    assert run_async(call_say(CIRCLE, "a"))[0].startswith("mcp's fault")


def test_pattern_that_takes_exponential_time_is_a_fault_of_the_server() -> None:
    result, blocked = run_async(call_say(PATTERN, "a" * 60 + "b"))
    assert result.startswith("mcp's fault")
    assert "say" in result
    assert blocked < 0.4, "other episodes go on"
