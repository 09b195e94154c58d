"""OpenAI's wire format as text: `{"tool_calls": [{"type": "function", "function": {"name": …, "arguments": "…"}}]}`.

The module `plain` reads it.
"""

from understudy.core.messages import ToolCall
from understudy.formats.tool_parsers.plain import dump_json, join_lines


def render_reply_text(content: str, calls: tuple[ToolCall, ...]) -> str:
    """Write all calls in one object, with arguments as JSON text."""
    wire_calls = [
        {"type": "function", "function": {"name": call.name, "arguments": dump_json(call.arguments)}} for call in calls
    ]
    return join_lines(content, [dump_json({"tool_calls": wire_calls})] if calls else [])
