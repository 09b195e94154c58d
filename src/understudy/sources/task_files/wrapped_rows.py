"""Rows inside of others: a conversation without a name for it, and a chat completion whose text is a row as JSON.

[{"role": "user", …}, {"role": "assistant", …}]                  ->  {"messages": […]}
{"choices": [{"message": {"content": "{\\"task_id\\": …}"}}]}      ->  {"task_id": …}
"""

from typing import Any

from understudy.sources.task_files.conversation_rows import is_message_list
from understudy.sources.task_files.task_row import decode

_PROMPT_COLUMNS = ("user_prompt", "user_query")
"""Names of the prompt in rows that models have written."""


def unwrap_row(value: Any) -> Any:
    """Return the row inside of a value, or the value itself if it is no wrapped row."""
    if is_message_list(value):
        return {"messages": value}
    inner = decode(_completion_text(value))
    if not isinstance(inner, dict):
        return value
    prompt = next((inner[name] for name in _PROMPT_COLUMNS if name in inner), None)
    return inner if "prompt" in inner or prompt is None else {**inner, "prompt": prompt}


def _completion_text(value: Any) -> Any:
    """Return the text of a stored chat completion; None for another value."""
    choices = value.get("choices") if isinstance(value, dict) else None
    first = choices[0] if isinstance(choices, list) and choices else None
    message = first.get("message") if isinstance(first, dict) else None
    return message.get("content") if isinstance(message, dict) else None
