"""An MCP server over stdio without the SDK. Its one tool `say` has the keys that are its first argument, as JSON.

The tool returns the text of a call, also as structured content. A second argument is a JSON-RPC error's message, which
each call returns instead.
"""

import json
import sys
from typing import Any


def answer(method: str, params: Any) -> dict[str, Any]:
    if method == "initialize":
        about = {"name": "raw", "version": "1"}
        return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": about}
    if method == "tools/list":
        return {"tools": [{"name": "say", "description": "Say it.", **json.loads(sys.argv[1])}]}
    if method == "tools/call":
        content = [{"type": "text", "text": "said"}]
        return {"content": content, "structuredContent": params["arguments"], "isError": False}
    return {}


for line in sys.stdin:
    request = json.loads(line)
    if "id" in request:
        if request["method"] == "tools/call" and len(sys.argv) > 2:
            reply = {"error": {"code": -32000, "message": sys.argv[2]}}
        else:
            reply = {"result": answer(request["method"], request.get("params"))}
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], **reply}), flush=True)
