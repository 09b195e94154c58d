"""A tool server (MCP over stdio) with one counter, which fails by the plan in a folder.

    python -m tests.faults.tool_server FOLDER

It uses the standard library only, so that each episode starts one in a fraction of a second.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.faults.injection import HANG, FaultInjector

SLOW_SECONDS = 0.05
COMPONENT = "MCP server"
TOOLS = [
    {
        "name": "add",
        "description": "Add to the count.",
        "inputSchema": {"type": "object", "properties": {"amount": {"type": "integer"}}, "required": ["amount"]},
    },
    {"name": "count", "description": "Return the count.", "inputSchema": {"type": "object", "properties": {}}},
]


def main(folder: Path) -> None:
    """Answer the requests on standard input."""
    injector, count = FaultInjector(folder), 0
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message:
            continue
        if message["method"] == "tools/call":
            arguments = message["params"].get("arguments") or {}
            count += int(arguments.get("amount", 0))
            fault = injector.find_fault(COMPONENT, f"{message['params']['name']} {arguments}")
            if fault:
                _fail(fault, message["id"])
            result: Mapping[str, Any] = {"content": [{"type": "text", "text": f"the count is {count}"}]}
        elif message["method"] == "initialize":
            server = {"name": "counter", "version": "1"}
            version = message["params"]["protocolVersion"]
            result = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": server}
        else:
            result = {"tools": TOOLS} if message["method"] == "tools/list" else {}
        _write({"jsonrpc": "2.0", "id": message["id"], "result": result})


def _fail(fault: str, request: int) -> None:
    if fault == "death":
        os._exit(3)
    if fault == "wrong data":
        _write({"jsonrpc": "2.0", "id": request, "result": {"content": 17}})
    if fault == HANG:
        signal.pause()
    time.sleep(SLOW_SECONDS)


def _write(message: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
