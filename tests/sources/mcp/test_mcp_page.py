"""Test that the server on the page about MCP runs."""

import asyncio
import sys
from pathlib import Path

import pytest

from support import pages
from understudy.core.errors import ToolError
from understudy.core.messages import ToolCall
from understudy.sources.mcp.config import MCPServerConfig
from understudy.sources.mcp.toolkit import MCPToolkit


def test_the_server_of_the_page_answers_calls(tmp_path: Path) -> None:
    blocks = pages.blocks(pages.ROOT / "docs" / "mcp.md", language="python")
    (text,) = (block.text for block in blocks if "MCPServer(" in block.text and "server.run" in block.text)
    (tmp_path / "lamps.py").write_text(text)

    async def play() -> list[str]:
        config = MCPServerConfig(command=(sys.executable, str(tmp_path / "lamps.py")))
        async with MCPToolkit({"lamps": config}) as kit:
            assert [spec.name for spec in kit.specs()] == ["list_lamps", "switch"]
            with pytest.raises(ToolError, match="no lamp attic"):
                await kit.call(ToolCall(name="switch", arguments={"lamp": "attic", "on": True}))
            calls = (("switch", {"lamp": "hall", "on": True}), ("list_lamps", {}))
            return [await kit.call(ToolCall(name=name, arguments=arguments)) for name, arguments in calls]

    done, lamps = asyncio.run(play())
    assert done == "done"
    assert '"hall": true' in lamps
