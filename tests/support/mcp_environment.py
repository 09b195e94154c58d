"""An MCP environment with the server of `mcp_servers/unruly.py`, which has a counter."""

import json
import sys
from pathlib import Path
from typing import Any

from support.mcp_kit import UNRULY

ADD = {"tool": "add", "arguments": {"amount": 3}}
TASKS: list[dict[str, Any]] = [
    {
        "id": "count/1",
        "prompt": "Add three to the count, then four.",
        "split": "train",
        "gold": [ADD, {"tool": "add", "arguments": {"amount": 4}}],
        "check": {"state": {"tool": "count", "equals": {"count": 7}}},
    },
    {
        "id": "count/2",
        "family": "ask",
        "prompt": "What is the sum of everything so far?",
        "split": "train",
        "setup": [{"tool": "add", "arguments": {"amount": 41}}],
        "gold": [{"tool": "count"}],
        "final_answer": "It is 41.",
        "check": {"answer": {"number": 41}},
    },
    {
        "id": "count/3",
        "prompt": "Bring it to five and back down by two, please.",
        "split": "test",
        "difficulty": "medium",
        "gold": [{"tool": "tally.add", "arguments": {"amount": 5}}, {"tool": "add", "arguments": {"amount": -2}}],
        "check": {
            "state": {"tool": "count"},
            "calls": {"required": [{"tool": "add"}], "forbidden": [{"tool": "add", "arguments": {"amount": 3}}]},
        },
    },
]


def write_environment(
    folder: Path, tasks: list[dict[str, Any]] | None = None, server: str = "", rest: str = "", *, sdk: bool = False
) -> Path:
    """Write the files of an environment, and return the path of its TOML file. With `sdk` the server is the SDK's."""
    command = [sys.executable, str(UNRULY), *(["--sdk"] if sdk else [])]
    lines = [json.dumps(task) + "\n" for task in (TASKS if tasks is None else tasks)]
    (folder / "tasks.jsonl").write_text("".join(lines), encoding="utf-8")
    (folder / "tally.toml").write_text(
        f"""
domain_policy = "You keep a count."
tasks = "tasks.jsonl"
{rest}
[server]
command = {json.dumps(command)}
read_only_tools = ["count"]
deny = ["sleep", "babble"]
max_sessions = 2
reset = {{tool = "reset"}}
call_timeout = 60
{server}
""",
        encoding="utf-8",
    )
    return folder / "tally.toml"
