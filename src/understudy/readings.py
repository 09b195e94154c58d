"""What replies say and call, as JSON lines: `understudy parse`."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from pydantic import ValidationError

from understudy.errors import ConfigError
from understudy.formats.parse import Reading, parse
from understudy.messages import ToolCall, ToolSpec


def read(replies: IO[bytes], format: str = "", tools: Sequence[ToolSpec] = (), jsonl: bool = False) -> Iterator[str]:
    """A line of JSON for each reply: the whole input, or each of its lines. Bytes that are not UTF-8 are replaced."""
    texts = _texts(replies) if jsonl else [replies.read().decode(errors="replace")]
    return (json.dumps(_shown(parse(text, format, tools)), ensure_ascii=False) for text in texts)


def load_tools(file: Path) -> tuple[ToolSpec, ...]:
    """The tools in a JSON file: a list, each as the chat completions API takes it or just its function."""
    try:
        listed = json.loads(file.read_text(encoding="utf-8"))
        return tuple(ToolSpec.model_validate(_function(tool)) for tool in listed)
    except (OSError, ValueError, TypeError, ValidationError) as e:
        text = str(e).splitlines()[0]
        raise ConfigError(f"{file} is not a JSON list of tools, each with name and parameters: {text}") from e


def _function(tool: dict[str, Any]) -> dict[str, Any]:
    function = tool.get("function", tool)
    kept = {key: value for key, value in function.items() if key in ToolSpec.model_fields}
    return {"description": "", "parameters": {}} | kept


def _texts(lines: IO[bytes]) -> Iterator[str]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except ValueError as e:
            raise ConfigError(f"line {number} is not JSON: {e}") from e
        text = value.get("text") if isinstance(value, dict) else value
        if not isinstance(text, str):
            raise ConfigError(f"line {number} is neither a string nor an object with a text")
        yield text


def _shown(reading: Reading) -> dict[str, Any]:
    return {
        "calls": [_call(call) for call in reading.calls],
        "text": reading.text,
        "status": reading.status,
        "repairs": dict(reading.repairs),
        "other_side": reading.other_side,
        "reason": reading.reason,
    }


def _call(call: ToolCall) -> dict[str, Any]:
    return call.model_dump(include={"name", "malformed"} if call.malformed else {"name", "arguments"})
