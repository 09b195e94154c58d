"""OpenAI's wire format as text: `{"tool_calls": [{"type": "function", "function": {"name": …, "arguments": "…"}}]}`."""

from understudy.formats.dialects.plain import dumped, lines
from understudy.messages import ToolCall


def write(content: str, calls: tuple[ToolCall, ...]) -> str:
    """All calls in one object, the arguments of each as the text of their JSON; `plain` reads it."""
    made = [
        {"type": "function", "function": {"name": call.name, "arguments": dumped(call.arguments)}} for call in calls
    ]
    return lines(content, [dumped({"tool_calls": made})] if calls else [])
