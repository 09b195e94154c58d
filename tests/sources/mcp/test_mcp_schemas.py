"""Tests of schemas whose validation does not end: they are faults of the server that has them."""

import asyncio
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import support
from support.mcp_kit import call_result, run_async
from understudy.sources.mcp.config import MCPEnvironmentConfig, MCPServerConfig
from understudy.sources.mcp.source import MCPEnvironmentResources, MCPTaskSource
from understudy.sources.mcp.toolkit import MCPToolkit

SERVER = Path(support.__file__).parent / "mcp_servers" / "raw_schemas.py"
PATTERN = {"type": "object", "properties": {"text": {"type": "string", "pattern": "^(a+)+$"}}}
CIRCLE = {"type": "object", "properties": {"text": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"$ref": "#/$defs/a"}}}
TREE = {"type": "object", "properties": {"text": {"type": "string"}, "next": {"$ref": "#"}}}


ANY = {"type": "object"}


async def call_say(schema: dict[str, Any], text: str, output_schema: dict[str, Any] = ANY) -> tuple[str, int]:
    """Return the result of a call, and how often the event loop did something else meanwhile, every 0.01 s."""
    keys = json.dumps({"inputSchema": schema, "outputSchema": output_schema})
    config = MCPServerConfig(command=(sys.executable, str(SERVER), keys), warm_sessions=0)
    turns = 0

    async def take_turns() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0.01)
            turns += 1

    async with MCPToolkit({"raw": config}) as kit:
        others = asyncio.ensure_future(take_turns())
        result = await call_result(kit, "say", text=text)
        others.cancel()
    return result, turns


@pytest.mark.parametrize("schema", [PATTERN, TREE])
def test_schema_with_patterns_and_references_is_used(schema: dict[str, Any]) -> None:
    said = "said", '{"text": "aaa"}'  # the structured content too, because the text lacks it
    assert tuple(run_async(call_say(schema, "aaa"))[0].split("\n")) == said


def test_arguments_that_break_a_pattern_are_an_error_of_the_model() -> None:
    assert run_async(call_say(PATTERN, "b"))[0].startswith("invalid_arguments")


def test_schema_that_refers_to_itself_is_a_fault_of_the_server() -> None:
    assert run_async(call_say(CIRCLE, "a"))[0].startswith("mcp's fault")


def test_pattern_that_takes_exponential_time_is_a_fault_of_the_server() -> None:
    result, turns = run_async(call_say(PATTERN, "a" * 60 + "b"))
    assert result.startswith("mcp's fault")
    assert "say" in result
    assert turns > 5, "other episodes go on"


@pytest.mark.parametrize("output_schema", [PATTERN, CIRCLE])
def test_output_schema_that_cannot_be_used_is_a_fault_of_the_server(output_schema: dict[str, Any]) -> None:
    result, _ = run_async(call_say(ANY, "a" * 60 + "b", output_schema))
    assert result.startswith("mcp's fault")


def test_patterns_of_javascript_are_compared_with_neither_arguments_nor_results() -> None:
    foreign = {"type": "object", "properties": {"text": {"type": "string", "pattern": r"\p{L}"}}}
    for schemas in ((ANY, foreign), (foreign, ANY)):
        assert run_async(call_say(schemas[0], "1", schemas[1]))[0].startswith("said\n")
    other = {**foreign, "required": ["missing"]}
    assert run_async(call_say(ANY, "1", other))[0].startswith("mcp's fault")
    keys = json.dumps({"inputSchema": ANY, "outputSchema": foreign})
    servers = {"raw": MCPServerConfig(command=(sys.executable, str(SERVER), keys))}
    source = MCPTaskSource(MCPEnvironmentResources(MCPEnvironmentConfig(name="raw", servers=servers)))
    pattern, start = source.notes()
    assert re.match(r"results of 'say' .*'raw'.*p\{L\}", pattern)
    assert re.search(r"'raw' \(\d+\.\d s now\)", start)
    shared = {"raw": servers["raw"].replace(isolation="shared")}
    source = MCPTaskSource(MCPEnvironmentResources(MCPEnvironmentConfig(name="raw", servers=shared)))
    assert source.notes() == (pattern,)


def test_output_schema_with_patterns_and_references_is_used() -> None:
    for schema in (PATTERN, TREE):
        assert run_async(call_say(ANY, "aaa", schema))[0].startswith("said\n")
    assert run_async(call_say(ANY, "b", PATTERN))[0].startswith("mcp's fault")
