"""`understudy parse`: the texts and tool calls of replies, as JSON lines."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from pydantic import ValidationError
from pydantic_core import from_json

from understudy.core.errors import ConfigError
from understudy.core.messages import ToolSpec
from understudy.formats.parsing.parse import ParsedReply, parse_reply


def parse_replies(
    replies: IO[bytes], tool_parser: str = "", tools: Sequence[ToolSpec] = (), jsonl: bool = False
) -> Iterator[str]:
    """Yield one JSON line a reply: the whole input, or each of its lines. Invalid UTF-8 is replaced."""
    texts = _texts(replies) if jsonl else [replies.read().decode(errors="replace")]
    return (json.dumps(_reply_to_dict(parse_reply(text, tool_parser, tools)), ensure_ascii=False) for text in texts)


def load_tools(file: Path) -> tuple[ToolSpec, ...]:
    """Read tools from a JSON file: a list in the format of the chat-completions API, or of functions."""
    try:
        listed = from_json(file.read_bytes())
    except OSError as e:
        raise ConfigError(f"{file} cannot be read: {e.strerror}") from e
    except ValueError as e:
        raise ConfigError(f"{file} is not JSON: {e}") from e
    try:
        return tuple(ToolSpec.model_validate(_function(tool)) for tool in listed)
    except (AttributeError, TypeError, ValidationError) as e:
        text = str(e).splitlines()[0]
        raise ConfigError(f"{file} is not a JSON list of tools, each with name and parameters: {text}") from e


def _function(tool: dict[str, Any]) -> dict[str, Any]:
    function = tool.get("function", tool)
    known_fields = {key: value for key, value in function.items() if key in ToolSpec.model_fields}
    return {"description": "", "parameters": {}} | known_fields


def _texts(lines: IO[bytes]) -> Iterator[str]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as e:
            raise ConfigError(f"line {number} is not JSON: {e}") from e
        text = value.get("text") if isinstance(value, dict) else value
        if not isinstance(text, str):
            raise ConfigError(f"line {number} is neither a JSON string nor an object with a string in the key 'text'")
        yield text


def _reply_to_dict(reply: ParsedReply) -> dict[str, Any]:
    return {
        "tool_calls": [call.model_dump(include={"name", "arguments", "parse_error"}) for call in reply.calls],
        "text": reply.text,
        "status": reply.status,
        "repairs": dict(reply.repairs),
        "hallucinated_turn": reply.hallucinated_turn,
        "error": reply.error,
    }
